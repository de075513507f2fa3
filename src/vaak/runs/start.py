"""A run from its configuration to its end: trained in its directory, only prepared, or begun in a temporary folder."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import vaak
from vaak.config.load import Loaded
from vaak.config.metrics import in_words
from vaak.config.optimization import UPDATE_RULES
from vaak.config.resolved import resolved_values
from vaak.config.training import TrainingConfig
from vaak.core.errors import UserError
from vaak.core.interrupts import STOPPING
from vaak.core.machine import count_own_cores, format_bytes
from vaak.core.progress import progress_allowed
from vaak.core.secrets import hide_secrets, mask
from vaak.core.storage.files import remove_leftovers, scratch_folder, write_json
from vaak.core.task import Task
from vaak.data.example_cost import measure_examples
from vaak.engine.callback import Callback
from vaak.engine.checkpoint.names import list_checkpoints, step_folder
from vaak.engine.checkpoint.resume import require_resumable, start_fresh
from vaak.engine.distributed.launcher import pick_device, say_what_has_no_effect
from vaak.engine.distributed.ranks import Ranks, require_shared, start_ranks
from vaak.engine.forecast import at_rest, require_steps_for_warmup
from vaak.engine.interrupts import on_forced_exit
from vaak.engine.memory import read_memory
from vaak.engine.metrics_file import iterate_evaluations
from vaak.engine.optim.optimizers import update_condition
from vaak.engine.optim.schedules import warmup_steps
from vaak.engine.precision import keeping_generators, keeping_kernels, precision_in_words
from vaak.engine.trainer import Trainer
from vaak.nn.nf4 import num_weights
from vaak.runs.build_callbacks import build_callbacks
from vaak.runs.distillation import distilled
from vaak.runs.folder.directory import (
    PREPROCESSED,
    SAMPLES,
    checkpoints_elsewhere,
    claim,
    command_to_go_on,
    holds_a_run,
    make_directory,
    require_finished,
    require_own_run,
    require_room,
    the_only_writer,
    write_status,
)
from vaak.runs.folder.logs import logging_to
from vaak.runs.folder.sessions import begin_session, environment, write_current
from vaak.runs.folder.user_code import OF_THE_LOOP, make_run_config, require_secrets, require_trust
from vaak.runs.open_run import begin_with_weights, bundled_files, require_same_rows
from vaak.runs.prepared import is_prepared, prepared_folder
from vaak.runs.settle import (
    find_checkpoint_to_resume,
    read_configuration,
    settle_batches_per_process,
    settle_by_device,
    settle_precision,
)
from vaak.runs.uploading import fetch_run, uploading
from vaak.runs.use import command_lines, find_spec, formats_to_record

log = logging.getLogger("vaak")


@dataclass(frozen=True)
class Outcome:
    """How a run ended: the reason, the directory, the step, and the metrics of its last evaluation."""

    reason: str
    directory: Path
    step: int
    total_steps: int
    metrics: dict[str, float]
    samples: list[str]
    is_main: bool
    commands: tuple[str, ...] = ()
    """Commands for the next steps."""
    best: str = ""
    """The best checkpoint and its metric; empty without one."""
    seconds: float = 0.0
    """How long this session trained."""

    def require_not_stopped(self, what: str, remedy: str) -> None:
        """Raise KeyboardInterrupt if Ctrl-C stopped ``what``, and UserError if another signal did."""
        if self.reason == "SIGINT":
            raise KeyboardInterrupt
        if self.reason in {number.name for number in STOPPING}:
            raise UserError(f"stopped ({self.reason}) in {what} at step {self.step}; {remedy}")


def train(loaded: Loaded, callbacks: tuple[Callback, ...] = (), task: Task | None = None) -> Outcome:
    """Train the model of a configuration into its run directory; ``task`` replaces the one that it names.

    Raises UserError for everything that a user can fix, and for code that requires trust; the run directory is then
    unchanged.
    """
    with open_trainer(loaded, callbacks, task) as trainer:
        begun_at = time.monotonic()
        reason = _fit(trainer)
        seconds = time.monotonic() - begun_at
        shown = trainer.ranks.is_main and reason == "finished"
        with trainer.evaluated_weights() as model:
            samples = shown_samples(trainer.task, model) if shown else []
        if samples:
            _write_samples(trainer, samples)
        position, metrics = trainer.position, trainer.metrics or _last_evaluation(trainer.directory)
        is_main, best = trainer.ranks.is_main, ""
        if trainer.best.value is not None and trainer.best.step is not None:
            best = f"{trainer.best.metric} {in_words(trainer.best.metric, trainer.best.value)}"
            best = f"{trainer.checkpoints / step_folder(trainer.best.step)} ({best})"
        return Outcome(
            reason,
            trainer.directory,
            position.step,
            trainer.total_steps,
            metrics,
            samples,
            is_main,
            _next_commands(trainer, trainer.configuration) if trainer.ranks.is_main else (),
            best,
            seconds,
        )


def _write_samples(trainer: Trainer, samples: list[str]) -> None:
    """Write samples to the run directory; since they are also printed, an error is only logged."""
    path = trainer.directory / SAMPLES
    try:
        write_json(path, {"step": trainer.position.step, "samples": samples})
    except OSError as error:
        log.warning("%s can't be written: %s", path, error.strerror or error)


def shown_samples(task: Task, model: nn.Module) -> list[str]:
    """Return a few samples of the task. The run is finished, so an error is only logged."""
    try:
        return task.samples(model.eval())
    except (UserError, OSError) as error:
        log.warning("the run is finished, but its samples can't be shown: %s", error)
        return []


def _next_commands(trainer: Trainer, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return useful next commands for a run; ``trainer`` has its task, so that no code is imported again."""
    splits = [split for split in ("valid", "test") if _has_examples(trainer.task, split)]
    formats = formats_to_record(trainer.task)
    spec = find_spec(trainer.task)
    return tuple(command_lines(spec, options, trainer.directory, splits=splits, formats=formats))


