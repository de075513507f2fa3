"""Examples of a task that doesn't say how they are put together: fields are stacked, sequences are padded.

    (inputs, targets)  or  {"letters": ..., "targets": ...}  or one value, ``inputs``

A number becomes ``(rows,)``, a sequence ``(rows, longest, ...)``, padded with 0, or with -100 where the field is called
``targets`` or ``labels``: torch's mark of what no loss counts. Each padded field has a mask, ``letters_mask``, True
where data is real. Text and other objects go to ``batch.extra``.

Counted is every row as an ``example``, and every real element of a field under the field's name; of targets, those that
aren't -100. What a loss is summed over is the unit of its term: ``vaak.Term(sum, per="targets")``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vaak.core.batch import Batch
from vaak.core.errors import UserError
from vaak.tasks.meters import EXAMPLE

Collate = Callable[[list[Any]], Any]

TARGETS = ("targets", "labels")
IGNORED = -100


def padded(examples: list[Any]) -> Batch:
    """The batch of examples whose fields are numbers, sequences, or anything else.

    >>> batch = padded([([3, 1, 2], 0), ([5], 1)])
    >>> batch["inputs"].tolist(), batch["inputs_mask"].sum().item(), batch["targets"].tolist()
    ([[3, 1, 2], [5, 0, 0]], 4, [0, 1])

    Raises UserError where a field isn't of one kind in all examples.
    """
    rows = [fields_of(example) for example in examples]
    batch = Batch({}, {EXAMPLE: torch.ones(len(rows))})
    for name in rows[0]:
        values = [row.get(name) for row in rows]
        tensors = [as_tensor(value) for value in values]
        if any(tensor is None for tensor in tensors):
            batch.extra[name] = values
        else:
            _add(batch, name, [tensor for tensor in tensors if tensor is not None])
    if not batch.tensors:
        raise UserError(f"examples such as {examples[0]!r:.60} have no numbers to collate: give SimpleTask a collate")
    return batch


def as_batch(collated: Any, where: str) -> Batch:
    """What a user's function made of examples: a ``Batch``, or tensors by name, whose units are then counted.

    Counted are rows as ``example``, what is True in each mask, and targets that aren't -100. Raises UserError for
    anything else.
    """
    if isinstance(collated, Batch):
        return collated
    tensors = {name: value for name, value in collated.items() if isinstance(value, Tensor)} if _is(collated) else {}
    if not tensors:
        raise UserError(
            f"{where} gave a {type(collated).__name__}; expected a vaak.Batch, or a dict of tensors by name"
        )
    extra = {name: value for name, value in collated.items() if name not in tensors}
    counts = {EXAMPLE: torch.ones(len(next(iter(tensors.values()))))}
    for name, tensor in tensors.items():
        if tensor.dtype is torch.bool:
            counts[name] = tensor.flatten(1).sum(1)
        elif name in TARGETS and not tensor.is_floating_point():
            counts[name] = (tensor != IGNORED).reshape(len(tensor), -1).sum(1)
    return Batch(tensors, counts, extra=extra)


def fields_of(example: Any) -> dict[str, Any]:
    """The parts of an example by name."""
    if _is(example):
        return {str(name): value for name, value in example.items()}
    if is_dataclass(example) and not isinstance(example, type):
        return {field.name: getattr(example, field.name) for field in fields(example)}
    if isinstance(example, tuple):
        names = getattr(example, "_fields", ("inputs", "targets") if len(example) == 2 else None)
        return dict(zip(names or [f"field_{place}" for place in range(len(example))], example, strict=True))
    return {"inputs": example}


def as_tensor(value: Any) -> Tensor | None:
    """A number, a sequence of numbers, an array or a tensor as a tensor; None for anything else."""
    if value is None or isinstance(value, str | bytes | Mapping):
        return None
    try:
        tensor = torch.as_tensor(np.asarray(value) if isinstance(value, list | tuple) else value)
    except (TypeError, ValueError, RuntimeError):
        return None
    if tensor.dtype is torch.float64:
        return tensor.to(torch.get_default_dtype())
    return tensor if tensor.is_floating_point() or tensor.dtype is torch.bool else tensor.long()


def length_of(example: Any) -> int:
    """How long the longest sequence of an example is; 1 where it has none."""
    tensors = (as_tensor(value) for value in fields_of(example).values())
    return max((len(tensor) for tensor in tensors if tensor is not None and tensor.ndim), default=1)


def _is(value: Any) -> bool:
    return isinstance(value, Mapping)


def _add(batch: Batch, name: str, values: list[Tensor]) -> None:
    """Put a field of all rows into the batch, with its mask and its counts."""
    if len({(value.ndim, value.shape[1:]) for value in values}) > 1:
        shapes = ", ".join(str(shape) for shape in sorted({tuple(value.shape) for value in values})[:3])
        raise UserError(f"{name} has the shapes {shapes}; only the first dimension may differ: give a collate")
    is_targets = name in TARGETS and not values[0].is_floating_point()
    if is_targets:
        values = [value.long() for value in values]  # of True and False, none could be marked as ignored
    if not values[0].ndim:
        stacked = torch.stack(values)
    else:
        fill = IGNORED if is_targets else 0
        stacked = torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=fill)
        lengths = torch.tensor([len(value) for value in values])
        if name not in TARGETS:
            batch.tensors[f"{name}_mask"] = torch.arange(stacked.shape[1]) < lengths[:, None]
        batch.counts[name] = lengths
    batch.tensors[name] = stacked
    if is_targets:
        batch.counts[name] = (stacked != IGNORED).reshape(len(stacked), -1).sum(1)
