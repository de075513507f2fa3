"""A task of a few functions: data, a model and a loss.

task = vaak.SimpleTask(data={"train": train, "valid": valid}, model=Classifier, loss=loss)
run = vaak.fit(task, "runs/classifier", epochs=3)
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from vaak.core.batch import Batch, Term
from vaak.core.errors import UserError
from vaak.core.task import Dataset, Meters
from vaak.library.collate import Collate, length_of, padded
from vaak.library.examples import as_dataset
from vaak.tasks.base import Task
from vaak.tasks.meters import AlsoMeasured, LossMeters, Metric, as_term

OTHER_NAMES = {"val": "valid", "validation": "valid", "dev": "valid", "eval": "valid", "training": "train"}


class SimpleTask(Task):
    """A task made of functions.

    data
        The examples of each split: a list, a torch Dataset, or a ``vaak.Dataset``. ``train`` is trained on, ``valid``
        evaluated during training; others, such as ``test``, are there for ``run.evaluate``. A list alone is ``train``.
    model
        Makes the network (a class, a function), or is one, which each run begins with a copy of.
    loss
        ``loss(model, batch)`` gives a sum with its unit: ``vaak.Term(sum, per="targets")``, ``(sum, "targets")``, or a
        tensor with a value for each row; or several of these by name. What a batch counts: ``vaak.library.collate``.
    collate
        Puts a list of examples together: a ``vaak.Batch``, or a dict of tensors whose first dimension is the row.
    metrics
        Further figures of an evaluation by name, each a function of ``(model, batch)`` like the loss.
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
        length: Callable[[Any], float] = length_of,
        name: str = "SimpleTask",
    ) -> None:
        self.name, self.made_in = name, sys._getframe(1).f_globals.get("__name__", "")
        self._data = dict(data) if isinstance(data, Mapping) else {"train": data}
        self._model, self._loss, self._collate, self._metrics = model, loss, collate, dict(metrics or {})
        self._predict, self._length = predict, length
        self._datasets: dict[str, Dataset] = {}
        self._demand_right()
        self.evaluation_splits = ("valid",) if "valid" in self._data else ()

    def _demand_right(self) -> None:
        for split in self._data:
            if split in OTHER_NAMES:
                raise UserError(f"SimpleTask: data has a split {split}; it is called {OTHER_NAMES[split]}")
        if "train" not in self._data:
            raise UserError(f"SimpleTask: data has no split train; it has {', '.join(self._data) or 'none'}")
        functions = {"loss": self._loss, "collate": self._collate, "model": self._model, **self._metrics}
        for name, function in functions.items():
            if not callable(function):
                raise UserError(f"SimpleTask: {name} is a {type(function).__name__}; expected a function")

    def dataset(self, split: str) -> Dataset:
        if split not in self._datasets:
            if split not in self._data:
                raise UserError(f"unknown split {split}; expected one of {', '.join(self._data)}")
            self._datasets[split] = as_dataset(self._data[split], split, self._collate, self._length)
        return self._datasets[split]

    def dataset_of(self, data: Any) -> Dataset:
        return as_dataset(data, "the examples", self._collate, self._length)

    def model(self) -> nn.Module:
        return copy.deepcopy(self._model) if isinstance(self._model, nn.Module) else self._model()

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        found = self._loss(model, batch)
        by_name = found if isinstance(found, dict) else {"loss": found}
        return {name: as_term(value, batch, "loss(model, batch)") for name, value in by_name.items()}

    def meters(self, split: str) -> Meters:
        meters = LossMeters(self.losses, split)
        return AlsoMeasured(meters, self._metrics) if self._metrics else meters

    @torch.no_grad()
    def predict(self, model: nn.Module, inputs: Iterable[Any]) -> Iterator[Any]:
        if self._predict is None:
            raise UserError("this SimpleTask has no predict: give it predict=, a function of the model and one input")
        for one in inputs:
            yield self._predict(model, one)