def _has_examples(task: Task, split: str) -> bool:
    """Return whether a split has examples. Training has ended, so an error only means that it hasn't."""
    try:
        return len(task.dataset(split).lengths) > 0
    except Exception:
        return False


def prepare(loaded: Loaded) -> Path:
    """Prepare a run's data without training, and return their folder, where training will find them.

    An existing run keeps the data that it was trained with; new ones are written to ``data.cache_dir``. Raises
    UserError if there is a run but no ``data.cache_dir``, unless the run resumes.
    """
    require_trust(loaded)
    require_secrets(loaded, but=OF_THE_LOOP)
    experiment, directory = loaded.experiment, loaded.experiment.run_dir
    cache = getattr(experiment.data, "cache_dir", None)
    if holds_a_run(directory) and cache is not None:
        return _prepared_in_cache(loaded, Path(cache))
    if holds_a_run(directory) and experiment.training.checkpoint.resume is None:
        raise UserError(
            f"{directory} holds a run, which keeps the data that it was trained with; give a folder for new ones with "
            "--output (data.cache_dir), or another name="
        )
    ranks = start_ranks(experiment.training)
    logs = logging_to(directory, ranks.rank, experiment.training.logging.json_lines)
    with contextlib.closing(ranks), _held_directory(loaded, ranks), logs:
        with loaded.naming_lines():
            ranks.run_on_main(distilled(loaded.task(), experiment, directory).prepare)
        folder = prepared_folder(directory)
        # Distinguishes prepared data from a failed start in listings.
        if ranks.is_main and not folder.is_symlink() and not holds_a_run(directory):
            write_json(directory / PREPROCESSED, {"folder": folder.name, "vaak": vaak.__version__})
    return folder.resolve()


def _prepared_in_cache(loaded: Loaded, cache: Path) -> Path:
    """Prepare the data in a cache and return their folder; runs don't change."""
    with scratch_folder("data") as temporary:
        directory, experiment = temporary, loaded.experiment
        with logging_to(directory, 0, experiment.training.logging.json_lines), loaded.naming_lines():
            distilled(loaded.task(directory), experiment, directory).prepare()
        folder = prepared_folder(directory)
        return folder.resolve() if folder.is_symlink() else cache


