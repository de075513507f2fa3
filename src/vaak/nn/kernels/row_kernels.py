"""Vaak's CUDA kernels, which replace many passes over large tensors by one along each row.

    cross_entropy_rows   logits (row, class) ──▶ log Z, losses ──▶ rate · (softmax − target), also in their place
    rotated              heads (batch, time, head, width) ──▶ turned to their positions, in the precision asked for

torch's cross-entropy forms all log-probabilities in 32 bits, and a rotation by torch's operators takes eight passes, in
32 bits, too. Here are two reads of the logits and a write, and one read and a write of the heads; sums have 32 bits,
belong to one row each, and repeat. The kernels are written in Triton, which torch includes where it is built for CUDA.
Before its first use in a process, each is compared with torch on a small example; where that fails (without a C
compiler, say), torch's operators do the work.

Sources: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax" (log Z in one pass); Hsu et al. 2024,
"Liger Kernel: Efficient Triton Kernels for LLM Training", section 3.2 (the gradient in the place of the logits).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Annotated as Float
from typing import Annotated as Int
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vaak.core.torch_internals import is_fake
from vaak.nn.kernels.device_paths import paths_on

log = logging.getLogger("vaak")
CLASSES_AT_ONCE = 8192
"""The longest row, in numbers; eight warps hold 32 of them in each thread's registers."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def cross_entropy_rows(
    logits: Float[Tensor, "row class"],
    targets: Int[Tensor, " row"],
    smoothing: float = 0.0,
    rates: Float[Tensor, " row"] | None = None,
    square_rates: Float[Tensor, " row"] | None = None,
    out: Float[Tensor, "row class"] | None = None,
) -> tuple[Float[Tensor, " row"], Float[Tensor, " row"]]:
    """Return the loss and log Z of each row, in 32 bits; Z is the denominator of its softmax.

    With ``rates``, ``out``, which may be ``logits``, becomes the gradient of the sum over rows of loss · rate and of
    log²Z · square rate. ``targets`` are from 0 to below the number of classes; ``smoothing`` spreads that much of each
    over all classes.
    """
    losses, log_z = (torch.empty(len(logits), dtype=torch.float32, device=logits.device) for _ in range(2))
    written = logits if out is None else out
    assert logits.stride(1) == written.stride(1) == 1, "the kernel goes along the classes"
    with _on_device(logits):
        _cross_entropy_kernel()[(len(logits),)](
            logits, logits.stride(0), targets, rates, square_rates, losses, log_z, written, written.stride(0),
            logits.shape[1], smoothing, HAS_RATES=rates is not None, HAS_SQUARES=square_rates is not None,
            BLOCK=min(CLASSES_AT_ONCE, power_of_2(logits.shape[1])), num_warps=8,
        )  # fmt: skip
    return losses, log_z


