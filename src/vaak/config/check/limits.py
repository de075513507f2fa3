"""Options that the types accept but that can't apply in a run are always reported. A task adds its own checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vaak.config.check.names import unknown_losses
from vaak.config.experiment import Experiment
from vaak.config.optimization import SCHEDULES_THAT_END_LOW
from vaak.config.task_spec import CheckFinding, impossible, impossible_if_given, no_effect, remark
from vaak.config.training import DIFFICULTIES, TrainingConfig

MOST_PARAMETERS = 10**12
"""A process holds its whole model: a larger one fits no machine."""

_NO_PERFORMER = "no layer of this model draws random features (Performer)"


def findings(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    """All findings about options, including the task's."""
    yield from _impossible(experiment)
    yield from _without_effect(experiment)
    yield from _remarks(experiment)
    yield from experiment.spec.checks(experiment)


def _impossible(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    training = experiment.training
    yield from _impossible_lengths(experiment)
    yield from unknown_losses(experiment)
    yield from _impossible_size(experiment)
    yield from _impossible_steps(training)
    if training.batching.type in experiment.spec.refused_batching:
        yield impossible("training.batching.type", experiment.spec.refused_batching[training.batching.type])
    if "norm_reg" in training.loss.auxiliary and not _draws_features(experiment):
        yield impossible(
            "training.loss.auxiliary.norm_reg",
            f"{_NO_PERFORMER}; it needs an attention_type linear or causal_linear",
        )
    if training.distributed.backend == "nccl" and training.device in ("cpu", "mps"):
        yield impossible(
            "training.distributed.backend", f"nccl needs CUDA, and device is {training.device}; expected gloo or null"
        )
    if experiment.distillation is not None and not experiment.spec.has_logits:
        yield impossible(
            "distillation", f"{experiment.task} has no classes whose probabilities could be learned; leave it out"
        )
    if training.performance.compile and experiment.distillation is not None and experiment.distillation.hidden:
        yield impossible(
            "distillation.hidden", "a compiled model gives no hidden states: set training.performance.compile: false"
        )
    yield from _impossible_curriculum(experiment)
    thresholds = training.memory.thresholds
    if thresholds is not None and list(thresholds) != sorted(set(thresholds)):
        yield impossible(
            "training.memory.thresholds", f"{list(thresholds)} do not increase; expected moderate < high < critical"
        )
    if training.scheduler.warmup_steps and training.scheduler.warmup_ratio is not None:
        yield impossible("training.scheduler.warmup_ratio", "given together with warmup_steps; give one of them")
    if training.scheduler.first_cycle_steps is not None and training.scheduler.first_cycle_epochs is not None:
        yield impossible(
            "training.scheduler.first_cycle_epochs", "given together with first_cycle_steps; give one of them"
        )
    if training.validation.interval is None and training.validation.interval_epochs is None:
        yield from _without_evaluations(training)


def _impossible_curriculum(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    """Difficulties that the data don't have, and a curriculum that would become easier."""
    curriculum = experiment.training.curriculum
    if curriculum is None:
        return
    refused = experiment.spec.refused_difficulties(experiment)
    if curriculum.difficulty in refused:
        others = " or ".join(measure for measure in DIFFICULTIES if measure not in refused)
        yield impossible(
            "training.curriculum.difficulty",
            f"{curriculum.difficulty}: {refused[curriculum.difficulty]}; expected {others or 'no curriculum'}",
        )
    if curriculum.final_difficulty < curriculum.initial_difficulty:
        yield impossible(
            "training.curriculum.final_difficulty",
            f"is below initial_difficulty ({curriculum.initial_difficulty}); easy examples are never dropped",
        )


def _impossible_size(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    """A model that no machine can train, by a count that allocates nothing."""
    count = experiment.spec.num_parameters
    number = count(experiment) if count is not None else 0
    if number > MOST_PARAMETERS:
        yield impossible(
            "model",
            f"has about {number:.1e} parameters, which take {16 * number / 1e12:,.0f} TB in each process that trains; "
            "make it smaller",
        )


def _impossible_steps(training: TrainingConfig) -> Iterator[CheckFinding]:
    """A schedule that doesn't fit the steps of training, where these are known, or its rate."""
    scheduler, optimizer = training.scheduler, training.optimizer
    too_long = training.max_steps is not None and scheduler.warmup_steps > training.max_steps
    if too_long and scheduler.long_warmup == "refuse":
        yield impossible(
            "training.scheduler.warmup_steps",
            f"is {scheduler.warmup_steps}, but training ends after {training.max_steps} steps (max_steps); warm up for "
            "fewer, or train longer",
        )
    if scheduler.type in SCHEDULES_THAT_END_LOW and scheduler.min_lr > optimizer.lr:
        yield impossible(
            "training.scheduler.min_lr", f"is {scheduler.min_lr}, above training.optimizer.lr ({optimizer.lr})"
        )


def _impossible_lengths(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    """Audio options in a task without audio, and budgets in another unit than that of the examples."""
    spec, batching = experiment.spec, experiment.training.batching
    if not spec.audio:
        for section in ("datasets", "global_config"):
            if getattr(experiment, section):
                yield impossible(
                    section, f"is for audio, and the task {experiment.task} has none: it reads the section data"
                )
    if spec.length_unit == "tokens" and batching.max_duration is not None:
        yield impossible(
            "training.batching.max_duration",
            "text has no duration in seconds; expected training.batching.max_tokens",
        )
    if spec.length_unit == "seconds" and batching.max_tokens is not None:
        yield impossible(
            "training.batching.max_tokens",
            "audio has no tokens; expected training.batching.max_duration, in seconds",
        )


def _without_evaluations(training: TrainingConfig) -> Iterator[CheckFinding]:
    """What is impossible in a run that is never evaluated."""
    if training.early_stopping is not None:
        yield impossible("training.early_stopping", "needs evaluations; give validation.interval or interval_epochs")
    if training.scheduler.type == "plateau":
        yield impossible(
            "training.scheduler.type", "plateau needs evaluations; give validation.interval or interval_epochs"
        )


def _without_effect(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    training = experiment.training
    if not _draws_features(experiment):
        yield no_effect("training.feature_redraw_interval", f"{_NO_PERFORMER}, so nothing is redrawn")
        yield no_effect("training.fixed_projection", f"{_NO_PERFORMER}, so nothing is redrawn")
    elif training.fixed_projection:
        yield no_effect("training.feature_redraw_interval", "fixed_projection is true, so features are never redrawn")
    if training.mixed_precision != "fp16":
        yield no_effect(
            "training.amp_loss_scale",
            f"only fp16 scales the loss, and mixed_precision is {training.mixed_precision}",
        )
    if training.mixed_precision == "no":
        yield no_effect("training.fp32_fallback", "mixed_precision is no, so all is computed in fp32 anyway")
    if not training.memory.manager:
        yield no_effect("training.memory.cleanup_interval", "memory.manager is false, and it does the cleaning")
    yield from _callbacks_that_disagree(experiment)
    if training.max_steps is not None:
        yield no_effect("training.epochs", f"max_steps ({training.max_steps}) decides when training ends")
    yield from _unread_in_training(training)
    workers = training.performance.num_workers
    if workers == 0 or (workers is None and experiment.spec.length_unit == "tokens"):
        reason = f"num_workers is {'null and this is text' if workers is None else 0}: the main process loads the data"
        yield no_effect("training.performance.prefetch_factor", reason)
        yield no_effect("training.performance.persistent_workers", reason)


def _callbacks_that_disagree(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    """Callbacks that set what an option sets as well."""
    training = experiment.training
    for number, callback in enumerate(training.callbacks):
        key = f"training.callbacks.{number}"
        if callback.type == "gradient_clipping":
            message = "the callback gradient_clipping sets it as well; leave one out"
            yield impossible_if_given("training.gradient_clipping", message)
        if callback.type != "feature_redraw":
            continue
        interval = training.feature_redraw_interval
        if not _draws_features(experiment):
            yield no_effect(key, f"{_NO_PERFORMER}, so nothing is redrawn")
        elif training.fixed_projection:
            yield impossible(key, "redraws features, and training.fixed_projection is true; leave one out")
        elif interval not in (None, callback.options.get("interval", interval)):
            yield impossible(key, f"training.feature_redraw_interval is {interval} already; leave one out")


def _unread_in_training(training: TrainingConfig) -> Iterator[CheckFinding]:
    """Options that wait for another one."""
    if training.checkpoint.init_from is None:
        for name in ("init_except", "init_rename"):
            yield no_effect(f"training.checkpoint.{name}", "init_from is null, so the weights are drawn")
    logging, scheduler = training.logging, training.scheduler
    if not (logging.tensorboard or logging.wandb or logging.trackers):
        yield no_effect("training.logging.log_metrics", "no tracker is on; metrics.jsonl has everything")
    if scheduler.type == "one_cycle" and (scheduler.warmup_steps or scheduler.warmup_ratio):
        yield no_effect("training.scheduler.peak_at", "the rate peaks at the end of the warm-up")
    if not training.memory.manager:
        yield no_effect("training.memory.thresholds", "memory.manager is false, so pressure isn't watched")


def _draws_features(experiment: Experiment[Any, Any]) -> bool:
    return any(getattr(section, "draws_features", False) for section in (experiment.model, experiment.data))


def _remarks(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    training = experiment.training
    curriculum = training.curriculum
    if curriculum is not None and training.max_steps is None and (curriculum.num_epochs or 0) > training.epochs:
        yield remark("training.curriculum.num_epochs", f"training ends before it, after {training.epochs} epochs")
    yield from _batch_size_beside_a_budget(training)
    if not training.performance.persistent_workers:
        yield remark(
            "training.performance.persistent_workers",
            "has no effect: one iteration of the loader spans all epochs",
        )
    if not training.logging.wandb:
        yield remark("wandb", "nothing goes to Weights & Biases unless training.logging.wandb is true")
    if training.mixed_precision == "fp16" and training.device == "cpu":
        yield remark("training.mixed_precision", "fp16 needs an accelerator; on a CPU, training continues in fp32")


def _batch_size_beside_a_budget(training: TrainingConfig) -> Iterator[CheckFinding]:
    """What ``batch_size`` still does where batches are filled up to a budget."""
    batching = training.batching
    budgets = {"max_tokens": batching.max_tokens, "max_duration": batching.max_duration}
    given = [f"batching.{name} ({budget})" for name, budget in budgets.items() if budget is not None]
    if not given or batching.type != "bucketed":
        return
    uses = ["the rows of an evaluation batch"] if training.validation.batch_size is None else []
    uses += ["the fewest examples of a curriculum"] if training.curriculum is not None else []
    rest = f"it is only {' and '.join(uses)}" if uses else "nothing reads it"
    yield remark("training.batch_size", f"{given[0]} decides how many rows a training batch has; {rest}")
