"""AdamW with moments in 8 bits: a quarter of their memory.

Blocks of 256 numbers share a scale, their largest absolute value. A number is one of 256 multiples of it, which are
closer together near zero (dynamic tree quantisation): the code's leading zeros are an exponent, the rest a fraction.

    moment   |  one number in fp32: 4 bytes   ─▶   code: 1 byte  +  scale: 4 bytes / 256
    update   |  dequantise, as AdamW in fp32, quantise again

Matrices between hidden layers and weights of convolutions are updated so; embeddings, heads, norms and biases by AdamW
with moments in fp32, as the paper has it for embeddings. The state is plain tensors, and each update is a
function of them alone, so a resumed run has the same bits.

Source: Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization" (arXiv:2110.02861); blocks are those of
torchao and later versions of bitsandbytes. Differs: a second moment that isn't zero isn't rounded to zero, where a
first moment next to it would be divided by ``eps`` alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from vaak.config.optimization import BLOCK_SIZE, OptimizerConfig, has_8bit_moments
from vaak.core.torch_internals import uncompiled
from vaak.engine.optim.optimizers import (
    NamedParameter,
    adam_rule,
    count_layers,
    evaluate_closure,
    has_fused_kernels,
    parameter_groups,
)


def adamw_8bit(parameters: list[NamedParameter], config: OptimizerConfig) -> list[Optimizer]:
    """AdamW with moments in 8 bits for weights, in fp32 for the rest; either is left out if it has nothing to do."""
    optimizers: list[Optimizer] = []
    num_layers = count_layers(parameters)
    weights = [item for item in parameters if has_8bit_moments(item.parameter.shape, item.is_hidden_matrix)]
    if weights:
        groups = parameter_groups(weights, config, config.lr, num_layers)
        optimizers.append(uncompiled(AdamW8bit)(groups, lr=config.lr, betas=config.betas, eps=config.eps))
    rest = [item for item in parameters if item not in weights]
    if rest:
        groups = parameter_groups(rest, config, config.lr, num_layers)
        optimizers.append(adam_rule(AdamW, groups, config, has_fused_kernels(AdamW, rest, config.fused)))
    return optimizers


class AdamW8bit(Optimizer):
    """Keeps, of each parameter, codes ``exp_avg`` and ``exp_avg_sq`` of its shape, and the scales of their blocks."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have a gradient; returns what ``closure`` does."""
        loss = evaluate_closure(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    _update(parameter, self.state[parameter], group)
        return loss


def _update(parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    if not state:
        num_blocks = -(-parameter.numel() // BLOCK_SIZE)
        state["step"] = torch.zeros(())
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = torch.zeros_like(parameter, dtype=torch.uint8)
            state[f"{name}_scale"] = torch.zeros(num_blocks, device=parameter.device)
    assert parameter.grad is not None
    state["step"] += 1
    steps, (first, second) = float(state["step"]), group["betas"]
    gradient = parameter.grad.float()
    mean = dequantise(state["exp_avg"], state["exp_avg_scale"], signed=True).lerp_(gradient, 1 - first)
    square = dequantise(state["exp_avg_sq"], state["exp_avg_sq_scale"], signed=False)
    square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
    parameter.mul_(1 - group["lr"] * group["weight_decay"])
    denominator = square.sqrt().div_(math.sqrt(1 - second**steps)).add_(group["eps"])
    parameter.add_((mean / denominator).to(parameter.dtype), alpha=-group["lr"] / (1 - first**steps))
    quantise(mean, state["exp_avg"], state["exp_avg_scale"], signed=True)
    quantise(square, state["exp_avg_sq"], state["exp_avg_sq_scale"], signed=False)


def dequantise(codes: Tensor, scale: Tensor, *, signed: bool) -> Tensor:
    """Return the numbers, in fp32 and the shape of ``codes``; ``scale`` is ``(block,)``."""
    values = _Levels.on(codes.device, signed).values.index_select(0, codes.flatten().int())
    return _blocks(values).mul_(scale[:, None]).flatten()[: codes.numel()].view(codes.shape)


def quantise(values: Tensor, codes: Tensor, scale: Tensor, *, signed: bool) -> None:
    """Write the codes nearest to ``values`` in fp32, of the same shape, and the scale of each block of them."""
    blocks = _blocks(values)
    torch.amax(blocks.abs(), 1, out=scale)
    relative = blocks / scale.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
    codes.copy_(_Levels.on(values.device, signed).nearest(relative.flatten()[: codes.numel()]).view(codes.shape))


def _blocks(values: Tensor) -> Tensor:
    """Numbers as ``(block, 256)``; the last block is filled up with zeros."""
    flat = values.reshape(-1)
    missing = -len(flat) % BLOCK_SIZE
    return torch.nn.functional.pad(flat, (0, missing)).view(-1, BLOCK_SIZE) if missing else flat.view(-1, BLOCK_SIZE)


@dataclass(frozen=True)
class _Levels:
    """The levels ``(256,)`` of one kind of moment on a device, and tables to find the nearest one.

    ``upper`` ``(256,)`` is half way to the next level. ``first`` ``(65536,)`` is the code of the smallest number whose
    first 16 bits are its index (sign, exponent, 7 bits of fraction): no two levels are that close, so a number has this
    code or the next. A search in 256 levels takes seven times as long.
    """

    values: Tensor
    upper: Tensor
    first: Tensor

    @staticmethod
    @cache
    def on(device: torch.device, signed: bool) -> _Levels:
        values = torch.tensor(dynamic_levels(signed), dtype=torch.float32)
        between = (values[1:] + values[:-1]) / 2
        begins = torch.arange(2**16) << 16
        # of a negative number, further bits lower it
        smallest = torch.where(begins < 2**31, begins, begins + 0xFFFF).to(torch.uint32).view(torch.float32)
        first = torch.bucketize(smallest.nan_to_num(), between, out_int32=True)
        if not signed:
            # what isn't zero isn't rounded to it
            first[1 : 2**15].clamp_(min=1)
            between[0] = 0.0
        upper = torch.cat((between, torch.tensor([math.inf])))
        return _Levels(values.to(device), upper.to(device), first.to(device))

    def nearest(self, numbers: Tensor) -> Tensor:
        """Return the codes ``(number,)`` of the levels nearest to ``numbers`` in fp32."""
        begins = (numbers.view(torch.int32) >> 16) & 0xFFFF
        first = self.first.index_select(0, begins)
        return first + (numbers > self.upper.index_select(0, first))


def dynamic_levels(signed: bool) -> Sequence[float]:
    """Return the 256 multiples of a block's scale that codes stand for, in rising order.

    With exponent e = 0 … 6 there are 2^e fractions of 10^(e − 6), for either sign, or, without signs, 2^(e + 1) of
    them. They are the middles of equal intervals from 0.1 to 1. 0 and 1 are levels, too.

    >>> levels = dynamic_levels(signed=False)
    >>> len(levels), levels[0], levels[-1], levels[1] < 1e-6
    (256, 0.0, 1.0, True)
    """
    levels = [0.0, 1.0]
    for exponent in range(7):
        number = 2 ** (exponent if signed else exponent + 1)
        width = 0.9 / number
        middles = [10.0 ** (exponent - 6) * (0.1 + width * (place + 0.5)) for place in range(number)]
        levels += middles
        if signed:
            levels += [-middle for middle in middles]
    return sorted(levels)
