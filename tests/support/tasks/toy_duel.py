"""A task of the smallest kind with two objectives: a judge that tells true contours from made ones, then their maker.

Each letter of a word has a height. The judge's parameters and the maker's are disjoint; the maker's gradient goes
through the judge.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vaak.core.batch import Batch, Term
from vaak.core.errors import UserError
from vaak.core.task import Dataset, Meters, Objective, Task

NUM_LETTERS, SMUDGE = 12, 12


class Contours(Dataset):
    """Words of 2 to 9 letters with a height for each letter; in training, a tenth of the letters can't be read."""

    strata, row_capacity, draws_globally = None, None, False

    def __init__(self, split: str, num_words: int) -> None:
        rng = np.random.default_rng({"train": 0, "valid": 1}[split])
        self.words = [rng.integers(NUM_LETTERS, size=rng.integers(2, 10)) for _ in range(num_words)]
        self.lengths = np.array([len(word) for word in self.words])
        self.smudged = 0.1 if split == "train" else 0.0
        self.fingerprint = f"contours {split} {num_words}"

    def example(self, index: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        word = self.words[index]
        heights = np.sin(word).astype(np.float32)
        return np.where(rng.random(len(word)) < self.smudged, SMUDGE, word), heights

    def collate(self, rows: list[list[Any]]) -> Batch:
        examples = [example for row in rows for example in row]
        shape = len(examples), max(len(word) for word, _ in examples)
        letters, heights, real = np.full(shape, SMUDGE), np.zeros(shape, np.float32), np.zeros(shape, bool)
        for row, (word, contour) in enumerate(examples):
            letters[row, : len(word)], heights[row, : len(word)], real[row, : len(word)] = word, contour, True
        tensors = {"letters": letters, "heights": heights, "real": real}
        counts = {"letter": torch.from_numpy(real.sum(1)), "word": torch.ones(len(examples))}
        return Batch({name: torch.from_numpy(array) for name, array in tensors.items()}, counts)

    def difficulty(self, measure: str) -> np.ndarray:
        if measure != "length":
            raise UserError(f"contours have no difficulty by {measure}")
        return self.lengths

    def describe(self, index: int) -> str:
        return f"contour {index}"


class Duel(nn.Module):
    """``maker`` makes the heights of letters, ``judge`` says how true heights are: both (row, letter)."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Sequential(nn.Embedding(NUM_LETTERS + 1, 8), nn.Dropout(0.1), nn.Linear(8, 1))
        self.judge = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.1), nn.Tanh(), nn.Linear(8, 1))

    def made(self, letters: Tensor) -> Tensor:
        heights: Tensor = self.maker(letters)[..., 0]
        return heights

    def truth(self, heights: Tensor) -> Tensor:
        truth: Tensor = self.judge(heights[..., None])[..., 0]
        return truth


class DuelMeters(Meters):
    """How far made heights are from the true ones."""

    def __init__(self, split: str) -> None:
        self.protocol = {"split": split}
        self.distance, self.letters = 0.0, 0.0

    def update(self, model: Any, batch: Batch) -> None:
        made: Tensor = model.made(batch["letters"])
        self.distance += float(((made - batch["heights"]).abs() * batch["real"]).double().sum())
        self.letters += batch.totals()["letter"]

    def sums(self) -> dict[str, float]:
        return {"distance": self.distance, "letters": self.letters}

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        return {"loss": sums["distance"] / sums["letters"]}


class DuelTask(Task):
    """Makes contours that a judge takes for true ones. Source: Mao et al. 2017, "Least Squares GANs", equation 2."""

    evaluation_splits = ("valid",)

    def __init__(self) -> None:
        self.objectives = (
            Objective("judge", ("judge",), self.judge_losses),
            Objective("maker", ("maker",), self.maker_losses),
        )

    def prepare(self) -> None: ...

    def dataset(self, split: str) -> Contours:
        return Contours(split, 40 if split == "train" else 20)

    def model(self) -> Duel:
        return Duel()

    def judge_losses(self, model: Any, batch: Batch) -> dict[str, Term]:
        made: Tensor = model.made(batch["letters"]).detach()
        true, false = model.truth(batch["heights"]), model.truth(made)
        return {"judge": _sum((true - 1).square() + false.square(), batch)}

    def maker_losses(self, model: Any, batch: Batch) -> dict[str, Term]:
        made: Tensor = model.made(batch["letters"])
        taken_for_true: Tensor = model.truth(made)
        words = 0.1 * ((taken_for_true - 1).square() * batch["real"]).sum()
        return {"distance": _sum((made - batch["heights"]).square(), batch), "disguise": Term(words, per="word")}

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        raise AssertionError("a task with objectives is not asked for its losses")

    def meters(self, split: str) -> DuelMeters:
        return DuelMeters(split)

    def show(self, batch: Batch) -> list[str]:
        return [" ".join(map(str, row)) for row in batch["letters"].tolist()]

    def predict(self, model: Any, inputs: Iterable[Any]) -> Iterable[Any]:
        return (model.made(torch.tensor([word]))[0].tolist() for word in inputs)

    def samples(self, model: nn.Module) -> list[str]:
        return []


def _sum(values: Tensor, batch: Batch) -> Term:
    return Term((values * batch["real"]).sum(), per="letter")
