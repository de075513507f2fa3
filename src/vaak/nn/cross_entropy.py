"""Cross-entropy over many classes: a few rows at a time, so that neither probabilities nor logits are held twice.

    logits (row, class) ──▶ loss                    the backward pass writes the gradient into a tensor like the logits
    hidden (row, width), head ──▶ loss, gradients   logits are made a few rows at a time, and their gradient is
                                                    multiplied by the head and the hidden states at once

The second way never holds all logits, nor their gradient: of 32k tokens and 128k classes in 16 bits, 8.4 GB each. The
products are those of the first way, as many and as large, so it takes no more time; the gradients that it holds until
the backward pass are as large as ``hidden`` and as the head's weight. On a CPU rows stay in the cache: the first way
takes half of torch's time, the second less than the first. Few logits are left to torch, which is quicker with them.

Source: Szegedy et al. 2016, "Rethinking the Inception Architecture", section 7 (label smoothing); Hsu et al. 2024,
"Liger Kernel: Efficient Triton Kernels for LLM Training", section 3.2 (gradients in the forward pass). Differs: rows
without a target are left out on a CPU; gradients of the head are added up in the head's own type.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from vaak.core.batch import find_places
from vaak.core.errors import UserError, optional_import
from vaak.core.torch_internals import is_fake
from vaak.nn.kernels.row_kernels import cross_entropy_rows, has_cross_entropy_rows

# Torch's value for positions without a target.
IGNORED = -100
CPU_LOGITS_AT_ONCE, LOGITS_AT_ONCE = 2**20, 2**24
"""Logits that become probabilities together."""
CPU_PRODUCTS_AT_ONCE, PRODUCTS_AT_ONCE = 2**23, 2**27
"""Logits of a head that are made together: more rows are multiplied faster, and take more memory."""
FEWEST_ROWS = 128
MANY_LOGITS = 2**26
"""Logits of this number or more aren't made whole if possible: 256 MiB in 32 bits, and their gradient, too."""


CLASSES_AT_ONCE, FEW_ROWS, MANY_WEIGHTS = 512, range(4, 16), 2**24
"""Classes whose logits a CPU computes together, of how many rows, and for how many weights at least."""


class HeadInputs(NamedTuple):
    """The factors of logits: ``hidden`` (..., width), a head's ``weight`` (class, width) and its bias."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None = None

    def logits(self) -> Tensor:
        """Return all of them, (..., class)."""
        if self.are_few:
            return _logits_in_parts(*self)
        return F.linear(self.hidden, self.cast_weight(), self.bias)

    @property
    def are_few(self) -> bool:
        """Whether logits are computed for some classes at a time, as where a CPU decodes a few rows.

        MKL takes 15.1 ms to multiply 5 rows by 51,864 × 384 numbers, and 23.5 ms for 8; in parts, whose weights stay
        in the cache while they are read, it takes 10.4 and 11.5 ms for the same bits (one core, a Xeon with AVX-512).
        """
        hidden, weight = self.hidden, self.weight
        if hidden.device.type != "cpu" or weight.numel() < MANY_WEIGHTS or torch.is_grad_enabled():
            return False
        are_numbers = hidden.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
        rows = hidden.numel() // hidden.shape[-1]
        return are_numbers and not torch.compiler.is_compiling() and not is_fake(hidden) and rows in FEW_ROWS

    def cast_weight(self) -> Tensor:
        """Return the weight as a product with ``hidden`` takes it: a frozen one may be in fewer bits (QLoRA)."""
        is_cast = torch.is_autocast_enabled(self.hidden.device.type) or self.weight.dtype == self.hidden.dtype
        return self.weight if is_cast else self.weight.to(self.hidden.dtype)

    def at(self, places: Tensor | slice) -> HeadInputs:
        """Return the inputs of some of the hidden states."""
        return HeadInputs(self.hidden[places], self.weight, self.bias)


def _logits_in_parts(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = hidden.flatten(0, -2)
    logits = rows.new_empty(len(rows), len(weight))
    for out, part in zip(logits.split(CLASSES_AT_ONCE, 1), weight.split(CLASSES_AT_ONCE), strict=True):
        torch.mm(rows, part.T, out=out)
    if bias is not None:
        logits += bias
    return logits.view(*hidden.shape[:-1], -1)


def unless_many(model: nn.Module, targets: Tensor) -> dict[str, bool]:
    """Return options of a model's call: ``project=False`` where logits of ``targets`` had better not be made whole."""
    return {"project": False} if targets.numel() * getattr(model, "vocab_size", 0) >= MANY_LOGITS else {}


