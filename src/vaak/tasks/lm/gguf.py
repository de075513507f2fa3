"""A Llama-like language model as one GGUF file, for llama.cpp and programs built on it (Ollama, LM Studio).

    model.gguf    configuration, tokenizer, chat template and weights

It is made of the folder of ``--format hf``. llama.cpp turns neighbouring numbers of a head where transformers turns
those of its halves, so the rows of Llama's queries and keys are sorted so; of Qwen it knows better.

A tokenizer's merges are exported unchanged. llama.cpp knows by name how a text is split before them: that of a base by
its pattern. That of tokenizers which are trained here is none of those; ``NEAREST`` gives the same tokens but for what
docs/exporting.md says.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from vaak.core.errors import UserError, optional_import
from vaak.core.storage.files import read_json, sync_file, whole_folder

log = logging.getLogger("vaak")

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""llama.cpp's names of transformers' families."""
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_OTHERS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {
    rf"{_ENDINGS}\p{{N}}{{1,3}}{_OTHERS}": "llama-bpe",
    rf"{_ENDINGS}\p{{N}}{_OTHERS}": "qwen2",
    "GPT-2": "gpt-2",
}
"""llama.cpp's names of how a text is split, by pattern; the last one's is that of the pre-tokenizer ByteLevel."""
NEAREST = "bloom"
"""The name for tokenizers that are trained here, whose words have marks and joiners in them, and all digits."""
TYPES = {"f32": "F32", "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0"}


def write_gguf(
    write_hf: Callable[[Path], object],
    folder: Path,
    quantization: str | None,
    turn_ends: Sequence[int] = (),
    document_end: int | None = None,
) -> None:
    """Write ``model.gguf`` in ``folder``, completely or not at all, of what ``write_hf`` writes for transformers.

    ``quantization`` is the type of matrices, one of ``TYPES``; None is f16. Vectors stay in 32 bits, and a matrix whose
    rows q8_0 can't divide by 32 has 16. ``turn_ends`` end an answer, ``document_end`` a text; without it, that is the
    tokenizer's end. Raises UserError without the package, for a tokenizer or options that llama.cpp
    hasn't, and for a folder that has something in it.
    """
    with optional_import("--format gguf requires gguf", "gguf"):
        import gguf
    with whole_folder(folder) as made:
        source, file = made / "hf", made / "model.gguf"
        write_hf(source)
        config = read_json(source / "config.json")
        _require_llama(config)
        writer = gguf.GGUFWriter(file, ARCHITECTURES[config["model_type"]])
        kind = TYPES[quantization or "f16"]
        writer.add_file_type(gguf.LlamaFileType["ALL_F32" if kind == "F32" else f"MOSTLY_{kind}"])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        _write_options(writer, config)
        _write_rope(writer, config, gguf.RopeScalingType)
        _write_tokenizer(writer, source, config, gguf.TokenType)
        _write_ends(writer, source, turn_ends, document_end)
        _write_weights(writer, source, config, gguf, gguf.GGMLQuantizationType[kind])
        # The format's order: header, options with the tokenizer, tensors.
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        sync_file(file)
        shutil.rmtree(source)


def _require_llama(config: Mapping[str, Any]) -> None:
    """Raises UserError for an option that llama.cpp's Llama and Qwen don't have."""
    windows = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    said = {
        "sliding_window": windows is not None and windows < config["max_position_embeddings"] and windows,
        "hidden_act": config["hidden_act"] != "silu" and config["hidden_act"],
        "partial_rotary_factor": _rope(config).get("partial_rotary_factor", 1.0) != 1.0 and "below 1",
    }
    for name, value in said.items():
        if value:
            raise UserError(f"--format gguf: llama.cpp's {ARCHITECTURES[config['model_type']]} has no {name} {value}")


def _heads(config: Mapping[str, Any]) -> tuple[int, int, int]:
    """The number of heads, that of keys and values, and a head's width."""
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
    writer.add_rope_dimension_count(width)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"rope_theta": config.get("rope_theta", 10_000.0), **(config.get("rope_parameters") or {})}


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


