"""A run in memory: what is trained, where it stands, who watches. The loop is in loop.py, the step in step.py."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vaak.config.training import TrainingConfig
from vaak.core.callback import Callback
from vaak.core.errors import UserError
from vaak.core.keys import draw_key
from vaak.core.task import Task
from vaak.data.loader import load, training_addresses
from vaak.data.plan import LastPlan
from vaak.data.plans import training_planner
from vaak.data.reader import Microbatch, Reader
from vaak.engine import loop, resume
from vaak.engine.allocator import keep_freed_memory
from vaak.engine.best import Best
from vaak.engine.cadence import due
from vaak.engine.checkpoint import Snapshot, step_folder
from vaak.engine.clock import Clock
from vaak.engine.ema import WeightAverage
from vaak.engine.evaluation import Evaluator
from vaak.engine.freezing import Freezing
from vaak.engine.journal import SkippedExamples
from vaak.engine.losses import auxiliary_losses
from vaak.engine.optimizers import build_optimizers
from vaak.engine.phases import Phases
from vaak.engine.pictures import Pictures
from vaak.engine.plateau import Plateau
from vaak.engine.position import Position
from vaak.engine.precision import LossScale, Precision
from vaak.engine.randomness import make_deterministic, seed_everything
from vaak.engine.ranks import Ranks, start_ranks
from vaak.engine.records import Records
from vaak.engine.rehearsal import rehearse
from vaak.engine.schedules import make_schedule
from vaak.engine.splits import Cut, Splits
from vaak.engine.state import take_snapshot
from vaak.engine.wishes import Wishes
from vaak.engine.writer import CheckpointWriter, Order

log = logging.getLogger("vaak")


class Trainer:
    """Trains a task into a run directory.

    What a callback may use: ``position``, ``metrics`` (the last evaluation's), ``config``, ``directory``, ``model``,
    ``pictures``, ``ranks``, ``total_steps``, ``clip_norm``, ``clip_value``, ``phases``, and the four requests.
    Gradients are clipped, rates set and weights changed in step.py only.
    """

    def __init__(
        self,
        task: Task,
        config: TrainingConfig,
        directory: Path,
        callbacks: Sequence[Callback] = (),
        *,
        ranks: Ranks | None = None,
        skip_bad_examples: bool = False,
    ) -> None:
        self.task, self.config, self.directory = task, config, directory
        self.ranks = ranks or start_ranks(config)
        self.callbacks = list(callbacks)
        make_deterministic(config, self.ranks.device)
        keep_freed_memory(self.ranks.device)
        seed_everything(draw_key("initialise", config.random_seed), self.ranks.device)
        self.model = task.model().to(self.ranks.device)
        self.forward = _compiled(self.model, config)
        self.freezing = Freezing(self.model, config.freeze) if config.freeze else None
        self.trained_parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._set_up_data(skip_bad_examples)
        self.pictures = Pictures(directory / "pictures")
        self.evaluator = Evaluator(task, config, self.ranks, skip_bad_examples, self._show)
        self._set_up_optimization()
        self.position, self.best, self.metrics = Position(), Best(config.checkpoint), dict[str, float]()
        self.wishes = Wishes()
        self.stop_reason: str | None = None
        self.unsplittable: str | None = None  # a loss that was seen and is no sum over examples
        self.splits = Splits(directory, self.ranks.rank)
        self.phases: Phases | None = None
        self.scheduled_evaluation = False
        self.records = Records(directory / "metrics.jsonl" if self.ranks.is_main else None)
        self.clock, self.last_save = Clock(), time.monotonic()
        self.writer = CheckpointWriter(
            directory / "checkpoints", directory / "metrics.jsonl", config.checkpoint.save_total_limit
        )

    def _set_up_data(self, skip_bad_examples: bool) -> None:
        dataset, seed = self.task.dataset("train"), self.config.random_seed
        self.planner = LastPlan(training_planner(self.config, dataset))
        first_plan = self.planner.plan(0)
        self.data_fingerprint = f"{dataset.fingerprint} {first_plan.fingerprint}"
        self.padding_waste = first_plan.padding_waste(dataset.lengths)
        self.skipped = SkippedExamples(self.directory, self.ranks.rank)
        self.reader = Reader(dataset, ("data",), seed, skip_bad=skip_bad_examples, known_bad=self.skipped.known)
        pinned = self.config.performance.pin_memory
        self.pin_memory = self.ranks.device.type == "cuda" and pinned is not False
        self.steps_per_epoch = -(-self.planner.num_microbatches // self.config.gradient_accumulation_steps)
        self.total_steps = self.config.max_steps or self.config.epochs * self.steps_per_epoch

    def _set_up_optimization(self) -> None:
        config = self.config
        self.optimizers = build_optimizers(self.model, config.optimizer)
        self.average = WeightAverage(self.model, config.ema, self.trained_parameters) if config.ema else None
        self.schedule = make_schedule(config.scheduler, self.total_steps, config.optimizer.lr)
        self.plateau = Plateau(config.scheduler, config.optimizer.lr) if config.scheduler.type == "plateau" else None
        self.precision = Precision(config.mixed_precision, self.ranks.device)
        self.loss_scale = LossScale(self.precision.name == "fp16", config.amp_loss_scale)
        self.loss_weights = auxiliary_losses(config.loss, getattr(self.task, "auxiliary_losses", ()))
        self.clip_norm, self.clip_value = config.gradient_clipping.norm, config.gradient_clipping.value
        self.redraw_interval = None if config.fixed_projection else config.feature_redraw_interval

    def fit(self) -> str:
        """Train from where the run stands to its end; return why it ended: ``finished``, or who asked."""
        return loop.train(self)

    # What the loop asks.

    @property
    def is_finished(self) -> bool:
        """Whether every step was taken, and what was due at the last one done."""
        return self.position.step >= self.total_steps and not self.position.duties_pending

    def microbatches(self) -> Iterator[Microbatch]:
        """This rank's microbatches from the run's position on."""
        addresses = training_addresses(
            self.planner,
            self.config.gradient_accumulation_steps,
            step=self.position.step,
            epoch=self.position.epoch,
            place=self.position.place,
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
        )
        return load(self.reader, addresses, self.config.performance, self.pin_memory)

    def step_size(self) -> int:
        """Microbatches of the next step, over all ranks; the last one of an epoch may have fewer."""
        left = self.planner.num_microbatches - self.position.place
        return min(self.config.gradient_accumulation_steps, left)

    def share_of_step(self) -> int:
        """Microbatches of the next step that are this rank's."""
        return len(range(self.ranks.rank, self.step_size(), self.ranks.world_size))

    def rehearse(self) -> None:
        """Try the smallest and the largest microbatch, where a first step is still to come."""
        if self.config.memory.rehearsal and self.position.step < self.total_steps:
            rehearse(self)
            self.clock.lap()

    def phase(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """While this holds, time belongs to a phase of the step, if anyone measures."""
        return self.phases.measure(name) if self.phases else _NOT_MEASURED

    def learning_rate_factor(self, step: int) -> float:
        """The factor on every group's rate at a step."""
        return self.schedule(step) * (self.plateau.factor if self.plateau else 1.0)

    def evaluation_due(self) -> bool:
        options = self.config.validation
        return due(self.position, self.total_steps, options.interval, options.interval_epochs)

    def save_due(self) -> bool:
        """Whether a checkpoint is scheduled here, asked for, or the best so far."""
        options = self.config.checkpoint
        scheduled = due(self.position, self.total_steps, options.interval, options.interval_epochs)
        return scheduled or self.wishes.save or self.best.step == self.position.step

    def evaluate(self, scheduled: bool) -> None:
        """Evaluate every split the task has. Only a scheduled evaluation changes state."""

        def interrupted() -> bool:
            return self.ranks.world_size == 1 and self.wishes.stop is not None

        step, metrics = self.position.step, dict[str, float]()
        with self.evaluated_weights():
            for split in self.task.evaluation_splits:
                pieces, cut = (
                    self.splits.evaluation_pieces(step, split),
                    partial(self.splits.cut_evaluation, step, split),
                )
                metrics |= self.evaluator.evaluate(self.model, split, interrupted, pieces, cut)
        self.metrics, self.scheduled_evaluation = metrics, scheduled
        self.wishes.evaluate = False
        if scheduled:
            self.best.observe(metrics, self.position.step)
            if self.plateau:
                self.plateau.observe(metrics)
        self.tell("on_evaluate_end", metrics)

    def _show(self, draw: Callable[[], dict[str, bytes]]) -> None:
        self.pictures.show(self.position.step, draw)

    def evaluated_weights(self) -> contextlib.AbstractContextManager[None]:
        """While this holds, the model has the weights that are evaluated: their averages where training.ema says so."""
        averaged = self.average is not None and self.average.config.evaluate
        return self.average.applied() if self.average and averaged else contextlib.nullcontext()

    def save(self) -> None:
        """Copy the state and write it behind training."""
        self.wishes.save, self.last_save = False, time.monotonic()
        if self.ranks.is_main:
            self.writer.write(Order(self.snapshot(), is_best=self.best.step == self.position.step))
        self.tell("on_checkpoint", self.writer.folder / step_folder(self.position.step))

    # State.

    def snapshot(self) -> Snapshot:
        """The whole state at this boundary, copied."""
        return take_snapshot(self)

    def resume(self, source: str) -> bool:
        """Go on from ``auto`` (the run's newest checkpoint) or from a checkpoint; return whether there was one."""
        return resume.resume(self, source)

    # Requests and events.

    def request_stop(self, reason: str) -> None:
        """Ask that the run saves and ends after this step."""
        self.wishes.stop = self.wishes.stop or reason

    def request_evaluate(self) -> None:
        """Ask for an evaluation after this step; it is logged and changes nothing."""
        self.wishes.evaluate = True

    def request_save(self) -> None:
        """Ask for a checkpoint after this step."""
        self.wishes.save = True

    def cut_finer(self, reason: str) -> None:
        """Ask that microbatches are computed in pieces half as large from the next step on, where they can be."""
        pieces = 2 * self.splits.pieces(self.position.step + 1)
        most_rows = int(np.diff(self.planner.plan(self.position.epoch).microbatch_starts).max())
        if self.unsplittable is None and pieces < 2 * most_rows:
            self.wishes.add(Wishes(pieces=pieces, shortage=reason))

    def agree(self) -> None:
        """Make the wishes of any rank the wishes of all."""
        minutes = self.config.checkpoint.interval_minutes
        if minutes is not None and time.monotonic() - self.last_save > 60 * minutes:
            self.request_save()
        for wishes in (Wishes(**one) for one in self.ranks.gather(vars(self.wishes))):
            self.wishes.add(wishes)
            # As it was gathered: a signal that came in since is known to this rank alone, and waits for the next time.
            self.stop_reason = self.stop_reason or wishes.stop
        next_step = self.position.step + 1
        if self.wishes.pieces > 1 and self.wishes.pieces > self.splits.pieces(next_step):
            self.splits.add(Cut(next_step, self.wishes.pieces), self.wishes.shortage)

    def record(self, kind: str, values: dict[str, Any]) -> None:
        """Write figures down under the present step: to ``metrics.jsonl`` and to every tracker."""
        self.records.write({"kind": kind, "step": self.position.step, "epoch": self.position.epoch, **values})

    def tell(self, event: str, *arguments: Any) -> None:
        """Call an event of every callback, then raise what went wrong first, with the name of the callback."""
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

    @contextlib.contextmanager
    def telling_of_errors(self) -> Iterator[None]:
        """Tell the callbacks of an exception, then that the run has ended, and let it go on."""
        try:
            yield
        except BaseException as error:
            self.writer.wait()
            for event, argument in (("on_exception", error), ("on_fit_end", type(error).__name__)):
                try:
                    self.tell(event, argument)
                except Exception as another:  # it must not hide the first
                    error.add_note(f"then {another!r} {' '.join(getattr(another, '__notes__', ()))}")
            raise


_NOT_MEASURED = contextlib.nullcontext()


def _compiled(model: torch.nn.Module, config: TrainingConfig) -> torch.nn.Module:
    """The model as it is called in training: compiled where the config asks for it."""
    mode = config.performance.compile
    if mode is False:
        return model
    compiled: Any = torch.compile(model, mode=None if mode is True else mode)
    return compiled
