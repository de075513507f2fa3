"""Whether the data of a configuration can be read, all examples once, and what is wrong with them, by example."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import torch

from vaak.config.load import Loaded
from vaak.core.batch import Batch
from vaak.core.errors import DataError, UserError
from vaak.core.interrupts import TooLongError, limit_time
from vaak.core.progress import progress
from vaak.core.random_keys import Purpose
from vaak.core.storage.files import scratch_folder
from vaak.core.task import DataFinding, Dataset, Task
from vaak.data.example_cost import ExampleCost, measure_examples
from vaak.data.loader import Address, MicrobatchReader
from vaak.runs.folder.user_code import require_trust
from vaak.runs.preflight.doctor import DoctorFinding, Mark

ALL_DATA = "all data"
MOST_NAMED_FINDINGS = 10
MOST_SECONDS = 20.0
"""To prepare the training data in, where only the cost of an example is asked for."""


def examine_data(loaded: Loaded) -> Iterator[DoctorFinding]:
    """Yield what can't be prepared, and how many examples of each split can't be read, the first of them by name."""
    experiment = loaded.experiment
    with contextlib.ExitStack() as stack:
        try:
            task = stack.enter_context(prepared_task(loaded))
        except UserError as error:
            yield from (DoctorFinding(ALL_DATA, "preparation", "problem", line) for line in str(error).splitlines())
            return
        for split, dataset in iterate_datasets(task):
            if isinstance(dataset, UserError):
                yield DoctorFinding(ALL_DATA, split, "problem", str(dataset))
            else:
                yield from _read(dataset, split, experiment.training.random_seed, experiment.skips_bad_examples)


def measure_training_example(loaded: Loaded) -> ExampleCost | str:
    """Return what an example of the training data takes to make, measured on a few, or why that isn't known.

    The data are prepared as in ``prepared_task``, for ``MOST_SECONDS`` at most.
    """
    try:
        with limit_time(MOST_SECONDS), prepared_task(loaded) as task:
            cost = measure_examples(task.dataset("train"), loaded.experiment.training.random_seed)
    except TooLongError:
        return f"preparing the training data takes more than {MOST_SECONDS:g} s; vaak doctor FILE --read-data does it"
    except UserError as error:
        return str(error).splitlines()[0]
    return cost or "none of the training examples that were tried can be read; vaak doctor FILE --read-data says why"


@contextlib.contextmanager
def prepared_task(loaded: Loaded, *, checking: bool = False) -> Iterator[Task]:
    """The task of a configuration, its data prepared in a temporary folder.

    Except what ``data.cache_dir`` and ``global_config.storage_path`` keep. Raises UserError for what can't be prepared,
    and for code that requires trust; with ``checking``, the task leaves to its findings what it can.
    """
    with scratch_folder("doctor") as folder:
        require_trust(loaded)
        task = loaded.task(folder)
        with loaded.naming_lines():
            if checking:
                task.prepare_for_check()
            else:
                task.prepare()
        yield task


def iterate_datasets(task: Task) -> Iterator[tuple[str, Dataset | UserError]]:
    """Yield the splits that training, evaluations and tests read, or what is wrong with one; test may not exist."""
    for split in dict.fromkeys(("train", *task.evaluation_splits, "test")):
        try:
            yield split, task.dataset(split)
        except UserError as error:
            if split in ("train", *task.evaluation_splits) or isinstance(error, DataError):
                yield split, error


def _read(dataset: Dataset, split: str, seed: int, skips_bad: bool) -> Iterator[DoctorFinding]:
    """Findings on a split: how many examples there are, or how many and which can't be read."""
    number = len(dataset.lengths)
    # First: what is read once may be kept in memory, where it costs nothing.
    cost = measure_examples(dataset, seed) if dataset.useful_workers else None
    bad = [f"{one.name}: {one.reason}" for one in read_examples(dataset, split, seed) if one.reason is not None]
    if not bad:
        costs = "" if cost is None else f"; an example takes {cost} to make"
        yield DoctorFinding(ALL_DATA, split, "ok", f"{number:,} examples can be read{costs}")
        return
    advice = "training skips them (data.on_bad_example)" if skips_bad else "fix them, or set data.on_bad_example: skip"
    mark: Mark = "warning" if skips_bad and len(bad) < number else "problem"
    yield DoctorFinding(ALL_DATA, split, mark, f"{len(bad):,} of {number:,} examples can't be read", advice)
    yield from (DoctorFinding(ALL_DATA, split, mark, line) for line in bad[:MOST_NAMED_FINDINGS])
    if len(bad) > MOST_NAMED_FINDINGS:
        yield DoctorFinding(ALL_DATA, split, mark, f"and {len(bad) - MOST_NAMED_FINDINGS:,} more")


class ReadExample(NamedTuple):
    """An example by its number and its place, and a batch of it alone, or why there is none."""

    name: str
    batch: Batch | None
    reason: str | None


def read_examples(dataset: Dataset, split: str, seed: int) -> Iterator[ReadExample]:
    """Yield each example of a split, read once."""
    reader = MicrobatchReader(dataset, (Purpose.DATA,), seed, skip_bad=True)
    with progress(f"reading {split}", len(dataset.lengths)) as advance:
        for index in range(len(dataset.lengths)):
            name = f"example {index} ({dataset.describe(index)})"
            try:
                found = reader[Address(0, 0, 0, [[index]])]
            # A user's own reader may raise anything, and one example mustn't hide what is wrong with the rest.
            except Exception as error:
                yield ReadExample(name, None, f"{type(error).__name__}: {error}")
            else:
                yield ReadExample(name, found.batch, "; ".join(skip.reason for skip in found.skipped) or None)
            advance(1)


class CheckedSplit(NamedTuple):
    """A split with the number of its examples, and its findings, which are made while they are taken."""

    name: str
    num_examples: int
    findings: Iterator[DataFinding]


def check_data(loaded: Loaded) -> Iterator[CheckedSplit]:
    """Yield the splits of a configuration's data, one after another; take the findings of one before the next.

    The data is prepared in a temporary folder. Raises UserError for data that can't be prepared, and for code that
    requires trust.
    """
    experiment = loaded.experiment
    with prepared_task(loaded, checking=True) as task:
        for split, dataset in iterate_datasets(task):
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
            for what, tensor in batch.tensors.items():
                number = int((~torch.isfinite(tensor)).sum())
                if number:
                    message = f"{number:,} of {tensor.numel():,} values of {what} are NaN or infinite"
                    yield DataFinding(name, "not finite", message)
    yield from task.data_findings(split)
