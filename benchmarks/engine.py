"""What Vaak's engine costs: against a hand-written loop and its peers, faculty by faculty, and after a resume.

    python benchmarks/engine.py [--rounds 15] [--sizes micro tiny small] [--parts peers starts faculties resume]
                                [--arms NAME ...] [--before PATH] [--threads 1] [--python PATH] [--json FILE]

Every arm is a separate process (arms.py), so its memory is separate and no library's settings reach another's loop.
The processes of a table take turns, round after round; a figure is the median over rounds, a ratio or a difference the
median over rounds of this arm against the hand-written loop (or the default) of the same round, with its quartiles
after it. Memory is the most that the process had until the end of a round. Steps are timed once the first is done.

``--before`` names another checkout of Vaak, which races along with this one in the same rounds. ``--arms`` races only
some (``--arms Vaak accelerate``); the hand-written loop always runs. Lightning is not a dependency: ``--python`` names
an interpreter that has it next to Vaak.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from racing import PEERS, SIZES, Bench, figures_of, say, table, with_spread

RESUMED = SIZES["micro"] | {"length": 2, "batch": 1}
"""As many microbatches in an epoch as the text has: a resume's place matters only where there are many."""

FACULTIES: dict[str, tuple[str, ...]] = {
    "default": (),
    "memory manager off": ("training.memory.manager=false",),
    "rehearsal off": ("training.memory.rehearsal=false",),
    "non-finite check off": (),
    "smoothed losses off": ("training.logging.smoothing=0",),
    "system metrics off": ("training.logging.system_metrics=false",),
    "TensorBoard off": ("training.logging.tensorboard=false",),
    "gradient clipping off": ("training.gradient_clipping.norm=null",),
    "moving average (EMA) on": ("training.ema=0.999",),
    "profiling on": ("training.profiling=true",),
    "curriculum on": ("training.curriculum=lexical",),
}
UNCHECKED = "non-finite check off"
AIMS: dict[str, tuple[str, float]] = {
    "micro": ("added_ms", 0.10),
    "tiny": ("ratio", 1.02),
    "small": ("ratio", 1.01),
}
MEMORY_AIM, FIRST_STEP_AIM = 20.0, 3.5
UNITS = {"added_ms": "ms added to a step", "ratio": "times the hand-written loop"}
POSITIONS = (0.1, 0.5, 0.9, 0.99)
BEFORE_AND_NOW = ("Vaak before, logging", "Vaak, logging")
AGAINST = {"ms": ("added_ms", "+.3f"), "ratio": ("ratio", ".3f"), "MB": ("added_memory", "+.0f")}


def row_table(cells: dict[str, str]) -> None:
    say(f"| {' | '.join(cells)} |\n|{'---|' * len(cells)}\n| {' | '.join(cells.values())} |\n")


def judge(what: str, value: float, aim: float) -> None:
    """A figure and its aim."""
    say(f"  {value:8.3f} {what}; aim: at most {aim:g}: {'reached' if value <= aim else 'MISSED'}")


def peers(bench: Bench) -> dict[str, Any]:
    """Every arm on every size."""
    results = {}
    for name in bench.options.sizes:
        size = SIZES[name]
        arms = [
            (title, arm, bench.job(size, logging, checkout=str(checkout)))
            for title, arm, logging, checkout in bench.peers()
        ]
        racing = bench.race(arms, size["steps"])
        results[name] = rows = {process.name: figures_of(process, racing[0]) for process in racing}
        table(f"{name}: {size['layers']} layer(s) of {size['width']}, {size['batch']} x {size['length']} tokens", rows)
        if "Vaak, logging" not in rows:
            continue
        say("\nVaak with console, JSONL and TensorBoard:")
        figure, aim = AIMS[name]
        judge(UNITS[figure], rows["Vaak, logging"][figure], aim)
        judge("MB more than the hand-written loop", rows["Vaak, logging"]["added_memory"], MEMORY_AIM)
        if "Vaak before, logging" in rows:
            before, now = (next(one for one in racing if one.name == arm) for arm in BEFORE_AND_NOW)
            say("Against the Vaak before, in the same rounds:")
            say(", ".join(f"{name} {with_spread(figures_of(now, before), *how)}" for name, how in AGAINST.items()))
    return results