def target_losses(logits: Tensor | HeadInputs, targets: Tensor, count: float | None = None) -> tuple[Tensor, Tensor]:
    """Return nats of each target (row,), and whether it has the highest of its logits (row, class).

    A target of -100 has 0 nats; where there are more dimensions than rows, it is left out: with the ``count`` of the
    others, without waiting for the device.
    """
    if targets.ndim > 1:
        scored = targets.flatten() != IGNORED
        places = scored if count is None else find_places(scored, count)
        rows = (logits if isinstance(logits, Tensor) else logits.hidden).flatten(0, -2)[places]
        chosen = rows if isinstance(logits, Tensor) else logits._replace(hidden=rows)
        return target_losses(chosen, targets.flatten()[places])
    if isinstance(logits, Tensor):
        each = F.cross_entropy(logits.float(), targets, reduction="none", ignore_index=IGNORED)
        return each, logits.argmax(-1) == targets
    parts = [
        target_losses(logits.at(rows).logits(), targets[rows])
        for rows in _chunks(len(targets), len(logits.weight), _products_at_once(logits.hidden), FEWEST_ROWS)
    ]
    nats, right = zip(*parts, strict=True)
    return torch.cat(nats), torch.cat(right)


class CrossEntropy(nn.Module):
    """Negative log-probability of the target class; ``label_smoothing`` spreads that much of it over all classes.

    ``weight`` has a factor for each class: of its targets and, with smoothing, of its share. A mean is then the sum
    over the sum of the targets' weights, as in torch.
    """

    sums_valid = True
    weight: Tensor | None

    def __init__(self, label_smoothing: float = 0.0, weight: Sequence[float] | None = None) -> None:
        super().__init__()
        if isinstance(weight, str):
            raise ValueError(f"weight is {weight}, but training texts to count are missing; expected a list")
        if weight is not None and not all(0 <= one < math.inf for one in weight):
            raise ValueError("a weight is below 0 or infinite")
        exact = None if weight is None else torch.tensor(weight, dtype=torch.float64)
        self.register_buffer("weight", exact, persistent=False)
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing is {label_smoothing}; it must be from 0 to below 1")
        self.label_smoothing = label_smoothing

    def forward(self, outputs: Tensor, targets: Tensor, valid: Tensor | None = None) -> Tensor:
        """The sum of the losses of ``targets`` (...) that are ``valid`` (...), or not -100; logits (..., classes)."""
        logits, weight = outputs.reshape(-1, outputs.shape[-1]), self.weight
        marked = (targets if valid is None else torch.where(valid, targets, IGNORED)).reshape(-1)
        if weight is None and logits.numel() > _logits_at_once(logits):
            losses: Tensor = _CrossEntropy.apply(logits, marked, self.label_smoothing)  # type: ignore[no-untyped-call]
            return losses.sum()
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if weight is not None:
            self.weight = weight.to(logits.device)
            weight = self.weight.to(exact.dtype)
        how: dict[str, Any] = {"ignore_index": IGNORED, "reduction": "sum", "label_smoothing": self.label_smoothing}
        return F.cross_entropy(exact, marked, weight, **how)


class _CrossEntropy(torch.autograd.Function):
    """Losses (row,) of logits (row, class), 0 where the target is below 0."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        ctx.save_for_backward(logits, targets)
        ctx.smoothing = smoothing
        if has_cross_entropy_rows(logits):
            return cross_entropy_rows(logits, targets.clamp(min=0), smoothing)[0].masked_fill_(targets < 0, 0.0)
        exact = torch.promote_types(logits.dtype, torch.float32)
        losses = torch.zeros(len(targets), dtype=exact, device=logits.device)
        for rows in _chunks(len(logits), logits.shape[1], _logits_at_once(logits)):
            losses[rows] = _losses(torch.log_softmax(logits[rows], -1, dtype=exact), targets[rows], smoothing)
        return losses.masked_fill_(targets < 0, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None, None]:
        logits, targets = ctx.saved_tensors
        weights = gradients.masked_fill(targets < 0, 0.0)
        result = torch.empty_like(logits)
        if has_cross_entropy_rows(logits):
            cross_entropy_rows(logits, targets.clamp(min=0), ctx.smoothing, weights, out=result)
            return result, None, None
        for rows in _chunks(len(logits), logits.shape[1], _logits_at_once(logits)):
            difference = torch.softmax(logits[rows], -1, dtype=gradients.dtype)
            target = targets[rows, None].clamp(min=0)
            difference.scatter_(1, target, difference.gather(1, target) - (1 - ctx.smoothing))
            if ctx.smoothing:
                difference -= ctx.smoothing / logits.shape[1]
            result[rows] = difference.mul_(weights[rows, None])
        return result, None, None


def _losses(log_probabilities: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Losses (row,) of log-probabilities (row, class); anything where the target is below 0."""
    losses = -(1 - smoothing) * log_probabilities.gather(1, targets[:, None].clamp(min=0)).squeeze(1)
    if smoothing:
        losses -= smoothing * log_probabilities.mean(-1)
    return losses


