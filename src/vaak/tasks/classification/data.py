"""Examples of a text classifier: token ids in, the numbers of classes out.

    transformer   [bos] t1 t2 ... tn [eos]      of a BERT: [CLS] t1 ... tn [SEP]
    cnn           t1 t2 ... tn

A longer text is cut at ``max_length``. Training texts are augmented as texts, and encoded again; where they outgrow
the room that the plan has for them, they stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from vaak.core.batch import Batch
from vaak.core.storage.files import fingerprint_of
from vaak.core.task import Dataset
from vaak.tasks.classification.class_weights import ClassWeights, weights_of_rows
from vaak.tasks.classification.prepare import Stores
from vaak.text.tokenizers.tokenizer import Tokenizer

Change = Callable[[str, np.random.Generator], str]


@dataclass(frozen=True)
class RowFormat:
    """How tokens become a row: ``ends`` encloses them in [bos] and [eos], of a row of at most ``max_length``."""

    tokenizer: Tokenizer
    ends: bool
    max_length: int

    def row(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """The row of a text's tokens; of one without any, an unknown token."""
        kept = np.asarray(ids[: self.max_length - 2 * self.ends], dtype=np.int64)
        kept = kept if len(kept) else np.array([self.tokenizer.unk_id])
        row: np.ndarray = (
            np.concatenate(([self.tokenizer.bos_id], kept, [self.tokenizer.eos_id])) if self.ends else kept
        )
        return row

    def lengths(self, num_tokens: np.ndarray) -> np.ndarray:
        """The lengths of rows, of the numbers of their tokens."""
        return np.asarray(np.minimum(np.maximum(num_tokens, 1) + 2 * self.ends, self.max_length))


class Example(NamedTuple):
    """The row of a text, and its targets: a class for each label column or, with several labels, a 0 or 1 for each."""

    inputs: np.ndarray
    targets: np.ndarray


class TextDataset(Dataset):
    """The labelled texts of one split, or of several together, in ``stores``; ``rows`` makes rows of their tokens.

    ``change`` augments each text, which may then have ``growth`` times as many more tokens. ``class_weights`` are
    counted in each batch (``vaak.tasks.classification.class_weights``).
    """

    draws_globally = False

    def __init__(
        self,
        stores: Sequence[Stores],
        rows: RowFormat,
        change: Change | None = None,
        growth: float = 0.0,
        class_weights: ClassWeights | None = None,
    ) -> None:
        self.stores, self.rows, self.change, self.class_weights = stores, rows, change, class_weights or {}
        self.is_constant = change is None
        self.targets = np.concatenate([one.targets for one in stores])
        self.strata = None if self.targets.dtype == np.int8 else self.targets[:, 0]
        self._starts = np.cumsum([0, *(len(one.tokens) for one in stores)])
        num_tokens = np.concatenate([one.tokens.lengths for one in stores])
        self.lengths = rows.lengths(np.ceil(num_tokens * (1 + growth)).astype(np.int64) if change else num_tokens)
        self.fingerprint = fingerprint_of([[one.tokens.fingerprint for one in stores], rows.max_length, rows.ends])

    def example(self, index: int, rng: np.random.Generator) -> Example:
        part, place = self._place(index)
        if self.change is None:
            inputs = self.rows.row(part.tokens.document(place)[: self.rows.max_length])
        else:
            ids: Sequence[int] | np.ndarray = self.rows.tokenizer.encode(self.change(part.texts[place].text, rng))
            own = part.tokens.document(place)
            if len(ids) > max(int(self.lengths[index]) - 2 * self.rows.ends, len(own)):
                ids = own  # what would be cut off may be its "not"
            inputs = self.rows.row(ids)
        return Example(inputs, self.targets[index])

    def _place(self, index: int) -> tuple[Stores, int]:
        number = int(self._starts.searchsorted(index, side="right")) - 1
        return self.stores[number], index - int(self._starts[number])

    def collate(self, rows: list[list[Example]]) -> Batch:
        return collate([row[0] for row in rows], self.rows.tokenizer.pad_id, self.class_weights)

    def describe(self, index: int) -> str:
        part, place = self._place(index)
        return part.texts[place].where

    def content_of(self, index: int) -> str:
        part, place = self._place(index)
        return fingerprint_of([part.texts[place].text, part.texts[place].labels])


def collate(examples: Sequence[Example], pad: int, class_weights: ClassWeights | None = None) -> Batch:
    """Rows padded on the right to the longest; ``mask`` is True where they are real."""
    lengths = np.array([len(example.inputs) for example in examples])
    inputs = np.full((len(examples), int(lengths.max())), pad, dtype=np.int64)
    for number, example in enumerate(examples):
        inputs[number, : lengths[number]] = example.inputs
    targets = torch.from_numpy(np.stack([example.targets for example in examples]))
    tensors = {
        "inputs": torch.from_numpy(inputs),
        "mask": torch.from_numpy(np.arange(inputs.shape[1]) < lengths[:, None]),
        "targets": targets.float() if targets.dtype == torch.int8 else targets,
    }
    counts = {"example": torch.ones(len(examples), dtype=torch.int64), "position": torch.from_numpy(lengths)}
    weights = weights_of_rows(class_weights or {}, targets.numpy())
    return Batch(tensors, {**counts, **weights})


def growth_of(techniques: Sequence[str], probability: float) -> float:
    """The share of its tokens by which a text may grow; one that would grow more isn't augmented this time."""
    grows = {"random_insertion", "synonym_replacement"} & set(techniques)
    return math.ceil(20 * probability * len(grows)) / 10
