"""A task of the smallest kind that has everything: ragged rows, augmentation, dropout, two losses, two units, meters.

It predicts each token from the one before. Tests of the engine, the loader and the callbacks train it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vaak.config.training import LossConfig, TrainingConfig
from vaak.core.batch import Batch, Term
from vaak.core.task import Dataset, Meters, Task
from vaak.data.loader import Microbatch
from vaak.engine.callback import Callback, StepReport
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.trainer import Trainer
from vaak.engine.training_data import StepData
from vaak.nn.losses import losses_of_logits, make_loss

VOCAB_SIZE, LONGEST, IGNORED = 13, 9, -100


class ToyDataset(Dataset):
    """Rows of 1 to 9 tokens; ``noise`` is the part of the inputs that augmentation replaces; ``bad`` can't be read."""

    strata, row_capacity, draws_globally = None, None, False

    def __init__(self, num_examples: int, noise: float = 0.0, bad: Sequence[int] = ()) -> None:
        self.fingerprint = f"toy of {num_examples}"
        self.lengths = np.random.default_rng(num_examples).integers(1, LONGEST + 1, num_examples)
        self.noise, self.bad = noise, tuple(bad)
        self.reads: list[int] = []

    def example(self, index: int, rng: np.random.Generator) -> np.ndarray:
        self.reads.append(index)
        if index in self.bad:
            raise ValueError("the file is torn")
        tokens = np.random.default_rng((index, 7)).integers(VOCAB_SIZE, size=int(self.lengths[index]) + 1)
        noisy = rng.random(len(tokens)) < self.noise
        return np.where(noisy, rng.integers(VOCAB_SIZE, size=len(tokens)), tokens)

    def collate(self, rows: list[list[np.ndarray]]) -> Batch:
        examples = [example for row in rows for example in row]
        shape = (len(examples), max(len(example) for example in examples) - 1)
        inputs, targets = np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64)
        for row, example in enumerate(examples):
            inputs[row, : len(example) - 1], targets[row, : len(example) - 1] = example[:-1], example[1:]
        counts = {"token": torch.from_numpy((targets != IGNORED).sum(1)), "example": torch.ones(len(examples))}
        return Batch({"inputs": torch.from_numpy(inputs), "targets": torch.from_numpy(targets)}, counts)

    def describe(self, index: int) -> str:
        return f"toy.txt line {index + 1}"


class ToyModel(nn.Module):
    """Scores of every token after each token; it has a buffer, and random features to redraw."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB_SIZE, 8)
        self.dropout = nn.Dropout(dropout)
        self.features = RandomFeatures(8)
        self.head = nn.Linear(8, VOCAB_SIZE)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(self.dropout(self.embedding(inputs))))
        return scores


class RandomFeatures(nn.Module):
    """Adds a random projection, redrawn from a key as Performers do."""

    projection: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("projection", torch.zeros(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(x @ self.projection)

    def redraw_features(self, key: int) -> None:
        generator = torch.Generator().manual_seed(key)
        self.projection.copy_(torch.randn(self.projection.shape, generator=generator))


class ToyMeters(Meters):
    """Loss per token, and how many tokens there were."""

    protocol: dict[str, str] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.totals = {"nats": 0.0, "token": 0.0}

    def update(self, model: nn.Module, batch: Batch) -> None:
        logits = model(batch["inputs"]).flatten(0, 1)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses = nn.functional.cross_entropy(logits, batch["targets"].flatten(), ignore_index=IGNORED, reduction="sum")
        self.totals["nats"] += float(losses)
        self.totals["token"] += batch.totals()["token"]

    def sums(self) -> dict[str, float]:
        return self.totals

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        return {"loss": sums["nats"] / sums["token"], "tokens": sums["token"]}


@dataclass
class ToyTask(Task):
    """``scripted`` replaces the evaluations' losses by these, one after another."""

    num_examples: int = 40
    noise: float = 0.3
    dropout: float = 0.2
    bad: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    loss: LossConfig = field(default_factory=LossConfig)
    scripted: Iterator[float] | None = None
    evaluation_splits = ("valid",)

    def prepare(self) -> None: ...

    def dataset(self, split: str) -> ToyDataset:
        return ToyDataset(self.num_examples, self.noise, self.bad) if split == "train" else ToyDataset(10)

    def model(self) -> ToyModel:
        return ToyModel(self.dropout).to(self.dtype)

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        targets = batch["targets"]
        logits, valid = model(batch["inputs"]), targets != IGNORED
        main = make_loss(self.loss)
        terms = losses_of_logits(main, self.loss.auxiliary, logits, targets, "token", valid)
        return {"main": terms.pop(main.name), **terms}

    def meters(self, split: str) -> ToyMeters:
        return ToyMeters() if self.scripted is None else ScriptedMeters(next(self.scripted))

    def show(self, batch: Batch) -> list[str]:
        return [" ".join(map(str, row)) for row in batch["inputs"].tolist()]

    def predict(self, model: nn.Module, inputs: Iterable[Any]) -> Iterable[Any]:
        return (model(tokens).argmax(-1) for tokens in inputs)

    def samples(self, model: nn.Module) -> list[str]:
        return []


