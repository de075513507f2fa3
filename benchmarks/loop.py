"""Milliseconds that Vaak's loop adds to a step, against a hand-written PyTorch loop on the same model.

    python benchmarks/loop.py [--rounds 5] [--threads 1]

Both draw windows from the same memory-mapped tokens, run the same model with AdamW (fused), clip the norm and set the
rate. Vaak's is the whole `trainer.fit()` loop: plan, reader with seeded generators, counts, normalisation, report, and
with "default logging" console, metrics.jsonl and TensorBoard every 50 steps. The arms take turns; medians over rounds.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from vaak.callbacks.console import ConsoleCallback
from vaak.callbacks.step_log import StepLogCallback
from vaak.callbacks.tensorboard import TensorBoardCallback
from vaak.config.load import load
from vaak.engine.trainer import Trainer
from vaak.tasks.lm.task import LanguageModelTask

SIZES = {
    "micro": {"d_model": 32, "num_layers": 1, "num_heads": 2, "vocab": 600, "length": 32, "batch": 4, "steps": 600},
    "tiny": {"d_model": 64, "num_layers": 1, "num_heads": 2, "vocab": 4000, "length": 64, "batch": 8, "steps": 200},
    "small": {"d_model": 128, "num_layers": 4, "num_heads": 4, "vocab": 4000, "length": 128, "batch": 8, "steps": 40},
}


def configuration(folder: Path, size: dict[str, int]) -> Path:
    """The YAML of one size."""
    file = folder / "bench.yml"
    file.write_text(f"""
task: lm
name: bench
model: {{d_model: {size["d_model"]}, num_layers: {size["num_layers"]}, num_heads: {size["num_heads"]}, dropout: 0.0}}
data:
  corpus: {{type: grammar, num_sentences: 12000}}
  tokenizer: {{type: byte_level, vocab_size: {size["vocab"]}}}
  layout: stream
  max_length: {size["length"]}
  cache_dir: {folder / "cache"}
training:
  epochs: 1000
  max_steps: {size["steps"]}
  batch_size: {size["batch"]}
  optimizer: {{type: adamw, lr: 1e-3}}
  scheduler: {{type: cosine, warmup_steps: 10}}
  validation: {{interval: 1000000}}
  checkpoint: {{interval: 1000000}}
""")
    return file


def by_hand(task: LanguageModelTask, size: dict[str, int]) -> float:
    """Seconds a step of the hand-written loop."""
    torch.manual_seed(0)
    model = task.model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    tokens = task.prepared.store("train").tokens
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    for _ in range(size["steps"]):
        starts = rng.integers(len(tokens) - size["length"] - 1, size=size["batch"])
        window = np.stack([tokens[at : at + size["length"] + 1] for at in starts]).astype(np.int64)
        batch = torch.from_numpy(window)
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return (time.perf_counter() - start) / size["steps"]


class Stopwatch(StepLogCallback):
    """Times the steps alone: not the evaluation and the checkpoint at the end."""

    def on_fit_start(self, trainer: Trainer) -> None:
        self.begun = time.perf_counter()

    def on_step_end(self, trainer: Trainer, report: object) -> None:
        if trainer.position.step == trainer.total_steps:
            self.elapsed = time.perf_counter() - self.begun


def by_vaak(task: LanguageModelTask, folder: Path, logging_on: bool) -> float:
    """Seconds a step of Vaak's loop."""
    watch = Stopwatch()
    callbacks = [StepLogCallback(50), ConsoleCallback(False), TensorBoardCallback()] if logging_on else []
    with tempfile.TemporaryDirectory(dir=folder) as run:
        trainer = Trainer(task, task.experiment.training, Path(run), [*callbacks, watch])
        trainer.fit()
    return watch.elapsed / trainer.total_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.getLogger("vaak").addHandler(logging.NullHandler())
    print("| size | by hand, ms | Vaak quiet, ms | ratio | default logging, ms | ratio |\n|---|---|---|---|---|---|")
    for name in SIZES:
        rounds = compare(SIZES[name], options.rounds)
        hand, quiet, logged = (1000 * statistics.median(times) for times in zip(*rounds, strict=True))
        ratios = [statistics.median(times[arm] / times[0] for times in rounds) for arm in (1, 2)]
        print(f"| {name} | {hand:.2f} | {quiet:.2f} | {ratios[0]:.2f} | {logged:.2f} | {ratios[1]:.2f} |", flush=True)


def compare(size: dict[str, int], rounds: int) -> list[tuple[float, float, float]]:
    """Seconds a step by hand, by Vaak quiet, and by Vaak with its default logging, round after round."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        task = LanguageModelTask(load([configuration(folder, size)]).experiment, folder, folder)
        task.prepare()
        by_vaak(task, folder, logging_on=True)  # warm-up
        return [(by_hand(task, size), by_vaak(task, folder, False), by_vaak(task, folder, True)) for _ in range(rounds)]


if __name__ == "__main__":
    main()
