"""Seconds, memory and padding of planning ten million examples, by kind of plan.

    python benchmarks/plans.py [examples]

Each kind runs in a process of its own; memory is the peak of resident memory over what was held before planning.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

KINDS = ("fixed", "bucketed", "packed", "stratified")
WIDEST_ROW = 2048


def measure(kind: str, num_examples: int) -> str:
    """One line of the table: making the planner, and planning one epoch."""
    import numpy as np

    from vaak.config.training import BatchingConfig
    from vaak.data.plans import make_planner

    rng = np.random.default_rng(0)
    lengths = np.empty(num_examples, np.int64)
    for part in np.array_split(lengths, 100):
        part[:] = np.clip(rng.lognormal(5.0, 0.6, len(part)), 1, WIDEST_ROW)
    strata = rng.integers(0, 10, num_examples, dtype=np.int8)
    batching = BatchingConfig(type=kind, max_tokens=16384) if kind == "bucketed" else BatchingConfig(type=kind)
    before = peak_mebibytes()

    started = time.perf_counter()
    planner = make_planner(batching, lengths=lengths, strata=strata, batch_size=32, row_capacity=WIDEST_ROW, seed=1)
    made = time.perf_counter()
    plan = planner.plan(0)
    planned = time.perf_counter()

    peak = peak_mebibytes() - before
    waste = plan.padding_waste(lengths)
    return f"{kind:<12}{made - started:>10.2f}{planned - made:>10.2f}{peak:>10.0f}{len(plan):>14,}{waste:>10.2%}"


def peak_mebibytes() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def main() -> None:
    if len(sys.argv) == 3:
        print(measure(sys.argv[1], int(sys.argv[2])))
        return
    num_examples = sys.argv[1] if len(sys.argv) > 1 else "10000000"
    print(f"{int(num_examples):,} examples")
    print(f"{'kind':<12}{'make, s':>10}{'epoch, s':>10}{'peak, MiB':>10}{'microbatches':>14}{'waste':>10}", flush=True)
    for kind in KINDS:
        subprocess.run([sys.executable, __file__, kind, num_examples], check=True)


if __name__ == "__main__":
    main()
