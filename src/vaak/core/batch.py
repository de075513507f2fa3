"""A microbatch with the counts that normalise its losses, and a loss as a sum with its unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

from vaak.core.errors import UserError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Term:
    """A loss as a sum, not a mean, with the unit it is summed over.

    The engine divides it by that unit's count in the whole step.

    ``splittable`` is False for a term that is not a sum over examples (in-batch contrast): such a batch is never split
    into chunks. A sum may depend on quantities of the whole step that are computed beforehand (``FirstPass``).
    """

    total: torch.Tensor
    per: str
    splittable: bool = True


def get_divisor(counts: dict[str, float], unit: str) -> float:
    """Return the divisor of a sum over this unit; 1 where the step has no such unit, and the sum is 0."""
    return counts.get(unit) or 1.0


@dataclass(frozen=True)
class FirstPass:
    """The part of a batch that has to be known before the losses of its step are computed.

    ``sums`` are added up over the step, all chunks, microbatches and ranks: ``Batch.step_sums``. ``kept``, by row, are
    put among the tensors of the batch, so that they needn't be computed twice.
    """

    sums: dict[str, torch.Tensor]
    kept: dict[str, torch.Tensor] = field(default_factory=dict)


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on ``device``. From the CPU, the program doesn't wait for what the device still has to do."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


SENT_ALONE = 2**17
"""Bytes from which on a tensor of a batch is sent to a GPU by itself."""


def send_all(tensors: Mapping[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    """Return tensors on ``device``; the small ones go to a GPU by one copy, from which they are views."""
    # The package does without it.
    import torch

    small = [
        name
        for name, one in tensors.items()
        if device.type == "cuda" and type(one) is torch.Tensor and not one.is_cuda and 0 < one.nbytes < SENT_ALONE
    ]
    sent: dict[str, torch.Tensor] = {}
    if len(small) > 1:
        # each begins where kernels read 16 bytes at once
        places = list(accumulate((-(-tensors[name].nbytes // 16) * 16 for name in small), initial=0))
        together = torch.empty(places[-1], dtype=torch.uint8, pin_memory=True)
        for name, place in zip(small, places, strict=False):
            one = tensors[name]
            together[place : place + one.nbytes].view(one.dtype).view(one.shape).copy_(one)
        there = together.to(device, non_blocking=True)
        for name, place in zip(small, places, strict=False):
            one = tensors[name]
            # by data, or a change of one in place would count as a change of all
            sent[name] = there[place : place + one.nbytes].view(one.dtype).view(one.shape).data
    return {name: sent[name] if name in sent else send(one, device) for name, one in tensors.items()}


def send_constant(values: tuple[Any, ...], dtype: torch.dtype, like: torch.Tensor) -> torch.Tensor:
    """Return nested tuples of numbers as a tensor on the device of ``like``, not to be changed.

    They are sent to a GPU once in a process: a CUDA graph can't have a copy from the CPU.
    """
    # The package does without it.
    import torch

    from vaak.core.torch_internals import is_fake

    if like.is_cuda and not is_fake(like):
        return _sent(values, dtype, like.device)
    return send(torch.tensor(values, dtype=dtype), like.device)


@cache
def _sent(values: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    import torch

    from vaak.core.torch_internals import unwatched

    # what looks for copies from the CPU may be looking
    with torch.inference_mode(False), unwatched():
        return send(torch.tensor(values, dtype=dtype), device)


def read_together(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors on the CPU, from a GPU by one copy: the program waits for it once.

    >>> import torch
    >>> read_together(torch.tensor([1.5]), torch.tensor(True))
    [tensor([1.5000]), tensor(True)]
    """
    # The package does without it.
    import torch

    away = [one.detach() for one in tensors if one.device.type != "cpu"]
    if not away:
        return [one.detach() for one in tensors]
    together = torch.cat([one.flatten().view(torch.uint8) for one in away]).cpu()
    parts = iter(together.split([one.nbytes for one in away]))
    return [
        one.detach() if one.device.type == "cpu" else next(parts).clone().view(one.dtype).view(one.shape)
        for one in tensors
    ]


def find_places(mask: torch.Tensor, count: float) -> torch.Tensor:
    """Return the places, in ``mask`` flattened, of the ``count`` that are True, without waiting for the device.

    >>> import torch
    >>> find_places(torch.tensor([[False, True], [True, False]]), 2)
    tensor([1, 2])
    """
    # The package does without it.
    import torch

    return torch.searchsorted(mask.flatten().cumsum(0), torch.arange(1, round(count) + 1, device=mask.device))


