"""A model's figures on a split: sums and counts over the whole set and all ranks, divided once."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from vaak.core.batch import Batch
from vaak.core.errors import UserError
from vaak.core.keys import draw_key
from vaak.core.task import Dataset, Illustrated, Meters, Task
from vaak.data.loader import evaluation_addresses, load
from vaak.data.plans import evaluation_plan
from vaak.data.reader import Reader
from vaak.engine.memory import free_memory, is_out_of_memory
from vaak.engine.precision import Precision
from vaak.engine.randomness import seed_everything
from vaak.engine.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from vaak.config.training import TrainingConfig

log = logging.getLogger("vaak")

PREFIXES = {"valid": "val_"}


class EvaluationInterruptedError(Exception):
    """An evaluation was left half-way because the run is to stop."""


@dataclass(frozen=True)
class Evaluator:
    """Evaluates models on a task's splits. With ``skip_bad``, examples that can't be read are left out and counted.

    ``show`` is given what draws the pictures of a split's meters, on the main process, where they have any.
    """

    task: Task
    config: TrainingConfig
    ranks: Ranks
    skip_bad: bool = False
    show: Callable[[Callable[[], dict[str, bytes]]], None] | None = None

    def evaluate(
        self,
        model: nn.Module,
        split: str,
        interrupted: Callable[[], bool] = lambda: False,
        pieces: int = 1,
        cut: Callable[[int, str], None] = lambda pieces, reason: log.warning("%s: in %d pieces", reason, pieces),
    ) -> dict[str, float]:
        """The figures of ``split`` by name, each with the split's prefix (``val_`` for valid, else ``SPLIT_``).

        Every batch is computed in so many ``pieces``; out of memory, ``cut(pieces, reason)`` is told and the split is
        begun again in twice as many. The model and its parts are left in the modes they were in.

        Raises EvaluationInterruptedError as soon as ``interrupted()`` holds, UserError where one row alone doesn't fit.
        """
        training = [module for module in model.modules() if module.training]
        model.eval()
        try:
            with torch.no_grad():
                while (measured := self._measure(model, split, pieces, interrupted)) is None:
                    free_memory(self.ranks.device)
                    pieces *= 2
                    cut(pieces, f"out of memory while {split} was evaluated")
        finally:
            for module in training:  # a part that was kept in evaluation mode stays in it
                module.training = True
        meters, skipped = measured
        results = meters.results(self.ranks.sum(meters.sums()))
        skipped = self.ranks.sum({"skipped": skipped})["skipped"]
        prefix = PREFIXES.get(split, f"{split}_")
        if self.show is not None and self.ranks.is_main and isinstance(meters, Illustrated):
            pictures = meters.pictures
            self.show(lambda: {prefix + name: content for name, content in pictures().items()})
        return {prefix + name: value for name, value in (results | ({"skipped": skipped} if skipped else {})).items()}

    def _measure(
        self, model: nn.Module, split: str, pieces: int, interrupted: Callable[[], bool]
    ) -> tuple[Meters, float] | None:
        """This rank's part of the split in new meters, and how many examples were skipped; None if out of memory."""
        dataset, seed, device = self.task.dataset(split), self.config.random_seed, self.ranks.device
        meters, skipped, precision = self.task.meters(split), 0.0, Precision(self.config.mixed_precision, device)
        batch_size = self.config.validation.batch_size or self.config.batch_size
        plan = evaluation_plan(dataset.lengths, batch_size, getattr(dataset, "evaluation_budget", None))
        reader = Reader(dataset, ("evaluation", split), seed, skip_bad=self.skip_bad)
        addresses = evaluation_addresses(plan, self.ranks.rank, self.ranks.world_size)
        microbatches = load(reader, addresses, self.config.performance, pin_memory=device.type == "cuda")
        for microbatch in microbatches:
            if interrupted():
                raise EvaluationInterruptedError
            skipped += len(microbatch.skipped)
            for piece, batch in enumerate(microbatch.batch.split(pieces) if microbatch.batch else ()):
                seed_everything(draw_key("evaluation", seed, split, microbatch.address.number, piece), device)
                if not _fits(meters, model, batch, precision):
                    if batch.num_rows == 1:
                        raise _too_large(split, dataset, batch)
                    return None
        return meters, skipped


def _fits(meters: Meters, model: nn.Module, batch: Batch, precision: Precision) -> bool:
    """Show a batch to the meters; return False where memory runs out."""
    try:
        with precision.autocast():
            meters.update(model, batch.to(precision.device))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True


def _too_large(split: str, dataset: Dataset, batch: Batch) -> UserError:
    examples = ", ".join(f"{index} ({dataset.describe(index)})" for index in batch.indices[0][:5])
    return UserError(
        f"out of memory while {split} was evaluated: example {examples} does not fit even alone; shorten it"
    )