def _write_tokenizer(writer: Any, folder: Path, config: Mapping[str, Any], types: Any) -> None:
    """Write the tokenizer. Raises UserError where it isn't one of merged bytes."""
    content, about = read_json(folder / "tokenizer.json"), read_json(folder / "tokenizer_config.json")
    model = content["model"]
    if model.get("type") != "BPE" or "ByteLevel" not in str(content.get("decoder")):
        raise UserError(
            "--format gguf: only tokenizers of merged bytes are written (data.tokenizer.type byte_level), not this "
            f"{model.get('type')}"
        )
    names = {number: name for name, number in model["vocab"].items()}
    special = {one["id"]: one for one in content.get("added_tokens", ())}
    names |= {number: one["content"] for number, one in special.items()}
    tokens = [names.get(number, f"<|unused {number}|>") for number in range(config["vocab_size"])]
    kinds = [
        (types.CONTROL if special[number]["special"] else types.USER_DEFINED)
        if number in special
        else types.NORMAL
        if number in names
        else types.UNUSED
        for number in range(len(tokens))
    ]
    if not model["merges"]:
        raise UserError("--format gguf: llama.cpp requires a tokenizer with merges; raise data.tokenizer.vocab_size")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_detect_splitting(content))
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([one if isinstance(one, str) else " ".join(one) for one in model["merges"]])
    ids = {one["content"]: number for number, one in special.items()}
    for role in ("bos", "pad", "unk", "sep", "mask"):
        token = about.get(f"{role}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if token in ids:
            getattr(writer, f"add_{role}_token_id")(ids[token])
    # What ends a text is written apart (_write_ends).
    writer.add_add_bos_token(about.get("bos_token") in ids and _begins(content, ids[about["bos_token"]]))
    # An end after the prompt would end the answer before it begins.
    writer.add_add_eos_token(False)
    # Where newer versions of transformers keep the template.
    kept = folder / "chat_template.jinja"
    template = kept.read_text(encoding="utf-8") if kept.is_file() else about.get("chat_template")
    if isinstance(template, str):
        writer.add_chat_template(template)


def _write_ends(writer: Any, folder: Path, turn_ends: Sequence[int], document_end: int | None) -> None:
    """Write the tokens at which llama.cpp stops: what ends a document, a turn, and one more; it has room for three."""
    about = read_json(folder / "tokenizer_config.json")
    token = about.get("eos_token")
    token = token.get("content") if isinstance(token, dict) else token
    added = {one["content"]: one["id"] for one in read_json(folder / "tokenizer.json").get("added_tokens", ())}
    eos = added.get(token) if document_end is None else document_end
    kept = folder / "generation_config.json"
    said = read_json(kept).get("eos_token_id", []) if kept.is_file() else []
    said = said if isinstance(said, list) else [said]
    if eos is None and said:
        eos = said[0]
    if eos is not None:
        writer.add_eos_token_id(eos)
    others = [one for one in dict.fromkeys([*turn_ends, *said]) if one != eos] or list(turn_ends[:1])
    for write, number in zip((writer.add_eot_token_id, writer.add_eom_token_id), others, strict=False):
        write(number)
    if len(others) > 2:
        names = {number: name for name, number in added.items()}
        left = ", ".join(str(names.get(one, one)) for one in others[2:])
        log.warning("llama.cpp's files name three tokens that end a text; it may not stop at %s", left)


def _begins(content: Mapping[str, Any], token: int) -> bool:
    """Whether a tokenizer puts a token before every text."""
    after = json.dumps(content.get("post_processor"))
    return bool(re.search(rf'"ids": \[{token}\]', after))


def _detect_splitting(content: Mapping[str, Any]) -> str:
    """Return llama.cpp's name of how a tokenizer splits a text before its merges."""
    found = content.get("pre_tokenizer") or {}
    parts = found.get("pretokenizers", [found])
    patterns = [one["pattern"]["Regex"] for one in parts if one.get("type") == "Split" and "Regex" in one["pattern"]]
    # ByteLevel splits by GPT-2's expression, unless another splitter comes before it.
    if not patterns and parts[-1].get("type") == "ByteLevel" and parts[-1].get("use_regex", True) and len(parts) == 1:
        return SPLITS["GPT-2"]
    known = SPLITS.get(patterns[0]) if len(patterns) == 1 else None
    if known is None:
        log.warning(
            "llama.cpp can't split texts as this tokenizer does; its nearest rule (%s) gives the same tokens for "
            "nearly all lines of prose, but not of code or of several lines: see docs/exporting.md",
            NEAREST,
        )
    return known or NEAREST


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
