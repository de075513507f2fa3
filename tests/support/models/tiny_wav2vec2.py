"""A wav2vec 2.0, a HuBERT or a WavLM as the Hub has them, but tiny: weights, sizes, and how it reads audio."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForCTC,
    HubertConfig,
    UniSpeechSatConfig,
    Wav2Vec2Config,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2FeatureExtractor,
    WavLMConfig,
)

CONFIGS: dict[str, Any] = {
    "wav2vec2": Wav2Vec2Config,
    "hubert": HubertConfig,
    "wavlm": WavLMConfig,
    "unispeech-sat": UniSpeechSatConfig,
}


def write_base(folder: Path, family: str, norm: str, languages: Mapping[str, str] | None = None) -> Path:
    """A folder that ``from_pretrained`` reads; of wav2vec2's sizes, a frame is 20 ms.

    ``languages`` are the letters of some, each with an adapter, as MMS has them.
    """
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    config = CONFIGS[family](
        **sizes,
        conv_dim=(16,) * 7,
        feat_extract_norm=norm,
        do_stable_layer_norm=norm == "layer",
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2,
        vocab_size=12,
        **({"adapter_attn_dim": 4} if languages else {}),
    )
    torch.manual_seed(0)
    auto: Any = AutoModelForCTC  # it has no types
    model = auto.from_config(config)
    model.save_pretrained(folder)
    tokens = {}
    for language, letters in (languages or {}).items():
        tokens[language] = {name: number for number, name in enumerate(("<pad>", "<unk>", "|", *letters))}
        model.lm_head = torch.nn.Linear(32, len(tokens[language]))
        model.init_adapter_layers()
        for weight in model._get_adapters().values():
            torch.nn.init.normal_(weight, std=0.3)
        save_file(model._get_adapters(), folder / f"adapter.{language}.safetensors", metadata={"format": "pt"})
    if languages:
        (folder / "vocab.json").write_text(json.dumps(tokens))
        Wav2Vec2CTCTokenizer(
            str(folder / "vocab.json"), bos_token=None, eos_token=None, target_lang=next(iter(languages))
        ).save_pretrained(folder)
    Wav2Vec2FeatureExtractor().save_pretrained(folder)
    return folder
