"""A Llama-like language model, or a Gemma, as one GGUF file, for llama.cpp and what is built on it (Ollama, LM Studio).

    model.gguf    configuration, tokenizer (gguf_tokenizer.py), chat template and weights

It is made of the folder of ``--format hf``. llama.cpp turns neighbouring numbers of a head where transformers turns
those of its halves, so the rows of Llama's queries and keys are sorted so; of Qwen and Gemma it knows better. Gemma
multiplies by 1 + the gain of a norm, llama.cpp by the value in the file.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from vaak.core.errors import UserError, optional_import
from vaak.core.storage.files import read_json, sync_file, whole_folder
from vaak.tasks.lm.gguf_tokenizer import write_ends, write_tokenizer

log = logging.getLogger("vaak")

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
}
"""llama.cpp's names of transformers' families."""
_GEMMAS = ("gemma", "gemma2", "gemma3")
_PATTERNS = {"gemma2": 2, "gemma3": 6}
"""Periods of layers, of which all but the last attend within a window."""
_LARGEST = {"gemma2": 46, "gemma3": 62}
"""The number of layers of the 27B, by which llama.cpp knows that it scales attention otherwise."""
GGUF_TYPES = {"f32": "F32", "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0"}


def write_gguf(
    write_hf: Callable[[Path], object],
    folder: Path,
    quantization: str | None,
    turn_ends: Sequence[int] = (),
    document_end: int | None = None,
) -> None:
    """Write ``model.gguf`` in ``folder``, completely or not at all, of what ``write_hf`` writes for transformers.

    ``quantization`` is the type of matrices, one of ``GGUF_TYPES``; None is f16. Vectors stay in 32 bits, and a matrix
    whose rows q8_0 can't divide by 32 has 16. ``turn_ends`` end an answer, ``document_end`` a text; without it, that
    is the tokenizer's end. Raises UserError without the package, for a tokenizer or options that llama.cpp hasn't, and
    for a folder that has something in it.
    """
    with optional_import("--format gguf requires gguf", "gguf"):
        import gguf
    with whole_folder(folder) as made:
        source, file = made / "hf", made / "model.gguf"
        write_hf(source)
        config = read_json(source / "config.json")
        _require_known(config)
        writer = gguf.GGUFWriter(file, ARCHITECTURES[config["model_type"]])
        kind = GGUF_TYPES[quantization or "f16"]
        writer.add_type("model")
        writer.add_file_type(gguf.LlamaFileType["ALL_F32" if kind == "F32" else f"MOSTLY_{kind}"])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        _write_options(writer, config)
        _write_rope(writer, config, gguf.RopeScalingType)
        write_tokenizer(writer, source, config, gguf.TokenType)
        write_ends(writer, source, turn_ends, document_end)
        _write_weights(writer, source, config, gguf, gguf.GGMLQuantizationType[kind])
        writer.add_size_label(gguf.size_label(*writer.get_total_parameter_count()))
        # The format's order: header, options with the tokenizer, tensors.
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        sync_file(file)
        shutil.rmtree(source)


def _require_known(config: Mapping[str, Any]) -> None:
    """Raises UserError for an option that llama.cpp's architecture of this family doesn't have."""
    architecture = ARCHITECTURES[config["model_type"]]
    for name, value in (_foreign_to_gemma(config) if architecture in _GEMMAS else _foreign_to_llama(config)).items():
        if value:
            raise UserError(f"--format gguf: llama.cpp's {architecture} has no {name} {value}")


def _foreign_to_llama(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, and their values, that Llama and Qwen don't have in llama.cpp; others are false."""
    windows = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    return {
        "sliding_window": windows is not None and windows < config["max_position_embeddings"] and windows,
        "hidden_act": config["hidden_act"] != "silu" and config["hidden_act"],
        "partial_rotary_factor": _rope(config).get("partial_rotary_factor", 1.0) != 1.0 and "below 1",
    }


