"""Examples of a sequence-to-sequence model: source ids to read, target ids to write, -100 where there is none.

    source            s1 s2 ... sm [eos]
    inputs      [bos] t1 t2 ... tn
    targets           t1 t2 ... tn [eos]

If an evaluation's target has more than ``max_target_length`` of these, it is truncated, without the [eos]. The
first of several references is the target.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from vaak.core.batch import Batch
from vaak.core.errors import UserError
from vaak.core.storage.files import fingerprint_of
from vaak.core.task import Dataset
from vaak.tasks.seq2seq.config import Seq2SeqDataConfig
from vaak.tasks.seq2seq.examples.filters import SplitStores, used_pairs
from vaak.tasks.seq2seq.prepare import Prepared
from vaak.text.corpora.parallel import Pair
from vaak.text.difficulty.measures import MEASURES
from vaak.text.difficulty.store import kept_difficulties

IGNORED = -100


@dataclass(frozen=True)
class SpecialTokens:
    """The ids that examples are made with, of the source's tokenizer and of the target's."""

    source_pad: int
    source_eos: int
    source_mask: int
    target_pad: int
    target_bos: int
    target_eos: int
    target_mask: int

    @classmethod
    def of(cls, prepared: Prepared) -> SpecialTokens:
        source, target = prepared.source_tokenizer, prepared.target_tokenizer
        of_target = target.pad_id, target.bos_id, target.eos_id, target.mask_id
        return cls(source.pad_id, source.eos_id, source.mask_id, *of_target)


class Example(NamedTuple):
    """Ids of one pair; in evaluation also the texts that a translation is compared with, if it is to be translated."""

    source: np.ndarray
    inputs: np.ndarray
    targets: np.ndarray
    text: str | None = None
    references: list[str] | None = None


class PairDataset(Dataset):
    """The pairs of a split that are used.

    An example's length is twice its longer side. The longest of a batch then bounds the padded places of both sides
    together, whatever pairs share the batch, which the sum of both sides doesn't: 1 + 9 and 9 + 1 are padded to 18.
    """

    draws_globally = False

    def __init__(
        self, prepared: Prepared, split: str, data: Seq2SeqDataConfig, stores: SplitStores | None = None
    ) -> None:
        """``stores`` are those of pairs that were not prepared with the others.

        Raises UserError for a split that doesn't exist, DataError for an evaluation source that is too long.
        """
        self.special = SpecialTokens.of(prepared)
        stores = prepared.stores(split) if stores is None else stores
        self.pairs, self.source, self.target = stores
        self.indices = used_pairs(split, stores, data, cut=split in prepared.cut_splits).indices
        self.max_target_length = data.max_target_length
        self.token_dropout = data.token_dropout
        self.is_evaluation = split != "train"
        self.is_constant = self.is_evaluation or not self.token_dropout
        limit = data.decoding.valid_examples if split == "valid" else None
        self.num_translated = len(self.indices) if limit is None else limit
        source_lengths = self.source.lengths[self.indices] + 1
        target_lengths = np.minimum(self.target.lengths[self.indices] + 1, self.max_target_length)
        self.lengths: np.ndarray = 2 * np.maximum(source_lengths, target_lengths)
        limits = [data.max_source_length, data.max_target_length, data.corpus.max_length_ratio]
        self.fingerprint = fingerprint_of([self.source.fingerprint, self.target.fingerprint, limits])

    def example(self, index: int, rng: np.random.Generator) -> Example:
        place = int(self.indices[index])
        source = np.append(self.source.document(place), self.special.source_eos).astype(np.int64)
        target = np.append(self.target.document(place), self.special.target_eos).astype(np.int64)
        targets = target[: self.max_target_length]
        inputs = np.concatenate(([self.special.target_bos], targets[:-1]))
        if not self.is_evaluation:
            return self._with_dropped_tokens(Example(source, inputs, targets), rng)
        pair = self.pairs[place]
        references = list(pair.targets) if index < self.num_translated else None
        return Example(source, inputs, targets, pair.source, references)

    def _with_dropped_tokens(self, example: Example, rng: np.random.Generator) -> Example:
        """The example with some tokens that the model reads masked, but for [bos] and the source's [eos]."""
        if not self.token_dropout:
            return example
        source, inputs, special = example.source, example.inputs, self.special
        drop_source = (rng.random(len(source)) < self.token_dropout) & (source != special.source_eos)
        drop_inputs = (rng.random(len(inputs)) < self.token_dropout) & (inputs != special.target_bos)
        return example._replace(
            source=np.where(drop_source, special.source_mask, source),
            inputs=np.where(drop_inputs, special.target_mask, inputs),
        )

    def collate(self, rows: list[list[Example]]) -> Batch:
        return collate([row[0] for row in rows], self.special, with_texts=self.is_evaluation)

    def difficulty(self, measure: str) -> np.ndarray:
        """How hard each pair is: its length, or by the words of both its sides."""
        if measure not in MEASURES:
            raise UserError(f"unknown difficulty {measure}; choose from {', '.join(MEASURES)}")
        if measure == "length":
            return self.lengths
        return kept_difficulties(self.pairs.folder, self.fingerprint, measure, self._texts, len(self.indices))

    def _texts(self) -> Iterator[str]:
        for place in self.indices.tolist():
            pair = self.pairs[place]
            yield f"{pair.source}\n{pair.targets[0]}"

    def describe(self, index: int) -> str:
        return self.pairs[int(self.indices[index])].where

    def first_pairs(self, number: int) -> list[Pair]:
        """This number of pairs, or all."""
        return [self.pairs[place] for place in self.indices[:number].tolist()]

    def num_references(self) -> list[int]:
        """The number of references of each example that is translated."""
        return [len(pair.targets) for pair in self.first_pairs(self.num_translated)]


def collate(examples: list[Example], special: SpecialTokens, *, with_texts: bool) -> Batch:
    """Rows padded on the right to the longest of each side; ``source_mask`` is True where the source is real."""
    source = _padded([example.source for example in examples], special.source_pad)
    targets = _padded([example.targets for example in examples], IGNORED)
    source_tokens = np.array([len(example.source) for example in examples])
    tokens = np.array([len(example.targets) for example in examples])
    tensors = {
        "source": source,
        "source_mask": np.arange(source.shape[1]) < source_tokens[:, None],
        "inputs": _padded([example.inputs for example in examples], special.target_pad),
        "targets": targets,
    }
    counts = {
        "token": tokens,
        "source_token": source_tokens,
        "position": source_tokens + tokens,
        "example": np.ones(len(examples), dtype=np.int64),
    }
    texts = {
        "sources": [example.text for example in examples],
        "references": [example.references for example in examples],
    }
    return Batch(
        {name: torch.from_numpy(array) for name, array in tensors.items()},
        {unit: torch.from_numpy(count) for unit, count in counts.items()},
        extra=dict(texts) if with_texts else {},
    )


def _padded(rows: list[np.ndarray], filler: int) -> np.ndarray:
    """``(row, time)``."""
    padded = np.full((len(rows), max(map(len, rows))), filler, dtype=np.int64)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return padded
