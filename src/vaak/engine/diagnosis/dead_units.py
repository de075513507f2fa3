"""Units that give nothing: inputs of a layer that are 0 in every row and at every place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d)
"""Layers whose units are the second dimension of their input; those of a linear one are the last."""


@contextlib.contextmanager
def watching_units(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """By layer, ``(unit,)`` whether an input was ever anything but 0 while this context lasts.

    An activation that is 0 for every input, such as a ReLU of large negative numbers, has no gradient either: what
    is before it no longer learns.
    """
    alive: dict[str, Tensor] = {}
    layers = [(name, one) for name, one in model.named_modules() if isinstance(one, (nn.Linear, *CONVOLUTIONS))]
    handles = [layer.register_forward_pre_hook(partial(_note, alive, name)) for name, layer in layers]
    try:
        yield alive
    finally:
        for handle in handles:
            handle.remove()


def _note(alive: dict[str, Tensor], name: str, layer: nn.Module, args: tuple[Any, ...]) -> None:
    if not args or not isinstance(args[0], Tensor) or args[0].ndim < 2:
        return
    units = args[0].detach().movedim(1 if isinstance(layer, CONVOLUTIONS) else -1, 0).flatten(1)
    found = (units != 0).any(1)
    alive[name] = torch.logical_or(alive[name], found) if name in alive else found
