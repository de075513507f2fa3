"""What can be named in a YAML: tasks and components, with their classes as text; nothing is imported before its use.

``register_loss`` and its like add a class of a program's own under a short name. What names it (a YAML, a run) can then
be loaded in every process that registers it.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from vaak.config.base import REGISTERED
from vaak.config.optimization import SCHEDULES, UPDATE_RULES
from vaak.core.errors import UserError


@dataclass(frozen=True)
class Entry:
    """Where a task's classes are, as ``module:Name``, and by which keys a YAML without ``task:`` is known as its own.

    ``config`` is a module that holds DEFAULTS (the task's own defaults, from its seed), ALIASES (other spellings),
    SHARED and SIDES (``vaak.config.resolve.global_config``). ``recognised_by`` has keys, and ``key=value``; by those
    that it ``shares`` with other tasks it is meant where nothing tells of another. A task of audio names the types of
    ``global_config`` and of an item of ``datasets``.
    """

    task: str
    config: str
    model: str
    data: str
    recognised_by: tuple[str, ...]
    shares: tuple[str, ...] = ()
    audio: tuple[str, str] | None = None


TASKS: dict[str, Entry] = {
    "lm": Entry(
        task="vaak.tasks.lm.task:LanguageModelTask",
        config="vaak.tasks.lm.config",
        model="LanguageModelConfig",
        data="LanguageModelDataConfig",
        recognised_by=("model.preset", "model.model_type=decoder", "model.model_type=encoder", "data.minimal_pairs"),
        shares=("data.corpus", "data.tokenizer"),
    ),
    "seq2seq": Entry(
        task="vaak.tasks.seq2seq.task:Seq2SeqTask",
        config="vaak.tasks.seq2seq.config",
        model="Seq2SeqConfig",
        data="Seq2SeqDataConfig",
        recognised_by=(
            "model.model_type=encoder_decoder",
            "model.encoder",
            "data.target_tokenizer",
            "data.max_source_length",
            "data.max_target_length",
            "data.decoding",
            "data.corpus.source_column",
            "data.corpus.target_column",
        ),
    ),
    "diarization": Entry(
        task="vaak.tasks.diarization.task:DiarizationTask",
        config="vaak.tasks.diarization.config",
        model="DiarizationModelConfig",
        data="DiarizationDataConfig",
        audio=("vaak.audio.config:AudioConfig", "vaak.audio.config:DatasetConfig"),
        recognised_by=(
            "datasets",
            "global_config",
            "model.front_end",
            "model.preset=sa_eend",
            "data.inference",
            "data.scoring",
            "data.augmentation",
        ),
        shares=("training.eval_knobs",),
    ),
}

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

AUXILIARY_LOSSES: dict[str, str] = {"z_loss": "vaak.engine.objective.losses:z_loss"}
"""Short names for training.loss.auxiliary; a task may have further ones."""

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

LABEL_TYPES: dict[str, str] = {
    "binary": "vaak.tasks.diarization.examples.labels:BinaryCollator",
    "speaker_id": "vaak.tasks.diarization.examples.labels:SpeakerIdCollator",
    "multilabel": "vaak.tasks.diarization.examples.labels:MultilabelCollator",
    "powerset": "vaak.tasks.diarization.examples.labels:PowersetCollator",
    "custom": "vaak.tasks.diarization.examples.labels:DiarizationCollator",
}
"""Short names for training.eval_knobs.label_type."""

COMPONENTS: dict[str, dict[str, str]] = {
    "training.loss.main": LOSSES,
    "training.loss.auxiliary": AUXILIARY_LOSSES,
    "training.callbacks": CALLBACKS,
    "training.eval_knobs.label_type": LABEL_TYPES,
}
"""Which short names may stand under which key."""


def register_loss(name: str, loss: Any) -> None:
    """Let ``training.loss.main: name`` stand for a module with ``forward(outputs, targets)``.

    Raises UserError, as all of these do, where the name is a built-in's or no plain word.
    """
    _register("training.loss.main", name, loss, LOSSES)


def register_auxiliary_loss(name: str, loss: Any) -> None:
    """Let ``name`` stand for an auxiliary loss (docs/library.md) in ``training.loss.auxiliary``."""
    _register("training.loss.auxiliary", name, loss, AUXILIARY_LOSSES)


def register_optimizer(name: str, optimizer: Any) -> None:
    """Let ``training.optimizer.type: name`` stand for a ``torch.optim.Optimizer`` class."""
    _register("training.optimizer", name, optimizer, UPDATE_RULES)


def register_schedule(name: str, schedule: Any) -> None:
    """Let ``training.scheduler.type: name`` stand for a schedule (docs/library.md)."""
    _register("training.scheduler", name, schedule, SCHEDULES)


def _register(key: str, name: str, registered: Any, built_in: Collection[str]) -> None:
    if not name.isidentifier():
        raise UserError(f"{name!r} can't be registered under {key}: a name has letters, digits and underscores")
    if name in built_in:
        raise UserError(f"{name!r} is built-in under {key}; register yours under another name")
    REGISTERED[key][name] = registered


def load_name(reference: str) -> Any:
    """The object that ``package.module:Name`` names.

    >>> load_name("vaak.config.catalog:TASKS") is TASKS
    True
    """
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def task_class(task: str) -> Any:
    """The class that trains this task."""
    return load_name(TASKS[task].task)


def tasks_recognised(keys: set[str]) -> list[str]:
    """The tasks that have one of these dotted keys as their own; if none has, those that share one."""
    own = [name for name, entry in TASKS.items() if keys & set(entry.recognised_by)]
    return own or [name for name, entry in TASKS.items() if keys & set(entry.shares)]