def round_up(count: int) -> int:
    """Return a number from ``count`` on, by an eighth at most, or by 15: one of eight between powers of two.

    >>> [round_up(one) for one in (0, 1, 16, 17, 129, 1230, 2049)]
    [0, 16, 16, 32, 144, 1280, 2304]
    """
    multiple = max(16, 1 << max(0, max(count - 1, 0).bit_length() - 4))
    return -(-count // multiple) * multiple


def find_counted(mask: torch.Tensor, batch: Batch, unit: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the places, in ``mask`` flattened, that are True, of which the batch counts a unit each.

    On a GPU there are ``count_at_most`` of them, a shape that comes again: the second tensor says which are real, the
    others are the last place.
    """
    # The package does without it.
    import torch

    if not mask.is_cuda:
        places = find_places(mask, batch.totals()[unit])
        return places, torch.ones_like(places, dtype=torch.bool)
    places = find_places(mask, batch.count_at_most(unit))
    return places.clamp(max=mask.numel() - 1), places < mask.numel()


def running_sum(x: torch.Tensor) -> torch.Tensor:
    """Sums of ``x`` ``(..., time)`` up to each place, which repeat to the bit; those on CUDA are below 2^25.

    Of real numbers, CUDA adds up now in one order, now in another. There they are whole numbers, in units of 2^-38.
    """
    if x.device.type != "cuda":
        return x.cumsum(-1)
    return (x * 2.0**38).round().long().cumsum(-1).to(x.dtype) * 2.0**-38


@dataclass
class Batch:
    """Tensors whose first dimension is the row, and how many of each unit every row holds.

    ``counts["token"][i]`` is the number of tokens of row ``i`` that a loss is summed over, so that any subset of rows
    knows its own counts. ``indices[i]`` are the examples of row ``i``: one, or several where a plan packs them. In
    ``extra`` is what isn't a tensor: a list has an entry for each row, anything else (a tuple, say) is for the whole
    batch. ``check_rows`` checks all of this. ``step`` is the step of training that losses are computed for; None
    outside of training. ``step_sums`` are those that the task's ``first_pass`` found in the whole step; None if
    there was none.
    """

    tensors: dict[str, torch.Tensor]
    counts: dict[str, torch.Tensor]
    indices: list[list[int]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    step: int | None = None
    step_sums: dict[str, torch.Tensor] | None = None

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    @property
    def num_rows(self) -> int:
        first = next(iter(self.tensors.values()), None)
        return first.shape[0] if first is not None and first.ndim else 0

    def totals(self) -> dict[str, float]:
        """Sum of each unit over the rows."""
        return {unit: float(sum(counts.tolist())) for unit, counts in self.counts.items()}

    def count_at_most(self, unit: str) -> int:
        """Return a number that the sum of a unit isn't above, one of few: so that shapes that follow from it are few.

        >>> import torch
        >>> Batch({}, {"token": torch.tensor([70, 63])}).count_at_most("token")
        144
        """
        return round_up(int(self.counts[unit].sum()))

    def has_reached(self, step: int) -> bool:
        """Return whether training is at ``step`` or beyond; it is where losses are computed outside of training."""
        return self.step is None or self.step >= step

    def to(self, device: torch.device) -> Batch:
        """Return the same batch with its tensors on ``device``; counts stay on the CPU, where they are summed."""
        if all(tensor.device == device for tensor in self.tensors.values()):
            return self
        return replace(self, tensors=send_all(self.tensors, device))

    def pin_memory(self) -> Batch:
        """Return the same batch in page-locked memory (called by torch's loader when ``pin_memory`` is on)."""
        pinned = {name: tensor.pin_memory() for name, tensor in self.tensors.items()}
        return replace(self, tensors=pinned)

    def check_rows(self) -> None:
        """Raises UserError if something doesn't have one entry per row, so that the batch couldn't be split."""
        rows = self.num_rows
        for kind, parts in (("tensors", self.tensors), ("counts", self.counts)):
            for name, part in parts.items():
                if part.shape[:1] != (rows,):
                    raise UserError(
                        f"a batch of {rows} rows has {kind}[{name!r}] of shape {tuple(part.shape)}: its first "
                        "dimension must be rows"
                    )
        if self.indices and len(self.indices) != rows:
            raise UserError(f"a batch of {len(self.indices)} rows of examples was collated to tensors of {rows} rows")
        for name, value in self.extra.items():
            if isinstance(value, list) and len(value) != rows:
                raise UserError(
                    f"a batch of {rows} rows has extra[{name!r}] with {len(value)} entries: a list needs one for each "
                    "row; a value for the whole batch may be a tuple"
                )

    def split(self, num_chunks: int) -> list[Batch]:
        """At most ``num_chunks`` batches of consecutive rows whose losses and counts add up to this one's.

        Raises UserError if a part of the batch can't be split by rows.
        """
        if num_chunks == 1:
            return [self]
        self.check_rows()
        size = max(1, -(-self.num_rows // num_chunks))
        return [self._rows(slice(start, start + size)) for start in range(0, self.num_rows, size)] or [self]

    def _rows(self, rows: slice) -> Batch:
        return Batch(
            {name: tensor[rows] for name, tensor in self.tensors.items()},
            {unit: counts[rows] for unit, counts in self.counts.items()},
            self.indices[rows],
            {name: value[rows] if isinstance(value, list) else value for name, value in self.extra.items()},
            self.step,
            self.step_sums,
        )


_KINDS = {
    "Batch": "vaak.Batch(tensors, counts)",
    "Dataset": "a vaak.Dataset",
    "Meters": "a vaak.Meters",
    "Term": "vaak.Term(sum, per=unit)",
    "dict": "a dict of names, each with its vaak.Term(sum, per=unit)",
}


def require_kind(value: object, kind: type, where: str, expected: str = "") -> None:
    """Raise UserError if what a task gave is of another kind; ``where`` is the call that gave it."""
    if not isinstance(value, kind):
        raise UserError(f"{where} gave {type_and_shape(value)}; expected {expected or _KINDS[kind.__name__]}")


def require_terms(terms: object, where: str) -> None:
    """Raise UserError if the losses of a task aren't terms by name."""
    require_kind(terms, dict, where)
    for name, term in cast("dict[str, object]", terms).items():
        require_kind(term, Term, f"the loss {name} of {where}")
        total = cast("Term", term).total
        shape = getattr(total, "shape", None)
        if shape is None or len(shape):
            raise UserError(
                f"the loss {name} of {where} has {type_and_shape(total)} as its total; expected one number: sum it"
            )


def type_and_shape(value: object) -> str:
    """Return the type of a value, and its shape if it has one."""
    shape = getattr(value, "shape", None)
    size = "" if shape is None else f" of shape {tuple(shape)}"
    return "None" if value is None else f"a {type(value).__name__}{size}"
