"""Seconds, memory and padding of planning ten million examples, by kind of plan, without and with a curriculum.

    python benchmarks/plans.py [examples [kind ...]]

Each kind runs in a separate process; memory is the peak of resident memory over what was held before planning. The
epoch of a curriculum is its first, of more than two passes over a growing part of the examples. Of more than 16
million examples, a plan is made in pieces; an epoch then makes all of them, in turn.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import numpy as np

from vaak.config.training import BatchingConfig, CurriculumConfig, TrainingConfig
from vaak.core.task import Dataset
from vaak.data.batching import training_planner

BATCHES = ("fixed", "bucketed", "packed", "stratified")
KINDS = (*BATCHES, *(f"{kind}-curriculum" for kind in BATCHES))
WIDEST_ROW = 2048


class Lengths(Dataset):
    """Examples of which nothing is known but what a plan needs."""

    def __init__(self, lengths: np.ndarray, strata: np.ndarray, difficulties: np.ndarray) -> None:
        self.lengths = lengths
        self.strata = strata
        self.row_capacity = WIDEST_ROW
        self.difficulties = difficulties

    def difficulty(self, measure: str) -> np.ndarray:
        return self.difficulties


def measure(kind: str, num_examples: int) -> str:
    """One line of the table: making the planner, and planning one epoch."""
    rng = np.random.default_rng(0)
    lengths = np.empty(num_examples, np.int16 if num_examples > 10**8 else np.int64)
    for part in np.array_split(lengths, 100):
        part[:] = np.clip(rng.lognormal(5.0, 0.6, len(part)), 1, WIDEST_ROW)
    strata = rng.integers(0, 10, num_examples, dtype=np.int8)
    batches, *curriculum = kind.split("-")
    dataset = Lengths(lengths, strata, rng.normal(size=num_examples if curriculum else 0))
    batching = {"type": batches, "max_tokens": 16384 if batches == "bucketed" else None}
    config = TrainingConfig(
        batching=BatchingConfig.model_validate(batching),
        batch_size=32,
        curriculum=CurriculumConfig(difficulty="lexical", num_epochs=10) if curriculum else None,
    )
    before = peak_mebibytes()

    started = time.perf_counter()
    planner = training_planner(config, dataset)
    made = time.perf_counter()
    plan = planner.plan(0)
    for position in range(0, len(plan), max(1, len(plan) // 1000)):
        plan.microbatch(position)
    planned = time.perf_counter()

    peak = peak_mebibytes() - before
    waste = plan.padding_waste(lengths)
    return f"{kind:<22}{made - started:>10.2f}{planned - made:>10.2f}{peak:>10.0f}{len(plan):>14,}{waste:>10.2%}"


def peak_mebibytes() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(measure(sys.argv[2], int(sys.argv[3])))
        return
    num_examples = sys.argv[1] if len(sys.argv) > 1 else "10000000"
    print(f"{int(num_examples):,} examples")
    print(f"{'kind':<22}{'make, s':>10}{'epoch, s':>10}{'peak, MiB':>10}{'microbatches':>14}{'waste':>10}", flush=True)
    for kind in sys.argv[2:] or KINDS:
        subprocess.run([sys.executable, __file__, "--one", kind, num_examples], check=True)


if __name__ == "__main__":
    main()
