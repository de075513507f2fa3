"""What a run remembers from one step to the next: exactly what a checkpoint holds.

    state[n + 1] = step(state[n], n)

``State`` is the only list of it. Each field's value is saved by ``state_dict`` and restored by ``load_state_dict``, so
a new field is saved, restored and checked by the round trip of the contract tests.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from vaak.core.callback import Callback
from vaak.core.errors import CheckpointError
from vaak.engine.checkpoint.best import Best
from vaak.engine.checkpoint.files import Snapshot, copy_to_cpu, load_weights, model_tensors
from vaak.engine.devices.precision import LossScale, Precision
from vaak.engine.memory.microbatch_pieces import PieceRules
from vaak.engine.optim.ema import WeightAverage
from vaak.engine.optim.optimizer_state import Moments
from vaak.engine.optim.plateau import Plateau
from vaak.engine.position import Position


class Part(Protocol):
    """A part of the state. What it gives is JSON, or a dictionary that has live tensors too."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> None: ...


class Weights:
    """The parameters and buffers of a module, by name."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def state_dict(self) -> dict[str, Tensor]:
        return model_tensors(self.module)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        load_weights(self.module, dict(state), "the checkpoint")


class LastEvaluation:
    """The figures of the last evaluation, and whether it was a scheduled one."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.scheduled = False

    def state_dict(self) -> dict[str, Any]:
        return {"figures": self.metrics, "scheduled": self.scheduled}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state_dict`` gave; earlier versions wrote the figures alone."""
        self.metrics = dict(state.get("figures", {}) if "scheduled" in state else state)
        self.scheduled = bool(state.get("scheduled", False))


class Memories:
    """What callbacks remember, each under the name of its class; several of a class in their order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
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
    optimizer: Moments
    average: WeightAverage | None
    loss_scale: LossScale
    precision: Precision
    position: Position
    best: Best
    plateau: Plateau | None
    metrics: LastEvaluation
    piece_rules: PieceRules = field(metadata={"key": "splits"})
    callbacks: Memories
    is_whole: bool = field(default=True, init=False)

    @property
    def optimizers(self) -> list[Optimizer]:
        """Every optimizer, objective by objective."""
        return self.optimizer.optimizers

    @property
    def rate_factor(self) -> float:
        """What the plateau schedule, the one with a memory, makes of the learning rate."""
        return self.plateau.factor if self.plateau else 1.0

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Weights are being updated: where this is left by an exception, the state is no longer one of a step."""
        self.is_whole = False
        yield
        self.is_whole = True

    def parts(self) -> dict[str, Part]:
        """The parts that this run has, by name."""
        named = {one.metadata.get("key", one.name): getattr(self, one.name) for one in fields(self) if one.init}
        return {name: part for name, part in named.items() if part is not None}

    def values(self) -> dict[str, Any]:
        """A copy of everything that isn't a tensor, by part, as JSON."""
        found = {name: _split(part.state_dict()) for name, part in self.parts().items()}
        return {name: copy.deepcopy(values) for name, (tensors, values) in found.items() if values or not tensors}

    def snapshot(self) -> Snapshot:
        """A copy of the whole state, on the CPU, which training can't change any more."""
        assert self.is_whole, "the state is in the middle of an update"
        tensors = {name: _split(part.state_dict())[0] for name, part in self.parts().items()}
        copies: dict[str, Any] = {name: copy_to_cpu(own) for name, own in tensors.items() if own}
        return Snapshot(self.position.step, state=self.values(), frozen=self.frozen, **{"model": {}, **copies})

    @property
    def frozen(self) -> frozenset[str]:
        """The names of the parameters that no optimizer trains."""
        trained = {id(one) for each in self.optimizers for group in each.param_groups for one in group["params"]}
        return frozenset(name for name, one in self.model.module.named_parameters() if id(one) not in trained)

    def restore(self, snapshot: Snapshot, source: Path) -> None:
        """Make this the state that the snapshot was taken of, to the bit.

        Raises CheckpointError, naming ``source``, where a part is from another model or optimizer. What a snapshot of
        an older version doesn't have stays as it is at the start.
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
    """The tensors of what a part gives, and the rest of it."""
    if not isinstance(state, dict):
        return {}, state
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    return tensors, {name: value for name, value in state.items() if name not in tensors}
