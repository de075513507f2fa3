"""Examples a second of a text classifier in training: Vaak against transformers.Trainer, with LoRA by peft in both.

    python benchmarks/classification.py
    python benchmarks/classification.py --clock cpu --rounds 5 --json classification.json

Both train the same BERT with random weights (transformers' own), on the same token ids, with the same AdamW and bound
of the gradient, in batches of as many texts, padded to their longest, and log every 50 steps as they do by default. All
take turns in one process, each round from new weights; its first step is left out. A figure is the median over rounds,
after one that isn't counted; the ratio is the median over rounds of Vaak's time against the Trainer's of the same
round, with its quartiles after it.

- any order: batches of texts in random order
- by length: Vaak's bucketed batches, and ``train_sampling_strategy="group_by_length"`` of the Trainer
- LoRA: any order; the low-rank adapters of all queries and values, and the head, are trained
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
from racing import quartiles
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertModel, Trainer, TrainerCallback, TrainingArguments

from vaak.config.load import load
from vaak.engine.callback import Callback
from vaak.nn.config import LoraConfig
from vaak.nn.lora import add_lora
from vaak.runs.start import train
from vaak.tasks.classification.task import ClassificationTask

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
RATE, DECAY, NUM_TEXTS, CLASSES, RANK, WORDS = 1e-3, 0.01, 4096, 10, 8, 4000
TARGETS = ["query", "value"]
"""The layers of each block's attention that low-rank adapters adapt, as BERT calls them."""
WAYS = ("any order", "by length", "LoRA")

Tick = Callable[[], bool]
"""Ends a step; true at the last of a round."""


