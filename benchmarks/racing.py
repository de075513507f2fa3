"""Arms in separate processes that take turns, and their figures relative to one another.

``Bench`` starts arms (arms.py) and races them; a table has one arm a line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
"""The checkout that is measured."""

SIZES: dict[str, dict[str, int]] = {
    "micro": {"width": 32, "layers": 1, "heads": 2, "vocab": 600, "length": 32, "batch": 4, "steps": 500},
    "tiny": {"width": 64, "layers": 1, "heads": 2, "vocab": 4000, "length": 64, "batch": 8, "steps": 150},
    "small": {"width": 128, "layers": 4, "heads": 4, "vocab": 4000, "length": 128, "batch": 8, "steps": 40},
}
QUIET = (
    "training.logging={interval: 1000000, tensorboard: false, progress_bar: false, smoothing: 0, "
    "system_metrics: false}",
)
PEERS = ("accelerate", "transformers", "Lightning", "Vaak")


@dataclass
class Process:
    """An arm that has been started, and the figures of its rounds."""

    name: str
    process: subprocess.Popen[str]
    errors: Path
    missing: str | None = None
    rounds: list[dict[str, Any]] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        """Seconds a step, by round."""
        return [figures["seconds"] for figures in self.rounds]

    @property
    def memory(self) -> list[float]:
        """The most MB until the end of each round."""
        return [figures["memory"] for figures in self.rounds]

    def train(self, steps: int) -> dict[str, Any]:
        """Have it train this many steps; return its figures. Ends the benchmark if it fails."""
        with contextlib.suppress(BrokenPipeError):
            print(steps, file=self.process.stdin, flush=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} failed:\n{self.errors.read_text()[-3000:]}")
        figures: dict[str, Any] = json.loads(line)
        self.missing = figures.get("missing")
        return figures


@dataclass(frozen=True)
class Bench:
    """Where it works and with what; ``jobs`` differ in their size, logging and options.

    ``script`` is what an arm's process runs; by default the arms.py of its checkout.
    """

    options: argparse.Namespace
    folder: Path
    script: Path | None = None
    device: str = "cpu"
    precision: str = "no"
    corpus: str = "{type: grammar, num_sentences: 12000}"

    def peers(self) -> list[tuple[str, str, bool, Path]]:
        """What is raced: title, arm, whether it logs, and the checkout that it is of; the hand-written loop first."""
        raced = [("by hand", "by hand", False, HERE)]
        for arm in PEERS:
            if self.options.arms and arm not in self.options.arms:
                continue
            checkouts = {"": HERE}
            if arm == "Vaak" and self.options.before is not None:
                checkouts = {" before": self.options.before.resolve(), "": HERE}
            for how in ("quiet", "logging"):
                raced += [(f"{arm}{when}, {how}", arm, how == "logging", path) for when, path in checkouts.items()]
        return raced

    def job(self, size: dict[str, int], logging: bool = True, overrides: Sequence[str] = (), **more: Any) -> Any:
        """Holds what an arm needs; the data are prepared once for each number of tokens."""
        yaml = self.folder / f"{'-'.join(map(str, size.values()))}.yml"
        if not yaml.exists():
            yaml.write_text(configuration(size, self.folder / "cache", self.corpus))
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
            "device": self.device,
            "precision": self.precision,
            "overrides": [f"training.device={self.device}", f"training.mixed_precision={self.precision}", *given],
            "folder": tempfile.mkdtemp(dir=self.folder),
            "run": None,
            "checkout": str(HERE),
            **more,
        }

    @contextlib.contextmanager
    def started(self, name: str, arm: str, job: Any) -> Iterator[Process]:
        """A process of an arm. It ends with the block."""
        errors = Path(job["folder"]) / "errors.txt"
        threads = {"OMP_NUM_THREADS": str(self.options.threads), "TRANSFORMERS_VERBOSITY": "error"}
        begun = {"BENCHMARK_BEGUN": str(time.time())}
        checkout = Path(job["checkout"])
        path = {"PYTHONPATH": os.pathsep.join(filter(None, [str(checkout / "src"), os.environ.get("PYTHONPATH")]))}
        script = self.script or checkout / "benchmarks" / "arms.py"
        command = [self.options.python, str(script), arm, json.dumps(job)]
        with errors.open("w") as stream:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                env={**os.environ, **threads, **begun, **path},
            )
        try:
            yield Process(name, process, errors)
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def race(self, arms: Sequence[tuple[str, str, Any]], steps: int, in_turns: bool = True) -> list[Process]:
        """Let the arms train in turns; all have taken their first steps before.

        Where a device hasn't room for all (``in_turns`` false), each trains all rounds and ends before the next.
        """
        first, rounds = max(steps // 10, 2), self.options.rounds
        with contextlib.ExitStack() as stack:
            started = [stack.enter_context(self.started(*arm)) for arm in arms]
            if in_turns:
                with ThreadPoolExecutor(len(started)) as pool:
                    list(pool.map(lambda process: process.train(first), started))
                racing = [process for process in started if is_there(process)]
                for number in range(rounds):
                    for process in racing if number % 2 else racing[::-1]:
                        process.rounds.append(process.train(steps))
                return racing
            for process in started:
                process.train(first)
                if is_there(process):
                    process.rounds = [process.train(steps) for _ in range(rounds)]
                    say(f"{process.name}: {1000 * statistics.median(process.seconds):.1f} ms a step")
                process.process.kill()
                process.process.wait()
            return [process for process in started if process.rounds]


def is_there(process: Process) -> bool:
    """Return whether an arm could start; say what it lacks."""
    if process.missing:
        say(f"{process.name}: left out, for {process.missing} isn't installed")
    return not process.missing


def configuration(size: dict[str, int], cache: Path, corpus: str) -> str:
    """Return the YAML of one size, which has Vaak do the same as its peers."""
    return f"""
