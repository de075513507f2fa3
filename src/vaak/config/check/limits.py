"""Options that the types accept but that can't apply in a run, or whose faculty isn't built: never silence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vaak.config.catalog import TASKS
from vaak.config.check.diarization_limits import impossible_diarizers, remarks_on_diarizers
from vaak.config.check.stack_limits import copying_denied, one_sided_encoders, options_unread, sharing_denied
from vaak.config.experiment import Experiment
from vaak.config.training import TrainingConfig

_NO_PERFORMER = "no layer of this model draws random features (Performer)"


def impossible(experiment: Experiment[Any, Any]) -> Iterator[tuple[str, str]]:
    """Dotted keys whose values can't be done, each with the reason."""
    training = experiment.training
    yield from _impossible_audio(experiment)
    if "norm_reg" in training.loss.auxiliary and not _draws_features(experiment):
        yield "training.loss.auxiliary.norm_reg", f"{_NO_PERFORMER}; it needs an attention_type linear or causal_linear"
    if training.distributed.backend == "nccl" and training.device in ("cpu", "mps"):
        yield "training.distributed.backend", f"nccl needs CUDA, and device is {training.device}; expected gloo or null"
    if hasattr(experiment.data, "tokenizer") and training.batching.max_duration is not None:
        yield "training.batching.max_duration", "text has no duration in seconds; expected training.batching.max_tokens"
    if experiment.task == "seq2seq" and training.batching.type == "packed":
        yield "training.batching.type", "a row holds one source and its target, so none are packed; expected bucketed"
    yield from copying_denied(experiment)
    yield from _impossible_curriculum(experiment)
    thresholds = training.memory.thresholds
    if thresholds is not None and list(thresholds) != sorted(set(thresholds)):
        yield "training.memory.thresholds", f"{list(thresholds)} do not rise; expected moderate, high, critical"
    if training.scheduler.warmup_steps and training.scheduler.warmup_ratio is not None:
        yield "training.scheduler.warmup_ratio", "given beside warmup_steps; give one of them"
    if training.validation.interval is None and training.validation.interval_epochs is None:
        yield from _without_evaluations(training)


def _impossible_audio(experiment: Experiment[Any, Any]) -> Iterator[tuple[str, str]]:
    """What is of audio in a task without it, or against it in one of audio."""
    if not TASKS[experiment.task].audio:
        for section in ("datasets", "global_config"):
            if getattr(experiment, section):
                yield section, f"is of audio, and the task {experiment.task} has none: it reads the section data"
    elif experiment.training.batching.max_tokens is not None:
        yield "training.batching.max_tokens", "audio has no tokens; expected training.batching.max_duration, in seconds"
    if experiment.task == "diarization":
        yield from impossible_diarizers(experiment)


def _without_evaluations(training: TrainingConfig) -> Iterator[tuple[str, str]]:
    """What can't be had in a run that is never evaluated."""
    if training.early_stopping is not None:
        yield "training.early_stopping", "needs evaluations; give validation.interval or interval_epochs"
    if training.scheduler.type == "plateau":
        yield "training.scheduler.type", "plateau needs evaluations; give validation.interval or interval_epochs"


def _impossible_curriculum(experiment: Experiment[Any, Any]) -> Iterator[tuple[str, str]]:
    curriculum = experiment.training.curriculum
    if curriculum is None:
        return
    if curriculum.final_difficulty < curriculum.initial_difficulty:
        yield (
            "training.curriculum.final_difficulty",
            f"is below initial_difficulty ({curriculum.initial_difficulty}); easy examples are never dropped",
        )
    if curriculum.difficulty == "length" and getattr(experiment.data, "layout", None) == "stream":
        yield (
            "training.curriculum.difficulty",
            "windows of a stream are all equally long; expected lexical or morphology, or data.layout: document",
        )


def without_effect(experiment: Experiment[Any, Any]) -> Iterator[tuple[str, str]]:
    """Dotted keys that do nothing in this run, each with what happens instead."""
    training = experiment.training
    if experiment.task != "diarization":
        yield "training.eval_knobs", f"options of diarization; the task {experiment.task} does not read them"
    if not _draws_features(experiment):
        yield "training.feature_redraw_interval", f"{_NO_PERFORMER}, so nothing is redrawn"
        yield "training.fixed_projection", f"{_NO_PERFORMER}, so nothing is redrawn"
    elif training.fixed_projection:
        yield "training.feature_redraw_interval", "fixed_projection is true, so features are never redrawn"
    yield from options_unread(experiment)
    if training.mixed_precision != "fp16":
        yield "training.amp_loss_scale", f"only fp16 scales the loss, and mixed_precision is {training.mixed_precision}"
    if training.max_steps is not None:
        yield "training.epochs", f"max_steps ({training.max_steps}) decides when training ends"
    if training.performance.num_workers == 0:
        reason = "num_workers is 0: the main process loads the data"
        yield "training.performance.prefetch_factor", reason
        yield "training.performance.persistent_workers", reason


def _draws_features(experiment: Experiment[Any, Any]) -> bool:
    return bool(getattr(experiment.model, "draws_features", False))


def impossible_if_asked(experiment: Experiment[Any, Any]) -> Iterator[tuple[str, str]]:
    """Dotted keys that are on by default where they can be, each with why it can't here: a mistake if it is given."""
    yield from sharing_denied(experiment)


def remarks(experiment: Experiment[Any, Any]) -> Iterator[tuple[str, str]]:
    """Dotted keys that do something else than one may think, each with what happens."""
    yield from one_sided_encoders(experiment)
    if experiment.task == "diarization":
        yield from remarks_on_diarizers(experiment)
    training = experiment.training
    curriculum = training.curriculum
    if curriculum is not None and training.max_steps is None and (curriculum.num_epochs or 0) > training.epochs:
        yield "training.curriculum.num_epochs", f"training ends before it, after {training.epochs} epochs"
    yield from _batch_size_beside_a_budget(training)
    if not training.performance.persistent_workers:
        yield (
            "training.performance.persistent_workers",
            "workers stay: one iteration of the loader spans all epochs",
        )
    if not training.logging.wandb:
        yield "wandb", "nothing goes to Weights & Biases unless training.logging.wandb is true"
    if training.mixed_precision == "fp16" and training.device == "cpu":
        yield "training.mixed_precision", "fp16 needs an accelerator; on a CPU, training goes on in fp32"


def _batch_size_beside_a_budget(training: TrainingConfig) -> Iterator[tuple[str, str]]:
    """What is left of ``batch_size`` where batches are filled up to a budget."""
    batching = training.batching
    budgets = {"max_tokens": batching.max_tokens, "max_duration": batching.max_duration}
    given = [f"batching.{name} ({budget})" for name, budget in budgets.items() if budget is not None]
    if not given or batching.type != "bucketed":
        return
    uses = ["the rows of an evaluation batch"] if training.validation.batch_size is None else []
    uses += ["the fewest examples of a curriculum"] if training.curriculum is not None else []
    rest = f"it is only {' and '.join(uses)}" if uses else "nothing reads it"
    yield "training.batch_size", f"{given[0]} decides how many rows a training batch has; {rest}"
