"""Plain values as YAML 1.2 in block style, so that reading the text gives them back exactly."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from vaak.config.yaml.scalars import plain_scalar

_SAFE_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./+-]*")


def yaml_text(value: dict[str, Any], indent: int = 0) -> str:
    """A mapping as lines; mappings and lists of mappings in blocks, all else on one line.

    >>> print(yaml_text({"lr": 0.001, "betas": [0.9, 0.999], "groups": [{"match": "head"}], "notes": None}), end="")
    lr: 0.001
    betas: [0.9, 0.999]
    groups:
      - match: head
    notes: null
    """
    return "".join(entry_text(key, child, indent) for key, child in value.items())


def entry_text(key: str, value: Any, indent: int = 0) -> str:
    """``key: value`` as lines."""
    margin = " " * indent
    if isinstance(value, dict) and value:
        return f"{margin}{_key_text(key)}:\n{yaml_text(value, indent + 2)}"
    if isinstance(value, list) and value and all(isinstance(item, dict) and item for item in value):
        items = "".join(_item_text(item, indent + 2) for item in value)
        return f"{margin}{_key_text(key)}:\n{items}"
    return f"{margin}{_key_text(key)}: {flow_text(value)}\n"


def _item_text(item: dict[str, Any], indent: int) -> str:
    lines = yaml_text(item, indent + 2)
    return f"{' ' * indent}- {lines[indent + 2 :]}"


def flow_text(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key_text(key)}: {flow_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow_text, value)) + "]"
    return scalar_text(value)


def scalar_text(value: Any) -> str:
    """A scalar; text is quoted where it could read as anything else.

    >>> [scalar_text(value) for value in ("adamw", "true", "a: b", "${HOME}", 1e-4, float("inf"))]
    ['adamw', '"true"', '"a: b"', '"$${HOME}"', '0.0001', '.inf']
    """
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value).replace("Infinity", ".inf").replace("NaN", ".nan")
    if not isinstance(value, str):
        return json.dumps(value)
    if _is_plain(value):
        return value
    return _quoted(value.replace("${", "$${"))


def _key_text(key: str) -> str:
    """A key, in which variables are not replaced."""
    return key if _is_plain(key) else _quoted(key)


def _is_plain(text: str) -> bool:
    return bool(_SAFE_PLAIN.fullmatch(text)) and plain_scalar(text) == text


def _quoted(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in quoted)
