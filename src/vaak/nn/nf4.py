"""Frozen weights in four bits: NF4 with double quantisation, as of QLoRA, in plain torch, so on every device.

    weight, flat        [ 64 numbers ][ 64 numbers ] …     each divided by its block's largest (absmax), then rounded to
                                                           the nearest of 16 levels: quantiles of a normal distribution
    codes      uint8    two levels a byte, the first in the upper half                                 0.5 bytes each
    absmax     uint8    a block's largest, less the mean of all (offset), divided by the largest of
                        256 blocks (nested_absmax), as one of 256 steps that are finer near 0          1/64
    nested_absmax, offset     fp32                                                                     4/(64 · 256)

That is 0.516 bytes a number, 4.13 bits. A product needs the weight whole for a moment: it is dequantised in fp32,
rounded to the type of the product, and forgotten; the backward pass dequantises it again instead of keeping it.

Source: Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs", sections 2 and 3; Dettmers 2016, "8-Bit
Approximations for Parallelism in Deep Learning" (the 256 steps). Codes are those of bitsandbytes, bit by bit; its
kernels aren't needed. Differs: the mean is added up in float64, so that it is the same whatever the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated as Float
from typing import Annotated as Integer
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

NF4_BLOCK = 64
"""Numbers that share a scale; weights of another multiple can't be quantised."""
NESTED_BLOCK = 256
# fmt: off
LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)
# fmt: on
"""NF4, as QLoRA's appendix E and bitsandbytes have it."""


class Quantised(NamedTuple):
    """A weight in NF4: ``codes`` ``(numbers / 2,)``, ``absmax`` ``(block,)``, ``nested_absmax`` and an ``offset``."""

    codes: Integer[Tensor, "pairs"]
    absmax: Integer[Tensor, "block"]
    nested_absmax: Float[Tensor, "nested_block"]
    offset: Float[Tensor, "1"]


class Tables(NamedTuple):
    """The values of codes: ``pairs`` ``(256, 2)`` the two levels of a byte, ``steps`` ``(256, 1)`` those of absmax."""

    pairs: Float[Tensor, "256 2"]
    steps: Float[Tensor, "256 1"]


def make_tables() -> Tables:
    """Return the tables by which ``dequantise`` reads."""
    levels = torch.tensor(LEVELS)
    return Tables(torch.stack((levels.repeat_interleave(16), levels.repeat(16)), 1), _steps()[:, None])


def _steps() -> Float[Tensor, "256"]:
    """Return the 256 steps from −1 to 1: for each power of ten down to 1e-6 twice as many as for the one below."""
    found = [torch.zeros(1), torch.ones(1)]
    for power in range(7):
        bounds = torch.linspace(0.1, 1, 2**power + 1)
        means = 10.0 ** (power - 6) * ((bounds[:-1] + bounds[1:]) / 2)
        found += [means, -means]
    return torch.cat(found).sort().values


def quantise(weight: Float[Tensor, "..."]) -> Quantised:
    """Return a weight in NF4. It is computed on the CPU, so that every device has the same bits.

    ``weight`` has a multiple of 64 numbers.
    """
    levels = torch.tensor(LEVELS)
    rows = weight.detach().to("cpu", torch.float32).reshape(-1, NF4_BLOCK)
    absmax, codes = _nearest(rows, levels)
    high, low = codes.reshape(-1, 2).unbind(1)
    offset = absmax.double().mean().float().view(1)
    blocks = F.pad(absmax - offset, (0, -len(absmax) % NESTED_BLOCK)).view(-1, NESTED_BLOCK)
    nested_absmax, nested = _nearest(blocks, _steps())
    whole = Quantised(high << 4 | low, nested.flatten()[: len(absmax)].clone(), nested_absmax, offset)
    return Quantised(*(one.to(weight.device) for one in whole))


def _nearest(rows: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's largest number, and the nearest levels of its numbers divided by that."""
    largest = rows.abs().amax(1)
    scaled = rows * (1 / largest.clamp(min=torch.finfo(torch.float32).tiny))[:, None]
    return largest, torch.bucketize(scaled.clamp(-1, 1), (levels[:-1] + levels[1:]) / 2, out_int32=True).to(torch.uint8)


def dequantise(weight: Quantised, tables: Tables, dtype: torch.dtype) -> Float[Tensor, "numbers"]:
    """Return the numbers that a weight in NF4 stands for, flat, rounded to ``dtype``."""
    nested = weight.nested_absmax[:, None].expand(-1, NESTED_BLOCK).reshape(-1, 1)[: len(weight.absmax)]
    absmax = F.embedding(weight.absmax.int(), tables.steps) * nested + weight.offset
    levels = F.embedding(weight.codes.int(), tables.pairs).view(-1, NF4_BLOCK)
    return (levels * absmax).to(dtype).flatten()


class NF4Product(torch.autograd.Function):
    """``inputs · weightᵀ + bias`` for a weight in NF4, which has no gradient and isn't kept whole for the backward."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, bias: Tensor | None, width: int, *kept: Tensor) -> Tensor:
        """``(…, out)`` of ``inputs`` ``(…, width)``; ``kept`` are those of ``Quantised``, then those of ``Tables``."""
        ctx.width, ctx.dtype = width, inputs.dtype
        ctx.save_for_backward(*kept)
        return F.linear(inputs, _whole(kept, width, inputs.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of ``inputs`` and of ``bias``."""
        (gradient,) = gradients
        of_inputs = of_bias = None
        if ctx.needs_input_grad[0]:
            of_inputs = gradient @ _whole(ctx.saved_tensors, ctx.width, ctx.dtype)
        if ctx.needs_input_grad[1]:
            of_bias = gradient.flatten(0, -2).sum(0)
        return of_inputs, of_bias, None, *(None for _ in ctx.saved_tensors)


def _whole(kept: tuple[Tensor, ...], width: int, dtype: torch.dtype) -> Tensor:
    return dequantise(Quantised(*kept[:4]), Tables(*kept[4:]), dtype).view(-1, width)


def num_weights(parameters: Iterable[Tensor]) -> int:
    """Return how many numbers parameters are: a byte holds two of a weight in NF4."""
    return sum(one.numel() * (2 if one.dtype is torch.uint8 else 1) for one in parameters)
