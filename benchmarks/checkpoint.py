"""How long a checkpoint holds training up: seconds of the call against seconds of a step, and of the steps during it.

    python benchmarks/checkpoint.py [--steps 12] [--preset 40m] [--processes 2 --strategy fsdp]

The snapshot is copied between steps and written in the background; the aim is a stall below one step. Of several
processes, the first is timed.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vaak.config.load import load
from vaak.engine.callback import Callback, Run, StepReport
from vaak.engine.trainer import Trainer
from vaak.tasks.lm.task import LanguageModelTask


class Saver(Callback):
    """Saves every fourth step and times the call, and the steps, separately those during a write."""

    def __init__(self) -> None:
        self.stalls: list[float] = []
        self.steps: dict[bool, list[float]] = {True: [], False: []}

    def on_step_end(self, trainer: Run, report: StepReport) -> None:
        assert isinstance(trainer, Trainer)
        self.steps[report.step % 4 == 1 and report.step > 1].append(report.seconds)
        if report.step % 4 == 0:
            trainer.saving.writer.finish()
            start = time.perf_counter()
            trainer.saving.save()
            self.stalls.append(time.perf_counter() - start)
            trainer.clock.lap()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--preset", default="40m")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--strategy", choices=["ddp", "zero1", "fsdp"], default="ddp")
    parser.add_argument("--folder", type=Path, help="where one of several processes meets the others")
    options = parser.parse_args()
    logging.getLogger("vaak").addHandler(logging.NullHandler())
    if options.folder is not None:
        measure(options.folder)
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "bench.yml").write_text(f"""
task: lm
name: bench
model: {{preset: {options.preset}}}
data: {{corpus: {{type: grammar, num_sentences: 4000}}, tokenizer: {{type: byte_level, vocab_size: 4000}},
       layout: stream, max_length: 128}}
training: {{max_steps: {options.steps}, batch_size: 4, validation: {{interval: 100000}},
           checkpoint: {{interval: 100000, save_total_limit: 1}}, gradient_accumulation_steps: {options.processes},
           distributed: {{strategy: {options.strategy}}}}}
""")
        task_in(folder).prepare()
        if options.processes > 1:
            start_processes(options.processes, place)
        else:
            measure(folder)


def task_in(folder: Path) -> LanguageModelTask:
    return LanguageModelTask(load([folder / "bench.yml"]).experiment, folder, folder)


def start_processes(number: int, folder: str) -> None:
    """Run this program in several processes, and wait for them."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    together = os.environ | {"WORLD_SIZE": str(number), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, *sys.argv, "--folder", folder]
    places = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(number))
    processes = [subprocess.Popen(command, env=together | place) for place in places]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit("a process failed")


def measure(folder: Path) -> None:
    """Train in a folder, and have the first process print the table."""
    task = task_in(folder)
    saver = Saver()
    trainer = Trainer(task, task.experiment.training, folder, [saver])
    trainer.fit()
    size = sum(path.stat().st_size for path in (folder / "checkpoints").rglob("*.safetensors")) / 2**20
    step = statistics.median(saver.steps[False][1:])
    stall = statistics.median(saver.stalls)
    meanwhile = statistics.median(saver.steps[True])
    if not trainer.ranks.is_main:
        return
    print("| checkpoint, MiB | step, s | stall, s | stall / step | step during a write, s |\n|---|---|---|---|---|")
    print(f"| {size:.0f} | {step:.3f} | {stall:.3f} | {stall / step:.2f} | {meanwhile:.3f} |")


if __name__ == "__main__":
    main()
