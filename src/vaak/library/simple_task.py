"""A task of a few functions: data, a model and a loss.

    task = vaak.SimpleTask(data={"train": train, "valid": valid}, model=Classifier, loss=loss)
    run = vaak.fit(task, "runs/classifier", epochs=3)

Data are lists or torch's datasets; lengths and fingerprint are found by reading them once. An example is
``(inputs, targets)``, or ``{"letters": ..., "targets": ...}``, or one value, ``inputs``. Without a ``collate``, a
number becomes ``(rows,)``, a sequence ``(rows, longest, ...)``, padded with 0, or with -100 where the field is called
``targets`` or ``labels``: torch's mark of what no loss counts. Each padded field has a mask, ``letters_mask``, True
where data is real. Text and other objects go to ``batch.extra``.

Every row counts as an ``example``, and every real element of a field under the field's name, except targets of -100.
The unit of a loss's term names what it is summed over: ``vaak.Term(sum, per="targets")``.
"""

from __future__ import annotations

import copy
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vaak.core.batch import Batch, Term
from vaak.core.errors import DataError, UserError
from vaak.core.names import require_known
from vaak.core.out_of_memory import is_host_error
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.task import Dataset, Meters
from vaak.data.loader import seed_generators
from vaak.engine.precision import keeping_generators
from vaak.nn.cross_entropy import IGNORED
from vaak.tasks.base import EXAMPLE, LossMeters, Metric, Task, WithMetrics, as_term

Collate = Callable[[list[Any]], Any]
TARGETS = ("targets", "labels")


def padded(examples: list[Any]) -> Batch:
    """Return the batch of examples whose fields are numbers, sequences, or anything else.

    >>> batch = padded([([3, 1, 2], 0), ([5], 1)])
    >>> batch["inputs"].tolist(), batch["inputs_mask"].sum().item(), batch["targets"].tolist()
    ([[3, 1, 2], [5, 0, 0]], 4, [0, 1])

    Raises UserError if a field isn't of one kind in all examples.
    """
    rows = [get_fields(example) for example in examples]
    batch = Batch({}, {EXAMPLE: torch.ones(len(rows))})
    for name in rows[0]:
        values = [row.get(name) for row in rows]
        tensors = [as_tensor(value) for value in values]
        if any(tensor is None for tensor in tensors):
            batch.extra[name] = values
        else:
            _add_field(batch, name, [tensor for tensor in tensors if tensor is not None])
    if not batch.tensors:
        raise UserError(f"examples such as {examples[0]!r:.60} have no numbers to collate: give SimpleTask a collate")
    return batch


def as_batch(collated: Any, where: str) -> Batch:
    """Return what a user's function made of examples: a ``Batch``, or tensors by name, whose units are then counted.

    Counted are rows as ``example``, what is True in each mask, and targets that aren't -100. Raises UserError for
    anything else.
    """
    if isinstance(collated, Batch):
        return collated
    named = collated.items() if isinstance(collated, Mapping) else ()
    tensors = {name: value for name, value in named if isinstance(value, Tensor)}
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


def get_fields(example: Any) -> dict[str, Any]:
    """Return the parts of an example by name."""
    if isinstance(example, Mapping):
        return {str(name): value for name, value in example.items()}
    if is_dataclass(example) and not isinstance(example, type):
        return {field.name: getattr(example, field.name) for field in fields(example)}
    if isinstance(example, tuple):
        names = getattr(example, "_fields", ("inputs", "targets") if len(example) == 2 else None)
        return dict(zip(names or [f"field_{index}" for index in range(len(example))], example, strict=True))
    return {"inputs": example}


