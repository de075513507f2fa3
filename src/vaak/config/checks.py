"""Checks beyond types: options that don't go together, have no effect, or name what doesn't exist.

They need no data, so mistakes are reported before anything is prepared. A task adds its own checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from vaak.config.base import REGISTERED
from vaak.config.components import AUXILIARY_LOSSES, LOSSES, SMOOTHING_LOSSES, did_you_mean
from vaak.config.experiment import Experiment
from vaak.config.metric_names import check_metrics
from vaak.config.optimization import SCHEDULES_THAT_END_LOW
from vaak.config.tasks import CheckFinding, impossible, impossible_if_given, no_effect, remark
from vaak.config.training import DIFFICULTIES, MOST_EXACT, TrainingConfig

MOST_PARAMETERS = 10**12
"""A process holds its whole model: a larger one fits no machine."""
SHARDABLE = ("adam", "adamw", "lion", "muon", "sgd")
"""Update rules that a part of a weight is enough for, or that exchange parts (Muon)."""
URL_AS_PATH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""How a URL begins, also as a path, in which ``//`` is ``/``; a drive has one letter."""
_NO_PERFORMER = "no layer of this model draws random features (Performer)"


def check_options(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    """Yield what is wrong with options or deserves a remark, the task's own checks included."""
    yield from _find_impossible(experiment)
    yield from _find_without_effect(experiment)
    yield from _find_remarks(experiment)
    yield from experiment.spec.checks(experiment)


def check_new_run(experiment: Experiment[Any, Any], further_metrics: Iterable[str]) -> Iterator[CheckFinding]:
    """Yield what only a run that starts must have right: its metrics, and the checkpoint it begins with.

    ``further_metrics`` are those that a program adds to the task's. A trained run may have others, and may have
    outlived the one whose weights it began with.
    """
    yield from check_metrics(experiment, further_metrics)
    options = experiment.training.checkpoint
    resumes = options.resume is not None and (experiment.run_dir / "config.yml").exists()
    if options.init_from is not None and not resumes and _is_missing(options.init_from):
        yield impossible(
            "training.checkpoint.init_from",
            f"{options.init_from} doesn't exist; give a run directory, or step-…, best or last in it",
        )
    if options.resume not in (None, "auto") and _is_missing(str(options.resume)):
        yield impossible("training.checkpoint.resume", f"{options.resume} doesn't exist; give a checkpoint, or auto")


def _is_missing(path: str) -> bool:
    """Return whether a path doesn't exist; URLs are reported by ``_check_urls``."""
    return not URL_AS_PATH.match(path) and not Path(path).exists()


def _find_impossible(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    training = experiment.training
    yield from _check_urls(experiment)
    yield from _check_lengths(experiment)
    yield from _check_losses(experiment)
    yield from _check_size(experiment)
    yield from _check_steps(training)
    if training.batching.type in experiment.spec.refused_batching:
        yield impossible("training.batching.type", experiment.spec.refused_batching[training.batching.type])
    if "norm_reg" in training.loss.auxiliary and not _draws_features(experiment):
        yield impossible(
            "training.loss.auxiliary.norm_reg",
            f"{_NO_PERFORMER}; it needs an attention_type linear or causal_linear",
        )
    yield from _check_processes(training)
    if experiment.distillation is not None and not experiment.spec.has_logits:
        yield impossible(
            "distillation",
            f"the task {experiment.task} predicts no probabilities to learn from a teacher; leave it out",
        )
    if training.performance.compile and experiment.distillation is not None and experiment.distillation.hidden:
        yield impossible(
            "distillation.hidden", "a compiled model gives no hidden states: set training.performance.compile: false"
        )
    yield from _check_graphs(training)
    yield from _check_layers(experiment)
    yield from _check_logits(experiment)
    yield from _check_curriculum(experiment)
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
        yield from _check_unevaluated(training)


def _check_urls(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    """Yield URLs given for local folders: as paths they would be folders named ``s3:``."""
    options = experiment.training.checkpoint
    values = {
        "run_dir": experiment.run_dir,
        "training.checkpoint.save_dir": options.save_dir,
        "training.checkpoint.resume": options.resume,
        "training.checkpoint.init_from": options.init_from,
        "data.cache_dir": getattr(experiment.data, "cache_dir", None),
    }
    for key, value in values.items():
        if value is not None and URL_AS_PATH.match(str(value)):
            upload = (
                "; training.checkpoint.upload_to keeps the checkpoints at a URL, from which resume: auto brings them"
            )
            is_run = key in ("run_dir", "training.checkpoint.save_dir", "training.checkpoint.resume")
            yield impossible(key, f"is a URL; give a folder of this machine{upload if is_run else ''}")


def _check_losses(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    """Yield main and auxiliary losses that the task doesn't have, or that don't fit its data."""
    spec, loss = experiment.spec, experiment.training.loss
    name = loss.main.type
    fitting = spec.losses and tuple(spec.losses(experiment))
    if fitting and name in LOSSES and name not in fitting:
        yield impossible(
            "training.loss.main",
            f"{name} doesn't fit what the task {experiment.task} predicts; expected one of {', '.join(fitting)}, "
            "./file.py:Name or package.module:Name",
        )
    elif loss.main.options.get("weight") is not None and name == "cross_entropy" and not spec.has_class_weights:
        yield impossible("training.loss.main.weight", "only classifiers have class weights; leave it out")
    elif loss.label_smoothing and name in LOSSES and name not in SMOOTHING_LOSSES:
        yield impossible("training.loss.label_smoothing", f"{name} has no label smoothing; leave it out")
    if spec.auxiliary_losses is None:
        return
    unfit = {*AUXILIARY_LOSSES} - {*fitting} if fitting else set()
    unfit -= {"z_loss"} if spec.has_logits else set()
    known = sorted({*AUXILIARY_LOSSES, *REGISTERED["training.loss.auxiliary"], *spec.auxiliary_losses} - unfit)
    for other, about in loss.auxiliary.items():
        kind = other if isinstance(about, int | float) else about.type
        if kind in unfit:
            message = f"{kind} doesn't fit what the task {experiment.task} predicts; expected one of {', '.join(known)}"
            yield impossible(f"training.loss.auxiliary.{other}", message)
        elif isinstance(about, int | float) and other not in known:
            yield impossible(
                f"training.loss.auxiliary.{other}",
                f"is not known; expected one of {', '.join(known)}{did_you_mean(other, known)}",
            )


def _check_graphs(training: TrainingConfig) -> Iterator[CheckFinding]:
    """Yield options that exclude captured graphs."""
    performance, key = training.performance, "training.performance.cuda_graphs"
    if performance.cuda_graphs and performance.compile is not False:
        yield impossible(key, "a compiled model can't be captured: leave one of cuda_graphs and compile out")
    if performance.cuda_graphs and performance.gradient_checkpointing not in (False, "none"):
        yield impossible(
            key,
            "what is recomputed reads the generators' states, which a graph can't: leave one of cuda_graphs and "
            "gradient_checkpointing out",
        )


def _check_layers(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    """Yield options of layers that the networks of an experiment don't have."""
    networks, performance = {*experiment.spec.networks(experiment)}, experiment.training.performance
    key, parts = "training.performance.gradient_checkpointing", performance.gradient_checkpointing
    if networks == {"layerless"}:
        yield no_effect(key, "the model has no layers that could be computed again")
    elif parts == "all" and "transformers" in networks:
        yield impossible(key, "all: layers of transformers' networks are called one by one; set it to block")
    elif parts == "attention" and any(getattr(one, "is_own", False) for one in _model_sections(experiment)):
        yield impossible(key, "attention: which part of a network of yours is attention isn't known; set it to block")
    if networks and "stacks" not in networks:
        yield no_effect("training.performance.attention", "the model has no stack of Vaak's")


def explain_uncaptured(experiment: Experiment[Any, Any]) -> str | None:
    """Return why no CUDA graph of a step can be captured; None if it can, as far as is known before training."""
    is_packed = experiment.training.batching.type == "packed"
    stacks = [one for one in _model_sections(experiment) if hasattr(one, "explain_uncaptured")]
    reasons = (one.explain_uncaptured(is_packed=is_packed) for one in stacks)
    return experiment.spec.explain_uncaptured(experiment) or next((one for one in reasons if one is not None), None)


def _model_sections(experiment: Experiment[Any, Any]) -> list[Any]:
    model = experiment.model
    return [model, *(getattr(model, name) for name in getattr(type(model), "model_fields", ()))]


def _check_logits(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    """Yield ways to do without all logits that aren't available, or whose loss reads all of them."""
    training, how = experiment.training, experiment.training.performance.logits
    if how in ("auto", "whole") or not experiment.spec.loss_reads_head:
        return
    further = {name if isinstance(one, int | float) else one.type for name, one in training.loss.auxiliary.items()}
    # z_loss is computed chunk by chunk as well, and a task's own losses don't read logits.
    reading = sorted(further - {"z_loss", *(experiment.spec.auxiliary_losses or ())})
    reason, expected = None, "whole"
    if experiment.distillation is not None:
        reason = "a student's logits are compared with its teacher's"
    elif training.loss.main.type != "cross_entropy" or reading:
        reason = f"the loss {[*reading, training.loss.main.type][0]} reads them all"
    elif getattr(experiment.model, "copy_source", False):
        reason = "model.copy_source mixes copied tokens into all of them"
    elif how == "liger" and "z_loss" in further:
        reason, expected = "liger has no z_loss", "chunked"
    elif how == "liger" and training.device in ("cpu", "mps"):
        reason, expected = f"liger runs on CUDA, and device is {training.device}", "chunked"
    if reason:
        yield impossible("training.performance.logits", f"{reason}; expected {expected}")


def _check_curriculum(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    """Yield difficulties that the data don't have, and curricula that become easier."""
    curriculum, batching = experiment.training.curriculum, experiment.training.batching
    if curriculum is not None and batching.shard_size is not None:
        message = "training.curriculum orders examples by difficulty, not as they are stored; leave one of them out"
        yield impossible("training.batching.shard_size", message)
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


def _check_size(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    """Yield a model that no machine can train; counting its parameters allocates nothing."""
    count = experiment.spec.num_parameters
    number = count(experiment) if count is not None else 0
    if number > MOST_PARAMETERS:
        yield impossible(
            "model",
            f"has about {number:.1e} parameters, which take {16 * number / 1e12:,.0f} TB in each process that trains; "
            "make it smaller",
        )


def _check_processes(training: TrainingConfig) -> Iterator[CheckFinding]:
    if training.distributed.backend == "nccl" and training.device in ("cpu", "mps"):
        yield impossible(
            "training.distributed.backend", f"nccl needs CUDA, and device is {training.device}; expected gloo or null"
        )
    microbatches = training.gradient_accumulation_steps
    if training.distributed.reduction == "exact" and microbatches > MOST_EXACT:
        yield impossible(
            "training.distributed.reduction",
            f"exact sums hold at most {MOST_EXACT} microbatches, and gradient_accumulation_steps is {microbatches}; "
            "lower it, or leave reduction at float",
        )
    processes = training.distributed.world_size or 1
    if training.distributed.reduction == "exact" and processes > microbatches:
        yield impossible(
            "training.gradient_accumulation_steps",
            f"exact sums need a microbatch for each process, and distributed.world_size is {processes}; set it to "
            f"{processes} or more, with a smaller batch_size",
        )
    if training.distributed.reduction == "exact" and training.distributed.reduce_dtype == "bf16":
        yield impossible("training.distributed.reduce_dtype", "exact sums aren't rounded; leave it at fp32")
    if training.distributed.strategy == "zero1" and training.optimizer.is_users(training.optimizer.type):
        yield impossible(
            "training.distributed.strategy",
            f"zero1 divides the update by parameters, which {training.optimizer.type} may not do; set it to ddp",
        )
    if training.distributed.strategy != "ddp" and training.distributed.reduction == "exact":
        yield impossible(
            "training.distributed.reduction",
            f"exact sums aren't possible with strategy {training.distributed.strategy}; set that to ddp",
        )
    if training.distributed.strategy == "fsdp":
        yield from _check_sharding(training)


def _check_sharding(training: TrainingConfig) -> Iterator[CheckFinding]:
    """Yield options that need whole weights or gradients in each process."""
    if training.optimizer.type not in SHARDABLE:
        yield impossible(
            "training.optimizer.type",
            f"{training.optimizer.type} needs whole weights, and with training.distributed.strategy: fsdp each process "
            f"has a part; expected one of {', '.join(SHARDABLE)}, or strategy ddp",
        )
    if training.optimizer.type == "sgd" and training.optimizer.fused:
        yield impossible(
            "training.optimizer.fused", "sgd has no fused kernels with training.distributed.strategy: fsdp"
        )
    if training.performance.compile not in (False, True, "default"):
        yield impossible(
            "training.performance.compile",
            f"{training.performance.compile} records CUDA graphs of weights, which training.distributed.strategy: fsdp "
            "gathers again for each block; set it to true",
        )
    if training.performance.cuda_graphs:
        yield impossible(
            "training.performance.cuda_graphs",
            "is not possible with training.distributed.strategy: fsdp, whose weights come and go in a forward pass; "
            "leave it out, or set strategy to ddp",
        )
    if any(rule.until_step is not None or rule.until_epoch is not None for rule in training.freeze):
        yield impossible(
            "training.freeze",
            "a model divided over processes (training.distributed.strategy: fsdp) can't change its trained parameters: "
            "leave out until_step and until_epoch, or set strategy to ddp",
        )


def _check_steps(training: TrainingConfig) -> Iterator[CheckFinding]:
    """Yield a schedule that doesn't fit the number of steps, if known, or the learning rate."""
    scheduler, optimizer = training.scheduler, training.optimizer
    too_long = training.max_steps is not None and scheduler.warmup_steps > training.max_steps
    if too_long and scheduler.long_warmup == "refuse":
        yield impossible(
            "training.scheduler.warmup_steps",
            f"is {scheduler.warmup_steps}, but training ends after {training.max_steps} steps (max_steps); warm up for "
            "fewer, train longer, or set training.scheduler.long_warmup to shorten",
        )
    if scheduler.type in SCHEDULES_THAT_END_LOW and scheduler.min_lr > optimizer.lr:
        yield impossible(
            "training.scheduler.min_lr", f"is {scheduler.min_lr}, above training.optimizer.lr ({optimizer.lr})"
        )


def _check_lengths(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    """Yield audio options in a task without audio, and budgets in another unit than that of the examples."""
    spec, batching = experiment.spec, experiment.training.batching
    if not spec.audio:
        for section in ("datasets", "global_config"):
            if getattr(experiment, section):
                yield impossible(
                    section,
                    f"is for audio, which the task {experiment.task} doesn't read; its data belong in the section data",
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


def _check_unevaluated(training: TrainingConfig) -> Iterator[CheckFinding]:
    """Yield options that need evaluations, in a run without any."""
    if training.early_stopping is not None:
        yield impossible("training.early_stopping", "needs evaluations; give validation.interval or interval_epochs")
    if training.scheduler.type == "plateau":
        yield impossible(
            "training.scheduler.type", "plateau needs evaluations; give validation.interval or interval_epochs"
        )


def _check_strategy(training: TrainingConfig) -> Iterator[CheckFinding]:
    strategy = training.distributed.strategy
    if strategy == "fsdp":
        yield no_effect("training.fp32_fallback", "strategy is fsdp, which gathers weights in 16 bits")
        return
    for name in ("reshard_after_forward", "shard_size", "cpu_offload"):
        yield no_effect(f"training.distributed.{name}", f"strategy is {strategy}, which gathers no weights")


def _find_without_effect(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
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
        yield no_effect("training.fp32_fallback", "mixed_precision is no, so everything is computed in fp32")
    if not training.memory.manager:
        yield no_effect("training.memory.cleanup_interval", "memory.manager is false, so nothing is cleaned up")
    yield from _check_strategy(training)
    yield from _check_callbacks(experiment)
    if training.max_steps is not None:
        yield no_effect("training.epochs", f"max_steps ({training.max_steps}) decides when training ends")
    yield from _find_unread(training)
    if not experiment.spec.loss_reads_head:
        yield no_effect("training.performance.logits", f"the loss of {experiment.task} reads all logits")
    if training.device in ("cpu", "mps"):
        yield no_effect(
            "training.performance.attention", f"device is {training.device}, where attention is always masked"
        )
    yield from _find_unread_of_graphs(experiment)
    workers = training.performance.num_workers
    if workers == 0 or (workers is None and experiment.spec.length_unit == "tokens"):
        reason = f"num_workers is {'null and this is text' if workers is None else 0}: the main process loads the data"
        yield no_effect("training.performance.prefetch_factor", reason)
        yield no_effect("training.performance.persistent_workers", reason)
        yield no_effect("training.performance.multiprocessing_context", reason)


def _find_unread_of_graphs(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    training, key = experiment.training, "training.performance.cuda_graphs"
    if training.device in ("cpu", "mps"):
        yield no_effect(key, f"device is {training.device}, which has no CUDA graphs")
    elif training.performance.cuda_graphs and (reason := explain_uncaptured(experiment)) is not None:
        yield no_effect(key, f"no graph can be captured: {reason}")
    if not training.performance.cuda_graphs:
        yield no_effect("training.performance.cuda_graph_shapes", "cuda_graphs is false")


def _check_callbacks(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    """Yield callbacks that set the same as an option."""
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


def _find_unread(training: TrainingConfig) -> Iterator[CheckFinding]:
    """Yield options that only another one would put to use."""
    for name, section in (("validation", training.validation), ("checkpoint", training.checkpoint)):
        if section.interval is not None:
            yield no_effect(f"training.{name}.interval_epochs", f"interval decides, {section.interval} steps")
    if training.batching.shard_size is None:
        yield no_effect("training.batching.shards_mixed", "shard_size is null, so examples come in random order")
    if training.checkpoint.init_from is None:
        for name in ("init_except", "init_rename"):
            yield no_effect(f"training.checkpoint.{name}", "init_from is null, so the weights are drawn")
    logging, scheduler = training.logging, training.scheduler
    if not (logging.tensorboard or logging.wandb or logging.trackers):
        yield no_effect("training.logging.log_metrics", "no tracker is enabled; metrics.jsonl has every metric")
    if scheduler.type == "one_cycle" and (scheduler.warmup_steps or scheduler.warmup_ratio):
        yield no_effect("training.scheduler.peak_at", "the learning rate peaks at the end of the warm-up")
    if not training.memory.manager:
        yield no_effect("training.memory.thresholds", "memory.manager is false, so memory isn't watched")


def _draws_features(experiment: Experiment[Any, Any]) -> bool:
    return any(getattr(section, "draws_features", False) for section in (experiment.model, experiment.data))


def _find_remarks(experiment: Experiment[Any, Any]) -> Iterator[CheckFinding]:
    training = experiment.training
    curriculum = training.curriculum
    if curriculum is not None and training.max_steps is None and (curriculum.num_epochs or 0) > training.epochs:
        yield remark("training.curriculum.num_epochs", f"training ends earlier, after {training.epochs} epochs")
    yield from _remark_on_batch_size(training)
    may_capture = training.performance.cuda_graphs and explain_uncaptured(experiment) is None
    if may_capture and training.batching.round_lengths is None:
        yield remark(
            "training.performance.cuda_graphs",
            "batches of many lengths have many shapes, of which each needs a graph: training.batching.round_lengths "
            "makes fewer (bucketed batches)",
        )
    if not training.performance.persistent_workers:
        yield remark(
            "training.performance.persistent_workers",
            "has no effect: one iteration of the loader spans all epochs",
        )
    if not training.logging.wandb:
        yield remark("wandb", "nothing is sent to Weights & Biases unless training.logging.wandb is true")
    if training.mixed_precision == "fp16" and training.device == "cpu":
        yield remark("training.mixed_precision", "fp16 needs an accelerator; on a CPU, training continues in fp32")


def _remark_on_batch_size(training: TrainingConfig) -> Iterator[CheckFinding]:
    """Yield a remark on what ``batch_size`` still does if batches are filled up to a budget."""
    batching = training.batching
    budgets = {"max_tokens": batching.max_tokens, "max_duration": batching.max_duration}
    given = [f"batching.{name} ({budget})" for name, budget in budgets.items() if budget is not None]
    if not given or batching.type != "bucketed":
        return
    uses = ["the number of rows in an evaluation batch"] if training.validation.batch_size is None else []
    uses += ["the minimum number of examples of a curriculum"] if training.curriculum is not None else []
    rest = f"it is only {' and '.join(uses)}" if uses else "nothing reads it"
    yield remark("training.batch_size", f"{given[0]} decides how many rows a training batch has; {rest}")
