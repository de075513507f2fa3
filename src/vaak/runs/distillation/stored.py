"""A teacher's predictions for every training example, made once.

FOLDER (RUN/teacher, or CACHE_DIR/FINGERPRINT)
  logits.f32      the logits of unit after unit, all groups next to each other
  places.npy      (example, 2): the first unit of each example in it, and how many it has
  prepared.json   the fingerprint of weights and data, the shapes of the groups; written last: it means "complete"
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vaak.config.training import TrainingConfig
from vaak.core.batch import Batch
from vaak.core.progress import followed
from vaak.core.random_keys import Purpose
from vaak.core.storage.files import fingerprint_of, read_json
from vaak.core.task import Dataset, Outputs
from vaak.data.batching.planner import evaluation_plan
from vaak.data.loader import evaluation_addresses
from vaak.data.reader import MicrobatchReader
from vaak.engine.distributed.launcher import pick_device
from vaak.runs.distillation.teacher import Teacher, in_order
from vaak.runs.prepared import DONE, Recipe, prepare_folder

LOGITS, PLACES = "logits.f32", "places.npy"


def size_of(dataset: Dataset, outputs: Outputs) -> float:
    """About how many bytes the predictions for all examples take, judged by the longest."""
    longest = int(np.argmax(dataset.lengths))
    units = dataset.collate([[dataset.example(longest, np.random.default_rng(0))]]).totals().get(outputs.per, 1.0)
    width = sum(map(len, outputs.classes.values()))
    return 4.0 * width * units * float(np.sum(dataset.lengths, dtype=np.float64)) / float(dataset.lengths[longest])


def store(teacher: Teacher, dataset: Dataset, folder: Path, config: TrainingConfig) -> None:
    """Write the predictions for all examples, unless they are there, of the same weights for the same data."""
    mark = fingerprint_of([teacher.weights, dataset.fingerprint])
    make = partial(_make, teacher, dataset, config)
    prepare_folder(Recipe(make, lambda: mark, {}), folder)


def _make(teacher: Teacher, dataset: Dataset, config: TrainingConfig, folder: Path) -> dict[str, Any]:
    reader = MicrobatchReader(dataset, (Purpose.EVALUATION, "teacher"), 0, skip_bad=True)
    batch_size, device = config.validation.batch_size or config.batch_size, pick_device(config.device)
    plan, outputs = evaluation_plan(dataset.lengths, batch_size, dataset.evaluation_budget), teacher.outputs()
    places = np.zeros((len(dataset.lengths), 2), dtype=np.int64)
    shapes: list[list[int]] = []
    first = 0
    with open(folder / LOGITS, "wb") as file:
        for address in followed(evaluation_addresses(plan, 0, 1), "the teacher's predictions", len(plan)):
            batch = reader[address].batch
            if batch is None:
                continue
            groups = in_order(teacher.logits(batch.to(device)), outputs)
            shapes = [list(group.shape[1:]) for group in groups]
            file.write(torch.cat([group.flatten(1) for group in groups], 1).float().cpu().numpy().tobytes())
            for (index,), units in zip(batch.indices, batch.counts[outputs.per].tolist(), strict=True):
                places[index] = first, units
                first += units
    np.save(folder / PLACES, places)
    return {"shapes": shapes, "units": first}


@dataclass(frozen=True)
class Stored:
    """Stored predictions: ``logits`` ``(unit, all classes)`` of the groups whose ``shapes`` a unit has."""

    logits: np.ndarray
    places: np.ndarray
    shapes: list[list[int]]

    @classmethod
    def open(cls, folder: Path) -> Stored:
        about = read_json(folder / DONE)
        width = sum(int(np.prod(shape)) for shape in about["shapes"])
        logits = np.memmap(folder / LOGITS, dtype=np.float32, mode="r", shape=(about["units"], width))
        return cls(logits, np.load(folder / PLACES), about["shapes"])

    def of(self, batch: Batch) -> list[Tensor]:
        """The logits of each group for the units of a batch, on its device."""
        places = self.places[list(itertools.chain.from_iterable(batch.indices))]
        units = np.concatenate([np.arange(first, first + number) for first, number in places])
        found = torch.from_numpy(self.logits[units]).to(next(iter(batch.tensors.values())).device)
        parts = found.split([int(np.prod(shape)) for shape in self.shapes], dim=1)
        return [part.reshape(len(units), *shape) for part, shape in zip(parts, self.shapes, strict=True)]