@dataclass
class Poisoned(ToyTask):
    """The loss of every batch that holds example ``poison`` is not a number."""

    poison: int = 9
    value: float = float("nan")

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        terms = super().losses(model, batch)
        if any(self.poison in row for row in batch.indices):
            terms["main"] = Term(terms["main"].total * self.value, "token")
        return terms


class ScriptedMeters(ToyMeters):
    def __init__(self, loss: float) -> None:
        super().__init__()
        self.loss = loss

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        return {"loss": self.loss}


QUIET: dict[str, Any] = {
    "device": "cpu",
    "batch_size": 4,
    "gradient_accumulation_steps": 3,
    "epochs": 2,
    "optimizer": {"lr": 0.01},
    "scheduler": {"type": "cosine", "warmup_steps": 2},
    "validation": {"interval": None, "interval_epochs": None},
    "checkpoint": {"interval_epochs": None, "save_total_limit": None},
}
"""Four steps an epoch, of 3, 3, 3 and 1 microbatches; evaluated and saved after the last step."""


class StopAt(Callback):
    """Stops the run at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, trainer: Any, report: StepReport) -> None:
        if report.step == self.step:
            trainer.request_stop("enough")


def toy_trainer(
    directory: Path,
    *callbacks: Callback,
    task: ToyTask | None = None,
    ranks: Ranks | None = None,
    skip_bad: bool = False,
    **training: Any,
) -> Trainer:
    """A trainer of a toy task with the options of QUIET, and ``training`` over them.

    Scripted figures are for the run's evaluations alone, so these aren't rehearsed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    task = task or ToyTask()
    scripted: dict[str, Any] = {"memory": {"rehearsal": False}} if task.scripted is not None else {}
    config = TrainingConfig(**(QUIET | scripted | training))
    task.loss = config.loss
    return Trainer(task, config, directory, callbacks, ranks=ranks, skip_bad_examples=skip_bad)


def next_data(trainer: Trainer) -> StepData:
    """The data of the trainer's next step, on this rank, which meets the others for it."""
    data = next(trainer.data.steps(trainer.position))
    return data if trainer.ranks.world_size == 1 else replace(data, counts=trainer.exchange(data.microbatches))


def next_microbatches(trainer: Trainer) -> list[Microbatch]:
    """This rank's microbatches of the trainer's next step."""
    return next(trainer.data.steps(trainer.position)).microbatches


def one_step(trainer: Trainer) -> tuple[StepReport, dict[str, Tensor]]:
    """The report of the next step, and the gradients that its (first) optimizer was given, by name."""
    gradients: dict[str, Tensor] = {}

    def remember(*_: Any) -> None:
        for name, parameter in trainer.model.named_parameters():
            if parameter.grad is not None:
                gradients[name] = parameter.grad.clone()

    handle = trainer.state.optimizers[0].register_step_pre_hook(remember)
    report = trainer.take_step(next_data(trainer))
    handle.remove()
    return report, gradients


def names_of(model: nn.Module) -> dict[nn.Parameter, str]:
    """A model's parameters with their names; of tied ones the first."""
    return {parameter: name for name, parameter in model.named_parameters()}


def weights(trainer: Trainer) -> dict[str, Tensor]:
    """A copy of the model's parameters and buffers."""
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def same_bits(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Whether two dictionaries of tensors are equal to the last bit, NaN and zeros' signs included."""
    return first.keys() == second.keys() and all(
        tensor.dtype == second[name].dtype
        and tensor.shape == second[name].shape
        and tensor.contiguous().view(-1).view(torch.uint8).equal(second[name].contiguous().view(-1).view(torch.uint8))
        for name, tensor in first.items()
    )
