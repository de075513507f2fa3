"""The state of a run, which is carried from one step to the next: exactly the content of a checkpoint.

    state[n + 1] = step(state[n], n)

``State`` is the only list of its parts. Each field is saved by ``state_dict`` and restored by ``load_state_dict``, so a
new field is saved and restored without further code, and checked by the round trip of the contract tests. Batches,
draws and rates are computed from its ``Position``; ``Best`` is the best evaluation so far.

``ChunkRules`` decide in how many chunks a microbatch is computed: one, until memory runs out. Chunks add up to the same
gradient up to rounding, but each draws its own dropout. So that a resume and a replay draw the same, the number of
chunks depends only on the rules and on the position in the run, and a rule is recorded before weights depend on it. It
applies to microbatches at least as large as the one that did not fit. A recorded rule that can't be followed would
block every resume, so a rule is first only proposed, and confirmed, which records it, once a step has succeeded with
it; otherwise it is withdrawn.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from vaak.config.training import CheckpointConfig
from vaak.core.errors import CheckpointError, UserError
from vaak.core.metrics import improves
from vaak.engine.distributed.sharding import Gathering, is_sharded, local
from vaak.engine.journal import Journal
from vaak.engine.optim.optimizer_state import OptimizerStates, WeightAverage
from vaak.engine.optim.schedules import Plateau
from vaak.engine.precision import LossScale, Precision
from vaak.engine.snapshot import FileLayout, Snapshot, copy_to_cpu, load_weights, model_tensors, tensor_files
from vaak.nn.lora import follow_stored_types, never_trained

log = logging.getLogger("vaak")


_NAMES_WRITTEN = {"pieces": "num_chunks", "cells": "padded_size"}
"""Keys of a rule in files that differ from its fields' names, because the fields were renamed."""


@dataclass(frozen=True)
class ChunkRule:
    """A rule: from ``step`` on, microbatches of ``padded_size`` (rows × longest) or more are computed in chunks.

    Within that step the rule applies only to the microbatches ``numbers`` (None: to all), and from its objective number
    ``objective`` on. A rule with a ``split`` is for evaluating that split instead of training, on ``rank`` only.
    """

    step: int
    num_chunks: int
    numbers: tuple[int, ...] | None = None
    split: str | None = None
    rank: int = 0
    padded_size: float = 0.0
    objective: int = 0

    @classmethod
    def from_json(cls, found: Any) -> ChunkRule:
        """Return the rule in JSON values. Raises ValueError if they aren't a rule."""
        try:
            named = {_NAMES_WRITTEN.get(name, name): value for name, value in found.items()}
            numbers = None if named["numbers"] is None else tuple(map(operator.index, named["numbers"]))
            rule = cls(**{**named, "numbers": numbers})
            whole = [rule.step, rule.num_chunks, rule.rank, rule.objective]
            if min(map(operator.index, whole)) < 0 or rule.num_chunks < 1 or not isinstance(rule.split, str | None):
                raise ValueError(found)
            return replace(rule, padded_size=float(rule.padded_size))
        except (AttributeError, TypeError, KeyError) as error:
            raise ValueError(found) from error

    def to_json(self) -> dict[str, Any]:
        """Return the rule as JSON values, for the journal, checkpoints and other ranks."""
        numbers = None if self.numbers is None else list(self.numbers)
        written = {name: key for key, name in _NAMES_WRITTEN.items()}
        return {written.get(name, name): value for name, value in (asdict(self) | {"numbers": numbers}).items()}

    def applies(self, step: int, number: int, padded_size: float, objective: int = 0) -> bool:
        """Return whether the rule applies to a microbatch of training."""
        if self.split is not None or self.step > step or padded_size < self.padded_size:
            return False
        # In the step in which memory ran out, other ranks and earlier objectives had computed theirs whole.
        in_its_step = (self.numbers is None or number in self.numbers) and objective >= self.objective
        return self.step < step or in_its_step

    def covers(self, other: ChunkRule) -> bool:
        """Return whether this rule divides all microbatches of ``other`` at least as finely."""
        if self.split is not None or self.num_chunks < other.num_chunks or self.padded_size > other.padded_size:
            return False
        whole_step = self.numbers is None and self.objective == 0
        return self.step < other.step or (self.step == other.step and whole_step)


