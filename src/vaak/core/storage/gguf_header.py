"""The header of a GGUF, llama.cpp's format: the architecture, and the names and shapes of the tensors. No torch.

Source: github.com/ggml-org/ggml, docs/gguf.md, version 3.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

Tensors = list[tuple[str, tuple[int, ...]]]
"""Names and shapes."""
_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value of each type; the others are _TEXT and _ARRAY."""
_TEXT, _ARRAY = 8, 9
LONGEST_NAME = 1 << 16
"""Bytes of a name, which the format limits likewise."""


def read_gguf_header(path: Path) -> tuple[str, Tensors]:
    """Return the architecture, and names and shapes of the tensors, that a GGUF's header lists.

    Raises OSError, ValueError, KeyError, OverflowError or struct.error where it isn't one.
    """
    architecture = ""
    with open(path, "rb") as file:
        _, _, num_tensors, num_values = _read(file, "4sIQQ")
        for _ in range(num_values):
            name, (kind,) = _read_name(file), _read(file, "I")
            if name == "general.architecture" and kind == _TEXT:
                architecture = _read_name(file)
            else:
                _skip(file, *(_read(file, "IQ") if kind == _ARRAY else (kind, 1)))
        return architecture, [_read_tensor(file) for _ in range(num_tensors)]


def _read(file: BinaryIO, form: str) -> tuple[Any, ...]:
    return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))


def _read_name(file: BinaryIO) -> str:
    (length,) = _read(file, "Q")
    if length > LONGEST_NAME:
        raise ValueError(f"a name of {length} bytes")
    return file.read(length).decode("utf-8")


def _skip(file: BinaryIO, kind: int, number: int) -> None:
    """Go past ``number`` values of a kind."""
    if kind != _TEXT:
        file.seek(_BYTES[kind] * number, os.SEEK_CUR)
        return
    for _ in range(number):
        (length,) = _read(file, "Q")
        file.seek(length, os.SEEK_CUR)


def _read_tensor(file: BinaryIO) -> tuple[str, tuple[int, ...]]:
    name, (dimensions,) = _read_name(file), _read(file, "I")
    if dimensions > 8:
        raise ValueError(f"a tensor of {dimensions} dimensions")
    shape = _read(file, f"{dimensions}Q")
    _read(file, "IQ")
    return name, shape


_LIKE_LLAMA = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LIKE_PHI = {**_LIKE_LLAMA, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_LAYERS = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "stablelm"), _LIKE_LLAMA),
    "phi3": _LIKE_PHI,
    "gpt2": {"attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
}
"""transformers' names of layers by architecture and llama.cpp's names (gguf-py, ``constants.py``)."""
_LAYER = re.compile(r"blk\.(\d+)\.(.+)\.weight")


def name_layers(headers: Sequence[tuple[str, Tensors]]) -> list[str]:
    """Return transformers' names of the linear layers that the headers of a model's parts list.

    None if one of them has a name that isn't known.
    """
    names, found = _LAYERS.get(headers[0][0], {}), []
    matrices = (name for _, tensors in headers for name, shape in tensors if len(shape) == 2)
    for layer in filter(None, map(_LAYER.fullmatch, matrices)):
        if layer[2] not in names:
            return []
        found.append(f"layers.{layer[1]}.{names[layer[2]]}")
    return found
