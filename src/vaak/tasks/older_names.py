"""Names of transformers 4 for what transformers 5 writes, so that both read an export."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vaak.core.storage.files import read_json, write_json
from vaak.tasks.fetching import TOKENIZER_CONFIG

_OF_MODERNBERT = {"rope_theta": "global_rope_theta", "local": "local_rope_theta"}

_OLDER_NAMES = {
    "gpt_neox": {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
    "modernbert": _OF_MODERNBERT,
    "modernbert-decoder": _OF_MODERNBERT,
}
"""Names of options of rotary positions in transformers 4, for families that differ from most."""


def name_for_older(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ``tokenizer_config.json`` of transformers 5 under names that both versions read.

    >>> name_for_older({"tokenizer_class": "TokenizersBackend", "extra_special_tokens": ["<a>"], "eos_token": "<e>"})
    {'tokenizer_class': 'PreTrainedTokenizerFast', 'eos_token': '<e>', 'additional_special_tokens': ['<a>']}
    """
    found = {name: value for name, value in config.items() if name != "backend"}
    if found.get("tokenizer_class") == "TokenizersBackend":
        found["tokenizer_class"] = "PreTrainedTokenizerFast"
    # transformers 5 has a list; in 4, each of these tokens has a name.
    if isinstance(extra := found.get("extra_special_tokens"), list):
        del found["extra_special_tokens"]
        found["additional_special_tokens"] = extra
    return found


def older_rope(rope: Mapping[str, Any], model_type: str = "") -> dict[str, Any]:
    """Return ``rope_parameters`` under the names of transformers 4; empty for positions of another kind.

    In Gemma 3 and ModernBERT, layers that attend within a window have their own.

    >>> older_rope({"rope_type": "linear", "rope_theta": 5.0, "factor": 2.0})
    {'rope_theta': 5.0, 'rope_scaling': {'rope_type': 'linear', 'factor': 2.0}}
    >>> older_rope({"full_attention": {"rope_theta": 5.0}, "sliding_attention": {"rope_theta": 2.0}})
    {'rope_theta': 5.0, 'rope_local_base_freq': 2.0}
    >>> older_rope({"rope_theta": 5.0, "partial_rotary_factor": 0.3}, "gpt_neox")
    {'rotary_emb_base': 5.0, 'rotary_pct': 0.3}
    """
    names = _OLDER_NAMES.get(model_type, {})
    if {"full_attention", "sliding_attention"} <= rope.keys():
        local = {names.get("local", "rope_local_base_freq"): rope["sliding_attention"]["rope_theta"]}
        return older_rope(rope["full_attention"], model_type) | local
    plain = ("rope_theta", "partial_rotary_factor")
    found: dict[str, Any] = {names.get(name, name): rope[name] for name in plain if rope.get(name) is not None}
    if rope.get("rope_type", "default") != "default":
        found["rope_scaling"] = {name: value for name, value in rope.items() if name not in plain}
    return found if "rope_theta" in rope else {}


def write_older_names(folder: Path) -> None:
    """Add the older names of rotary positions and tokenizers to an export.

    Without them, transformers 4 would silently use its default positions, and refuse the tokenizer.
    """

    def add(config: Mapping[str, Any]) -> dict[str, Any]:
        inner = {name: add(one) for name, one in config.items() if isinstance(one, dict) and "model_type" in one}
        return {**config, **inner, **older_rope(config.get("rope_parameters") or {}, str(config.get("model_type")))}

    for name, change in (("config.json", add), (TOKENIZER_CONFIG, name_for_older)):
        if (file := folder / name).is_file() and (both := change(written := read_json(file))) != written:
            write_json(file, both)
