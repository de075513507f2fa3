"""Components that a YAML can name, with their classes as text; nothing is imported before its use.

``register_loss`` and the like add a program's class under a short name. A YAML or a run that names it can then be
loaded in every process that registers it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from vaak.config.base import REGISTERED
from vaak.config.optimization import SCHEDULES, UPDATE_RULES
from vaak.core.errors import UserError

LOSSES: dict[str, str] = {
    "cross_entropy": "vaak.engine.objective.cross_entropy:CrossEntropy",
    "mse": "vaak.engine.objective.loss_functions:MeanSquaredError",
    "l1": "vaak.engine.objective.loss_functions:MeanAbsoluteError",
    "smooth_l1": "vaak.engine.objective.loss_functions:SmoothL1",
    "huber": "vaak.engine.objective.loss_functions:Huber",
    "bce": "vaak.engine.objective.loss_functions:BinaryCrossEntropy",
    "focal": "vaak.engine.objective.loss_functions:FocalLoss",
}
"""Short names for training.loss.main."""

SMOOTHING_LOSSES = ("cross_entropy", "bce")
"""Those of them that take ``label_smoothing``."""

AUXILIARY_LOSSES: dict[str, str] = {**LOSSES, "z_loss": "vaak.engine.objective.losses:z_loss"}
"""Short names for training.loss.auxiliary; a task may have more."""

CALLBACKS: dict[str, str] = {
    "early_stopping": "vaak.callbacks.early_stopping:EarlyStoppingCallback",
    "feature_redraw": "vaak.callbacks.feature_redraw:FeatureRedrawCallback",
    "interbatch_profiler": "vaak.callbacks.profiling.interbatch_profiler:InterbatchProfiler",
    "lr_monitor": "vaak.callbacks.lr_monitor:LRMonitorCallback",
    "gradient_clipping": "vaak.callbacks.gradient_clipping:GradientClippingCallback",
    "memory_manager": "vaak.callbacks.memory_manager:AdaptiveMemoryManager",
    "trace": "vaak.callbacks.profiling.trace:TraceCallback",
}
"""Short names for training.callbacks."""

TOKENIZERS = ("bpe", "unigram", "wordpiece", "byte_level", "character", "word")
"""Vaak's tokenizers by their names for data.tokenizer.type."""

COMPONENTS: dict[str, dict[str, str]] = {
    "training.loss.main": LOSSES,
    "training.loss.auxiliary": AUXILIARY_LOSSES,
    "training.callbacks": CALLBACKS,
}
"""Which short names may stand under which key, whatever the task."""


def register_loss(name: str, loss: Any) -> None:
    """Let ``name`` stand for a module with ``forward(outputs, targets)``: the main loss, or an auxiliary one.

    Raises UserError, as all of these do, where the name is built-in or not a plain word.
    """
    before = REGISTERED["training.loss.main"].get(name)
    _register("training.loss.main", name, loss, LOSSES)
    if REGISTERED["training.loss.auxiliary"].get(name) is before:  # not one of register_auxiliary_loss
        _register("training.loss.auxiliary", name, loss, AUXILIARY_LOSSES)


def register_auxiliary_loss(name: str, loss: Any) -> None:
    """Let ``name`` stand for an auxiliary loss (docs/library.md) in ``training.loss.auxiliary``."""
    _register("training.loss.auxiliary", name, loss, AUXILIARY_LOSSES)


def register_optimizer(name: str, optimizer: Any) -> None:
    """Let ``training.optimizer.type: name`` stand for a ``torch.optim.Optimizer`` class."""
    _register("training.optimizer", name, optimizer, UPDATE_RULES)


def register_schedule(name: str, schedule: Any) -> None:
    """Let ``training.scheduler.type: name`` stand for a schedule (docs/library.md)."""
    _register("training.scheduler", name, schedule, SCHEDULES)


def register_tokenizer(name: str, tokenizer: Any) -> None:
    """Let ``data.tokenizer.type: name`` stand for a tokenizer class (docs/library.md)."""
    _register("data.tokenizer", name, tokenizer, TOKENIZERS)


def _register(key: str, name: str, registered: Any, built_in: Collection[str]) -> None:
    if not name.isidentifier():
        raise UserError(f"{name!r} can't be registered under {key}: a name has letters, digits and underscores")
    if name in built_in:
        raise UserError(f"{name!r} is built-in under {key}; register yours under another name")
    REGISTERED[key][name] = registered