def _foreign_to_gemma(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, and their values, that Gemmas don't have in llama.cpp; others are false."""
    architecture, (heads, _, width) = ARCHITECTURES[config["model_type"]], _heads(config)
    activation = config.get("hidden_activation") or config.get("hidden_act") or "gelu_pytorch_tanh"
    is_largest = config["num_hidden_layers"] == _LARGEST.get(architecture)
    scalar = config.get("query_pre_attn_scalar", width)
    return {
        "hidden_activation": activation != "gelu_pytorch_tanh" and activation,
        "query_pre_attn_scalar": scalar != (config["hidden_size"] // heads if is_largest else width) and scalar,
        "use_bidirectional_attention": config.get("use_bidirectional_attention"),
        "attention_bias": config.get("attention_bias"),
        "attn_logit_softcapping": architecture == "gemma3" and config.get("attn_logit_softcapping"),
    }


def _heads(config: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the number of heads, that of keys and values, and a head's width."""
    heads = config["num_attention_heads"]
    return heads, config.get("num_key_value_heads") or heads, config.get("head_dim") or config["hidden_size"] // heads


def _write_options(writer: Any, config: Mapping[str, Any]) -> None:
    heads, of_keys, width = _heads(config)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(of_keys)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if writer.arch in _GEMMAS:
        _write_options_of_gemma(writer, config)
    else:
        writer.add_rope_dimension_count(width)
        writer.add_vocab_size(config["vocab_size"])


def _write_options_of_gemma(writer: Any, config: Mapping[str, Any]) -> None:
    """Write how logits are capped, and which layers attend within a window."""
    if config.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if writer.arch not in _PATTERNS:
        return
    usual = [(layer + 1) % _PATTERNS[writer.arch] != 0 for layer in range(config["num_hidden_layers"])]
    kinds = config.get("layer_types")
    windowed = usual if kinds is None else [kind == "sliding_attention" for kind in kinds]
    writer.add_sliding_window(config["sliding_window"])
    if windowed != usual:
        writer.add_sliding_window_pattern(windowed)
    base = _rope(config, "sliding_attention")["rope_theta"]
    if writer.arch == "gemma3" and base != 10_000:  # llama.cpp's own
        writer.add_rope_freq_base_swa(base)


def _rope(config: Mapping[str, Any], kind: str = "full_attention") -> dict[str, Any]:
    """Return the rotary positions, those of a kind of layer where kinds have their own."""
    found = config.get("rope_parameters") or {}
    found = found.get(kind, found)
    return {"rope_theta": config.get("rope_theta", 10_000.0), **found}


def _write_rope(writer: Any, config: Mapping[str, Any], kinds: Any) -> None:
    """Write the rotary positions. Raises UserError for a scaling that llama.cpp has not."""
    rope = _rope(config)
    kind = rope.get("rope_type", "default")
    writer.add_rope_freq_base(rope["rope_theta"])
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(kinds[kind.upper()])
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope.get("beta_fast") or 32.0)
        writer.add_rope_scaling_yarn_beta_slow(rope.get("beta_slow") or 1.0)
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise UserError(f"--format gguf: llama.cpp has no rope_type {kind}")


def _wavelength_factors(config: Mapping[str, Any]) -> Tensor:
    """Return the factor by which llama3 lengthens the wavelength of each pair of a head's numbers."""
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope, width = _rope(config), _heads(config)[2]
    own = AutoConfig.for_model(**dict(config))
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](own, torch.device("cpu"))
    plain = rope["rope_theta"] ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    factors: Tensor = plain / scaled.double()
    return factors.float()


def _write_weights(writer: Any, folder: Path, config: Mapping[str, Any], gguf: Any, kind: Any) -> None:
    heads, of_keys, _ = _heads(config)
    architecture = ARCHITECTURES[config["model_type"]]
    quants = gguf.GGMLQuantizationType
    names = gguf.get_tensor_name_map(
        next(one for one, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), config["num_hidden_layers"]
    )
    if _rope(config).get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _wavelength_factors(config).numpy())
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it isn't a mapping
                tensor = opened.get_tensor(name).float()
                if architecture in _GEMMAS and name.endswith("norm.weight"):
                    tensor = 1 + tensor
                # transformers rotates the first half of a head with the second, llama.cpp's llama each even place with
                # the next: rows are reordered. Its other architectures rotate halves.
                if architecture == "llama" and ".q_proj." in name:
                    tensor = _in_pairs(tensor, heads)
                elif architecture == "llama" and ".k_proj." in name:
                    tensor = _in_pairs(tensor, of_keys)
                own = names.get_name(name, try_suffixes=(".weight", ".bias"))
                if own is None:
                    raise UserError(f"--format gguf: llama.cpp's {architecture} has no weight {name}")
                fits = kind if kind != quants.Q8_0 or tensor.shape[-1] % 32 == 0 else quants.F16
                # Vectors (norms, biases) are few, and llama.cpp computes with them in 32 bits.
                dtype = fits if tensor.ndim > 1 else quants.F32
                writer.add_tensor(own, gguf.quants.quantize(tensor.numpy(), dtype), raw_dtype=dtype)


def _in_pairs(tensor: Tensor, heads: int) -> Tensor:
    """Rows of heads ``(head · width, …)`` in the order in which numbers that are turned together are neighbours."""
    turned: Tensor = tensor.unflatten(0, (heads, 2, -1))
    return turned.transpose(1, 2).flatten(0, 2).contiguous()