def first_steps(
    bench: Bench, arms: Mapping[str, Callable[[], tuple[str, Any]]], figure: str = "first_step"
) -> dict[str, float]:
    """Seconds from a process's start to the end of its first step: medians of arms that are started in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(bench.options.rounds):
        for name, made in arms.items():
            with bench.started(name, *made()) as process:
                figures = process.train(2)
                if not process.missing:
                    seconds[name].append(figures[figure])
    return {name: statistics.median(times) for name, times in seconds.items() if times}


def starts(bench: Bench) -> dict[str, float]:
    """Every arm's first step on the smallest size, with logging; the data are prepared."""
    job = bench.job
    arms = {
        title: partial(
            lambda arm, logging, checkout: (arm, job(SIZES["micro"], logging, checkout=str(checkout))), *others
        )
        for title, *others in bench.peers()
        if others[1] or title == "by hand"
    }
    rows = first_steps(bench, arms)
    say("\nFrom a process's start to the end of its first step\n")
    row_table({name: f"{value:.2f} s" for name, value in rows.items()})
    if "Vaak, logging" in rows:
        judge("s to Vaak's first step", rows["Vaak, logging"], FIRST_STEP_AIM)
    return rows


def faculties(bench: Bench) -> dict[str, Any]:
    """Vaak on the smallest size, one faculty switched at a time, against its default."""
    size = SIZES["micro"]
    arms = [
        (name, "Vaak", bench.job(size, overrides=overrides, unchecked=name == UNCHECKED))
        for name, overrides in FACULTIES.items()
    ]
    racing = bench.race(arms, size["steps"])
    rows = {process.name: figures_of(process, racing[0]) for process in racing}
    table("Each faculty's own cost, on micro: one switched at a time, against the default", rows)
    return rows


def resume(bench: Bench) -> dict[str, float]:
    """Seconds from the resume command to the end of the first step, by the checkpoint's place in its epoch."""
    runs = {f"{place:.0%}": _run_saved_at(bench, place) for place in POSITIONS}

    def again(run: Path) -> tuple[str, Any]:
        copy = shutil.copytree(run, tempfile.mkdtemp(dir=bench.folder), symlinks=True, dirs_exist_ok=True)
        return "Vaak", bench.job(RESUMED, run=str(copy))

    arms = {place: partial(again, run) for place, run in runs.items()}
    rows = first_steps(bench, arms, "first_step_after_order")
    say("\nFrom the resume command to the end of the first step, by the checkpoint's place in its epoch\n")
    row_table({place: f"{value:.3f} s" for place, value in rows.items()})
    say(
        f"  the longest takes {max(rows.values()) / min(rows.values()):.2f} of the shortest; aim: the same at any place"
    )
    return rows


def _run_saved_at(bench: Bench, place: float) -> Path:
    """A run whose only checkpoint says that it stands at a part of the first epoch."""
    run = Path(tempfile.mkdtemp(dir=bench.folder))
    with bench.started(f"saved at {place}", "Vaak", bench.job(RESUMED, run=str(run), jump=place)) as process:
        process.train(2)
        process.process.communicate()
    return run


PARTS = {"peers": peers, "starts": starts, "faculties": faculties, "resume": resume}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--arms", nargs="+", choices=PEERS)
    parser.add_argument("--before", type=Path, help="another checkout of Vaak, raced along with this one")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vaak-engine-") as folder:
        bench = Bench(options, Path(folder))
        results = {part: PARTS[part](bench) for part in options.parts}
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