@contextlib.contextmanager
def open_trainer(loaded: Loaded, callbacks: tuple[Callback, ...] = (), task: Task | None = None) -> Iterator[Trainer]:
    """Within this context, a trainer at the place where its run starts or resumes.

    The run directory is created and locked, and the data are prepared. ``callbacks`` are added to those of the
    configuration; ``task`` replaces its task.
    """
    require_trust(loaded)
    secrets = require_secrets(loaded)
    ranks = start_ranks(loaded.experiment.training)
    with _closed_after_errors(ranks):
        # Fetched first, because the options settled next depend on the checkpoint that the run resumes from.
        fetched = ranks.run_on_main(lambda: fetch_run(loaded.experiment))
        loaded, settled = settle_by_device(settle_batches_per_process(settle_precision(loaded)))
        _compare(loaded, ranks)
    training, directory = loaded.experiment.training, loaded.experiment.run_dir
    logs = logging_to(directory, ranks.rank, training.logging.json_lines)
    shown = progress_allowed(training.logging.progress_bar and not training.logging.json_lines)
    with contextlib.closing(ranks), keeping_kernels(), _held_directory(loaded, ranks) as remarks, logs, shown:
        if ranks.is_main:
            warnings = [(logging.WARNING, text) for text in (*loaded.warnings, *remarks)]
            infos = [(logging.INFO, text) for text in (*secrets, *settled)]
            for level, text in (*warnings, *infos, *fetched):
                log.log(level, text)
            _log_global_batch(training)
            say_what_has_no_effect(training, ranks.device, ranks.world_size)
        chosen = task or loaded.task()
        reference = chosen.reference
        # Before preparing data, which may take hours: can the run be resumed, and is its warm-up short enough?
        ranks.run_on_main(lambda: _require_resumable(loaded, reference))
        if not is_prepared(directory):
            ranks.run_on_main(lambda: require_steps_for_warmup(chosen, training))
        chosen = distilled(chosen, loaded.experiment, directory)
        with loaded.naming_lines():
            ranks.run_on_main(chosen.prepare)
        if task is None:
            ranks.run_on_main(lambda: _require_same_rows(loaded))
        all_callbacks = [*build_callbacks(loaded.experiment, loaded.folder), *callbacks]
        skip_bad = loaded.experiment.skips_bad_examples
        trainer = Trainer(
            chosen, training, directory, all_callbacks, ranks=ranks, skip_bad_examples=skip_bad, folder=loaded.folder
        )
        trainer.configuration = resolved_values(loaded.experiment)
        _begin(trainer)
        ranks.run_on_main(lambda: _begin_session(trainer, loaded))
        with uploading(trainer, training.checkpoint.upload_to):
            yield trainer


@contextlib.contextmanager
def _closed_after_errors(ranks: Ranks) -> Iterator[None]:
    """Close the ranks if an error leaves this context, in which nothing else would close them."""
    try:
        yield
    except BaseException:
        ranks.close()
        raise


def _require_resumable(loaded: Loaded, reference: str | None) -> None:
    """Refuse changes that a resume can't make, before data are prepared; a damaged checkpoint is reported later."""
    path = find_checkpoint_to_resume(loaded)
    if path is not None:
        require_resumable(resolved_values(loaded.experiment), reference, read_configuration(path), path)


def _require_same_rows(loaded: Loaded) -> None:
    """Refuse a resume if the data were prepared again and the rows of the checkpoint's weights have other names now."""
    path = find_checkpoint_to_resume(loaded)
    if path is not None and is_prepared(path):
        require_same_rows(loaded.task(), loaded.task(path), path, loaded.experiment.run_dir)


def _compare(loaded: Loaded, ranks: Ranks) -> None:
    """Raise UserError on every rank if configurations, versions or update rules differ between ranks."""
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    values = {**mask(loaded.experiment.model_dump(mode="json")), "versions": {"vaak": vaak.__version__, **versions}}
    ranks.compare("the processes have different settings", values)
    rule = UPDATE_RULES.get(loaded.experiment.training.optimizer.type)
    if rule is not None and rule.condition is not None:
        # Ranks whose processors compute this update differently would drift apart.
        there = update_condition(loaded.experiment.training.optimizer, ranks.device)
        found = {f"{name} in": value for name, value in there.items()}
        ranks.compare("the machines have different processors", found, rule.condition.advice)


