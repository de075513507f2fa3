"""The training loop and everything it uses. Start with trainer.py, then step.py.

For use as a library, ``from vaak.engine import Trainer, LossRegistry, find_latest_checkpoint, …``; each is imported
when it is first asked for, so that a package which needs one small file of the engine doesn't load torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vaak.core.lazy import attributes

if TYPE_CHECKING:
    from vaak.engine.checkpoint.files import find_latest_checkpoint, load_checkpoint, save_checkpoint
    from vaak.engine.snapshot import Snapshot
    from vaak.engine.trainer import Trainer
    from vaak.nn.losses import LossRegistry

__all__ = [
    "LossRegistry",
    "Snapshot",
    "Trainer",
    "find_latest_checkpoint",
    "load_checkpoint",
    "save_checkpoint",
]

CHECKPOINTS = "vaak.engine.checkpoint.files"
__getattr__ = attributes(
    __name__,
    {
        "LossRegistry": "vaak.nn.losses",
        "Snapshot": "vaak.engine.snapshot",
        "Trainer": "vaak.engine.trainer",
        "find_latest_checkpoint": CHECKPOINTS,
        "load_checkpoint": CHECKPOINTS,
        "save_checkpoint": CHECKPOINTS,
    },
)