class Classifier(nn.Module):
    """Scores ``(row, class)`` of rows of tokens, as Vaak calls a model."""

    def __init__(self, options: argparse.Namespace, vocab_size: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        sizes = BertConfig(
            vocab_size=vocab_size,
            hidden_size=options.width,
            num_hidden_layers=options.layers,
            num_attention_heads=options.width // 32,
            intermediate_size=4 * options.width,
        )
        self.bert = BertModel(sizes, add_pooling_layer=False)
        self.head = nn.Linear(options.width, CLASSES)

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        states = self.bert(input_ids=inputs, attention_mask=mask).last_hidden_state
        scores: Tensor = self.head(states[:, 0])
        return scores


class WithLoss(Classifier):
    """The same as the Trainer calls it: it gives its own loss."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        logits = super().forward(input_ids, attention_mask)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Job:
    """What all train on: texts of random words, whose first one decides their class; prepared once, by Vaak."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        rng = np.random.default_rng(0)
        texts = [rng.integers(0, WORDS, min(60, 4 + rng.poisson(rng.gamma(2.0, 8.0)))) for _ in range(NUM_TEXTS)]
        rows = [{"text": " ".join(f"w{word}" for word in text), "label": f"c{text[0] % CLASSES}"} for text in texts]
        (folder / "texts.json").write_text(json.dumps(rows))
        values = {
            "task": "classification",
            "model": {"architecture": "transformer", "pooling": "first", "dropout": 0.1},
            "data": {
                "corpus": {"train": str(folder / "texts.json"), "train_fraction": 0.98, "valid_fraction": 0.01},
                "tokenizer": {"type": "word", "min_frequency": 1},
                "max_length": 64,
                "cache_dir": str(folder / "prepared"),
            },
            "training": {
                "max_steps": 1_000_000,
                "batch_size": options.batch,
                "device": "cpu",
                "optimizer": {"lr": RATE, "weight_decay": DECAY},
                "scheduler": {"type": "constant"},
                "logging": {"tensorboard": False},
            },
        }
        (folder / "classifier.yml").write_text(json.dumps(values))
        task = self.task(folder / "first")
        task.prepare()
        self.dataset, self.vocab_size = task.dataset("train"), task.tokenizer.vocab_size
        self.pad = task.tokenizer.pad_id

    def loaded(self, run: Path, *overrides: str) -> Any:
        return load([self.folder / "classifier.yml"], [f"run_dir={run}", *overrides])

    def task(self, run: Path, *overrides: str, lora: LoraConfig | None = None) -> ClassificationTask:
        """Vaak's task with the model that all train."""
        job, loaded = self, self.loaded(run, *overrides)

        class Task(ClassificationTask):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                self.evaluation_splits = ()

            def model(self) -> Any:
                return add_lora(Classifier(job.options, job.vocab_size), lora, also_trained=("head",))

        run.mkdir(parents=True, exist_ok=True)
        return Task(loaded.experiment, run, loaded.folder)

    def examples(self) -> list[dict[str, Any]]:
        """The same token ids and classes as the Trainer reads them."""
        rng = np.random.default_rng(0)
        found = (self.dataset.example(index, rng) for index in range(len(self.dataset.lengths)))
        return [{"input_ids": one.inputs.tolist(), "labels": int(one.targets[0])} for one in found]


def by_vaak(job: Job, way: str, tick: Tick) -> None:
    class Ticking(Callback):
        def on_step_end(self, trainer: Any, report: Any) -> None:
            if tick():
                trainer.request_stop("the round is over")

    overrides = ["training.batching=bucketed"] if way == "by length" else []
    lora = LoraConfig(rank=RANK, alpha=2 * RANK, targets=tuple(TARGETS)) if way == "LoRA" else None
    with tempfile.TemporaryDirectory(dir=job.folder) as run:
        train(job.loaded(Path(run), *overrides), (Ticking(),), job.task(Path(run), *overrides, lora=lora))


def by_the_trainer(job: Job, way: str, tick: Tick) -> None:
    class Ticking(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = tick()

    def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        inputs = [torch.tensor(row["input_ids"]) for row in rows]
        return {
            "input_ids": nn.utils.rnn.pad_sequence(inputs, batch_first=True, padding_value=job.pad),
            "attention_mask": torch.arange(int(lengths.max())) < lengths[:, None],
            "labels": torch.tensor([row["labels"] for row in rows]),
        }

    options = TrainingArguments(
        output_dir=str(job.folder / "trainer"),
        max_steps=1_000_000,
        per_device_train_batch_size=job.options.batch,
        learning_rate=RATE,
        weight_decay=DECAY,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        use_cpu=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        train_sampling_strategy="group_by_length" if way == "by length" else "random",
        save_strategy="no",
        logging_steps=50,
        report_to="none",
    )
    model: Any = WithLoss(job.options, job.vocab_size)
    if way == "LoRA":
        config = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=TARGETS, modules_to_save=["head"])
        model = peft.get_peft_model(model, config)
    rows: Any = job.examples()
    Trainer(model, options, data_collator=collate, train_dataset=rows, callbacks=[Ticking()]).train()


def seconds_of(work: Callable[[Job, str, Tick], None], job: Job, way: str) -> float:
    """Return the mean seconds of a step in one round, without its first; output is discarded."""
    clock, steps = CLOCKS[job.options.clock], job.options.steps
    times: list[float] = []

    def tick() -> bool:
        times.append(clock())
        return len(times) > int(steps)

    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        work(job, way, tick)
    return (times[-1] - times[0]) / (len(times) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32, help="texts of a batch")
    parser.add_argument("--steps", type=int, default=60, help="of a round, after its first")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: processor time, where others work, too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    arms = {"Vaak": by_vaak, "transformers.Trainer": by_the_trainer}
    with tempfile.TemporaryDirectory() as folder:
        job = Job(options, Path(folder))
        seconds: dict[tuple[str, str], list[float]] = {(way, arm): [] for way in options.ways for arm in arms}
        for number in range(options.rounds + 1):
            for (way, arm), found in seconds.items():
                taken = seconds_of(arms[arm], job, way)
                found += [taken] if number else []
    print(f"\n| texts a second | {' | '.join(arms)} | Vaak’s time ÷ the Trainer’s |\n|---|{'---|' * (len(arms) + 1)}")
    results = {}
    for way in options.ways:
        ours, theirs = (seconds[way, arm] for arm in arms)
        ratios = [own / other for own, other in zip(ours, theirs, strict=True)]
        rates = {arm: options.batch / statistics.median(seconds[way, arm]) for arm in arms}
        results[way] = {"texts_per_second": rates, "ratio": statistics.median(ratios), "quartiles": quartiles(ratios)}
        low, high = quartiles(ratios)
        shown = " | ".join(f"{rate:.0f}" for rate in rates.values())
        print(f"| {way} | {shown} | {statistics.median(ratios):.3f} ({low:.3f} … {high:.3f}) |", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({"options": {**vars(options), "json": None}, "results": results}, indent=1))


if __name__ == "__main__":
    main()
