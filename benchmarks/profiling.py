"""What profiling costs: milliseconds of a step with it on and off, the arms taking turns.

    python benchmarks/profiling.py [--rounds 9] [--threads 1] [--steps-factor 1.0]

Both are whole ``trainer.fit()`` loops with the default logging but TensorBoard, on the sizes of benchmarks/engine.py; a
ratio is that of two neighbours in one round, and the median over rounds is given. "off twice" is one arm against
itself, so it shows the machine's noise.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from pathlib import Path

import torch
from racing import SIZES

from vaak.callbacks.profiler import InterbatchProfiler
from vaak.callbacks.step_log import StepLogCallback
from vaak.config.load import load
from vaak.engine.callback import Callback, Run, StepReport
from vaak.engine.trainer import Trainer
from vaak.tasks.lm.task import LanguageModelTask

FIRST = 10
"""Steps before the watch starts."""


def configuration(folder: Path, size: dict[str, int]) -> Path:
    """The YAML of one size."""
    file = folder / "bench.yml"
    file.write_text(f"""
task: lm
name: bench
model: {{d_model: {size["width"]}, num_layers: {size["layers"]}, num_heads: {size["heads"]}, dropout: 0.0}}
data:
  corpus: {{type: grammar, num_sentences: 12000}}
  tokenizer: {{type: byte_level, vocab_size: {size["vocab"]}}}
  layout: stream
  max_length: {size["length"]}
  cache_dir: {folder / "cache"}
training:
  max_steps: {size["steps"]}
  batch_size: {size["batch"]}
  scheduler: {{type: cosine, warmup_steps: 10}}
  validation: {{interval: 1000000}}
  checkpoint: {{interval: 1000000}}
""")
    return file


class Stopwatch(Callback):
    """Times the steps after the first ones, without preparation and end."""

    def on_step_end(self, trainer: Run, report: StepReport) -> None:
        if report.step == FIRST:
            self.begun = time.perf_counter()
        if report.step == trainer.total_steps:
            self.elapsed = time.perf_counter() - self.begun


def seconds_a_step(task: LanguageModelTask, folder: Path, profiling: bool) -> float:
    """Wall time of a step of Vaak's loop."""
    watch = Stopwatch()
    profilers = [InterbatchProfiler(50)] if profiling else []
    with tempfile.TemporaryDirectory(dir=folder) as run:
        trainer = Trainer(task, task.experiment.training, Path(run), [StepLogCallback(50), *profilers, watch])
        trainer.fit()
    return watch.elapsed / (trainer.total_steps - FIRST)


def compare(size: dict[str, int], rounds: int) -> list[tuple[float, float, float]]:
    """Seconds a step off, on, and off again, round after round; every second round goes the other way."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        task = LanguageModelTask(load([configuration(folder, size)]).experiment, folder, folder)
        task.prepare()
        seconds_a_step(task, folder, profiling=True)  # warm-up
        measured = []
        for turn in range(rounds):
            arms = [seconds_a_step(task, folder, profiling) for profiling in (False, True, False)]
            measured.append((arms[0], arms[1], arms[2]) if turn % 2 == 0 else (arms[2], arms[1], arms[0]))
        return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps-factor", type=float, default=1.0, help="longer or shorter runs")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.getLogger("vaak").addHandler(logging.NullHandler())
    print("| size | off, ms | on, ms | on / off | off twice |\n|---|---|---|---|---|")
    for name, size in SIZES.items():
        rounds = compare(size | {"steps": FIRST + round(options.steps_factor * size["steps"])}, options.rounds)
        off, on = (1000 * statistics.median(times) for times in list(zip(*rounds, strict=True))[:2])
        ratio = statistics.median(times[1] / times[0] for times in rounds)
        noise = statistics.median(times[2] / times[0] for times in rounds)
        print(f"| {name} | {off:.3f} | {on:.3f} | {ratio:.3f} | {noise:.3f} |", flush=True)


if __name__ == "__main__":
    main()
