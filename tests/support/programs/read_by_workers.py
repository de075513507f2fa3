"""Datasets that report which process reads them, and one that can't be pickled, with a reader by workers."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from toy import ToyDataset
from vaak.config.training import PerformanceConfig
from vaak.core.random_keys import Purpose
from vaak.data.loader import Address, Microbatch, MicrobatchReader, load

ADDRESSES = [Address(1, number, 0, [[2 * number], [2 * number + 1]]) for number in range(8)]


def read(dataset: Any, method: str | None, num_workers: int = 2) -> list[Microbatch]:
    reader = MicrobatchReader(dataset, (Purpose.DATA,), 1)
    options = PerformanceConfig(num_workers=num_workers, multiprocessing_context=method)
    return list(load(reader, ADDRESSES, options, pin_memory=False))


class Answers(ToyDataset):
    """Its examples are the parent of the process that reads them, and its own number."""

    def example(self, index: int, rng: np.random.Generator) -> np.ndarray:
        return np.array([os.getppid(), os.getpid()])


def parents(dataset: Any, method: str | None) -> set[int]:
    return {int(one.batch["inputs"][0, 0]) for one in read(dataset, method) if one.batch is not None}


class Unsendable(Answers):
    def __init__(self, num_examples: int) -> None:
        super().__init__(num_examples)
        self.change = lambda row: row
