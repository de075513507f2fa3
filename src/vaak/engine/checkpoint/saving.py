"""Save and restore a run's state, with the conditions and the place in the data that go with it.

Checkpoints are made at the boundary of a step and written in the background. Whether evaluations and checkpoints are
due depends only on the position. Besides the state, a checkpoint records the other conditions that bits depend on
(conditions.py), and the place in the data, which is converted if a resumed run has other batches (place.py).
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from vaak.config.training import TrainingConfig
from vaak.core.errors import CheckpointError, UserError
from vaak.engine.checkpoint.conditions import conditions
from vaak.engine.checkpoint.files import CheckpointWriter
from vaak.engine.checkpoint.names import list_checkpoints, parse_step
from vaak.engine.checkpoint.place import PlanKind, converted_place
from vaak.engine.distributed.launcher import weights_fingerprint
from vaak.engine.distributed.sharding import Gathering, is_sharded, local, slice_for_rank
from vaak.engine.optim.optimizer_state import of_all_ranks
from vaak.engine.precision import Precision
from vaak.engine.snapshot import Snapshot, model_tensors
from vaak.engine.state import Position, State
from vaak.engine.training_data import TrainingData

log = logging.getLogger("vaak")


class Checkpointer:
    """Takes snapshots of ``state`` and its circumstances, and writes them on the main process.

    ``saved_step`` is the step of the newest checkpoint in the run directory, and ``last_save`` the time when it was
    made, on the clock of ``time.monotonic``. ``directory`` is the run directory, ``config`` says how many checkpoints
    are kept, ``data`` are the training data, and ``precision`` is the run's.
    """

    def __init__(
        self, directory: Path, config: TrainingConfig, state: State, data: TrainingData, precision: Precision
    ) -> None:
        self.directory, self.config, self.state, self.data, self.precision = directory, config, state, data, precision
        self.ranks = data.ranks
        self.is_divided = config.distributed.strategy != "ddp" and self.ranks.world_size > 1
        self.configuration: Mapping[str, Any] = {}
        limit, keep_every = config.checkpoint.save_total_limit, config.checkpoint.keep_every
        self.writer = CheckpointWriter(directory / "checkpoints", directory / "metrics.jsonl", limit, keep_every)
        self.saved_step, self.last_save = 0, time.monotonic()
        options = config.checkpoint
        self.base_is_enough = options.init_from is None or _all_match(state.frozen, options.init_except)
        """Whether the task makes its model with the same frozen weights, so that checkpoints need no second copy."""
        self._before_schedule: dict[str, Any] | None = None

    @property
    def is_best(self) -> bool:
        """Whether the last evaluation was at this boundary, and gave the best metric so far."""
        return self.state.best.step == self.state.position.step

    def save(self, is_periodic: bool = True) -> None:
        """Copy the state and begin to write it; ``is_periodic`` is False for one saved only because it is the best."""
        # Set before comparing: a state that differs between ranks must not be saved on the way out either.
        self.saved_step = self.state.position.step
        self.compare(f"the state after step {self.saved_step} is not the same on all processes")
        self._write(self.snapshot, self.is_best, is_periodic)

    def _write(self, take_snapshot: Callable[[], Snapshot], is_best: bool, is_periodic: bool) -> None:
        self.saved_step, self.last_save = self.state.position.step, time.monotonic()
        if self.ranks.is_main or self.is_divided:
            snapshot = take_snapshot()
            if self.ranks.is_main:
                self.writer.write(snapshot, is_best, is_periodic)
            elif snapshot.files:
                self.writer.give(snapshot)

    @contextlib.contextmanager
    def keep_state_before_schedule(self) -> Iterator[None]:
        """Within this context, an error saves the state from before it, and not the present one.

        Evaluations and other scheduled work belong in this context. They change no tensors, but learning rates and
        patience, and would change these twice when the resumed run repeats them.
        """
        self._before_schedule = self.state.values() | self._circumstances()
        yield
        self._before_schedule = None

    def compare(self, what: str) -> None:
        """Raise UserError, naming a rank and what differs on it, if ranks don't have the same data and state."""
        if self.ranks.world_size > 1:
            own = self.state.model.state_dict().items()
            weights = weights_fingerprint({name: tensor for name, tensor in own if not is_sharded(tensor)})
            place = self.state.position.state_dict()
            found = {"data": self.data.fingerprint, "plan": self.data.plan_fingerprint, "weights": weights, **place}
            advice = "start all processes with the same files and options, from the same checkpoint"
            self.ranks.compare(what, found, advice)

    def complete(self) -> None:
        """Add the state after the scheduled work at this boundary, which changed no tensors, to its checkpoint."""
        values = self._values(self.state.values())
        if self.ranks.is_main:
            self.writer.complete(self.state.position.step, values, self.is_best)

    def save_after(self, error: Exception) -> None:
        """Write the state reached before an error, unless it is saved already, or weights were being updated.

        Ranks can't communicate here, because others may not have failed. So a state that is divided over ranks isn't
        saved; the log names the checkpoint from which the run will resume.
        """
        if self.is_divided:
            self.writer.wait()
            whole, step = list_checkpoints(self.writer.folder), self.state.position.step
            last = (parse_step(whole[-1]) or 0) if whole else 0
            if self.ranks.is_main and last < step:
                resumed = f"--resume auto resumes from {whole[-1]}" if whole else "no earlier checkpoint exists"
                log.warning(
                    "step %d was reached, but its state is divided over processes (training.distributed.strategy: %s), "
                    "and can't be saved after an error: %s",
                    step,
                    self.config.distributed.strategy,
                    resumed,
                )
            return
        if not self.state.is_whole or self.state.position.step <= self.saved_step:
            return
        before = self._before_schedule
        try:
            snapshot = self.snapshot if before is None else lambda: replace(self.snapshot(), state=before)
            self._write(snapshot, self.is_best and before is None, is_periodic=True)
            self.writer.finish()
        except Exception as another:
            # A second error must not hide the first.
            error.add_note(f"and the state reached can't be saved: {another}")
        else:
            if self.ranks.is_main:
                log.info("step %d, which was reached before the error, is saved", self.state.position.step)

    def newly_written(self) -> int:
        """Return the step of the oldest complete checkpoint that wasn't reported yet; 0 without one.

        Checkpoints that have been removed since are skipped.
        """
        while self.writer.finished:
            path = self.writer.finished.pop(0)
            if path.is_dir():
                return int(path.name.removeprefix("step-"))
        return 0

    def snapshot(self) -> Snapshot:
        """Return a copy of the whole state at this boundary, with its circumstances.

        If the state is divided over ranks, every rank has to call this, and rank 0 gets the whole; with ``fsdp``
        piece by piece, through ``chunks``.
        """
        if self.state.is_sharded:
            with self.ranks.naming_lost_ranks():
                snapshot = self.state.divided_snapshot(self._gathering)
        elif self.ranks.is_main or not self.is_divided:
            snapshot = self.state.snapshot()
        else:
            # The optimizer state that only this rank has: live tensors, each of which is copied when it is sent.
            own = self.state.tensors()["optimizer"]
            snapshot = Snapshot(self.state.position.step, {}, own, self.state.values())
        snapshot.state = self._values(snapshot.state)
        if self.is_divided and not self.state.is_sharded:
            snapshot.optimizer = self.ranks.collect(snapshot.optimizer)
        snapshot.base_is_enough = self.base_is_enough
        return snapshot

    @cached_property
    def _gathering(self) -> Gathering:
        """Gathers the parts of all ranks; made on every rank at its first save."""
        return Gathering(self.ranks, self.config.distributed)

    def _values(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return everything in the state of all ranks that isn't a tensor, with the circumstances."""
        if self.is_divided and "optimizer" in values:
            values = values | {"optimizer": of_all_ranks(self.ranks.gather(values["optimizer"]))}
        return values | self._circumstances()

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
        """Return the conditions other than the state on which the bits of this run depend, such as versions."""
        return conditions(self.config, self.precision, self.ranks.world_size)

    def require_valid_journals(self) -> None:
        """Raise UserError if a journal of the run, which a resume has to follow, can't be read."""
        for journal in (self.data.skipped.journal, self.state.chunk_rules.journal):
            if journal.problem is not None:
                raise UserError(
                    f"{journal.problem}; the run depends on this file: restore it from a copy, or delete the line, "
                    "after which the run may differ from before"
                )

    def _plan_kind(self) -> PlanKind:
        return PlanKind(self.data.plan_fingerprint, self.data.fixed_rows, self.data.epoch_size)

    def restore(self, snapshot: Snapshot, source: Path) -> None:
        """Restore the state of a snapshot, at the same place in the data.

        Raises CheckpointError if it is from another model or other data, or if the place can't be converted to the
        batches of this run, and UserError for a journal that can't be read.
        """
        self.require_valid_journals()
        data = snapshot.state["data"]
        if "plan" in snapshot.state:
            plan = PlanKind(**snapshot.state["plan"])
        else:
            # Earlier versions wrote the hashes of the data and the plan as one text.
            data, _, digest = data.rpartition(" ")
            plan = PlanKind(digest, None, 0)
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
        differs = [name for name in frozen if not _equal(made[name], snapshot.model[name])]
        self.base_is_enough = not self.ranks.any(bool(differs))
        self.state.restore(snapshot, source)
        self.state.position.place = place
        self.saved_step = self.state.position.step


def _equal(own: torch.Tensor, saved: torch.Tensor) -> bool:
    """Return whether this rank's part of a tensor equals the same part of the saved one."""
    if is_sharded(own):
        own, saved = local(own), local(slice_for_rank(saved, own))
    return own.dtype == saved.dtype and torch.equal(own.cpu(), saved.cpu())


def _all_match(names: Iterable[str], patterns: Iterable[str]) -> bool:
    """Return whether each name matches a pattern; False for invalid patterns, which are reported elsewhere."""
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except re.error:
        return False
    return all(any(one.search(name) for one in compiled) for name in names)
