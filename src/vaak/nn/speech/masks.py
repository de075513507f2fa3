"""Rows of different lengths in one tensor: which places are real, and sums over those alone."""

from __future__ import annotations

import torch
from torch import Tensor


def length_mask(lengths: Tensor, time: int | None = None) -> Tensor:
    """``(batch, time)``, True where a row is real; ``time`` is the longest of ``lengths`` ``(batch,)`` unless given.

    >>> length_mask(torch.tensor([1, 3])).int()
    tensor([[1, 0, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    longest = int(lengths.max()) if time is None else time
    return torch.arange(longest, device=lengths.device) < lengths[:, None]


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """``x`` ``(batch, time, ...)`` with 0 where ``mask`` ``(batch, time)`` is False; None means that all is real."""
    if mask is None:
        return x
    return x.masked_fill(~mask[(..., *(None,) * (x.ndim - 2))], 0.0)


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """The sum of what is real of ``values`` ``(batch, time, ...)``, in 32 bits at least."""
    return masked(exact(values), mask).sum()


def exact(x: Tensor) -> Tensor:
    """Return the same numbers in 32 bits at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def as_float64(x: Tensor) -> Tensor:
    """Return the same numbers in 64 bits, or in 32 on a device (MPS) that has no more."""
    return x.to(torch.float32 if x.device.type == "mps" else torch.float64)
