"""What Vaak's engine costs: against a hand-written loop and its peers, faculty by faculty, and after a resume.

    python benchmarks/engine.py [--rounds 7] [--sizes micro tiny small] [--parts peers starts faculties resume]
                                [--threads 1] [--python PATH] [--json FILE]

Every arm is a process of its own (arms.py), so its memory is its own and no library's settings reach another's loop.
The processes of a table take turns, round after round; a figure is the median over rounds, a ratio or a difference the
median over rounds of this arm against the hand-written loop (or the default) of the same round. Steps are timed once
the first is done. Lightning is no dependency: ``--python`` names an interpreter that has it beside Vaak.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

ARMS = Path(__file__).with_name("arms.py")

SIZES: dict[str, dict[str, int]] = {
    "micro": {"width": 32, "layers": 1, "heads": 2, "vocab": 600, "length": 32, "batch": 4, "steps": 500},
    "tiny": {"width": 64, "layers": 1, "heads": 2, "vocab": 4000, "length": 64, "batch": 8, "steps": 150},
    "small": {"width": 128, "layers": 4, "heads": 4, "vocab": 4000, "length": 128, "batch": 8, "steps": 40},
}
RESUMED = SIZES["micro"] | {"length": 2, "batch": 1}
"""As many microbatches in an epoch as the text has: a resume's place matters only where there are many."""

QUIET = (
    "training.logging={interval: 1000000, tensorboard: false, progress_bar: false, smoothing: 0, "
    "system_metrics: false}",
)
PEERS: list[tuple[str, str, bool]] = [("by hand", "by hand", False)] + [
    (f"{arm}, {how}", arm, how == "logging")
    for arm in ("accelerate", "transformers", "Lightning", "Vaak")
    for how in ("quiet", "logging")
]
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
    "micro": ("added_ms", 0.15),
    "tiny": ("ratio", 1.02),
    "small": ("ratio", 1.01),
}
MEMORY_AIM, FIRST_STEP_AIM = 20.0, 3.5
UNITS = {"added_ms": "ms added to a step", "ratio": "times the hand-written loop"}
POSITIONS = (0.1, 0.5, 0.9, 0.99)


@dataclass
class Process:
    """An arm that has been started, and the figures of its rounds."""

    name: str
    process: subprocess.Popen[str]
    errors: Path
    missing: str | None = None
    seconds: list[float] = field(default_factory=list)
    memory: float = 0.0

    def train(self, steps: int) -> dict[str, Any]:
        """Have it train so many steps; return its figures. Ends the benchmark where it fails."""
        with contextlib.suppress(BrokenPipeError):
            print(steps, file=self.process.stdin, flush=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} failed:\n{self.errors.read_text()[-3000:]}")
        figures: dict[str, Any] = json.loads(line)
        self.missing = figures.get("missing")
        self.memory = figures.get("memory", 0.0)
        return figures


