"""What optimizers remember, by parameter name, so that it outlives a process and the order of parameters."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vaak.core.errors import CheckpointError

WITHOUT_STATE = "without_state"


class Moments:
    """The optimizers of a run, by objective, and what they remember of the parameters that ``names`` names."""

    def __init__(self, names: Mapping[nn.Parameter, str], by_objective: Sequence[Sequence[Optimizer]]) -> None:
        self._names = names
        self.by_objective = [list(optimizers) for optimizers in by_objective]
        self.optimizers = [optimizer for optimizers in self.by_objective for optimizer in optimizers]

    def state_dict(self) -> dict[str, Any]:
        """Tensors, live, and the values that are none, by name."""
        tensors, values = optimizer_tensors(self._names, self.optimizers)
        return {**tensors, **values}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Remember what ``state_dict`` gave. Raises CheckpointError where it is of another model or optimizer."""
        load_optimizer_tensors(self._names, self.optimizers, state)


def optimizer_tensors(
    names: Mapping[nn.Parameter, str], optimizers: Sequence[Optimizer]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All that the optimizers remember: tensors, and JSON for the rest.

    Tensors are the live ones, called ``<optimizer>.<state>.<parameter>``, as in ``0.exp_avg.layers.0.weight``. JSON has
    the values that are no tensors by the same names, and under ``without_state`` the parameters never updated.
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
    names: Mapping[nn.Parameter, str], optimizers: Sequence[Optimizer], state: Mapping[str, Any]
) -> None:
    """Make the optimizers remember, to the bit, what ``optimizer_tensors`` gave.

    Raises CheckpointError, before anything is changed, where a name is missing or foreign to these optimizers.
    """
    content = {name: value for name, value in state.items() if name != WITHOUT_STATE}
    stateless = set(state.get(WITHOUT_STATE, ()))
    owned = list(_owned(names, optimizers))
    expected: dict[tuple[int, str], list[str]] = {}
    keys_by_kind: dict[tuple[int, int], list[str]] = {}
    for number, optimizer, group, parameter, name in owned:
        if f"{number}.{name}" in stateless:
            continue
        kind = (number, parameter.ndim)
        if kind not in keys_by_kind:
            keys_by_kind[kind] = _state_keys(optimizer, group, parameter)
        expected[number, name] = keys_by_kind[kind]
    _check_names({f"{number}.{key}.{name}" for (number, name), keys in expected.items() for key in keys}, set(content))
    for number, optimizer, group, parameter, name in owned:
        keys = expected.get((number, name), [])
        optimizer.state.pop(parameter, None)
        if keys:
            own = {key: _placed(content[f"{number}.{key}.{name}"], key, group, parameter) for key in keys}
            optimizer.state[parameter] = own


def _owned(
    names: Mapping[nn.Parameter, str], optimizers: Sequence[Optimizer]
) -> Iterator[tuple[int, Optimizer, dict[str, Any], nn.Parameter, str]]:
    """Number of the optimizer, optimizer, group, parameter and its name, for every parameter of every optimizer."""
    for number, optimizer in enumerate(optimizers):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                yield number, optimizer, group, parameter, names[parameter]


def _state_keys(optimizer: Optimizer, group: dict[str, Any], parameter: nn.Parameter) -> list[str]:
    """What an optimizer remembers of a parameter with so many dimensions, found by a step on one of a single number."""
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


def _placed(value: Any, key: str, group: dict[str, Any], parameter: nn.Parameter) -> Any:
    """A copy where the optimizer keeps it: counters on the CPU unless a fused or capturable kernel reads them."""
    if not isinstance(value, Tensor):
        return value
    if key == "step" and not (group.get("fused") or group.get("capturable")):
        return value.to("cpu", copy=True)
    if value.shape != parameter.shape:
        return value.to(parameter.device, copy=True)
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
