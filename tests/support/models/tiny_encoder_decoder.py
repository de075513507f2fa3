"""Encoder–decoders as the Hub has them, but tiny: weights, configuration and tokenizer in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from tiny_decoder import VOCAB_SIZE, byte_tokenizer

OF_BOTH = {"vocab_size": VOCAB_SIZE, "d_model": 32, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
T5 = {**OF_BOTH, "d_kv": 6, "d_ff": 48, "num_heads": 4, "num_layers": 2, "num_decoder_layers": 3}
MARIAN = {
    **OF_BOTH,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "forced_eos_token_id": 1,
    "scale_embedding": True,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5", T5),
    "t5 1.1": ("T5", {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "marian": ("Marian", {**MARIAN, "activation_function": "swish"}),
    "marian, relu": ("Marian", {**MARIAN, "activation_function": "relu"}),
}


def write_folder(folder: Path, kind: str, **others: Any) -> Any:
    """A tiny model with a tokenizer of bytes."""
    name, options = MODELS[kind]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**(options | others))
    model = getattr(transformers, "MarianMTModel" if name == "Marian" else f"{name}ForConditionalGeneration")(config)
    if kind == "t5 1.1":
        model.lm_head.weight = nn.Parameter(torch.zeros(VOCAB_SIZE, 32))
    with torch.no_grad():
        for tensor in filter(lambda one: one.requires_grad, model.parameters()):
            tensor += 0.1 * torch.randn_like(tensor)
        if name == "Marian":
            model.final_logits_bias.normal_()
    model.save_pretrained(folder)
    if kind == "t5 1.1":  # as the Hub has it
        about = json.loads((folder / "config.json").read_text())
        about.pop("scale_decoder_outputs", None)
        (folder / "config.json").write_text(json.dumps({**about, "tie_word_embeddings": False}))
    byte_tokenizer(pad="<pad>", eos="</s>", unk="<unk>").save_pretrained(folder)
    return model.eval()
