"""A run in memory (its state, step, data and callbacks), and ``fit``, the loop that trains it.

    for each step:   fetch its data and exchange messages with the other ranks
                     evaluate and save, if due at this boundary
                     take the step and report it

Everything a step uses besides the state follows from its number, so the loop itself has no state. The step is in
step.py, and the state that it changes in state.py. Ctrl-C, SIGTERM and similar signals (interrupts.py) ask the run to
stop after its step.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from torch import nn

from vaak.config.training import TrainingConfig
from vaak.core.errors import UserError
from vaak.core.task import Task, require_dataset
from vaak.data.loader import Microbatch, naming_lost_workers, num_workers
from vaak.data.waiting import WaitLimit
from vaak.engine.callback import Callback, ForwardWork, StepReport
from vaak.engine.checkpoint.files import step_folder
from vaak.engine.checkpoint.resume import resume
from vaak.engine.checkpoint.saving import Checkpointer
from vaak.engine.distributed.exchange import StepMessage
from vaak.engine.distributed.launcher import check_microbatches
from vaak.engine.distributed.ranks import Ranks, start_ranks
from vaak.engine.evaluation import EvaluationInterruptedError, Evaluator, Pictures
from vaak.engine.flops import count_work
from vaak.engine.interrupts import in_order, leave_at_once, signals_to_hear
from vaak.engine.metrics_file import Records
from vaak.engine.phases import Clock, Phases
from vaak.engine.precision import Precision
from vaak.engine.rehearsal import rehearse, rehearse_evaluations
from vaak.engine.snapshot import Snapshot
from vaak.engine.state import ChunkRule, ChunkRules, Position
from vaak.engine.trained import StepContext, make_state, make_step, make_trained
from vaak.engine.training_data import StepData, TrainingData, count_units
from vaak.nn.losses import auxiliary_losses

log = logging.getLogger("vaak")


class Trainer:
    """Trains a task into a run directory: ``step`` changes ``state``, and everything else here serves these two.

    Callbacks may use the part of it that is ``vaak.engine.callback.Run``.
    """

    def __init__(  # noqa: PLR0913 (a caller leaves the last three out, unless a configuration says otherwise)
        self,
        task: Task,
        config: TrainingConfig,
        directory: Path,
        callbacks: Sequence[Callback] = (),
        *,
        ranks: Ranks | None = None,
        skip_bad_examples: bool = False,
        folder: Path = Path(),
    ) -> None:
        """Prepare to train ``task`` by the section ``training`` (``config``) in the run directory ``directory``.

        ``callbacks`` are called at the events of ``Callback``. ``ranks`` are the processes that train, started here if
        not given. ``skip_bad_examples`` skips examples that can't be read, instead of ending the run. ``folder`` is
        where a user's ``./file.py`` in the configuration is looked for.
        """
        for callback in callbacks:
            # Before anything else: a profiler or a memory manager changes how a step is computed.
            config = callback.configure(config)
        self.task, self.config, self.directory = task, config, directory
        self.ranks = ranks or start_ranks(config)
        check_microbatches(config, self.ranks.world_size)
        self.callbacks = list(callbacks)
        is_sharded = config.distributed.strategy == "fsdp" and self.ranks.world_size > 1
        # A sharded model's weights are gathered in 16 bits, so it can't fall back to fp32.
        fp32_after = None if is_sharded else config.fp32_fallback
        self.precision = Precision(config.mixed_precision, self.ranks.device, fp32_after)
        examples = task.dataset("train")
        require_dataset(examples, f"{type(task).__name__}.dataset('train')")
        trained = make_trained(task, config, self.ranks, self.precision.name, folder, examples.has_one_shape)
        weights = auxiliary_losses(config.loss, task.auxiliary_losses) | dict.fromkeys(task.logged_terms, 0.0)
        self.loss_weights = weights | dict(task.loss_weights)
        self.data = TrainingData(examples, config, self.ranks, directory, skip_bad=skip_bad_examples)
        chunk_rules = ChunkRules(directory, self.ranks.rank, self.data.fingerprint)
        self.state = make_state(trained, config, self.precision, chunk_rules, callbacks)
        self.best = self.state.best
        self.phases, self.clock = Phases(self.ranks.device), Clock()
        self._trained = trained
        self._around = StepContext(self.ranks, self.precision, self.loss_weights, self.phases, self.clock, directory)
        self._set_horizon()
        self.pictures = Pictures(directory / "pictures")
        # A closure over self would be a reference cycle, which keeps the model in memory.
        pictures, state = self.pictures, self.state
        self.evaluator = Evaluator(
            task,
            config,
            self.ranks,
            skip_bad_examples,
            lambda draw: pictures.show(state.position.step, draw, state.best.step),
            self.precision,
        )
        self.requests, self.agreed = StepMessage(), StepMessage()
        self.stop_reason: str | None = None
        self.last: tuple[StepData, StepReport] | None = None
        self.records = Records(directory / "metrics.jsonl" if self.ranks.is_main else None)
        self.saving = Checkpointer(directory, config, self.state, self.data, self.precision)

    def _set_horizon(self) -> None:
        """Compute the last step from the present position, and make the step whose schedule ends there."""
        self.total_steps = self.data.total_steps(self.position)
        self.step = make_step(self._trained, self.config, self.data, self._around, self.total_steps)

    # Parts of the state, under the names that callbacks use.

    @property
    def position(self) -> Position:
        return self.state.position

    @property
    def model(self) -> nn.Module:
        return self.state.model.module

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the last evaluation."""
        return self.state.metrics.metrics

    @property
    def scheduled_evaluation(self) -> bool:
        """Whether the last evaluation was a scheduled one."""
        return self.state.metrics.scheduled

    @property
    def configuration(self) -> Mapping[str, Any]:
        """All options of the run, resolved, as checkpoints store them; empty for a trainer made by hand."""
        return self.saving.configuration

    @configuration.setter
    def configuration(self, values: Mapping[str, Any]) -> None:
        self.saving.configuration = values

    @property
    def padding_waste(self) -> float:
        return self.data.padding_waste

    @property
    def num_workers(self) -> int:
        return num_workers(self.config.performance, self.data.dataset)

    @property
    def checkpoints(self) -> Path:
        """The folder of the run's checkpoints."""
        return self.saving.writer.folder

    def learning_rates(self) -> list[float]:
        """Return the present learning rate of each parameter group."""
        return [group["lr"] for optimizer in self.state.optimizers for group in optimizer.param_groups]

    def count_work(self, peak_tflops: float | None) -> ForwardWork | None:
        """Return the floating-point operations per unit of this run's data (flops.py); None if they aren't known."""
        with self._trained.independent() as model:
            return count_work(self.task, model, self.precision, self.data, self.position, peak_tflops)

    # The loop and its parts.

    def fit(self) -> str:
        """Train to the last step, or until a stop is requested; return ``finished``, or the reason of the request."""
        self.saving.require_valid_journals()
        with stop_on_signal(self.request_stop):
            with self.ending_well(), naming_lost_workers():
                self.notify("on_fit_start")
                self.rehearse()
                self.evaluate_at_start()
                with closing(self.upcoming()) as steps:
                    for data in steps:
                        # Before the step, because all ranks have just exchanged their requests.
                        with self.clock.exclude():
                            self.run_scheduled()
                        if self.is_over:
                            break
                        self.notify("on_step_end", self.take_step(data))
                self.finish_saving()
            reason = "finished" if self.is_finished else str(self.stop_reason)
            self.notify("on_fit_end", reason)
        return reason

    @property
    def is_over(self) -> bool:
        """Whether there are no more steps to take, or a stop was requested."""
        return self.stop_reason is not None or self.position.step >= self.total_steps

    @property
    def is_finished(self) -> bool:
        """Whether every step was taken, and the evaluation due after the last one was done."""
        return self.position.step >= self.total_steps and not self.position.schedule_pending

    def rehearse(self) -> None:
        """Try the smallest and the largest microbatch, and a batch of each evaluation, unless training is over."""
        if self.config.memory.rehearsal and self.position.step < self.total_steps:
            with self.ranks.naming_lost_ranks():
                rehearse(self.step, self.state, self.data, (self.total_steps - 1) // self.data.steps_per_epoch)
                with self._trained.independent() as model:
                    rehearse_evaluations(self.evaluator, self.state, model)
            # The rehearsal doesn't count as time of the first step.
            self.clock.lap()

    def upcoming(self) -> Generator[StepData, None, None]:
        """Yield the data of each step at its boundary, once all ranks have exchanged messages; empty after the last."""
        position, writer = self.position, self.saving.writer
        with closing(self.data.microbatches(position)) as microbatches:
            while True:
                if writer.failure is not None:
                    # Another thread writes checkpoints.
                    writer.raise_failure()
                with self.phases.measure("loading"), self.clock.gap():
                    # After the last step nothing is read, but ranks still have to agree on what is due.
                    left = position.step < self.total_steps
                    fetched = self.data.fetch(microbatches, position) if left else []
                counts = self.exchange(fetched, self.saving.newly_written() if writer.finished else 0)
                self._notify_saved()
                yield self.data.step_data(position, fetched, counts)

    def take_step(self, data: StepData) -> StepReport:
        """Take a step, and keep its report for callbacks.

        After an error the state may be saved before the loop reaches the next boundary, so the position records here
        whether something is due there.
        """
        with self.ranks.naming_lost_ranks():
            # A sharded model communicates with the other ranks throughout the step.
            report = self.step(self.state, data)
        self.position.schedule_pending = self.evaluation_due() or self.position.place == 0
        self.last = data, report
        return report

    def run_scheduled(self) -> None:
        """At a step's boundary, save, evaluate, report the end of an epoch and mark the best checkpoint, as due.

        The state is saved first, with the rest marked as pending, so an error in an evaluation costs nothing. A run
        that has to stop leaves the rest to the run that resumes it: it may have only seconds.
        """
        position, asked = self.position, self.agreed
        evaluation_due = position.schedule_pending and self.evaluation_due()
        epoch_ended = position.schedule_pending and position.place == 0
        position.schedule_pending = evaluation_due or epoch_ended
        stopping = self.stop_reason is not None and self.saving.saved_step != position.step > 0
        if self.save_due() or stopping:
            self._save()
        if self.stop_reason or not (evaluation_due or epoch_ended or asked.evaluate):
            return
        with self.saving.keep_state_before_schedule(), contextlib.suppress(EvaluationInterruptedError):
            if evaluation_due or asked.evaluate:
                with self.phases.measure("evaluation"):
                    self.evaluate(evaluation_due)
            if epoch_ended:
                self.notify_epoch_end(position.epoch - 1)
            position.schedule_pending = False
        # Callbacks on a single rank may have made requests.
        self.exchange([])
        if self.saving.saved_step == position.step:
            self.saving.complete()
        elif self.saving.is_best or self.stop_reason or self.agreed.save:
            self._save(is_periodic=self.stop_reason is not None or self.agreed.save)
        if self.agreed.evaluate:
            # This boundary's evaluation is done; this one comes after the next step.
            self.request_evaluate()

    def _save(self, is_periodic: bool = True) -> None:
        with self.phases.measure("saving"):
            self.saving.save(is_periodic)

    def evaluation_due(self) -> bool:
        """Return whether an evaluation is scheduled here."""
        options = self.config.validation
        return bool(self.task.evaluation_splits) and self.position.is_due(
            options.interval, options.interval_epochs, self.total_steps
        )

    def save_due(self) -> bool:
        """Return whether a checkpoint is requested, or scheduled here and not written yet."""
        options = self.config.checkpoint
        scheduled = self.position.is_due(options.interval, options.interval_epochs, self.total_steps)
        scheduled = scheduled or self.position.is_on_schedule(options.keep_every, None)
        return self.agreed.save or (scheduled and self.saving.saved_step != self.position.step)

    def evaluate(self, due: bool) -> None:
        """Evaluate all evaluation splits of the task. An evaluation that isn't ``due`` is only logged.

        The one after the last step counts for the best checkpoint. Unless it is also on the schedule, a longer run
        wouldn't have it, so it doesn't influence training (learning rate, patience).
        """
        step, options = self.position.step, self.config.validation
        metrics: dict[str, float] = {}
        with self.evaluated_weights() as model:
            # Entered once for all splits, because it swaps weights with their averages and back.
            for split in self.task.evaluation_splits:
                num_chunks = self.state.chunk_rules.count_for_evaluation(step, split)
                divide = partial(self.state.chunk_rules.divide_evaluation, step, split)
                metrics |= self.evaluator.evaluate(
                    model, split, lambda: self.requests.stop is not None, num_chunks, divide
                )
        scheduled = due and self.position.is_on_schedule(options.interval, options.interval_epochs)
        self.state.metrics.observe(metrics, step, scheduled)
        if due:
            self.state.best.observe(metrics, step)
        if scheduled and self.state.plateau:
            self.state.plateau.observe(metrics)
        self.notify("on_evaluate_end", metrics)

    def evaluate_at_start(self) -> None:
        """Evaluate a pretrained model before its first step; this is only logged."""
        options = self.config
        wanted = options.validation.at_start
        if wanted is None:
            wanted = self.task.begins_pretrained or options.checkpoint.init_from is not None
        if not wanted or self.position.step > 0 or not self.task.evaluation_splits or self.stop_reason:
            return
        with self.clock.exclude(), self.phases.measure("evaluation"), contextlib.suppress(EvaluationInterruptedError):
            self.evaluate(due=False)

    def evaluated_weights(self) -> contextlib.AbstractContextManager[nn.Module]:
        """Within this context, return the model with the weights to evaluate: their averages if training.ema is set."""
        average = self.state.average
        return self._trained.independent(average if average and average.config.evaluate else None)

    def resume(self, source: str) -> bool:
        """Resume from ``auto`` (the run's newest checkpoint) or from a checkpoint; return whether there was one."""
        resumed = resume(self.saving, self.pictures, self.task.reference, source)
        if resumed:
            self._set_horizon()
        return resumed

    def restore(self, snapshot: Snapshot, source: Path) -> None:
        """Restore the state of a snapshot. Raises CheckpointError if it is from another model or other data."""
        self.saving.restore(snapshot, source)
        self._set_horizon()

    def conditions(self) -> dict[str, Any]:
        """Return the conditions other than the state on which the bits of this run depend, such as versions."""
        return self.saving.conditions()

    def _notify_saved(self) -> None:
        """Report the checkpoint that was written, as all ranks have been told."""
        if self.agreed.saved:
            path = self.checkpoints / step_folder(self.agreed.saved)
            if self.ranks.is_main:
                log.info("checkpoint written: %s", path)
            self.notify("on_checkpoint", path)

    def finish_saving(self) -> None:
        """Wait for the checkpoint that is being written, and report those not reported yet."""
        self.saving.writer.finish()
        self.exchange([], self.saving.newly_written())
        while self.agreed.saved:
            # A message names one checkpoint.
            self._notify_saved()
            self.exchange([], self.saving.newly_written())

    # Requests and events.

    def request_stop(self, reason: str) -> None:
        """Request that the run saves and stops after this step; the first reason counts."""
        self.requests.stop = self.requests.stop or reason

    def request_evaluate(self) -> None:
        """Request an evaluation after this step; it is only logged."""
        self.requests.evaluate = True

    def request_save(self) -> None:
        """Request a checkpoint after this step."""
        self.requests.save = True

    def split_microbatches(self, reason: str) -> None:
        """Request that microbatches as large as this step's are computed in chunks half as large, if possible."""
        largest = self._largest_microbatch()
        if largest is None or largest.batch is None or self.last is None or not self.last[1].splittable:
            return
        num_chunks = 2 * self.count_chunks()
        # The smallest chunk is a row.
        if num_chunks < 2 * largest.batch.num_rows:
            rule = ChunkRule(self.position.step + 1, num_chunks, padded_size=self.data.padded_size(largest))
            self.requests.chunk_rules.append([rule.to_json(), reason])

    def count_chunks(self) -> int:
        """Return in how many chunks a microbatch as large as this step's will be computed."""
        largest = self._largest_microbatch()
        return (
            self.state.chunk_rules.count(self.position.step + 1, -1, self.data.padded_size(largest)) if largest else 1
        )

    pieces = count_chunks
    """The former name of ``count_chunks``."""

    def _largest_microbatch(self) -> Microbatch | None:
        """Return this rank's largest microbatch of the last step; None if it had none."""
        microbatches = self.last[0].microbatches if self.last else []
        return max(microbatches, key=self.data.padded_size, default=None)

    def exchange(self, fetched: list[Microbatch], saved: int = 0) -> dict[str, float]:
        """Exchange requests and counts with the other ranks; return the next step's counts by unit, over all ranks.

        ``fetched`` are this rank's microbatches of the next step, and ``saved`` is the step of a newly written
        checkpoint, or 0. Afterwards ``agreed`` has the requests of all ranks, and ``saved`` of the main process.
        """
        minutes = self.config.checkpoint.interval_minutes
        if minutes is not None and time.monotonic() - self.saving.last_save > 60 * minutes:
            self.request_save()
        # Requests of a signal that arrives from here on belong to the next message.
        mine, self.requests = self.requests, StepMessage()
        mine.counts, mine.saved = count_units(fetched), saved
        mine.chunk_rules += [[rule.to_json(), reason] for rule, reason in self.state.chunk_rules.take_fresh()]
        self.agreed = self.ranks.exchange(mine)
        self.stop_reason = self.stop_reason or self.agreed.stop
        for rule, reason in self.agreed.chunk_rules:
            # The rules apply from the next step, which no rank has begun.
            later = ChunkRule(self.position.step + 1, rule["pieces"], padded_size=rule["cells"])
            self.state.chunk_rules.adopt(later, reason)
        # In the task's order, in which the main unit is first.
        ours, agreed = mine.counts, self.agreed.counts
        return {unit: agreed[unit] for unit in (*ours, *sorted(agreed.keys() - ours.keys()))}

    def record(self, kind: str, values: dict[str, Any]) -> None:
        """Log values of the last step to ``metrics.jsonl`` and to every tracker."""
        self.records.write({"kind": kind, "step": self.position.step, "epoch": self.position.epoch_of_step, **values})

    def notify(self, event: str, *arguments: Any) -> None:
        """Call an event of every callback; then raise the first error, if any, with a note that names its callback."""
        failures: list[Exception] = []
        for callback in self.callbacks:
            if callback.main_process_only and not self.ranks.is_main:
                continue
            try:
                getattr(callback, event)(self, *arguments)
            except Exception as error:
                if not isinstance(error, UserError):
                    error.add_note(f"in {event} of the callback {type(callback).__name__}")
                failures.append(error)
        if failures:
            raise failures[0]

    def notify_epoch_end(self, epoch: int) -> None:
        """Notify callbacks of the end of an epoch, with its means and the metrics and step of the last evaluation."""
        metrics: dict[str, float] = {}
        for callback in self.callbacks:
            # Every callback finishes the epoch before on_epoch_end is called for any.
            metrics |= callback.epoch_figures(self)
        self.notify("on_epoch_end", epoch, metrics | self.state.metrics.with_step())

    @contextlib.contextmanager
    def ending_well(self) -> Iterator[None]:
        """Within this context, save the state and notify callbacks when an exception ends the run; re-raise it."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, Exception):
                # Not after a second Ctrl-C, whose user doesn't want to wait for a checkpoint.
                self.saving.save_after(error)
            self.saving.writer.wait()
            for event, argument in (("on_exception", error), ("on_fit_end", type(error).__name__)):
                try:
                    self.notify(event, argument)
                except Exception as another:
                    # A second error must not hide the first.
                    error.add_note(f"then {another!r} {' '.join(getattr(another, '__notes__', ()))}")
            raise


@contextlib.contextmanager
def stop_on_signal(request_stop: Callable[[str], None]) -> Iterator[None]:
    """Within this context, signals that ask a run to end call ``request_stop`` with their name.

    Only a second Ctrl-C exits at once; a SIGTERM after the first one doesn't, because torchrun sends that to all ranks.
    If no batch arrives for long after a signal, an error is raised, so that the run doesn't ignore the signal forever.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts, waiting = 0, WaitLimit()

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal interrupts
        waiting.require_batch()
        interrupts += number == signal.SIGINT
        if interrupts > 1:
            leave_at_once()
        request_stop(signal.Signals(number).name)
        waiting.limit(number)

    before = {number: signal.signal(number, handle) for number in signals_to_hear()}
    try:
        # Entered after the handlers are set: from here on, they receive the first Ctrl-C.
        with in_order(), waiting:
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
