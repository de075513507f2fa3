"""The training data as steps: the microbatches of each, where an epoch ends, and the number of steps.

All of it is a function of the position and of the plan; nothing is remembered.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vaak.config.training import TrainingConfig
from vaak.core.batch import Batch
from vaak.core.errors import DataError
from vaak.core.random_keys import Purpose
from vaak.core.task import Dataset
from vaak.data.batching import FixedPlanner, training_planner
from vaak.data.loader import Address, Microbatch, MicrobatchReader, load, start_early, training_addresses
from vaak.data.plan import LastPlan
from vaak.data.read_ahead import ReadAhead
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.journal import SkippedExamples
from vaak.engine.state import Position


@dataclass(frozen=True)
class StepData:
    """This rank's microbatches of a step, and what is counted over those of all ranks.

    ``size`` is the number of microbatches over all ranks. ``is_rehearsal`` says that they stand for others as large.
    """

    step: int
    microbatches: list[Microbatch]
    counts: dict[str, float]
    size: int = 1
    ends_epoch: bool = False
    is_rehearsal: bool = False


class TrainingData:
    """A dataset split into microbatches, and these into steps of ``gradient_accumulation_steps``.

    ``dataset`` is read as ``config``, the section ``training``, says, divided over ``ranks``; ``skip_bad`` leaves out
    examples that can't be read, and notes them in ``directory``.
    """

    def __init__(
        self, dataset: Dataset, config: TrainingConfig, ranks: Ranks, directory: Path, *, skip_bad: bool = False
    ) -> None:
        self.dataset, self.config, self.ranks = dataset, config, ranks
        self.planner = LastPlan(training_planner(config, dataset))
        plan = self.planner.plan(0)
        self.fingerprint, self.plan_fingerprint = dataset.fingerprint, plan.fingerprint
        rounded = config.batching.round_lengths
        self.multiple = (rounded or 0) * dataset.length_of_position
        """Lengths of rows are rounded up to multiples of this, in the unit of the dataset's lengths; 0: not rounded."""
        self.padding_waste = plan.padding_waste(dataset.lengths, self.multiple)
        self.skipped = SkippedExamples(directory, ranks.rank, dataset.fingerprint)
        self.reader = MicrobatchReader(
            dataset,
            (Purpose.DATA,),
            config.random_seed,
            skip_bad=skip_bad,
            known_bad=self.skipped.known,
            round_lengths=rounded,
        )
        self.epoch_size = self.planner.num_microbatches
        self.steps_per_epoch = -(-self.epoch_size // config.gradient_accumulation_steps)
        # batches of another size then have the same order of examples; those of several parts, or of pieces, have not
        self.fixed_rows = config.batch_size if isinstance(self.planner.planner, FixedPlanner) else None
        # None: where there is a GPU.
        pinned = config.performance.pin_memory
        self._smallest: Batch | None = None
        self._pin_memory = ranks.device.type == "cuda" and pinned is not False
        if ranks.device.type == "cuda":
            start_early(self.reader, config.performance)

    def forget_skipped(self) -> None:
        """Ignore what was written down before: examples that could not be read are tried again."""
        self.skipped.forget()
        self.reader.known_bad = frozenset()

    def total_steps(self, position: Position) -> int:
        """Return the step at which a run at this position ends. Earlier steps may have had another size."""
        if self.config.max_steps is not None:
            return self.config.max_steps
        left_of_epoch = -(-(self.epoch_size - position.place) // self.config.gradient_accumulation_steps)
        later_epochs = self.config.epochs - position.epoch - 1
        return max(position.step + left_of_epoch + later_epochs * self.steps_per_epoch, position.step)

    def step_size(self, position: Position) -> int:
        """Microbatches of the step that begins here, over all ranks; the last one of an epoch may have fewer."""
        return min(self.config.gradient_accumulation_steps, self.epoch_size - position.place)

    def microbatches(self, position: Position) -> Generator[Microbatch, None, None]:
        """This rank's microbatches from a position on, without end."""
        ahead = None
        # The processes of a machine share what the system keeps.
        if self.config.batching.shard_size is not None and os.environ.get("LOCAL_RANK", "0") == "0":
            ahead = ReadAhead(self.dataset)
        addresses = training_addresses(
            self.planner,
            self.config.gradient_accumulation_steps,
            ahead,
            step=position.step,
            epoch=position.epoch,
            place=position.place,
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
        )
        try:
            yield from load(self.reader, addresses, self.config.performance, self._pin_memory)
        finally:
            if ahead is not None:
                ahead.close()

    def fetch(self, microbatches: Iterator[Microbatch], position: Position) -> list[Microbatch]:
        """Return this rank's share of the next step, from ``microbatches``; skipped examples are recorded."""
        share = len(range(self.ranks.rank, self.step_size(position), self.ranks.world_size))
        fetched = list(itertools.islice(microbatches, share))
        if any(microbatch.skipped for microbatch in fetched):
            self.skipped.add(fetched)
        return fetched

    def step_data(self, position: Position, fetched: list[Microbatch], counts: dict[str, float]) -> StepData:
        """Return the step that begins here; ``counts`` are those over all ranks."""
        size = self.step_size(position)
        return StepData(position.step + 1, fetched, counts, size, position.place + size >= self.epoch_size)

    def steps(self, position: Position) -> Generator[StepData, None, None]:
        """Yield the steps from a position on, which moves on with them, as a single process reads them; without end."""
        with closing(self.microbatches(position)) as microbatches:
            while True:
                fetched = self.fetch(microbatches, position)
                yield self.step_data(position, fetched, count_units(fetched))

    def dummy_batch(self) -> Batch:
        """Return the smallest microbatch that can be read, for a rank that computes because others do.

        Raises DataError if there is none.
        """
        if self._smallest is not None:
            return self._smallest
        plan = self.planner.plan(0)
        for position in np.argsort(plan.padded_sizes(self.dataset.lengths, self.multiple), kind="stable"):
            address = Address(0, 0, 0, plan.microbatch(int(position)), plan.occurrence(int(position)))
            if (batch := self.reader[address].batch) is not None:
                self._smallest = batch
                return batch
        raise DataError("no example of the training data can be read")

    def padded_size(self, microbatch: Microbatch) -> float:
        """Rows of a microbatch times the longest of them, in the unit of the dataset's lengths."""
        rows, lengths = microbatch.address.rows, self.dataset.lengths
        longest = max((float(sum(lengths[index] for index in row)) for row in rows), default=0.0)
        return len(rows) * (-(-longest // self.multiple) * self.multiple if self.multiple else longest)


def count_units(microbatches: list[Microbatch]) -> dict[str, float]:
    """Return each unit's count over microbatches."""
    counts: dict[str, float] = {}
    for microbatch in microbatches:
        for unit, count in (microbatch.batch.totals() if microbatch.batch else {}).items():
            counts[unit] = counts.get(unit, 0.0) + count
    return counts