def head_cross_entropy(
    head: HeadInputs, targets: Tensor, smoothing: float = 0.0, *, squares: bool = False
) -> tuple[Tensor, Tensor]:
    """The sum of the losses of ``targets`` (...) that aren't -100, and the sum of log²Z over these; no logits are kept.

    Z is the denominator of the softmax. Only with ``squares`` should the second sum have a gradient: then logits are
    made twice, for the weights of the two sums aren't known before the backward pass. So they are in fp16, where small
    probabilities would be 0 without the loss scale, which is one of these weights.
    """
    hidden, targets = head.hidden.reshape(-1, head.hidden.shape[-1]), targets.reshape(-1)
    if hidden.device.type == "cpu":
        # Elsewhere, the number of targets isn't known without waiting for the device.
        counted = targets >= 0
        hidden, targets = hidden[counted], targets[counted]
    kind = hidden.device.type
    dtype = torch.promote_types(hidden.dtype, head.weight.dtype)
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else dtype
    at_once = torch.is_grad_enabled() and not squares and dtype != torch.float16
    sums: tuple[Tensor, Tensor] = _HeadCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden, head.weight, head.bias, targets, smoothing, dtype, at_once
    )
    return sums


class _HeadCrossEntropy(torch.autograd.Function):
    """Sums of losses and of log²Z; ``at_once`` the gradient of the first is made with it, to be scaled later."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        dtype: torch.dtype,
        at_once: bool,
    ) -> tuple[Tensor, Tensor]:
        ctx.sweep = _Sweep(targets, smoothing, dtype, ctx.needs_input_grad[:3])
        ctx.save_for_backward(hidden, weight, bias)
        counted = ctx.sweep.counted
        losses, log_z, gradients = ctx.sweep(hidden, weight, bias, (counted, None) if at_once else None)
        ctx.gradients = gradients if at_once else None
        return losses.sum(), log_z.square().sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_losses: Tensor, of_squares: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            # This includes the case that the graph is kept for a second pass.
            counted = ctx.sweep.counted
            gradients = ctx.sweep(*ctx.saved_tensors, (of_losses * counted, of_squares * counted))[2]
        else:
            gradients = [None if one is None else one.mul_(of_losses) for one in gradients]
        return *gradients, None, None, None, None


class _Sweep:
    """Passes over all rows, some at a time: logits, losses and gradients."""

    def __init__(self, targets: Tensor, smoothing: float, dtype: torch.dtype, wanted: Sequence[bool]) -> None:
        """Products are made in ``dtype``; gradients of hidden states, weight and bias are made where ``wanted``."""
        self.targets, self.smoothing, self.dtype, self.wanted = targets.clamp(min=0), smoothing, dtype, wanted
        self.exact = torch.promote_types(dtype, torch.float32)
        self.counted = (targets >= 0).to(self.exact)

    def __call__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, rates: tuple[Tensor, Tensor | None] | None
    ) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        """Losses and log Z of each row (row,), 0 where it has no target, and the gradients.

        These are of the sum over rows of losses and of log²Z, each times its ``rates`` (row,); None: there are none.
        """
        losses, log_z = torch.empty_like(self.counted), torch.empty_like(self.counted)
        given: list[tuple[Tensor | None, torch.dtype]] = [
            (hidden, hidden.dtype),
            # added up over chunks of rows, so in more bits than the products have
            (weight, self.exact),
            (bias, self.exact),
        ]
        of_hidden, of_weight, of_bias = gradients = [
            None if one is None or rates is None or not wanted else torch.zeros_like(one, dtype=dtype)
            for (one, dtype), wanted in zip(given, self.wanted, strict=True)
        ]
        with torch.autocast(hidden.device.type, enabled=False):
            states, matrix = hidden.to(self.dtype), weight.to(self.dtype)
            offset = None if bias is None else bias.to(self.dtype)
            for rows in _chunks(len(hidden), len(weight), _products_at_once(hidden), FEWEST_ROWS):
                logits = F.linear(states[rows], matrix, offset)
                losses[rows], log_z[rows] = self._differentiate(logits, rows, rates)
                if of_hidden is not None:
                    # _differentiate has overwritten the logits by their gradient: they are never whole, nor twice
                    of_hidden[rows] = logits @ matrix
                if of_weight is not None and of_weight.dtype == logits.dtype:
                    of_weight.addmm_(logits.T, states[rows])
                elif of_weight is not None:
                    of_weight += logits.T @ states[rows]
                if of_bias is not None:
                    of_bias += logits.sum(0, dtype=self.exact)
        ignored = self.counted == 0
        return losses.masked_fill_(ignored, 0.0), log_z.masked_fill_(ignored, 0.0), gradients

    def _differentiate(
        self, logits: Tensor, rows: slice, rates: tuple[Tensor, Tensor | None] | None
    ) -> tuple[Tensor, Tensor]:
        """Losses and log Z of these rows; with ``rates``, logits become their gradient."""
        if has_cross_entropy_rows(logits):
            of_rows = () if rates is None else (None if one is None else one[rows] for one in rates)
            return cross_entropy_rows(logits, self.targets[rows], self.smoothing, *of_rows)
        losses, log_z = (torch.empty(len(logits), dtype=self.exact, device=logits.device) for _ in range(2))
        for part in _chunks(len(logits), logits.shape[1], _logits_at_once(logits)):
            places = slice(rows.start + part.start, rows.start + part.stop)
            targets = self.targets[places, None]
            log_probabilities = torch.log_softmax(logits[part], -1, dtype=self.exact)
            losses[part] = _losses(log_probabilities, self.targets[places], self.smoothing)
            log_z[part] = (logits[part].gather(1, targets) - log_probabilities.gather(1, targets)).squeeze(1)
            if rates is not None:
                rate = rates[0][places, None]
                # in place: softmax, from which the gradient follows, takes no extra memory
                gradient = log_probabilities.exp_()
                gradient *= rate if rates[1] is None else rate + 2 * rates[1][places, None] * log_z[part, None]
                gradient.scatter_(1, targets, gradient.gather(1, targets) - (1 - self.smoothing) * rate)
                if self.smoothing:
                    gradient -= self.smoothing / logits.shape[1] * rate
                logits[part] = gradient
        return losses, log_z


def _logits_at_once(logits: Tensor) -> int:
    """Return how many logits keep the device busy and still fit in a processor's cache."""
    return CPU_LOGITS_AT_ONCE if logits.is_cpu else LOGITS_AT_ONCE


def _products_at_once(hidden: Tensor) -> int:
    return CPU_PRODUCTS_AT_ONCE if hidden.is_cpu else PRODUCTS_AT_ONCE


def _chunks(num_rows: int, num_classes: int, at_once: int, fewest: int = 1) -> Iterator[slice]:
    """Rows, as many as have ``at_once`` logits, and no fewer than ``fewest``."""
    size = max(fewest, at_once // num_classes)
    return (slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size))


LIGER_DEVICES = ("cuda",)


def liger_cross_entropy(head: HeadInputs, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the first sum of ``head_cross_entropy``, by the Triton kernels of liger-kernel.

    Raises UserError if it isn't installed, and on other devices than CUDA.
    """
    if head.hidden.device.type not in LIGER_DEVICES:
        raise UserError(f"training.performance.logits: liger runs on CUDA, and this is {head.hidden.device.type}")
    with optional_import("training.performance.logits: liger requires liger-kernel", "liger"):
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss
    loss = LigerFusedLinearCrossEntropyLoss(ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum")
    hidden = head.hidden.reshape(-1, head.hidden.shape[-1])
    total: Tensor = loss(head.cast_weight(), hidden, targets.reshape(-1), head.bias)
    return total
