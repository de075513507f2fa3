"""The training loop and everything it uses. Start with trainer.py, then step.py.

For use as a library, ``from vaak.engine import Trainer, LossRegistry, find_latest_checkpoint, …``; each is imported
when it is first asked for, so that a package which needs one small file of the engine doesn't load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vaak.engine.checkpoint.files import Snapshot, find_latest_checkpoint, load_checkpoint, save_checkpoint
    from vaak.engine.losses import LossRegistry
    from vaak.engine.trainer import Trainer

_HOMES = {
    "LossRegistry": "losses",
    "Snapshot": "checkpoint.files",
    "Trainer": "trainer",
    "find_latest_checkpoint": "checkpoint.files",
    "load_checkpoint": "checkpoint.files",
    "save_checkpoint": "checkpoint.files",
}

__all__ = [
    "LossRegistry",
    "Snapshot",
    "Trainer",
    "find_latest_checkpoint",
    "load_checkpoint",
    "save_checkpoint",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
