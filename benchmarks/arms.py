"""The arms that engine.py compares: one process trains a small GPT in one way, in rounds of a given number of steps.

    python benchmarks/arms.py ARM JOB      ARM: by hand, accelerate, transformers, Lightning or Vaak; JOB: a JSON object

Each line on its input is a number of steps to train, and is answered by a line of JSON: ``seconds`` of a step (the
first, in which things are made, left out), ``processor``, those of the processor, ``memory``, the most MB the process
had used until then, and ``first_step``, the seconds from the process's start to the end of its very first step
(``first_step_after_order``: from the line on its input, with everything imported). All have the same model, tokens,
AdamW (fused), bound on the gradient's norm and learning rates; with ``logging`` each reports every 50 steps as it does
by default, to console and TensorBoard (Vaak to JSONL too). With ``device`` cuda (gpu.py) memory is the most that the
GPU had allocated; with ``precision`` bf16 all use autocast.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

RATE, DECAY, WARMUP, ALL_STEPS, LOG_EVERY = 1e-3, 0.01, 10, 1_000_000, 50


class Block(nn.Module):
    """Attention and feed-forward, each after its norm."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        heads = self.attention(self.norms[0](x)).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind()
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        changed: Tensor = x + self.feed_forward(self.norms[1](x))
        return changed


class SmallGPT(nn.Module):
    """Scores of the next token (batch, time, vocab)."""

    def __init__(self, size: dict[str, int]) -> None:
        super().__init__()
        torch.manual_seed(0)
        width = size["width"]
        self.embedding, self.places = nn.Embedding(size["vocab"], width), nn.Embedding(size["length"], width)
        self.blocks = nn.Sequential(*(Block(width, size["heads"]) for _ in range(size["layers"])))
        self.norm = nn.LayerNorm(width)
        # GPT-2's. By torch's default of 1 the first scores are so far apart that most gradients of the vocabulary are
        # below the smallest normal number, with which some processors multiply many times slower, in some arms only.
        for table in (self.embedding, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor, documents: None = None) -> Tensor:
        x = self.embedding(tokens) + self.places.weight[: tokens.shape[1]]
        return F.linear(self.norm(self.blocks(x)), self.embedding.weight)


class WithLoss(nn.Module):
    """The model as transformers wants it: it gives its own loss."""

    def __init__(self, size: dict[str, int]) -> None:
        super().__init__()
        self.gpt = SmallGPT(size)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": loss_of(self.gpt(input_ids), labels)}


class Windows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Windows of tokens and, for each token, the next."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.tokens = number_tokens(job)
        self.length: int = job["size"]["length"]

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        start = index * self.length
        window = torch.from_numpy(self.tokens[start : start + self.length + 1].astype(np.int64))
        return {"input_ids": window[:-1], "labels": window[1:]}


def number_tokens(job: dict[str, Any]) -> np.ndarray:
    return np.asarray(np.memmap(job["tokens"], dtype=job["dtype"], mode="r"))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def factor(step: int) -> float:
    """The learning rate's: a linear warm-up, then a cosine."""
    return min(1.0, (step + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * step / ALL_STEPS))


def autocast(job: dict[str, Any]) -> contextlib.AbstractContextManager[Any]:
    """Return the context of a forward pass in the precision of a job."""
    return torch.autocast(job["device"], torch.bfloat16, enabled=job["precision"] == "bf16")


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True)


class Watch:
    """``tick()`` ends a step; it is true at the last of a round."""

    begun = float(os.environ.get("BENCHMARK_BEGUN", "0")) or time.time()
    first_step: float | None = None

    def __init__(self, steps: int, device: str = "cpu") -> None:
        self.steps, self.taken, self.device = steps, 0, device
        self.order, self.first_step_after_order = time.perf_counter(), 0.0
        self.start = self.seconds = self.memory = self.begun_at = self.processor = 0.0

    def tick(self) -> bool:
        if self.device == "cuda" and self.taken in (0, self.steps - 1):
            torch.cuda.synchronize()
        if self.taken == 0:
            Watch.first_step = Watch.first_step or time.time() - Watch.begun
            self.start, self.begun_at = time.perf_counter(), time.process_time()
            self.first_step_after_order = self.start - self.order
        self.taken += 1
        if self.taken == self.steps:
            self.seconds = (time.perf_counter() - self.start) / (self.steps - 1)
            self.processor = (time.process_time() - self.begun_at) / (self.steps - 1)
            self.memory = torch.cuda.max_memory_allocated() / 1e6 if self.device == "cuda" else most_memory()
        return self.taken >= self.steps