task: lm
name: bench
model: {{d_model: {size["width"]}, num_layers: {size["layers"]}, num_heads: {size["heads"]}, dropout: 0.0}}
data:
  corpus: {corpus}
  tokenizer: {{type: byte_level, vocab_size: {size["vocab"]}}}
  layout: stream
  max_length: {size["length"]}
  cache_dir: {cache}
training:
  max_steps: 1000000
  batch_size: {size["batch"]}
  optimizer: {{type: adamw, lr: 1e-3, weight_decay: 0.01}}
  scheduler: {{type: cosine, warmup_steps: 10}}
  validation: {{interval: 1000000, interval_epochs: null}}
  checkpoint: {{interval: 1000000, interval_epochs: null, resume: auto}}
"""


def prepared(yaml: Path, folder: Path) -> Path:
    """The folder of a YAML's data, which is prepared now if it isn't yet."""
    from vaak.config.load import load
    from vaak.tasks.lm.task import LanguageModelTask

    run = folder / f"prepared-{yaml.stem}"
    run.mkdir(exist_ok=True)
    task = LanguageModelTask(load([yaml]).experiment, run, folder)
    task.prepare()
    return task.prepared.folder


def figures_of(process: Process, base: Process) -> dict[str, Any]:
    """Figures of an arm and what they are against another's; ``spread`` has the quartiles of those."""
    pairs = list(zip(process.seconds, base.seconds, strict=True))
    against = {
        "added_ms": [1000 * (ours - theirs) for ours, theirs in pairs],
        "ratio": [ours / theirs for ours, theirs in pairs],
        "added_memory": [ours - theirs for ours, theirs in zip(process.memory, base.memory, strict=True)],
    }
    return {
        "steps_per_second": 1 / statistics.median(process.seconds),
        "step_ms": 1000 * statistics.median(process.seconds),
        "memory": statistics.median(process.memory),
        **{name: statistics.median(values) for name, values in against.items()},
        "spread": {name: quartiles(values) for name, values in against.items()},
    }


def quartiles(values: list[float]) -> tuple[float, float]:
    """Return the first and third quartile; a single value is both."""
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def say(text: str) -> None:
    print(text, flush=True)


def table(title: str, rows: dict[str, dict[str, Any]]) -> None:
    """One arm per line; after a figure relative to another arm's, its quartiles."""
    say(f"\n{title}\n")
    say("| | steps/s | ms a step | added ms | ratio | memory, MB | added MB |")
    say("|---|---|---|---|---|---|---|")
    for name, row in rows.items():
        added, ratio = with_spread(row, "added_ms", "+.3f"), with_spread(row, "ratio", ".3f")
        speed = f"{row['steps_per_second']:.1f} | {row['step_ms']:.3f} | {added} | {ratio}"
        say(f"| {name} | {speed} | {row['memory']:.0f} | {with_spread(row, 'added_memory', '+.0f')} |")


def with_spread(row: dict[str, Any], name: str, form: str) -> str:
    """A figure with its quartiles."""
    low, high = row["spread"][name]
    return f"{row[name]:{form}} ({low:{form}} … {high:{form}})"
