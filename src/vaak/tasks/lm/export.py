"""A trained decoder as a folder that transformers loads without Vaak: the same weights under Llama's names.

    config.json            LlamaForCausalLM, or Qwen3ForCausalLM if queries and keys are normalised
    generation_config.json model.safetensors  tokenizer.json  tokenizer_config.json  special_tokens_map.json

The files are plain JSON and safetensors; transformers is not needed to write them. The tokenizer puts the token that
begins a document before every text, as training does, and none after it: what ends a document is predicted, never read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import Tokenizer, processors

from vaak.core.errors import UserError
from vaak.core.storage.files import sync_directory, sync_file, usual_mode, whole_folder, write_json, write_text
from vaak.nn.feed_forward import inner_width
from vaak.nn.initialisation import DEVIATION
from vaak.nn.positions.rotary import ntk_theta
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.model import LanguageModel

PARTS_OF_A_BLOCK = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}
OTHER_PARTS = {"embedding": "model.embed_tokens", "stack.norm": "model.norm", "head": "lm_head"}
OF_LLAMA = {
    "attention_type": "softmax",
    "feed_forward_type": "swiglu",
    "norm_type": "rmsnorm",
    "norm_placement": "pre",
    "position_type": "rotary",
    "bias": False,
}
"""Options of a stack with the only value that transformers' Llama and Qwen3 support."""
SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "mask_token", "sep_token", "cls_token")


def export_hf(
    model: LanguageModel, tokenizer_file: Path, special_tokens: dict[str, str], max_length: int, folder: Path
) -> None:
    """Write ``folder``, completely or not at all.

    ``special_tokens`` gives the text of tokens by transformers' names (``bos_token``, ``eos_token``, ``pad_token``, …);
    ``max_length`` is the length the model was trained with.

    ``tokenizer_file`` is the run's tokenizer.

    Raises UserError for an encoder, a tokenizer that does not fit the model, a special token the tokenizer does not
    know, and a folder that has something in it or can't be written.
    """
    _refuse_what_transformers_lacks(model.config)
    special_ids = _special_ids(tokenizer_file, special_tokens, model.vocab_size)
    with whole_folder(folder) as made:
        _write_files(made, model, tokenizer_file, special_tokens, special_ids, max_length)


def _refuse_what_transformers_lacks(config: LanguageModelConfig) -> None:
    """Raise UserError for a model that is neither Llama nor Qwen3."""
    if config.model_type != "decoder":
        raise UserError(
            "Only a decoder can be exported: transformers has no encoder of this kind (rotary, pre-norm, SwiGLU)."
        )
    for name, value in OF_LLAMA.items():
        if getattr(config, name) != value:
            raise UserError(
                f"A model with {name} {getattr(config, name)} can't be exported: transformers' Llama has {value}."
            )


def _rope_parameters(config: LanguageModelConfig) -> dict[str, Any]:
    """The rotary positions under transformers' names; ntk scaling changes the base of the wavelengths."""
    factor = config.rope_scaling_factor
    if factor == 1:
        return {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling_type == "linear":
        return {"rope_type": "linear", "rope_theta": config.rope_theta, "factor": factor}
    return {"rope_type": "default", "rope_theta": ntk_theta(config.rope_theta, config.head_width, factor)}


def hf_config(model: LanguageModel, max_length: int) -> dict[str, Any]:
    """The model's ``config.json``."""
    config, rope = model.config, _rope_parameters(model.config)
    return {
        "architectures": ["Qwen3ForCausalLM" if config.qk_norm else "LlamaForCausalLM"],
        "model_type": "qwen3" if config.qk_norm else "llama",
        "vocab_size": model.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": inner_width(config.d_model, config.d_ff, config.feed_forward_type),
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_key_value_heads or config.num_heads,
        "head_dim": config.head_width,
        "hidden_act": "silu",
        "max_position_embeddings": max_length,
        "rms_norm_eps": config.norm_eps,
        # transformers 5 reads rope_parameters, transformers 4 rope_theta.
        "rope_theta": rope["rope_theta"],
        "rope_parameters": rope,
        "attention_bias": False,
        "attention_dropout": 0.0,
        **({} if config.qk_norm else {"mlp_bias": False}),
        "initializer_range": DEVIATION,
        "tie_word_embeddings": model.config.tie_embeddings,
        "dtype": str(model.embedding.weight.dtype).removeprefix("torch."),
        "use_cache": True,
    }


def hf_weights(model: LanguageModel) -> dict[str, torch.Tensor]:
    """The weights under transformers' names, on the CPU; a tied head is not repeated."""
    return {_hf_name(name): tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}


def _hf_name(name: str) -> str:
    """``stack.blocks.3.attention.query.weight`` → ``model.layers.3.self_attn.q_proj.weight``."""
    part = name.removesuffix(".weight")
    if part in OTHER_PARTS:
        return f"{OTHER_PARTS[part]}.weight"
    layer, part = part.removeprefix("stack.blocks.").split(".", 1)
    return f"model.layers.{layer}.{PARTS_OF_A_BLOCK[part]}.weight"


def _special_ids(tokenizer_file: Path, special_tokens: dict[str, str], vocab_size: int) -> dict[str, int]:
    """The numbers of the special tokens, by transformers' names."""
    if not tokenizer_file.is_file():
        raise UserError(f"The tokenizer {tokenizer_file} does not exist.")
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    if tokenizer.get_vocab_size() > vocab_size:
        raise UserError(
            f"The tokenizer {tokenizer_file} has {tokenizer.get_vocab_size()} tokens, the model only {vocab_size}; "
            "export the model with the tokenizer it was trained with."
        )
    ids = {}
    for name, token in special_tokens.items():
        token_id = tokenizer.token_to_id(token)
        if name not in SPECIAL_TOKENS:
            raise UserError(
                f"{name} is not a special token of transformers; expected one of {', '.join(SPECIAL_TOKENS)}."
            )
        if token_id is None:
            raise UserError(f"The tokenizer {tokenizer_file} has no token {token!r} (given as {name}).")
        ids[name] = token_id
    return ids


def _as_read_in_training(tokenizer_file: Path, special_tokens: dict[str, str], special_ids: dict[str, int]) -> str:
    """The tokenizer, as JSON, with ``bos_token`` before every text if there is one."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    if bos := special_tokens.get("bos_token"):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B:1", special_tokens=[(bos, special_ids["bos_token"])]
        )
    return str(tokenizer.to_str())


def _write_files(
    folder: Path,
    model: LanguageModel,
    tokenizer_file: Path,
    special_tokens: dict[str, str],
    special_ids: dict[str, int],
    max_length: int,
) -> None:
    """Write all files of the export to ``folder``.

    ``model``, ``tokenizer_file``, ``special_tokens`` and ``max_length`` are those of ``export_hf``; ``special_ids`` has
    the ids of the special tokens by the same names.
    """
    generation = {
        f"{name}_id": special_ids[name] for name in ("bos_token", "eos_token", "pad_token") if name in special_ids
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        **special_tokens,
    }
    write_json(folder / "config.json", hf_config(model, max_length) | generation)
    write_json(folder / "generation_config.json", generation)
    write_json(folder / "tokenizer_config.json", tokenizer_config)
    write_json(folder / "special_tokens_map.json", special_tokens)
    write_text(folder / "tokenizer.json", _as_read_in_training(tokenizer_file, special_tokens, special_ids))
    with usual_mode(folder / "model.safetensors"):
        try:
            save_file(hf_weights(model), folder / "model.safetensors", metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(str(error)) from error
    sync_file(folder / "model.safetensors")
    sync_directory(folder)