def rotated(
    x: Float[Tensor, "batch time heads head_width"],
    cosine: Float[Tensor, "#batch time 1 head_width"],
    sine: Float[Tensor, "#batch time 1 head_width"],
    dtype: torch.dtype,
) -> Float[Tensor, "batch time heads head_width"]:
    """Return ``x · cosine + x' · sine`` in ``dtype``, where x' has the halves of each head swapped."""
    turned: Tensor = _Rotated.apply(x, cosine, sine, dtype)  # type: ignore[no-untyped-call]
    return turned


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cosine: Tensor, sine: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        ctx.dtype = x.dtype
        return _rotate(x, cosine, sine, dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # The gradient comes from the partner that a coordinate went to.
        cosine, sine = ctx.saved_tensors
        return rotated(gradient, cosine, sine.roll(sine.shape[-1] // 2, -1), ctx.dtype), None, None, None


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor, dtype: torch.dtype) -> Tensor:
    batch, time, heads, width = x.shape
    x = x if x.stride(-1) == 1 else x.contiguous()
    cosine, sine = cosine.contiguous(), sine.contiguous()
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    table_stride = 0 if len(cosine) == 1 else cosine.stride(0)
    with _on_device(x):
        _rotation_kernel()[(batch * time,)](
            x, x.stride(0), x.stride(1), x.stride(2), cosine, sine, table_stride, out, time, heads, width,
            HEADS=power_of_2(heads), WIDTH=power_of_2(width),
        )  # fmt: skip
    return out


def _on_device(x: Tensor) -> AbstractContextManager[object]:
    """Within this context, kernels start on the GPU that has ``x``, which may not be the current one."""
    return torch.cuda.device_of(x) if x.is_cuda else nullcontext()


def power_of_2(number: int) -> int:
    """Return the smallest that isn't below ``number``.

    >>> power_of_2(1), power_of_2(12), power_of_2(64)
    (1, 16, 64)
    """
    return 1 << (number - 1).bit_length()


def has_cross_entropy_rows(logits: Tensor) -> bool:
    """Return whether ``cross_entropy_rows`` takes these logits, on their device."""
    return _is_for(logits) and logits.stride(-1) == 1 and _agrees("cross-entropy", str(logits.device), logits.dtype)


def has_rotated(x: Tensor) -> bool:
    """Return whether ``rotated`` takes these heads, on their device; compiled models fuse what they need themselves."""
    return _is_for(x) and _agrees("rotation", str(x.device), x.dtype)


def _is_for(x: Tensor) -> bool:
    on = paths_on(x.device).row_kernels and x.dtype in DTYPES
    return on and not torch.compiler.is_compiling() and not is_fake(x)


@cache
def _agrees(name: str, device: str, dtype: torch.dtype) -> bool:
    """Return whether a kernel runs on a device, and says there what torch does."""
    if not torch.backends.cuda.is_built() or find_spec("triton") is None:
        return False
    fault: object = "it computes something else"
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(torch.device(device).type, enabled=False):
            if EXAMPLES_BY_KERNEL[name](torch.device(device), dtype):
                return True
    except Exception as error:
        # Triton's, a compiler's or the driver's.
        fault = f"{type(error).__name__}: {error}"
    log.warning("our kernel of %s isn't used on %s, torch's are: %s", name, device, fault)
    return False


def _cross_entropy_example(device: torch.device, dtype: torch.dtype) -> bool:
    generator = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(5, 70, generator=generator)).to(device, dtype)
    targets, rates = torch.arange(5, device=device), torch.arange(5, device=device) / 4
    exact, out = logits.float().requires_grad_(), torch.empty_like(logits)
    expected = F.cross_entropy(exact, targets, reduction="none")
    losses, _ = cross_entropy_rows(logits, targets, rates=rates, out=out)
    return _near(losses, expected) and _near(out, *torch.autograd.grad(expected, exact, rates))


def _rotation_example(device: torch.device, dtype: torch.dtype) -> bool:
    generator = torch.Generator().manual_seed(0)
    x, gradient = (torch.randn(2, 5, 3, 8, generator=generator).to(device, dtype) for _ in range(2))
    cosine, sine = (torch.rand(1, 5, 1, 8, generator=generator).to(device) for _ in range(2))
    own, exact = x.clone().requires_grad_(), x.float().requires_grad_()
    expected, found = exact * cosine + exact.roll(4, -1) * sine, rotated(own, cosine, sine, dtype)
    gradients = (
        torch.autograd.grad(*pair)[0] for pair in ((found, own, gradient), (expected, exact, gradient.float()))
    )
    return _near(found, expected) and _near(*gradients)


def _near(found: Tensor, expected: Tensor) -> bool:
    return torch.allclose(found.float(), expected, rtol=0.02, atol=0.01)


EXAMPLES_BY_KERNEL: dict[str, Callable[[torch.device, torch.dtype], bool]] = {
    "cross-entropy": _cross_entropy_example,
    "rotation": _rotation_example,
}


@cache
def _cross_entropy_kernel() -> Any:
    import triton
    from triton import language as tl

    def rows(  # type: ignore[no-untyped-def]
        logits, stride, targets, rates, square_rates, losses, log_z, out, out_stride,
        classes: tl.constexpr, smoothing: tl.constexpr,
        HAS_RATES: tl.constexpr, HAS_SQUARES: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        logits += row * stride
        out += row * out_stride
        target = tl.load(targets + row)
        at_target = tl.load(logits + target).to(tl.float32)
        highest = -float("inf")
        # The sum of exp(logit - highest) up to here.
        scale = 0.0
        total = 0.0
        for start in range(0, classes, BLOCK):
            places = start + tl.arange(0, BLOCK)
            here = places < classes
            x = tl.load(logits + places, mask=here, other=-float("inf")).to(tl.float32)
            before = highest
            highest = tl.maximum(before, tl.max(x, 0))
            level = tl.where(highest == -float("inf"), 0.0, highest)
            scale = scale * tl.exp(before - level) + tl.sum(tl.exp(x - level), 0)
            total += tl.sum(tl.where(here, x, 0.0), 0)
        z = highest + tl.log(scale)
        loss = z - at_target
        if smoothing > 0:
            loss = z - (1 - smoothing) * at_target - smoothing * total / classes
        tl.store(losses + row, loss)
        tl.store(log_z + row, z)
        if HAS_RATES:
            rate = tl.load(rates + row).to(tl.float32)
            pull = rate
            if HAS_SQUARES:
                pull = rate + 2 * tl.load(square_rates + row).to(tl.float32) * z
            for start in range(0, classes, BLOCK):
                places = start + tl.arange(0, BLOCK)
                here = places < classes
                x = tl.load(logits + places, mask=here, other=0.0).to(tl.float32)
                gradient = tl.exp(x - z) * pull - smoothing / classes * rate
                gradient = tl.where(places == target, gradient - (1 - smoothing) * rate, gradient)
                tl.store(out + places, gradient.to(out.dtype.element_ty), mask=here)

    return triton.jit(rows)


@cache
def _rotation_kernel() -> Any:
    import triton
    from triton import language as tl

    def rows(  # type: ignore[no-untyped-def]
        x, batch_stride, time_stride, head_stride, cosine, sine, table_stride, out, time,
        heads: tl.constexpr, width: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        place = tl.program_id(0).to(tl.int64)
        example, moment = place // time, place % time
        head, column = tl.arange(0, HEADS)[:, None], tl.arange(0, WIDTH)[None, :]
        here = (head < heads) & (column < width)
        row = x + example * batch_stride + moment * time_stride + head * head_stride
        own = tl.load(row + column, mask=here, other=0.0).to(tl.float32)
        partner = tl.load(row + (column + width // 2) % width, mask=here, other=0.0).to(tl.float32)
        table = example * table_stride + moment * width + column
        cosines = tl.load(cosine + table, mask=column < width, other=0.0)
        sines = tl.load(sine + table, mask=column < width, other=0.0)
        turned = own * cosines + partner * sines
        tl.store(out + (place * heads + head) * width + column, turned.to(out.dtype.element_ty), mask=here)

    return triton.jit(rows)