def most_memory() -> float:
    """The most MB that this process has had in memory."""
    with contextlib.suppress(OSError):  # Linux; ru_maxrss there counts what the parent had, too
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1000
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1e6 if sys.platform == "darwin" else 1e3)


Arm = Generator[None, Watch, None]
"""Trains a round for each watch that it is sent, until the watch says to stop."""


def by_hand(job: dict[str, Any], made: Callable[[dict[str, int]], nn.Module] = SmallGPT) -> Arm:
    """Train in the shortest loop possible, without logging: the baseline of all other arms."""
    size, tokens, rng = job["size"], number_tokens(job), np.random.default_rng(0)
    length, starts = size["length"], np.arange(0, len(tokens) - size["length"] - 1, size["length"])
    while True:
        watch = yield
        with torch.device(job["device"]):
            model = made(size).train()
        optimizer = adamw(model)
        for step in itertools.count():
            chosen = rng.choice(starts, size["batch"])
            rows = torch.from_numpy(np.stack([tokens[start : start + length + 1] for start in chosen]).astype(np.int64))
            rows = rows.to(job["device"])
            with autocast(job):
                loss = loss_of(model(rows[:, :-1]), rows[:, 1:])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = RATE * factor(step)
            optimizer.step()
            if watch.tick():
                break


def by_hand_compiled(job: dict[str, Any]) -> Arm:
    """The same with ``torch.compile``."""
    yield from by_hand(job, lambda size: torch.compile(SmallGPT(size)))  # type: ignore[arg-type, return-value]


def by_ddp(job: dict[str, Any]) -> Arm:
    """The hand-written loop as one of several processes, with torch's ``DistributedDataParallel``."""
    torch.distributed.init_process_group("gloo")
    yield from by_hand(job, lambda size: nn.parallel.DistributedDataParallel(SmallGPT(size)))


def by_litgpt(job: dict[str, Any]) -> Arm:
    """The hand-written loop with litgpt's model, of GPT-2's kind in the same sizes."""
    from litgpt import GPT, Config

    def made(size: dict[str, int]) -> nn.Module:
        sizes = {"n_layer": size["layers"], "n_head": size["heads"], "n_embd": size["width"]}
        more = {"block_size": size["length"], "padded_vocab_size": size["vocab"], "rotary_percentage": 1.0}
        model: nn.Module = GPT(Config(**sizes, **more))
        return model

    yield from by_hand(job, made)


def by_accelerate(job: dict[str, Any]) -> Arm:
    from accelerate import Accelerator
    from tqdm import tqdm

    logged = {"log_with": "tensorboard", "project_dir": job["folder"]} if job["logging"] else {}
    mixed = "bf16" if job["precision"] == "bf16" else "no"
    accelerator = Accelerator(cpu=job["device"] == "cpu", mixed_precision=mixed, **logged)
    if job["logging"]:
        accelerator.init_trackers("accelerate")
    while True:
        watch = yield
        model = SmallGPT(job["size"]).train()
        optimizer = adamw(model)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        loader = torch.utils.data.DataLoader(Windows(job), batch_size=job["size"]["batch"], shuffle=True)
        model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        for step, batch in enumerate(tqdm(batches, disable=not job["logging"])):
            with accelerator.autocast():
                loss = loss_of(model(batch["input_ids"]), batch["labels"])
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if job["logging"] and step % LOG_EVERY == 0:
                accelerator.log({"loss": loss.item()}, step=step)
            if watch.tick():
                break
        accelerator.free_memory()


