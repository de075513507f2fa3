"""Seconds, memory and padding of planning ten million examples, by kind of plan: plain, of parts, with a curriculum.

    python benchmarks/plans.py [--whole] [examples [kind ...]]

Each kind runs in a separate process; memory is the peak of resident memory over what was held before planning. The
epoch of a curriculum is its first, of more than two passes over a growing part of the examples. The three parts have
70, 29 and 1 % of the examples; ``parts`` reads them in proportion, ``weights`` by weights that change with the step. Of
more than 16 million examples, a plan is made in pieces, but for ``--whole``; an epoch then makes all of them, in turn.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import numpy as np

from vaak.config.training import BatchingConfig, CurriculumConfig, TrainingConfig
from vaak.core.task import Dataset
from vaak.data.batching import LARGEST_PLAN, training_planner
from vaak.data.mixing import StepWeights

BATCHES = ("fixed", "bucketed", "packed", "stratified")
OF_PARTS = ("bucketed-parts", "bucketed-weights", "bucketed-parts-curriculum")
KINDS = (*BATCHES, *(f"{kind}-curriculum" for kind in BATCHES), *OF_PARTS)
WIDEST_ROW = 2048
PARTS = (0.7, 0.29, 0.01)


class Lengths(Dataset):
    """Examples of which nothing is known but what a plan needs."""

    def __init__(self, lengths: np.ndarray, strata: np.ndarray, difficulties: np.ndarray) -> None:
        self.lengths = lengths
        self.strata = strata
        self.row_capacity = WIDEST_ROW
        self.difficulties = difficulties

    def difficulty(self, measure: str) -> np.ndarray:
        return self.difficulties


def measure(kind: str, num_examples: int, largest: int) -> str:
    """One line of the table: making the planner, and planning one epoch."""
    rng = np.random.default_rng(0)
    lengths = np.empty(num_examples, np.int16 if num_examples > 10**8 else np.int64)
    for part in np.array_split(lengths, 100):
        part[:] = np.clip(rng.lognormal(5.0, 0.6, len(part)), 1, WIDEST_ROW)
    strata = rng.integers(0, 10, num_examples, dtype=np.int8)
    batches, *others = kind.split("-")
    curriculum = "curriculum" in others
    dataset = Lengths(lengths, strata, rng.normal(size=num_examples if curriculum else 0))
    if {"parts", "weights"} & {*others}:
        sizes = [int(share * num_examples) for share in PARTS[1:]]
        dataset.parts = np.repeat(np.arange(3, dtype=np.int8), [num_examples - sum(sizes), *sizes])
    if "weights" in others:
        dataset.shares = StepWeights(((0, (1.0, 1.0, 0.0)), (10_000, (1.0, 0.2, 0.1))), step_size=8)
    batching = {"type": batches, "max_tokens": 16384 if batches == "bucketed" else None}
    config = TrainingConfig(
        batching=BatchingConfig.model_validate(batching),
        batch_size=32,
        curriculum=CurriculumConfig(difficulty="lexical", num_epochs=10) if curriculum else None,
    )
    before = peak_mebibytes()

    started = time.perf_counter()
    planner = training_planner(config, dataset, largest)
    made = time.perf_counter()
    plan = planner.plan(0)
    for position in range(0, len(plan), max(1, len(plan) // 1000)):
        plan.microbatch(position)
    planned = time.perf_counter()

    peak = peak_mebibytes() - before
    waste = plan.padding_waste(lengths)
    return f"{kind:<26}{made - started:>10.2f}{planned - made:>10.2f}{peak:>10.0f}{len(plan):>14,}{waste:>10.2%}"


def peak_mebibytes() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(measure(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
        return
    is_whole = "--whole" in sys.argv
    num_examples, *kinds = [one for one in sys.argv[1:] if one != "--whole"] or ["10000000"]
    largest = num_examples if is_whole else str(LARGEST_PLAN)
    print(f"{int(num_examples):,} examples")
    print(f"{'kind':<26}{'make, s':>10}{'epoch, s':>10}{'peak, MiB':>10}{'microbatches':>14}{'waste':>10}", flush=True)
    for kind in kinds or KINDS:
        subprocess.run([sys.executable, __file__, "--one", kind, num_examples, largest], check=True)


if __name__ == "__main__":
    main()
