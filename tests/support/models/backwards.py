"""Functions that change nothing forwards and fail backwards."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


class NanBackwards(torch.autograd.Function):
    """The same forwards; NaN backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * math.nan


class FullBackwards(NanBackwards):
    """The same forwards; out of memory backwards."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise out_of_memory()


def out_of_memory() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")