@contextlib.contextmanager
def _held_directory(loaded: Loaded, ranks: Ranks) -> Iterator[list[str]]:
    """Within this context, the run directory exists and is locked by the main process; yields remarks on it.

    Existing files don't change.
    """
    experiment, checkpointing = loaded.experiment, loaded.experiment.training.checkpoint
    directory = experiment.run_dir
    with contextlib.ExitStack() as stack:
        remarks: list[str] = []

        def open_directory() -> None:
            checkpoints = checkpoints_elsewhere(checkpointing.save_dir, experiment.name)
            require_own_run(directory, checkpoints)
            require_finished(directory)
            require_room(directory, checkpoints, resumes=checkpointing.resume is not None)
            make_directory(directory, checkpoints)
            stack.enter_context(the_only_writer(directory))
            remarks.extend(filter(None, [claim(directory)]))
            remove_leftovers(directory)
            if not holds_a_run(directory):
                # So that a failed start is listed, too.
                configuration = make_run_config(experiment, loaded.folder, directory)
                write_current(directory, configuration, environment(ranks.device, ranks.world_size))

        ranks.run_on_main(open_directory)
        # Each process has to know the links of this run, because it writes through no others.
        if not ranks.is_main:
            require_own_run(directory, checkpoints_elsewhere(checkpointing.save_dir, experiment.name), deep=False)
        require_shared(ranks, directory)
        yield remarks


def _begin_session(trainer: Trainer, loaded: Loaded) -> None:
    configuration = make_run_config(loaded.experiment, loaded.folder, trainer.directory)
    begin_session(trainer, configuration)
    trainer.saving.writer.bundled_files = bundled_files(trainer.directory, configuration)


def _begin(trainer: Trainer) -> None:
    """Resume the trainer, or start it with the weights that the configuration names; then log what it will do."""
    options = trainer.config.checkpoint
    if options.resume is None:
        start_fresh(trainer.saving, trainer.pictures)
    # A checkpoint has the weights of a run that resumes; init_from is for one that starts.
    if options.resume is None or not trainer.resume(options.resume):
        begin_with_weights(trainer.model, trainer.task, options)
    trainer.saving.compare("the processes start from different states")
    if trainer.ranks.is_main:
        _log_start(trainer)


def _log_start(trainer: Trainer) -> None:
    """Log the size of the model and its memory, options without effect, and the steps that will be taken."""
    held = at_rest(trainer.model, trainer.config).of_each(trainer.ranks.world_size)
    parameters = num_weights(trainer.model.parameters())
    where = f"{trainer.ranks.device}, {trainer.ranks.world_size} process(es), precision "
    where += precision_in_words(trainer.config, trainer.precision)
    log.info("%s: %s parameters on %s", trainer.directory, f"{parameters:,}", where)
    log.info(
        "weights, gradients and optimizer will take %s of %s, plus what a batch needs (vaak model show)",
        format_bytes(held[trainer.config.distributed.strategy]),
        format_bytes(read_memory(trainer.ranks.device).limit),
    )
    for name, usual in (("strategy", "ddp"), ("reduce_dtype", "fp32")):
        value = getattr(trainer.config.distributed, name)
        if trainer.ranks.world_size == 1 and value != usual:
            log.warning("training.distributed.%s: %s changes nothing on one process", name, value)
    given, warmup = trainer.config.scheduler, warmup_steps(trainer.config.scheduler, trainer.total_steps)
    if given.warmup_ratio is None and warmup < given.warmup_steps:
        log.warning(
            "training.scheduler.warmup_steps is %d, but training has %d steps: it warms up for %d "
            "(training.scheduler.long_warmup is shorten)",
            given.warmup_steps,
            trainer.total_steps,
            warmup,
        )
    _log_loading(trainer)
    log.info(
        "steps %d to %d, %d an epoch; padding is %.1f %% of a batch",
        trainer.position.step,
        trainer.total_steps,
        trainer.data.steps_per_epoch,
        100 * trainer.padding_waste,
    )