class ChunkRules:
    """The rules of a run, kept in ``splits.jsonl`` and in its checkpoints.

    ``fresh`` are those not sent to the other ranks yet. ``proposed`` apply on this rank, but aren't recorded.
    """

    def __init__(self, directory: Path, rank: int, data: str | None = None) -> None:
        self.rank = rank
        self.journal = Journal(directory, "splits", rank, lambda entry: ChunkRule.from_json(entry.get("cut")), data)
        self.rules: list[ChunkRule] = []
        self.fresh: list[tuple[ChunkRule, str]] = []
        self.proposed: list[tuple[ChunkRule, str]] = []
        self.whole: set[int] = set()
        """Objectives whose microbatches are never divided."""
        self._add_unknown(self.journal.entries)

    def count(self, step: int, number: int, padded_size: float, objective: int = 0) -> int:
        """Return in how many chunks a microbatch of a step is computed."""
        if self.is_empty or objective in self.whole:
            return 1
        rules = (*self.rules, *(rule for rule, _ in self.proposed))
        return max((rule.num_chunks for rule in rules if rule.applies(step, number, padded_size, objective)), default=1)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is divided."""
        return not (self.rules or self.proposed)

    def count_for_evaluation(self, step: int, split: str) -> int:
        """Return in how many chunks a batch is computed when ``split`` is evaluated after a step, on this rank."""
        own = (rule for rule in self.rules if rule.split == split and rule.rank == self.rank and rule.step <= step)
        return max((rule.num_chunks for rule in own), default=1)

    def divide_evaluation(self, step: int, split: str, num_chunks: int, reason: str) -> None:
        """Evaluate ``split`` in ``num_chunks`` chunks on this rank, from the evaluation after ``step`` on."""
        self.add(ChunkRule(step, num_chunks, split=split, rank=self.rank), reason)

    def propose(self, rule: ChunkRule, reason: str) -> None:
        """Try a rule for training: it applies until it is confirmed or withdrawn."""
        self.proposed.append((rule, reason))

    def confirm(self) -> None:
        """Record the proposed rules, and mark them to be sent to the other ranks."""
        confirmed, self.proposed = self.proposed, []
        for rule, reason in confirmed:
            self.add(rule, reason)
        self.fresh += confirmed

    def withdraw(self) -> None:
        """Drop the proposed rules."""
        self.proposed = []

    def keep_whole(self, objective: int, loss: str) -> None:
        """Leave the microbatches of an objective whole, whatever the rules say, because its ``loss`` isn't a sum."""
        log.warning(
            "an earlier session computed batches in chunks, but the loss %s is not a sum over examples: they are whole "
            "from now on",
            loss,
        )
        self.whole.add(objective)

    def adopt(self, rule: ChunkRule, reason: str) -> None:
        """Add another rank's rule, unless a known one covers it."""
        if not any(known.covers(rule) for known in self.rules):
            self.add(rule, reason)

    def take_fresh(self) -> list[tuple[ChunkRule, str]]:
        """Return the rules for training that weren't sent to the other ranks yet; they count as sent afterwards."""
        fresh, self.fresh = self.fresh, []
        return fresh

    def forget(self) -> None:
        """Drop all rules and the journal."""
        self.journal.forget()
        self.rules.clear()

    def add(self, rule: ChunkRule, reason: str) -> None:
        """Write a rule to the journal, then apply it."""
        self.journal.append([{"cut": rule.to_json(), "reason": reason}])
        self.rules.append(rule)
        what = f"evaluating {rule.split}" if rule.split else f"from step {rule.step} on"
        size = f" of a padded size of {rule.padded_size:g} or more" if rule.padded_size else ""
        log.warning("%s: %s, batches%s are computed in %d chunks", reason, what, size, rule.num_chunks)

    def state_dict(self) -> list[dict[str, Any]]:
        return [rule.to_json() for rule in self.rules]

    def load_state_dict(self, state: Sequence[dict[str, Any]]) -> None:
        """Add the rules of a state."""
        self._add_unknown(map(ChunkRule.from_json, state))

    def _add_unknown(self, rules: Iterable[ChunkRule]) -> None:
        for rule in rules:
            if rule not in self.rules:
                self.rules.append(rule)