def by_transformers(job: dict[str, Any]) -> Arm:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Ticking(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = watch.tick()

    while True:
        watch = yield
        options = TrainingArguments(
            output_dir=job["folder"],
            max_steps=ALL_STEPS,
            per_device_train_batch_size=job["size"]["batch"],
            learning_rate=RATE,
            weight_decay=DECAY,
            lr_scheduler_type="cosine",
            warmup_steps=WARMUP,
            optim="adamw_torch_fused",
            use_cpu=job["device"] == "cpu",
            bf16=job["precision"] == "bf16",
            dataloader_pin_memory=job["device"] != "cpu",
            save_strategy="no",
            logging_strategy="steps" if job["logging"] else "no",
            logging_steps=LOG_EVERY,
            report_to="tensorboard" if job["logging"] else "none",
            disable_tqdm=not job["logging"],
        )
        trainer = Trainer(WithLoss(job["size"]), options, train_dataset=Windows(job), callbacks=[Ticking()])
        trainer.train()


def by_lightning(job: dict[str, Any]) -> Arm:
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import TensorBoardLogger

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.gpt = SmallGPT(job["size"])

        def training_step(self, batch: dict[str, Tensor], number: int) -> Tensor:
            loss = loss_of(self.gpt(batch["input_ids"]), batch["labels"])
            if job["logging"]:
                self.log("loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = adamw(self)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    class Ticking(pl.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop = watch.tick()

    while True:
        watch = yield
        trainer = pl.Trainer(
            max_steps=ALL_STEPS,
            accelerator=job["device"],
            precision="bf16-mixed" if job["precision"] == "bf16" else "32-true",
            gradient_clip_val=1.0,
            callbacks=[Ticking()],
            enable_checkpointing=False,
            logger=TensorBoardLogger(job["folder"]) if job["logging"] else False,
            log_every_n_steps=LOG_EVERY,
            enable_progress_bar=job["logging"],
            enable_model_summary=job["logging"],
        )
        loader = torch.utils.data.DataLoader(Windows(job), batch_size=job["size"]["batch"], shuffle=True)
        trainer.fit(Module(), loader)


def by_vaak(job: dict[str, Any]) -> Arm:
    """The run that ``vaak train`` would make of the job's YAML, the model apart."""
    from vaak.config.load import load
    from vaak.engine import step
    from vaak.engine.callback import Callback
    from vaak.runs.start import train
    from vaak.tasks.lm.task import LanguageModelTask

    class Task(LanguageModelTask):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.evaluation_splits = ()  # it ends before any evaluation, of which this model is not capable

        def model(self) -> Any:
            return super().model() if job.get("own_model") else SmallGPT(job["size"])

    class Ticking(Callback):
        def on_step_end(self, trainer: Any, report: Any) -> None:
            if watch.tick():
                if "jump" in job:  # as if the epoch had been trained up to there
                    place = int(job["jump"] * trainer.data.planner.num_microbatches)
                    trainer.position.step = trainer.position.place = place
                trainer.request_stop("the round is over")

    if job["device"] == "cuda":  # the peak is that of all steps, as in the other arms
        torch.cuda.reset_peak_memory_stats = lambda *_: None
    if job.get("unchecked"):
        step.reason_to_skip = lambda *_: None
    while True:
        watch = yield
        with tempfile.TemporaryDirectory(dir=job["folder"]) as folder:
            run = Path(job["run"] or folder)
            loaded = load([job["yaml"]], [f"run_dir={run}", *job["overrides"]])
            task = Task(loaded.experiment, run, loaded.folder)
            train(loaded, (Ticking(),), task)


ARMS = {
    "by hand": by_hand,
    "by hand, compiled": by_hand_compiled,
    "DDP": by_ddp,
    "litgpt": by_litgpt,
    "accelerate": by_accelerate,
    "transformers": by_transformers,
    "Lightning": by_lightning,
    "Vaak": by_vaak,
}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the libraries print is not an answer
    job = json.loads(sys.argv[2])
    torch.set_num_threads(job["threads"])
    arm = ARMS[sys.argv[1]](job)
    try:
        next(arm)
    except ModuleNotFoundError as error:
        answers.write(json.dumps({"missing": error.name}) + "\n")
        return
    for line in sys.stdin:
        watch = Watch(int(line), job["device"])
        arm.send(watch)
        figures = {"seconds": watch.seconds, "memory": watch.memory, "first_step": Watch.first_step}
        figures |= {"first_step_after_order": watch.first_step_after_order, "processor": watch.processor}
        answers.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