def _log_loading(trainer: Trainer) -> None:
    """Log how long an example takes to make, and the number of processes that make them, unless it takes no time."""
    dataset = trainer.data.dataset
    # Measuring would advance the global generators, if the dataset draws from them.
    if dataset.draws_globally or not (dataset.useful_workers or trainer.num_workers):
        return
    cost = measure_examples(dataset, trainer.config.random_seed)
    if cost is not None:
        number = trainer.num_workers
        makers = {0: "this process makes them", 1: "1 process makes them"}.get(number, f"{number} processes make them")
        log.info(
            "an example takes %s to make; %s (training.performance.num_workers), with %d cores",
            *(cost, makers, count_own_cores()),
        )


def _fit(trainer: Trainer) -> str:
    """Train, and write to status.json how it ended; return the reason."""
    directory, is_main = trainer.directory, trainer.ranks.is_main
    if is_main:
        # A killed run leaves no status and is listed as crashed, which the status of an earlier session would hide.
        (directory / "status.json").unlink(missing_ok=True)
    state, reason = "failed", ""
    try:
        with on_forced_exit(lambda: _left(directory)):
            reason = trainer.fit()
        state = "finished" if trainer.is_finished else "stopped"
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        raise
    finally:
        if is_main:
            status = {"state": state, "reason": hide_secrets(reason), "step": trainer.position.step}
            try:
                write_status(directory, {**status, "total_steps": trainer.total_steps})
            # Logged, because a full disk must not hide the error that ended training.
            except OSError as error:
                why = error.strerror or error
                log.warning("status.json can't be written (%s): vaak runs lists this run as crashed", why)
    return reason


def _left(directory: Path) -> str:
    """Return the message of a run that exits at once: its newest checkpoint, and how to resume it."""
    saved = list_checkpoints(directory / "checkpoints")
    if not saved:
        return f"{directory} has no checkpoint yet; start it again"
    return f"{directory} has {saved[-1].name} as its newest checkpoint; resume with: {command_to_go_on(directory)}"


def _last_evaluation(directory: Path) -> dict[str, float]:
    """Return the metrics of the newest evaluation on record: the result of a run that had already finished."""
    newest = next(iter(deque(iterate_evaluations(directory), maxlen=1)), {})
    return {name: value for name, value in newest.items() if isinstance(value, float)}


def _log_global_batch(training: TrainingConfig) -> None:
    """Log the global batch of a step, if ``batch_size`` is per process."""
    processes = training.distributed.processes_at_start
    if processes is None:
        return
    steps, rows = training.gradient_accumulation_steps, training.batch_size
    size = f"{steps * rows} rows" if training.batching.type in ("fixed", "stratified") else f"{steps} batches"
    log.info(
        "the global batch of a step is %s (%d microbatches): the run started on %d processes with fewer microbatches "
        "than that, so batch_size is per process, as accelerate has it; it stays so on any number of processes",
        size,
        steps,
        processes,
    )


@contextlib.contextmanager
def temporary_trainer(loaded: Loaded) -> Iterator[Trainer]:
    """Within this context, a trainer at the start of a run, without callbacks, in a temporary directory.

    It has the weights of ``training.checkpoint.init_from``, if given. Random generators and kernels are restored
    afterwards. It uses one process, since steps don't depend on their number; raises UserError if several were started.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("this takes the same steps in one process: start it without torchrun or accelerate launch")
    require_secrets(loaded, but=OF_THE_LOOP)
    loaded, _ = settle_by_device(loaded)
    training = loaded.experiment.training
    device = pick_device(training.device)
    with scratch_folder("study") as folder, keeping_generators(device), keeping_kernels():
        directory, experiment = folder, loaded.experiment
        task = distilled(loaded.task(directory), experiment, directory)
        with loaded.naming_lines():
            task.prepare()
        skip_bad, folder_of_code = experiment.skips_bad_examples, loaded.folder
        trainer = Trainer(
            task, training, directory, ranks=Ranks(device), skip_bad_examples=skip_bad, folder=folder_of_code
        )
        begin_with_weights(trainer.model, task, training.checkpoint)
        yield trainer
