"""A task of a user's own, in one file, for tests of tasks that no folder of Vaak holds: it marks vowels in words."""

import numpy as np
import torch
from torch import nn

from vaak.config.base import Section, option
from vaak.config.tasks import TaskSpec, impossible
from vaak.core.batch import Batch, Term
from vaak.core.task import Dataset, Meters
from vaak.tasks.base import Task

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class VowelModelConfig(Section):
    """The network."""

    width: int = option("Size of a letter's vector.", 16, gt=0, resume="refused")
    dropout: float = option("Dropout.", 0.1, ge=0, lt=1, resume="other numbers")


class VowelDataConfig(Section):
    """The words."""

    num_words: int = option("How many words to train on.", 40, gt=0, resume="refused")


def checks(experiment):
    if experiment.model.width > 1000:
        yield impossible("model.width", "no letter needs more than 1000 numbers")


class Words(Dataset):
    """Random words, the same each time."""

    def __init__(self, split, number):
        self.words = [self._word(split, index) for index in range(number)]
        self.lengths = np.array([len(word) for word in self.words])
        self.fingerprint = f"{split} {number}"
        self.draws_globally = False

    def _word(self, split, index):
        rng = np.random.default_rng([index, *split.encode()])
        return rng.integers(0, len(LETTERS), rng.integers(2, 9))

    def example(self, index, rng):
        return self.words[index]

    def collate(self, rows):
        words = [word for row in rows for word in row]
        letters = np.full((len(words), max(map(len, words))), -1)
        for row, word in enumerate(words):
            letters[row, : len(word)] = word
        return Batch({"letters": torch.from_numpy(letters)}, {"letter": torch.from_numpy((letters >= 0).sum(1))})


class VowelMeters(Meters):
    """How many letters are marked rightly."""

    def __init__(self, split):
        self.protocol = {"split": split}
        self.right = self.letters = 0.0

    def update(self, model, batch):
        scores, targets = scores_of(model, batch)
        self.right += float((scores.argmax(-1) == targets).sum())
        self.letters += batch.totals()["letter"]

    def sums(self):
        return {"right": self.right, "letters": self.letters}

    def results(self, sums):
        return {"loss": 1 - sums["right"] / sums["letters"], "accuracy": sums["right"] / sums["letters"]}


def scores_of(model, batch):
    """Scores and targets of the letters that aren't padding."""
    letters = batch["letters"]
    vowels = torch.isin(letters, torch.tensor([LETTERS.index(vowel) for vowel in "aeiou"]))
    return model(letters.clamp(min=0))[letters >= 0], vowels.long()[letters >= 0]


class VowelTask(Task):
    """Marks vowels."""

    SPEC = TaskSpec(
        model=VowelModelConfig,
        data=VowelDataConfig,
        defaults={"training": {"batch_size": 8}},
        aliases={"model.size": "model.width"},
        checks=checks,
    )

    def dataset(self, split):
        return Words(split, self.experiment.data.num_words if split == "train" else 10)

    def model(self):
        options = self.experiment.model
        embedding = nn.Embedding(len(LETTERS), options.width)
        return nn.Sequential(embedding, nn.Dropout(options.dropout), nn.Linear(options.width, 2))

    def meta_model(self):
        return self.model()

    def losses(self, model, batch):
        scores, targets = scores_of(model, batch)
        return {"main": Term(nn.functional.cross_entropy(scores, targets, reduction="sum"), "letter")}

    def meters(self, split):
        return VowelMeters(split)

    def predict(self, model, inputs):
        for word in inputs:
            marked = model(torch.tensor([LETTERS.index(letter) for letter in word])).argmax(-1)
            yield "".join(letter.upper() if vowel else letter for letter, vowel in zip(word, marked, strict=True))


class Unfinished:
    """No task."""
