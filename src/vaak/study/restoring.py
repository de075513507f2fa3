"""Work with a model and its optimizer, then restore both to the bit."""

from __future__ import annotations

import contextlib
import copy
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vaak.engine.devices.randomness import keeping_generators


@contextlib.contextmanager
def left_as_it_was(model: nn.Module, optimizer: Optimizer, device: torch.device) -> Iterator[None]:
    """Within this context, train freely on ``device``: only copies change.

    Afterwards the model has its own weights, buffers, gradients and modes again, the optimizer its own state and
    options, and every generator its state, after an exception too.
    """
    groups = optimizer.param_groups
    parameters = list(dict.fromkeys([*model.parameters(), *(p for group in groups for p in group["params"])]))
    own = [(parameter, parameter.data, parameter.grad) for parameter in parameters]
    buffers = [(module, name, held) for module in model.modules() for name, held in module._buffers.items()]
    modes = [(module, module.training) for module in model.modules()]
    state, options = optimizer.state, [dict(group) for group in groups]
    with keeping_generators(device):
        try:
            optimizer.state = _copied(state, device)
            for parameter, data, _ in own:
                parameter.grad = None
                parameter.data = data.to(device, copy=True)
            copies = {id(held): held.to(device, copy=True) for _, _, held in buffers if held is not None}
            for module, name, held in buffers:
                module._buffers[name] = None if held is None else copies[id(held)]
            yield
        finally:
            for parameter, data, gradient in own:
                parameter.grad = None
                parameter.data = data
                parameter.grad = gradient
            for module, name, held in buffers:
                module._buffers[name] = held
            for module, mode in modes:
                module.training = mode
            optimizer.state = state
            for group, before in zip(groups, options, strict=True):
                group.clear()
                group.update(before)


def _copied(state: Any, device: torch.device) -> Any:
    """A copy of what an optimizer remembers; what is as large as its parameter moves along with it."""
    copied: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
    for parameter, remembered in state.items():
        copied[parameter] = {
            name: _moved(value, parameter, device) if isinstance(value, Tensor) else copy.deepcopy(value)
            for name, value in remembered.items()
        }
    return copied


def _moved(value: Tensor, parameter: Tensor, device: torch.device) -> Tensor:
    follows = value.device == parameter.device and (value.ndim > 0 or parameter.device.type != "cpu")
    return value.to(device if follows else value.device, copy=True)
