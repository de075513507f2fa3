"""What is wrong with the data of a configuration, by example: it can't be read, has NaN, or what its task finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from vaak.config.load import Loaded
from vaak.core.batch import Batch
from vaak.core.errors import UserError
from vaak.core.task import DataFinding, Dataset, Task
from vaak.runs.doctor.data import datasets_of, prepared_task, read_examples


class CheckedSplit(NamedTuple):
    """A split with the number of its examples, and its findings, which are made while they are taken."""

    name: str
    num_examples: int
    findings: Iterator[DataFinding]


def check_data(loaded: Loaded) -> Iterator[CheckedSplit]:
    """The splits of a configuration's data, one after another; take the findings of one before the next.

    The data is prepared in a temporary folder. Raises UserError for data that can't be prepared, and for code that
    requires trust.
    """
    experiment = loaded.experiment
    with prepared_task(loaded, checking=True) as task:
        for split, dataset in datasets_of(task):
            if isinstance(dataset, UserError):
                yield CheckedSplit(split, 0, iter([DataFinding("", "unreadable", str(dataset))]))
                continue
            found = _findings(task, dataset, split, experiment.training.random_seed, experiment.skips_bad_examples)
            yield CheckedSplit(split, len(dataset.lengths), found)


def _findings(task: Task, dataset: Dataset, split: str, seed: int, skips_bad: bool) -> Iterator[DataFinding]:
    """First what reading each example of the ``dataset`` with ``seed`` shows, then what the ``task`` knows.

    ``skips_bad`` makes what can't be read in a ``split`` a warning.
    """
    for name, batch, reason in read_examples(dataset, split, seed):
        if reason is not None:
            yield DataFinding(name, "unreadable", reason, "warning" if skips_bad else "problem")
        elif batch is not None:
            yield from (DataFinding(name, "not finite", message) for message in _not_finite(batch))
    yield from task.data_findings(split)


def _not_finite(batch: Batch) -> Iterator[str]:
    """A message for each tensor of the batch that has NaN or infinity."""
    for name, tensor in batch.tensors.items():
        if tensor.is_floating_point() or tensor.is_complex():
            number = int((~torch.isfinite(tensor)).sum())
            if number:
                yield f"{number:,} of {tensor.numel():,} values of {name} are NaN or infinite"
