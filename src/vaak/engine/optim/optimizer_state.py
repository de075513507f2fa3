"""The state kept for each parameter besides its value: that of optimizers, and a moving average.

The state of Vaak's own optimizers is known. A user's may hold anything, and count in its groups, too
(``group["k"] += 1``): changes there are kept as well.

    after step s, with n = s - start_step steps averaged before it:
    average ← w                             n = 0
    average ← d · average + (1 - d) · w     n ≥ 1,   d = min(decay, (1 + n) / (10 + n)) while it warms up

The decay is a function of the step, so the averages are all there is to save. Until ``start_step`` there are none: the
weights stand for them. Source: Polyak and Juditsky 1992; the warm-up is that of TensorFlow's ExponentialMovingAverage.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vaak.config.training import EmaConfig
from vaak.core.errors import CheckpointError, UserError
from vaak.engine.distributed.sharding import slice_for_rank

WITHOUT_STATE = "without_state"
GROUP_PREFIX = "groups"
"""The prefix of the names of a group's values, as in ``groups.0.1.k``: of optimizer 0, its second group."""
_GIVEN = ("params", "names", "lr", "base_lr", "weight_decay")
"""The keys that Vaak gives a group: parameters, rates and decay, which come from the configuration and the schedule."""


class OptimizerStates:
    """The optimizers of a run, by objective, and what they remember of the parameters that ``names`` names.

    ``of_user`` says that they are of a user's class, of which nothing else is known. Where ranks divide the update,
    ``updated`` are the parameters of this one, the only ones of which it remembers anything.
    """

    def __init__(
        self,
        names: Mapping[nn.Parameter, str],
        by_objective: Sequence[Sequence[Optimizer]],
        of_user: bool = False,
        updated: Collection[nn.Parameter] | None = None,
    ) -> None:
        self._names = names
        self._updated = updated
        self.by_objective = [list(optimizers) for optimizers in by_objective]
        self.optimizers = [optimizer for optimizers in self.by_objective for optimizer in optimizers]
        self.of_user = of_user
        self._groups = GroupValues(self.optimizers) if of_user else None

    def state_dict(self) -> dict[str, Any]:
        """Tensors, live, and the values that aren't tensors, by name.

        Raises UserError if a user's optimizer remembers what a checkpoint can't keep.
        """
        tensors, values = optimizer_tensors(self._names, self.optimizers)
        if self._groups is None:
            return {**tensors, **values}
        _check_storable(self._names, self.optimizers)
        return {**tensors, **values, **self._groups.changed()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Remember what ``state_dict`` gave. Raises CheckpointError if it is from another model or optimizer."""
        load_optimizer_tensors(self._names, self.optimizers, state, self.of_user, self._updated)
        if self._groups is not None:
            self._groups.load(state)


class GroupValues:
    """The values that a user's optimizers add to their groups after they were made."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._groups = {
            f"{GROUP_PREFIX}.{number}.{index}": group
            for number, optimizer in enumerate(optimizers)
            for index, group in enumerate(optimizer.param_groups)
        }
        self._first = {place: copy.deepcopy(_values_of_group(group)) for place, group in self._groups.items()}

    def changed(self) -> dict[str, Any]:
        """Return the values that are no longer what they were at first, by place and name."""
        return {
            f"{place}.{name}": value
            for place, group in self._groups.items()
            for name, value in _values_of_group(group).items()
            if name not in self._first[place] or not _equal(value, self._first[place][name])
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Put every group back to its first values, and then to those of ``changed``."""
        for place, group in self._groups.items():
            for name in _values_of_group(group):
                del group[name]
            group.update(copy.deepcopy(self._first[place]))
        for key, value in state.items():
            place, _, name = key.rpartition(".")
            if place in self._groups:
                self._groups[place][name] = _as_before(value, self._first[place].get(name))


def _as_before(value: Any, first: Any) -> Any:
    """Return a copy of a saved value as the first one was: a tuple, or on its device."""
    if isinstance(value, Tensor):
        return value.to(first.device if isinstance(first, Tensor) else value.device, copy=True)
    return tuple(value) if isinstance(first, tuple) else copy.deepcopy(value)


def _values_of_group(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in _GIVEN}


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def _check_storable(names: Mapping[nn.Parameter, str], optimizers: Sequence[Optimizer]) -> None:
    """Raise UserError if something that an optimizer remembers would be missing in a checkpoint."""
    for optimizer in optimizers:
        kind = type(optimizer).__name__
        strange = [key for key in optimizer.state if key not in names]
        if strange:
            raise UserError(
                f"training.optimizer: {kind} keeps state under {strange[0]!r}, which is not a parameter, so that a "
                "checkpoint can't hold it; keep it in state[parameter] or in a parameter group"
            )
        remembered = [*optimizer.state.values(), *(_values_of_group(group) for group in optimizer.param_groups)]
        for name, value in (item for held in remembered for item in held.items()):
            # a checkpoint joins the parameter's name and this one by a dot
            if "." in str(name) or not (isinstance(value, Tensor) or _is_json(value)):
                raise UserError(
                    f"training.optimizer: {kind} keeps {name!r} as {type(value).__name__}, which a checkpoint can't "
                    "hold; keep tensors, numbers, text, and lists of them, under names without dots"
                )


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def optimizer_tensors(
    names: Mapping[nn.Parameter, str], optimizers: Sequence[Optimizer]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the optimizers' state: tensors, and JSON for the rest.

    Tensors are the live ones, called ``<optimizer>.<state>.<parameter>``, as in ``0.exp_avg.layers.0.weight``. JSON has
    the values that aren't tensors by the same names, and under ``without_state`` the parameters never updated.
    """
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {WITHOUT_STATE: []}
    for number, optimizer, _, parameter, name in _owned(names, optimizers):
        state = optimizer.state.get(parameter)
        if not state:
            values[WITHOUT_STATE].append(f"{number}.{name}")
            continue
        for key, value in state.items():
            (tensors if isinstance(value, Tensor) else values)[f"{number}.{key}.{name}"] = value
    return tensors, values


def load_optimizer_tensors(
    names: Mapping[nn.Parameter, str],
    optimizers: Sequence[Optimizer],
    state: Mapping[str, Any],
    of_user: bool = False,
    updated: Collection[nn.Parameter] | None = None,
) -> None:
    """Make the optimizers remember, to the bit, what ``optimizer_tensors`` gave; of ``updated`` alone, if given.

    Raises CheckpointError, before anything is changed, where a name is missing or foreign to these optimizers. What
    those ``of_user`` remember of a parameter isn't known, so of these only the parameters' names are checked.
    """
    others = (WITHOUT_STATE, f"{GROUP_PREFIX}.")
    content = {name: value for name, value in state.items() if not name.startswith(others)}
    found: dict[tuple[int, str], list[str]] = defaultdict(list)
    for entry in content:
        # The optimizer's number, what it remembers, the parameter's name.
        prefix, key, owner = entry.split(".", 2)
        found[int(prefix), owner].append(key)
    stateless = set(state.get(WITHOUT_STATE, ()))
    owned = list(_owned(names, optimizers))
    expected: dict[tuple[int, str], list[str]] = {}
    keys_by_kind: dict[tuple[int, int], list[str]] = {}
    for number, optimizer, group, parameter, name in owned:
        if f"{number}.{name}" in stateless:
            continue
        kind = (number, parameter.ndim)
        if of_user:
            expected[number, name] = found.get((number, name), ["state"])
            continue
        if kind not in keys_by_kind:
            keys_by_kind[kind] = _state_keys(optimizer, group, parameter)
        expected[number, name] = keys_by_kind[kind]
    _check_names({f"{number}.{key}.{name}" for (number, name), keys in expected.items() for key in keys}, set(content))
    for number, optimizer, group, parameter, name in owned:
        keys = expected.get((number, name), [])
        optimizer.state.pop(parameter, None)
        if keys and (updated is None or parameter in updated):
            own = {key: _place_value(content[f"{number}.{key}.{name}"], key, group, parameter) for key in keys}
            optimizer.state[parameter] = own


def of_all_ranks(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the values that aren't tensors of optimizers that each remember some parameters, as those of one."""
    together = {name: value for part in parts for name, value in part.items()}
    stateless = [name for name in parts[0].get(WITHOUT_STATE, ()) if all(name in part[WITHOUT_STATE] for part in parts)]
    return together | {WITHOUT_STATE: stateless}


def _owned(
    names: Mapping[nn.Parameter, str], optimizers: Sequence[Optimizer]
) -> Iterator[tuple[int, Optimizer, dict[str, Any], nn.Parameter, str]]:
    """Number of the optimizer, optimizer, group, parameter and its name, for every parameter of every optimizer."""
    for number, optimizer in enumerate(optimizers):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                yield number, optimizer, group, parameter, names[parameter]


def _state_keys(optimizer: Optimizer, group: dict[str, Any], parameter: nn.Parameter) -> list[str]:
    """Return what an optimizer keeps for a parameter with this many dimensions, found by a step on a tiny one."""
    # of as many dimensions, since rules differ by it: Adafactor factors matrices, Muon has no others
    number = torch.zeros([1] * parameter.ndim, device=parameter.device, dtype=parameter.dtype, requires_grad=True)
    number.grad = torch.zeros_like(number)
    trial = copy.copy(optimizer)
    trial.state = defaultdict(dict)
    trial.param_groups = [{**group, "params": [number]}]
    trial.step()
    return list(trial.state[number])


def _check_names(expected: set[str], found: set[str]) -> None:
    complaints = [
        f"{what} {len(names)} (such as {', '.join(sorted(names)[:3])})"
        for what, names in (("lacks", expected - found), ("has foreign", found - expected))
        if names
    ]
    if complaints:
        raise CheckpointError(
            f"the checkpoint's optimizer state is of another model or optimizer: it {' and '.join(complaints)}"
        )


def _place_value(value: Any, key: str, group: dict[str, Any], parameter: nn.Parameter) -> Any:
    """A copy where the optimizer keeps it: counters on the CPU unless a fused or capturable kernel reads them."""
    if not isinstance(value, Tensor):
        return value
    if key == "step" and not (group.get("fused") or group.get("capturable")):
        return value.to("cpu", copy=True)
    if value.shape != parameter.shape:
        return value.to(parameter.device, copy=True)
    # laid out in memory as the parameter is, which kernels over many tensors take for granted
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(slice_for_rank(value, parameter))


class WeightAverage:
    """Averages of a model's parameters, by name; tied ones once, buffers not at all: the model's own are used.

    They are kept in fp32, or in fp64 where the weights are. ``trained`` are the parameters that training ever changes,
    frozen or not; the others are no different from their average and take no memory. Not given, all are averaged.
    """

    def __init__(self, model: nn.Module, config: EmaConfig, trained: Iterable[nn.Parameter] | None = None) -> None:
        self.config = config
        wanted = {id(parameter) for parameter in (model.parameters() if trained is None else trained)}
        self._parameters = {
            name: parameter
            for name, parameter in model.named_parameters()
            if id(parameter) in wanted and (parameter.is_floating_point() or parameter.is_complex())
        }
        self._averages: list[Tensor] = []

    def decay(self, step: int) -> float:
        """Return the fraction of the average that is kept in the update after a step from ``start_step`` + 1 on."""
        # Early averages are of few weights, so they forget faster.
        averaged = step - self.config.start_step
        return min(self.config.decay, (1 + averaged) / (10 + averaged)) if self.config.warmup else self.config.decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after a step; before ``start_step`` nothing happens."""
        if step < self.config.start_step:
            return
        weights = [_exact(parameter) for parameter in self._parameters.values()]
        if not self._averages:
            self._averages = [weight.clone() for weight in weights]
        else:
            torch._foreach_lerp_(self._averages, weights, 1.0 - self.decay(step))

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Within this context, the model computes with the averages; afterwards with its own weights, to the bit.

        The tensors are exchanged, not copied (but for low-precision weights, whose averages are rounded to them). What
        writes to the weights meanwhile changes the averages.
        """
        if not self._averages:
            yield
            return
        own = [parameter.data for parameter in self._parameters.values()]
        try:
            for parameter, average in zip(self._parameters.values(), self._averages, strict=True):
                parameter.data = average.to(parameter.dtype)
            yield
        finally:
            for parameter, data in zip(self._parameters.values(), own, strict=True):
                parameter.data = data

    def state_dict(self) -> dict[str, Tensor]:
        """Return the live averages by parameter name, for a checkpoint; none before ``start_step``."""
        return dict(zip(self._parameters, self._averages, strict=True)) if self._averages else {}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back, to the bit, what ``state_dict`` gave.

        With nothing, averaging begins at the next step from ``start_step`` on. Raises CheckpointError, with nothing
        changed, where a name or a shape is another than this model's.
        """
        if not tensors:
            self._averages = []
            return
        shapes = {name: tuple(parameter.shape) for name, parameter in self._parameters.items()}
        given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        wrong = sorted(name for name in {*shapes, *given} if shapes.get(name) != given.get(name))
        if wrong:
            raise CheckpointError(
                "the checkpoint's averaged weights (training.ema) are from another model, or with others frozen: "
                f"{len(wrong)} of them differ, such as {', '.join(wrong[:3])}"
            )
        self._averages = [
            # copied, not kept: the checkpoint's tensors may be on another device, and whole where the model is divided
            torch.empty_like(_exact(parameter)).copy_(slice_for_rank(tensors[name], parameter))
            for name, parameter in self._parameters.items()
        ]


def _exact(parameter: Tensor) -> Tensor:
    """Return the weights in at least fp32; themselves where they are."""
    return parameter.detach().to(torch.promote_types(parameter.dtype, torch.float32))