def as_tensor(value: Any) -> Tensor | None:
    """Return a number, a sequence of numbers, an array or a tensor as a tensor; None for anything else."""
    if value is None or isinstance(value, str | bytes | Mapping):
        return None
    try:
        tensor = torch.as_tensor(np.asarray(value) if isinstance(value, list | tuple) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        if is_host_error(error):
            raise
        return None
    if tensor.dtype is torch.float64:
        return tensor.to(torch.get_default_dtype())
    return tensor if tensor.is_floating_point() or tensor.dtype is torch.bool else tensor.long()


def measure_length(example: Any) -> int:
    """Return how long the longest sequence of an example is; 1 where it has none."""
    tensors = (as_tensor(value) for value in get_fields(example).values())
    return max((len(tensor) for tensor in tensors if tensor is not None and tensor.ndim), default=1)


def _add_field(batch: Batch, name: str, values: list[Tensor]) -> None:
    """Put a field of all rows into the batch, with its mask and its counts."""
    if len({(value.ndim, value.shape[1:]) for value in values}) > 1:
        shapes = ", ".join(str(shape) for shape in sorted({tuple(value.shape) for value in values})[:3])
        raise UserError(f"{name} has the shapes {shapes}; only the first dimension may differ: give a collate")
    is_targets = name in TARGETS and not values[0].is_floating_point()
    if is_targets:
        # Among True and False, none could be marked as ignored.
        values = [value.long() for value in values]
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


USUAL_SPLIT_NAMES = {"val": "valid", "validation": "valid", "dev": "valid", "eval": "valid", "training": "train"}


class SimpleTask(Task):
    """A task made of functions.

    data
        The examples of each split: a list, a torch Dataset, or a ``vaak.Dataset``. ``train`` is trained on, ``valid``
        evaluated during training; others, such as ``test``, are there for ``run.evaluate``. A list alone is ``train``.
    model
        Makes the network (a class, a function), or is one, which each run begins with a copy of.
    loss
        ``loss(model, batch)`` gives a sum with its unit: ``vaak.Term(sum, per="targets")``, ``(sum, "targets")``, or a
        tensor with a value for each row; or several of these by name. The counts of a batch are described above.
    collate
        Puts a list of examples together: a ``vaak.Batch``, or a dict of tensors whose first dimension is the row.
    metrics
        Further metrics of an evaluation by name, each a function of ``(model, batch)`` like the loss.
    predict
        ``predict(model, input)`` for one input; ``run.predict`` calls it.
    length
        The greatest length that an example may have, where that isn't the length of its longest sequence.
    name
        What a run calls the task where it isn't found in a file.
    """

    def __init__(
        self,
        *,
        data: Mapping[str, Any] | Any,
        model: Callable[[], nn.Module] | nn.Module,
        loss: Callable[[nn.Module, Batch], Any],
        collate: Collate = padded,
        metrics: Mapping[str, Metric] | None = None,
        predict: Callable[[nn.Module, Any], Any] | None = None,
        length: Callable[[Any], float] = measure_length,
        name: str = "SimpleTask",
    ) -> None:
        # The module that makes it: make_reference looks there for a variable that holds this task.
        self.name, self.made_in = name, sys._getframe(1).f_globals.get("__name__", "")
        self._data = dict(data) if isinstance(data, Mapping) else {"train": data}
        self._model, self._loss, self._collate, self._metrics = model, loss, collate, dict(metrics or {})
        self._predict, self._length = predict, length
        self._datasets: dict[str, Dataset] = {}
        for split in self._data:
            if split in USUAL_SPLIT_NAMES:
                raise UserError(f"SimpleTask: data has a split {split}; it is called {USUAL_SPLIT_NAMES[split]}")
        if "train" not in self._data:
            raise UserError(f"SimpleTask: data has no split train; it has {', '.join(self._data) or 'none'}")
        for part, function in {"loss": loss, "collate": collate, "model": model, **self._metrics}.items():
            if not callable(function):
                raise UserError(f"SimpleTask: {part} is a {type(function).__name__}; expected a function")
        self.evaluation_splits = ("valid",) if "valid" in self._data else ()

    def dataset(self, split: str) -> Dataset:
        if split not in self._datasets:
            require_known([split], self._data, "unknown split", error=UserError)
            self._datasets[split] = as_dataset(self._data[split], split, self._collate, self._length)
        return self._datasets[split]

    def make_dataset_from(self, data: Any) -> Dataset:
        return as_dataset(data, "the examples", self._collate, self._length)

    def model(self) -> nn.Module:
        return copy.deepcopy(self._model) if isinstance(self._model, nn.Module) else self._model()

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        found = self._loss(model, batch)
        by_name = found if isinstance(found, dict) else {"loss": found}
        return {name: as_term(value, batch, "loss(model, batch)") for name, value in by_name.items()}

    def meters(self, split: str) -> Meters:
        meters = LossMeters(self.losses, split)
        return WithMetrics(meters, self._metrics) if self._metrics else meters

    @torch.no_grad()
    def predict(self, model: nn.Module, inputs: Iterable[Any]) -> Iterator[Any]:
        if self._predict is None:
            raise UserError("this SimpleTask has no predict: give it predict=, a function of the model and one input")
        for one in inputs:
            yield self._predict(model, one)


class Examples(Dataset):
    """The examples of a list or of a map-style dataset of torch's (``len(data)``, ``data[index]``)."""

    def __init__(self, data: Any, name: str, collate: Collate, length: Callable[[Any], float] = measure_length) -> None:
        """``length`` measures an example. Raises UserError for what has no length or no examples."""
        if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
            raise UserError(
                f"the data of {name} are a {type(data).__name__}; expected a list, a torch Dataset with a length, or a "
                "vaak.Dataset"
            )
        if not len(data):
            raise UserError(f"the data of {name} have no examples")
        self.data, self.name, self._collate = data, name, collate
        self.draws_globally = not isinstance(data, list | tuple)
        self.lengths, self.fingerprint = self._measure_examples(length)

    def example(self, index: int, rng: np.random.Generator) -> Any:
        return self.data[index]

    def collate(self, rows: list[list[Any]]) -> Batch:
        return as_batch(self._collate([example for row in rows for example in row]), f"collate of {self.name}")

    def describe(self, index: int) -> str:
        return f"example {index} of {self.name}"

    def _measure_examples(self, length: Callable[[Any], float]) -> tuple[np.ndarray, str]:
        """Return the length of each example, and a hash of them all. Raises DataError naming one that can't be read."""
        lengths, content = [], hashlib.sha256()
        with keeping_generators(torch.device("cpu")):
            for index in range(len(self.data)):
                # An example that draws from the global generators must have the same hash in every process.
                if self.draws_globally:
                    seed_generators(draw_key(Purpose.FINGERPRINT, index))
                try:
                    example = self.data[index]
                    lengths.append(length(example))
                    add_to_hash(content, example)
                except Exception as error:
                    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
                    raise DataError(f"{self.describe(index)} can't be read: {kind}{error}") from error
        return np.array(lengths), content.hexdigest()[:16]


def as_dataset(data: Any, name: str, collate: Collate, length: Callable[[Any], float] = measure_length) -> Dataset:
    """Return ``data`` if it is one of Vaak's datasets, else a dataset of its examples."""
    return data if isinstance(data, Dataset) else Examples(data, name, collate, length)


def add_to_hash(content: Any, value: Any) -> None:
    """Add a value's content to a hash, the same in every process: tensors by their bytes, all else by its parts.

    Raises UserError for an object whose parts can't be seen.
    """
    if isinstance(value, torch.Tensor):
        # As bytes, since numpy has no bfloat16.
        raw = value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
        _add(content, f"{value.dtype}{tuple(value.shape)}".encode(), raw)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        _add(content, f"{value.dtype}{value.shape}".encode(), np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        _add(content, f"mapping {len(value)}".encode())
        for key, part in value.items():
            add_to_hash(content, key)
            add_to_hash(content, part)
    elif isinstance(value, list | tuple | np.ndarray):
        _add(content, f"{type(value).__name__} {len(value)}".encode())
        for part in value:
            add_to_hash(content, part)
    elif value is None or isinstance(value, str | bytes | int | float | complex | bool | np.generic):
        _add(content, repr(value).encode())
    elif hasattr(value, "__dict__"):
        _add(content, type(value).__qualname__.encode())
        add_to_hash(content, vars(value))
    else:
        raise UserError(
            f"examples hold a {type(value).__name__}, which can't be hashed; give a vaak.Dataset with a fingerprint"
        )


def _add(content: Any, *parts: bytes) -> None:
    """Each part with its length before it, so that no two contents look alike."""
    for part in parts:
        content.update(len(part).to_bytes(8, "little") + part)
