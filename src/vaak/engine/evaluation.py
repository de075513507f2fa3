"""A model's figures on a split: sums and counts over the whole set and all ranks, divided once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from vaak.core.keys import draw_key
from vaak.core.task import Meters, Task
from vaak.data.loader import evaluation_addresses, load
from vaak.data.plans import evaluation_plan
from vaak.data.reader import Reader
from vaak.engine.precision import Precision
from vaak.engine.randomness import seed_everything
from vaak.engine.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from vaak.config.training import TrainingConfig

PREFIXES = {"valid": "val_"}


class EvaluationInterruptedError(Exception):
    """An evaluation was left half-way because the run is to stop."""


@dataclass(frozen=True)
class Evaluator:
    """Evaluates models on a task's splits. With ``skip_bad``, examples that can't be read are left out and counted."""

    task: Task
    config: TrainingConfig
    ranks: Ranks
    skip_bad: bool = False

    def evaluate(
        self, model: nn.Module, split: str, interrupted: Callable[[], bool] = lambda: False
    ) -> dict[str, float]:
        """The figures of ``split`` by name, each with the split's prefix (``val_`` for valid, else ``SPLIT_``).

        The model is left in the mode it was in. Raises EvaluationInterruptedError as soon as ``interrupted()`` holds.
        """
        meters = self.task.meters(split)
        was_training = model.training
        model.eval()
        try:
            with torch.no_grad():
                skipped = self._measure(model, split, meters, interrupted)
        finally:
            model.train(was_training)
        results = meters.results(self.ranks.sum(meters.sums()))
        skipped = self.ranks.sum({"skipped": skipped})["skipped"]
        prefix = PREFIXES.get(split, f"{split}_")
        return {prefix + name: value for name, value in (results | ({"skipped": skipped} if skipped else {})).items()}

    def _measure(self, model: nn.Module, split: str, meters: Meters, interrupted: Callable[[], bool]) -> float:
        """Show this rank's part of the split to the meters; return how many examples were skipped."""
        dataset, seed, device = self.task.dataset(split), self.config.random_seed, self.ranks.device
        precision = Precision(self.config.mixed_precision, device)
        plan = evaluation_plan(dataset.lengths, self.config.validation.batch_size or self.config.batch_size)
        reader = Reader(dataset, ("evaluation", split), seed, skip_bad=self.skip_bad)
        addresses = evaluation_addresses(plan, self.ranks.rank, self.ranks.world_size)
        skipped = 0.0
        for microbatch in load(reader, addresses, self.config.performance, pin_memory=device.type == "cuda"):
            if interrupted():
                raise EvaluationInterruptedError
            skipped += len(microbatch.skipped)
            if microbatch.batch is None:
                continue
            seed_everything(draw_key("evaluation", seed, split, microbatch.address.number), device)
            with precision.autocast():
                meters.update(model, microbatch.batch.to(device))
        return skipped