@dataclass(frozen=True)
class Bench:
    """Where it works and with what; ``jobs`` differ in their size, logging and options."""

    options: argparse.Namespace
    folder: Path

    def job(self, size: dict[str, int], logging: bool = True, overrides: Sequence[str] = (), **more: Any) -> Any:
        """What an arm needs to know; the data are prepared, once for each number of tokens."""
        yaml = self.folder / f"{'-'.join(map(str, size.values()))}.yml"
        if not yaml.exists():
            yaml.write_text(configuration(size, self.folder / "cache"))
        store = prepared(yaml, self.folder) / "train"
        about = json.loads((store / "store.json").read_text())
        given = overrides if logging else (*QUIET, *overrides)
        return {
            "size": size,
            "logging": logging,
            "threads": self.options.threads,
            "tokens": str(store / "tokens.bin"),
            "dtype": about["dtype"],
            "yaml": str(yaml),
            "overrides": list(given),
            "folder": tempfile.mkdtemp(dir=self.folder),
            "run": None,
            **more,
        }

    @contextlib.contextmanager
    def started(self, name: str, arm: str, job: Any) -> Iterator[Process]:
        """A process of an arm. It ends with the block."""
        errors = Path(job["folder"]) / "errors.txt"
        threads = {"OMP_NUM_THREADS": str(self.options.threads), "TRANSFORMERS_VERBOSITY": "error"}
        begun = {"BENCHMARK_BEGUN": str(time.time())}
        command = [self.options.python, str(ARMS), arm, json.dumps(job)]
        with errors.open("w") as stream:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                env={**os.environ, **threads, **begun},
            )
        try:
            yield Process(name, process, errors)
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def race(self, arms: Sequence[tuple[str, str, Any]], steps: int) -> list[Process]:
        """Let the arms train in turns; each has taken its first steps alone before."""
        with contextlib.ExitStack() as stack:
            racing = []
            for name, arm, job in arms:
                process = stack.enter_context(self.started(name, arm, job))
                process.train(max(steps // 10, 2))
                if process.missing:
                    say(f"{name}: left out, for {process.missing} isn't installed")
                else:
                    racing.append(process)
            for number in range(self.options.rounds):
                order = racing if number % 2 else racing[::-1]
                for process in order:
                    process.seconds.append(process.train(steps)["seconds"])
            return racing


def configuration(size: dict[str, int], cache: Path) -> str:
    """The YAML of one size: what the peers do, said to Vaak."""
    return f"""
task: lm
name: bench
model: {{d_model: {size["width"]}, num_layers: {size["layers"]}, num_heads: {size["heads"]}}}
data:
  corpus: {{type: grammar, num_sentences: 12000}}
  tokenizer: {{type: byte_level, vocab_size: {size["vocab"]}}}
  layout: stream
  max_length: {size["length"]}
  cache_dir: {cache}
training:
  max_steps: 1000000
  batch_size: {size["batch"]}
  device: cpu
  optimizer: {{type: adamw, lr: 1e-3, weight_decay: 0.01}}
  scheduler: {{type: cosine, warmup_steps: 10}}
  validation: {{interval: 1000000, interval_epochs: null}}
  checkpoint: {{interval: 1000000, interval_epochs: null, resume: auto}}
"""


def prepared(yaml: Path, folder: Path) -> Path:
    """Where the data of a YAML lie; they are prepared now if they aren't."""
    from vaak.config.load import load
    from vaak.tasks.lm.task import LanguageModelTask

    run = folder / f"prepared-{yaml.stem}"
    run.mkdir(exist_ok=True)
    task = LanguageModelTask(load([yaml]).experiment, run, folder)
    task.prepare()
    return task.prepared.folder


def figures_of(process: Process, base: Process) -> dict[str, float]:
    """Figures of an arm and what they are against another's."""
    pairs = list(zip(process.seconds, base.seconds, strict=True))
    return {
        "steps_per_second": 1 / statistics.median(process.seconds),
        "step_ms": 1000 * statistics.median(process.seconds),
        "added_ms": 1000 * statistics.median(ours - theirs for ours, theirs in pairs),
        "ratio": statistics.median(ours / theirs for ours, theirs in pairs),
        "memory": process.memory,
        "added_memory": process.memory - base.memory,
    }


def say(text: str) -> None:
    print(text, flush=True)


def table(title: str, rows: dict[str, dict[str, float]]) -> None:
    """One arm a line."""
    say(f"\n{title}\n")
    say("| | steps/s | ms a step | added ms | ratio | memory, MB | added MB |")
    say("|---|---|---|---|---|---|---|")
    for name, row in rows.items():
        speed = f"{row['steps_per_second']:.1f} | {row['step_ms']:.3f} | {row['added_ms']:+.3f} | {row['ratio']:.3f}"
        say(f"| {name} | {speed} | {row['memory']:.0f} | {row['added_memory']:+.0f} |")


def row_table(cells: dict[str, str]) -> None:
    say(f"| {' | '.join(cells)} |\n|{'---|' * len(cells)}\n| {' | '.join(cells.values())} |\n")


def judge(what: str, value: float, aim: float) -> None:
    """A figure beside its aim."""
    say(f"  {value:8.3f} {what}; aim: at most {aim:g}: {'reached' if value <= aim else 'MISSED'}")


def peers(bench: Bench) -> dict[str, Any]:
    """Every arm on every size."""
    results = {}
    for name in bench.options.sizes:
        size = SIZES[name]
        arms = [(title, arm, bench.job(size, logging)) for title, arm, logging in PEERS]
        racing = bench.race(arms, size["steps"])
        results[name] = rows = {process.name: figures_of(process, racing[0]) for process in racing}
        table(f"{name}: {size['layers']} layer(s) of {size['width']}, {size['batch']} x {size['length']} tokens", rows)
        say("\nVaak with console, JSONL and TensorBoard:")
        figure, aim = AIMS[name]
        judge(UNITS[figure], rows["Vaak, logging"][figure], aim)
        judge("MB more than the hand-written loop", rows["Vaak, logging"]["added_memory"], MEMORY_AIM)
    return results


def first_steps(
    bench: Bench, arms: dict[str, Callable[[], tuple[str, Any]]], figure: str = "first_step"
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
        title: partial(lambda arm, logging: (arm, job(SIZES["micro"], logging)), arm, logging)
        for title, arm, logging in PEERS
        if logging or arm == "by hand"
    }
    rows = first_steps(bench, arms)
    say("\nFrom a process's start to the end of its first step\n")
    row_table({name: f"{value:.2f} s" for name, value in rows.items()})
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
    """Seconds from the order to go on to the end of the first step, by the checkpoint's place in its epoch."""
    runs = {f"{place:.0%}": _run_saved_at(bench, place) for place in POSITIONS}

    def again(run: Path) -> tuple[str, Any]:
        copy = shutil.copytree(run, tempfile.mkdtemp(dir=bench.folder), symlinks=True, dirs_exist_ok=True)
        return "Vaak", bench.job(RESUMED, run=str(copy))

    arms = {place: partial(again, run) for place, run in runs.items()}
    rows = first_steps(bench, arms, "first_step_after_order")
    say("\nFrom the order to go on to the end of the first step, by the checkpoint's place in its epoch\n")
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
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
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
