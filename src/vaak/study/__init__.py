"""Experiments about experiments: which learning rate, whether the gradients are right.

For use as a library, ``from vaak.study import LRFinder, check_gradients, gradient_norms``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vaak.study.gradient_check import check_gradients, gradient_norms
    from vaak.study.lr_finder import LRFinder

_HOMES = {"LRFinder": "lr_finder", "check_gradients": "gradient_check", "gradient_norms": "gradient_check"}

__all__ = ["LRFinder", "check_gradients", "gradient_norms"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
