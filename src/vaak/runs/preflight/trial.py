"""A short try of a configuration: a few steps, an evaluation and a checkpoint, in a temporary folder.

Later phases of training (parts that start at a step, warm-up, cycles) are moved into these few steps. Data are
prepared whole, as files may have faults anywhere; there is less of the data that Vaak generates (sentences of the
grammar, voices, conversations). On an accelerator a batch has as many rows as in training, which shows whether it fits;
a CPU would take minutes for it, so there it has a few.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, cast

import numpy as np
from pydantic import BaseModel

from vaak.audio.config import ConversationsConfig
from vaak.config.experiment import Experiment
from vaak.config.load import Loaded
from vaak.config.training import TrainingConfig
from vaak.core.errors import UserError
from vaak.core.storage.files import scratch_folder
from vaak.core.task import Dataset, Task, TaskWrapper
from vaak.data.batching import training_planner
from vaak.engine.distributed.launcher import pick_device
from vaak.runs.start import Outcome, train

STEPS = 4
HALF = STEPS // 2
EXAMPLES_EVALUATED = 4
"""How many examples of each part of a split are evaluated at most."""
LIMITS = {
    # For an average of the weights, and discriminators.
    "start_step": HALF,
    # For frozen parameters.
    "until_step": HALF,
    "warmup_steps": STEPS // 4,
    "first_cycle_steps": HALF,
    "feature_redraw_interval": HALF,
    "cleanup_interval": HALF,
}
"""Options that count steps, and the most that they may be."""
GRAMMAR_SENTENCES = 2000
"""The most sentences that the built-in grammar makes up."""
VOICES, VOICE_SENTENCES = 30, 40
"""The most built-in voices, and the most sentences of each."""
CONVERSATIONS = {"train": 64, "valid": EXAMPLES_EVALUATED, "test": EXAMPLES_EVALUATED}
"""The most conversations that are simulated."""
NEW_TOKENS = 16
"""The most tokens of a text that is written: a model that has learned nothing doesn't end it."""
CPU_ROWS, CPU_MICROBATCHES = 4, 2
"""The most rows of a microbatch, and the most microbatches of a step, on a CPU."""


