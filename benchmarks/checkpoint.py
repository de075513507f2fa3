"""How long a checkpoint holds training up: seconds of the call against seconds of a step, and of the steps during it.

    python benchmarks/checkpoint.py [--steps 12] [--preset 40m]

The snapshot is copied between steps and written in the background; the aim is a stall below one step.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from pathlib import Path

from vaak.config.load import load
from vaak.core.callback import Callback, Run, StepReport
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
    options = parser.parse_args()
    logging.getLogger("vaak").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        file = folder / "bench.yml"
        file.write_text(f"""
task: lm
name: bench
model: {{preset: {options.preset}}}
data: {{corpus: {{type: grammar, num_sentences: 4000}}, tokenizer: {{type: byte_level, vocab_size: 4000}},
       layout: stream, max_length: 128}}
training: {{max_steps: {options.steps}, batch_size: 4, validation: {{interval: 100000}},
           checkpoint: {{interval: 100000, save_total_limit: 1}}}}
""")
        task = LanguageModelTask(load([file]).experiment, folder, folder)
        task.prepare()
        saver = Saver()
        trainer = Trainer(task, task.experiment.training, folder, [saver])
        trainer.fit()
        size = sum(path.stat().st_size for path in (folder / "checkpoints").rglob("*.safetensors")) / 2**20
    step = statistics.median(saver.steps[False][1:])
    stall = statistics.median(saver.stalls)
    meanwhile = statistics.median(saver.steps[True])
    print("| checkpoint, MiB | step, s | stall, s | stall / step | step during a write, s |\n|---|---|---|---|---|")
    print(f"| {size:.0f} | {step:.3f} | {stall:.3f} | {stall / step:.2f} | {meanwhile:.3f} |")


if __name__ == "__main__":
    main()