class Best:
    """The best value of a metric and the step it was seen at."""

    def __init__(self, config: CheckpointConfig) -> None:
        self.metric, self.mode = config.metric, config.mode
        self.value: float | None = None
        self.step: int | None = None

    def observe(self, metrics: dict[str, float], step: int) -> None:
        """Take an evaluation into account. Raises UserError if it doesn't have the metric."""
        if self.metric not in metrics:
            raise UserError(f"training.checkpoint.metric is {self.metric}, but evaluations give {', '.join(metrics)}")
        if improves(metrics[self.metric], self.value, self.mode):
            self.value, self.step = metrics[self.metric], step

    def state_dict(self) -> dict[str, Any]:
        return {"metric": self.metric, "mode": self.mode, "value": self.value, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict``; with another metric or mode than before, there is no best value yet."""
        same = state["metric"] == self.metric and state.get("mode", self.mode) == self.mode
        self.value, self.step = (state["value"], state["step"]) if same else (None, None)


@dataclass
class Position:
    """The position after ``step`` optimizer steps.

    ``place`` is the microbatch of ``epoch``'s plan at which the next step begins. ``totals`` counts units over the
    whole run. ``schedule_pending``: scheduled work at this boundary (an evaluation, the report of an epoch's end) isn't
    done yet. ``non_finite_steps`` is the number of steps skipped because a number in them was not finite.
    """

    step: int = 0
    epoch: int = 0
    place: int = 0
    totals: dict[str, float] = field(default_factory=dict)
    # Checkpoints have this field under its first name.
    schedule_pending: bool = field(default=False, metadata={"key": "duties_pending"})
    non_finite_steps: int = 0

    @property
    def epoch_of_step(self) -> int:
        """The epoch of the last step; at the end of an epoch, ``epoch`` is already the next one."""
        return self.epoch - 1 if self.step and not self.place else self.epoch

    def advance(self, microbatches: int, ends_epoch: bool, counts: dict[str, float]) -> None:
        """Advance by one step of this many microbatches, over all ranks."""
        self.step += 1
        self.place += microbatches
        self.schedule_pending = True
        for unit, count in counts.items():
            self.totals[unit] = self.totals.get(unit, 0.0) + count
        if ends_epoch:
            self.epoch, self.place = self.epoch + 1, 0

    def is_on_schedule(self, interval: int | None, interval_epochs: int | None) -> bool:
        """Return whether work that is done every ``interval`` steps, or else every ``interval_epochs``, falls here.

        Nothing is scheduled before the first step.
        """
        if self.step == 0:
            return False
        if interval is not None:
            return self.step % interval == 0
        return interval_epochs is not None and self.place == 0 and self.epoch % interval_epochs == 0

    def is_due(self, interval: int | None, interval_epochs: int | None, total_steps: int) -> bool:
        """Return whether such work is due here: on schedule, or after the last step."""
        return 0 < self.step >= total_steps or self.is_on_schedule(interval, interval_epochs)

    def state_dict(self) -> dict[str, Any]:
        return copy.deepcopy({name_field(one): getattr(self, one.name) for one in fields(self)})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a position; entries that an older state lacks are as at the start."""
        start = Position()
        for one in fields(self):
            setattr(self, one.name, state.get(name_field(one), getattr(start, one.name)))
        self.totals = dict(self.totals)


def name_field(one: Field[Any]) -> str:
    """Return the name of a field in checkpoints."""
    return str(one.metadata.get("key", one.name))


class StatePart(Protocol):
    """A part of the state; ``state_dict`` returns JSON values, or a dictionary that also has live tensors."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> None: ...


class Weights:
    """The parameters and buffers of a module, by name."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def state_dict(self) -> dict[str, Tensor]:
        return model_tensors(self.module)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        follow_stored_types(self.module, state)
        load_weights(self.module, dict(state), "the checkpoint")


class LastEvaluation:
    """The metrics of the last evaluation, the step after which it was, and whether it was a scheduled one."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.step: int | None = None
        self.scheduled = False

    def observe(self, metrics: dict[str, float], step: int, scheduled: bool) -> None:
        """Take note of an evaluation."""
        self.metrics, self.step, self.scheduled = metrics, step, scheduled

    def with_step(self) -> dict[str, float]:
        """Return the metrics and ``evaluation_step``; none before the first evaluation."""
        return self.metrics if self.step is None else {**self.metrics, "evaluation_step": self.step}

    def state_dict(self) -> dict[str, Any]:
        return {"figures": self.metrics, "step": self.step, "scheduled": self.scheduled}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state_dict`` gave; earlier versions wrote the metrics alone, or without their step."""
        self.metrics = dict(state.get("figures", {}) if "scheduled" in state else state)
        self.step = state.get("step") if "scheduled" in state else None
        self.scheduled = bool(state.get("scheduled", False))


class CallbackStates:
    """The states of callbacks, each under the name of its class; several of a class in their order."""

    def __init__(self, callbacks: Sequence[StatePart]) -> None:
        self.callbacks = list(callbacks)

    def state_dict(self) -> list[list[Any]]:
        return [[type(callback).__name__, callback.state_dict()] for callback in self.callbacks]

    def load_state_dict(self, state: Sequence[Sequence[Any]]) -> None:
        """Give each callback its own; one that was not there before starts as new."""
        left = list(state)
        for callback in self.callbacks:
            entry = next((entry for entry in left if entry[0] == type(callback).__name__), None)
            if entry is not None:
                left.remove(entry)
                callback.load_state_dict(entry[1])


@dataclass
class State:
    """Everything that a run remembers. ``loss`` has the weights of loss functions; most have none.

    A field's name is its key in checkpoints, unless its ``key`` says otherwise.

    ``is_whole`` is False while weights are being updated: no snapshot is taken then.
    """

    model: Weights
    loss: Weights
    optimizer: OptimizerStates
    average: WeightAverage | None
    loss_scale: LossScale
    precision: Precision
    position: Position
    best: Best
    plateau: Plateau | None
    metrics: LastEvaluation
    chunk_rules: ChunkRules = field(metadata={"key": "splits"})
    callbacks: CallbackStates
    is_whole: bool = field(default=True, init=False)

    @property
    def optimizers(self) -> list[Optimizer]:
        """Every optimizer, objective by objective."""
        return self.optimizer.optimizers

    @property
    def rate_factor(self) -> float:
        """The factor on the learning rate of the plateau schedule, the one with a memory."""
        return self.plateau.factor if self.plateau else 1.0

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Weights are being updated: where this is left by an exception, the state is no longer one of a step."""
        self.is_whole = False
        # It isn't within try: after an exception the value stays False.
        yield
        self.is_whole = True

    def parts(self) -> dict[str, StatePart]:
        """Return the parts that this run has, by name."""
        named = {name_field(one): getattr(self, one.name) for one in fields(self) if one.init}
        return {name: part for name, part in named.items() if part is not None}

    def values(self) -> dict[str, Any]:
        """Return a copy of everything that isn't a tensor, by part, as JSON."""
        found = {name: _split(part.state_dict()) for name, part in self.parts().items()}
        return {name: copy.deepcopy(values) for name, (tensors, values) in found.items() if values or not tensors}

    def snapshot(self) -> Snapshot:
        """Return a copy of the whole state, on the CPU, which training can't change any more."""
        parts = {name: own for name, own in self.tensors().items() if own}
        copied = copy_to_cpu({(part, name): one for part, own in parts.items() for name, one in own.items()})
        copies: dict[str, Any] = {part: {name: copied[part, name] for name in own} for part, own in parts.items()}
        return Snapshot(self.position.step, state=self.values(), frozen=self.frozen, **{"model": {}, **copies})

    def divided_snapshot(self, gathering: Gathering) -> Snapshot:
        """``snapshot`` of a state that is divided over ranks: this one's parts, and rank 0's way to all.

        Every rank calls it, and then goes through its ``chunks``.
        """
        found = tensor_files({"model": {}, "optimizer": {}, **self.tensors()}, self.frozen)
        files = tuple(FileLayout.of(name, own) for name, own in found.items())
        order = [found[file.name][name] for file in files for name in file.order]
        own = copy_to_cpu({str(number): local(tensor) for number, tensor in enumerate(order)})
        shapes = (tensor.shape if is_sharded(tensor) else None for tensor in order)
        chunks = gathering.chunks([*zip(own.values(), shapes, strict=True)])
        return Snapshot(self.position.step, {}, state=self.values(), frozen=self.frozen, files=files, chunks=chunks)

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return the live tensors of each part."""
        assert self.is_whole, "the state is in the middle of an update"
        return {name: _split(part.state_dict())[0] for name, part in self.parts().items()}

    @property
    def is_sharded(self) -> bool:
        """Whether the weights are divided over ranks: then a snapshot is taken by all of them together."""
        return any(map(is_sharded, self.model.module.parameters()))

    @property
    def frozen(self) -> frozenset[str]:
        """The names of the parameters that no optimizer trains, with all that belongs to those in four bits."""
        trained = {id(one) for each in self.optimizers for group in each.param_groups for one in group["params"]}
        named = self.model.module.named_parameters()
        return never_trained(self.model.module) | {name for name, one in named if id(one) not in trained}

    def restore(self, snapshot: Snapshot, source: Path) -> None:
        """Make this the state that the snapshot was taken of, to the bit.

        Raises CheckpointError, naming ``source``, where a part is from another model or optimizer. Parts missing from a
        snapshot of an older version stay as at the start.
        """
        for name, part in self.parts().items():
            tensors, values = getattr(snapshot, name, None), snapshot.state.get(name)
            if tensors is None and values is None:
                continue
            try:
                part.load_state_dict(values if tensors is None else {**tensors, **(values or {})})
            except CheckpointError as error:
                raise CheckpointError(f"{source}: {error}") from error
        self.is_whole = True


def _split(state: Any) -> tuple[dict[str, Tensor], Any]:
    """Return the tensors of what a part gives, and the rest of it."""
    if not isinstance(state, dict):
        return {}, state
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    return tensors, {name: value for name, value in state.items() if name not in tensors}