def try_run(loaded: Loaded) -> Outcome:
    """Train a few steps, evaluate, and write a checkpoint, as training would; return how it ended.

    The run's own directory is neither read nor written. Raises UserError for everything that training would, and if
    several processes were started.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("--try runs in one process: start it without torchrun or accelerate launch")
    with scratch_folder("try") as folder:
        directory = folder / loaded.experiment.name
        experiment = shortened(loaded.experiment).model_copy(update={"run_dir": directory})
        if pick_device(experiment.training.device).type == "cpu":
            experiment = with_small_batches(experiment)
        short = replace(loaded, experiment=experiment)
        return train(short, task=cast("Task", _LittleToEvaluate(short.task(), loaded.experiment.training)))


def shortened(experiment: Experiment[Any, Any]) -> Experiment[Any, Any]:
    """Return an experiment of a few steps that reaches every later phase, evaluates, saves, and has no trackers.

    >>> from vaak.config.load import load_layers
    >>> options = {"max_steps": 500, "scheduler": {"type": "linear", "warmup_steps": 100}, "ema": {"start_step": 200}}
    >>> long = load_layers([{"task": "lm", "data": {"corpus": "grammar"}, "training": options}]).experiment
    >>> short = shortened(long).training
    >>> short.max_steps, short.scheduler.warmup_steps, short.ema.start_step
    (4, 1, 2)
    """
    experiment = _limited(experiment)
    training = experiment.training
    once = {"interval": STEPS, "interval_epochs": None}
    alone: dict[str, Any] = {"save_dir": None, "resume": None, "interval_minutes": None}
    scheduler = {"first_cycle_epochs": None} if training.scheduler.first_cycle_epochs is not None else {}
    parts: dict[str, dict[str, Any]] = {
        "validation": once,
        "checkpoint": {**once, **alone},
        "logging": {"interval": 1, "wandb": False, "trackers": ()},
        "scheduler": scheduler,
    }
    changes = {name: getattr(training, name).model_copy(update=options) for name, options in parts.items()}
    training = training.model_copy(update={"max_steps": STEPS, **changes})
    update: dict[str, Any] = {"training": training}
    # A budget of 0 keeps predictions for all data from being made first.
    if experiment.distillation is not None:
        update["distillation"] = experiment.distillation.model_copy(update={"stored_gib": 0.0})
    return experiment.model_copy(update=update)


def with_small_batches(experiment: Experiment[Any, Any]) -> Experiment[Any, Any]:
    """Return an experiment whose steps take a CPU seconds: few rows, few microbatches, no rehearsal.

    >>> from vaak.config.load import load_layers
    >>> large = {"batch_size": 64, "gradient_accumulation_steps": 8}
    >>> large = load_layers([{"task": "lm", "data": {"corpus": "grammar"}, "training": large}]).experiment
    >>> small = with_small_batches(large).training
    >>> small.batch_size, small.gradient_accumulation_steps
    (4, 2)
    """
    training = experiment.training
    changes: dict[str, Any] = {
        "batch_size": min(training.batch_size, CPU_ROWS),
        "gradient_accumulation_steps": min(training.gradient_accumulation_steps, CPU_MICROBATCHES),
        "batching": training.batching.model_copy(update={"max_tokens": None, "max_duration": None}),
        # Training won't have such batches.
        "memory": training.memory.model_copy(update={"rehearsal": False}),
    }
    return experiment.model_copy(update={"training": training.model_copy(update=changes)})


def _limited(value: Any) -> Any:
    """Return a section whose counts of steps are limited; values for an epoch apply to a step."""
    if isinstance(value, tuple):
        return tuple(map(_limited, value))
    if isinstance(value, dict):
        return {name: _limited(one) for name, one in value.items()}
    if not isinstance(value, BaseModel):
        return value
    given: dict[str, Any] = {name: getattr(value, name) for name in type(value).model_fields}
    changed = {name: _limited(one) for name, one in given.items()}
    changed |= {name: min(given[name], most) for name, most in LIMITS.items() if isinstance(given.get(name), int)}
    if "max_new_tokens" in given:
        changed["max_new_tokens"] = min(given["max_new_tokens"] or NEW_TOKENS, NEW_TOKENS)
    if given.get("type") == "grammar" and "num_sentences" in given:
        changed["num_sentences"] = min(given["num_sentences"], GRAMMAR_SENTENCES)
    if isinstance(value, ConversationsConfig):
        changed |= {split: min(given[split], most) for split, most in CONVERSATIONS.items()}
    if given.get("type") == "voices":
        changed |= {
            "num_voices": min(given["num_voices"], VOICES),
            "num_sentences": min(given["num_sentences"], VOICE_SENTENCES),
        }
        if given["split_by"] != "speaker":
            # A fraction of so few may be none.
            changed |= {"valid_examples": EXAMPLES_EVALUATED, "test_examples": EXAMPLES_EVALUATED}
    if given.get("until_epoch") is not None:
        changed |= {"until_step": HALF, "until_epoch": None}
    return value.model_copy(update=changed)


class _LittleToEvaluate(TaskWrapper):
    """A task with the first examples only of what it is evaluated on; the plan of its ``training`` must be possible."""

    def __init__(self, task: Task, training: TrainingConfig) -> None:
        super().__init__(task)
        self.training = training

    def dataset(self, split: str) -> Any:
        dataset = self.task.dataset(split)
        if split != "train":
            return _FirstOfEachPart(dataset)
        # Raises what training would: its batches may be larger than those of a trial.
        training_planner(self.training, dataset)
        return dataset


class _FirstOfEachPart:
    """The first examples of each part of a dataset."""

    def __init__(self, dataset: Dataset) -> None:
        lengths, parts, strata = dataset.lengths, dataset.parts, dataset.strata
        of_parts = [np.arange(len(lengths))] if parts is None else [np.flatnonzero(parts == one) for one in set(parts)]
        kept = np.sort(np.concatenate([one[:EXAMPLES_EVALUATED] for one in of_parts]))
        self.dataset, self.kept = dataset, kept
        self.lengths = lengths[kept]
        self.parts = None if parts is None else parts[kept]
        self.strata = None if strata is None else strata[kept]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dataset, name)

    def example(self, index: int, rng: np.random.Generator) -> Any:
        return self.dataset.example(int(self.kept[index]), rng)

    def describe(self, index: int) -> str:
        return self.dataset.describe(int(self.kept[index]))

    def get_content(self, index: int) -> str:
        return self.dataset.get_content(int(self.kept[index]))
