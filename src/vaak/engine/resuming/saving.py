"""Checkpoints of a run: made at the boundary of a step, written in the background, completed, and restored."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vaak.config.training import TrainingConfig
from vaak.core.errors import CheckpointError
from vaak.engine.checkpoint.files import Snapshot, model_tensors
from vaak.engine.checkpoint.writer import CheckpointWriter, Order
from vaak.engine.devices.precision import Precision
from vaak.engine.distributed.comparison import weights_fingerprint
from vaak.engine.due import due
from vaak.engine.position import Position
from vaak.engine.resuming.conditions import conditions
from vaak.engine.resuming.conversion import PlanKind, converted_place
from vaak.engine.state import State
from vaak.engine.training_data import TrainingData

log = logging.getLogger("vaak")


class Saving:
    """Takes snapshots of ``state`` with the circumstances they were made under; on the main process, writes them.

    ``saved_step`` is the step of the newest one in the run's folder, ``last_save`` the time when it was made.

    They go to ``directory``, as often as ``config`` says; ``data`` is what the run trains on, and ``precision`` its
    precision.
    """

    def __init__(
        self, directory: Path, config: TrainingConfig, state: State, data: TrainingData, precision: Precision
    ) -> None:
        self.directory, self.config, self.state, self.data, self.precision = directory, config, state, data, precision
        self.ranks = data.ranks
        self.configuration: Mapping[str, Any] = {}
        limit = config.checkpoint.save_total_limit
        self.writer = CheckpointWriter(directory / "checkpoints", directory / "metrics.jsonl", limit)
        self.saved_step, self.last_save = 0, time.monotonic()
        options = config.checkpoint
        self.base_is_enough = options.init_from is None or _are_all_of(state.frozen, options.init_except)
        """Whether frozen weights are those of the model as its task makes it: then checkpoints need no second copy."""
        self._untold: list[Path] = []
        self._before_duties: dict[str, Any] | None = None

    def due(self, total_steps: int) -> bool:
        """Whether a checkpoint is scheduled at this boundary, and not made yet."""
        position, options = self.state.position, self.config.checkpoint
        scheduled = due(position, total_steps, options.interval, options.interval_epochs)
        return scheduled and self.saved_step != position.step

    @property
    def is_best(self) -> bool:
        """Whether the last evaluation was at this boundary, and gave the best figure so far."""
        return self.state.best.step == self.state.position.step

    def save(self, is_periodic: bool = True) -> None:
        """Copy the state and begin to write it; ``is_periodic`` is False where that is only for being the best."""
        self.saved_step = self.state.position.step  # a state that ranks don't share isn't saved on the way out either
        self.compare(f"the state after step {self.saved_step} is not the same on all processes")
        self._write(self.snapshot, self.is_best, is_periodic)

    def _write(self, take_snapshot: Callable[[], Snapshot], is_best: bool, is_periodic: bool) -> None:
        self.saved_step, self.last_save = self.state.position.step, time.monotonic()
        if self.ranks.is_main:
            self.writer.write(Order(take_snapshot(), is_best, is_periodic))

    @contextlib.contextmanager
    def doing_what_is_due(self) -> Iterator[None]:
        """Do what is due at this boundary within this context; where it fails, the state before it is saved.

        An evaluation that has changed rates and patience would change them again when the resumed run repeats it. No
        tensor is changed by what is due.
        """
        self._before_duties = self.state.values() | self._circumstances()
        yield
        self._before_duties = None

    def compare(self, what: str) -> None:
        """Raise UserError, naming a rank and what differs on it, where ranks don't hold the same data and state."""
        if self.ranks.world_size > 1:
            weights = weights_fingerprint(self.state.model.state_dict())
            place = self.state.position.state_dict()
            found = {"data": self.data.fingerprint, "plan": self.data.plan_fingerprint, "weights": weights, **place}
            advice = "start all processes with the same files and options, from the same checkpoint"
            self.ranks.compare(what, found, advice)

    def complete(self) -> None:
        """Add to the checkpoint of this boundary what was due here and done since: it changed no tensor."""
        if self.ranks.is_main:
            values = self.state.values() | self._circumstances()
            self.writer.complete(self.state.position.step, values, self.is_best)

    def save_after(self, error: Exception) -> None:
        """Write what was reached before an error, unless it is saved, or the weights were being updated.

        Each process comes here by itself, or not at all: it meets no other.
        """
        if not self.state.is_whole or self.state.position.step <= self.saved_step:
            return
        before = self._before_duties
        try:
            snapshot = self.snapshot if before is None else lambda: replace(self.snapshot(), state=before)
            self._write(snapshot, self.is_best and before is None, is_periodic=True)
            self.writer.finish()
        except Exception as another:  # it must not hide the first
            error.add_note(f"and the state reached can't be saved: {another}")
        else:
            if self.ranks.is_main:
                log.info("step %d, which was reached before the error, is saved", self.state.position.step)

    def newly_written(self) -> int:
        """The step of the oldest complete checkpoint that was not reported yet; 0 if there is none.

        One that the limit has removed since is not reported.
        """
        self._untold += self.writer.take_finished()
        while self._untold:
            path = self._untold.pop(0)
            if path.is_dir():
                return int(path.name.removeprefix("step-"))
        return 0

    def snapshot(self) -> Snapshot:
        """The whole state at this boundary, copied, and the circumstances it was reached under."""
        snapshot = self.state.snapshot()
        snapshot.state |= self._circumstances()
        snapshot.base_is_enough = self.base_is_enough
        return snapshot

    def _circumstances(self) -> dict[str, Any]:
        log_file = self.directory / "metrics.jsonl"
        return {
            "data": self.data.fingerprint,
            "plan": self._plan_kind().state_dict(),
            "conditions": self.conditions(),
            "configuration": dict(self.configuration),
            "metrics_bytes": log_file.stat().st_size if log_file.exists() else 0,
        }

    def conditions(self) -> dict[str, Any]:
        """What the bits of this run depend on besides its state."""
        return conditions(self.config, self.precision, self.ranks.world_size)

    def demand_valid_journals(self) -> None:
        """Raises UserError where what was written down of the run can't be read, and isn't forgotten."""
        for journal in (self.data.skipped.journal, self.state.piece_rules.journal):
            journal.demand_valid()

    def _plan_kind(self) -> PlanKind:
        return PlanKind.of(self.config, self.data.plan_fingerprint, self.data.epoch_size)

    def restore(self, snapshot: Snapshot, source: Path) -> None:
        """Make the state that of a snapshot, at the same place in the data.

        Raises CheckpointError where it is from another model or other data, or where other batches have no such
        position, and UserError for a journal that can't be read.
        """
        self.demand_valid_journals()
        data, plan = _fingerprints(snapshot)
        if data != self.data.fingerprint:
            raise CheckpointError(
                f"{source} was made with other data than this run's, so its position in the data is invalid: restore "
                f"the data, or start a new run with training.checkpoint.init_from={source}"
            )
        position = Position()
        position.load_state_dict(snapshot.state["position"])
        place = converted_place(position, plan, self._plan_kind(), source)
        made = model_tensors(self.state.model.module)
        frozen = [name for name in self.state.frozen if name in made and name in snapshot.model]
        self.base_is_enough = all(_same(made[name], snapshot.model[name]) for name in frozen)
        self.state.restore(snapshot, source)
        self.state.position.place = place
        self.saved_step = self.state.position.step


def _are_all_of(names: Iterable[str], patterns: Iterable[str]) -> bool:
    """Whether each name has one of the patterns; not where one is invalid, which is reported elsewhere."""
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except re.error:
        return False
    return all(any(one.search(name) for one in compiled) for name in names)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.cpu(), other)


def _fingerprints(snapshot: Snapshot) -> tuple[str, PlanKind]:
    """The data of a snapshot, and their plan; earlier versions wrote the hashes of both as one text."""
    data = snapshot.state["data"]
    if "plan" in snapshot.state:
        return data, PlanKind(**snapshot.state["plan"])
    data, _, plan = data.rpartition(" ")
    return data, PlanKind(plan, None, 0)
