"""Minimal pairs: two sentences that differ in one point of grammar; which one does the model find more probable?

Source: Warstadt et al. 2020, "BLiMP". A tie counts as wrong.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from vaak.core.batch import Batch
from vaak.core.errors import DataError, UserError
from vaak.core.task import Dataset
from vaak.tasks.lm.data import Sequence, SpecialTokens, collate
from vaak.text.corpora.readers import find_files
from vaak.text.tokenizers.normalise import normalise
from vaak.text.tokenizers.tokenizer import Tokenizer

GRAMMAR_PAIRS = 100  # of each phenomenon: +- 5 % at two standard errors for a model at 90 %


@dataclass(frozen=True)
class Pair:
    """A sentence, its ungrammatical twin, and the phenomenon in which they differ."""

    good: str
    bad: str
    phenomenon: str
    origin: str


def read_pairs(sources: tuple[str, ...]) -> list[Pair]:
    """The pairs of BLiMP JSON lines (files or glob patterns), or of the built-in grammar where a source is ``grammar``.

    Raises DataError naming file and line of one that can't be read, or where there are none at all.
    """
    pairs: list[Pair] = []
    for source in sources:
        if source == "grammar":
            pairs += _of_the_grammar()
        else:
            for file in find_files((source,), "data.minimal_pairs"):
                pairs += _read_file(Path(file))
    if not pairs:
        where = ", ".join(sources) or "it: name files of BLiMP JSON lines, or grammar"
        raise DataError(f"data.minimal_pairs: no pairs in {where}")
    return pairs


@functools.cache  # every evaluation reads them, and composing them takes a second
def _of_the_grammar() -> tuple[Pair, ...]:
    from vaak.text import grammar as hindi  # most runs don't need its words

    return tuple(
        Pair(pair.sentence_good, pair.sentence_bad, pair.phenomenon, f"grammar:{pair.pair_id}")
        for pair in hindi.minimal_pairs(GRAMMAR_PAIRS, seed=0)
    )


def _read_file(path: Path) -> Iterator[Pair]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
                good, bad = (normalise(entry[name]) for name in ("sentence_good", "sentence_bad"))
                phenomenon = str(entry.get("UID", path.stem))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise DataError(
                    f"{path}:{number}: no minimal pair: a JSON object with sentence_good and sentence_bad is expected"
                ) from error
            if not good.strip() or not bad.strip():
                raise DataError(f"{path}:{number}: a sentence of this minimal pair is empty")
            yield Pair(good, bad, phenomenon, f"{path}:{number}")


class PairDataset(Dataset):
    """Pairs as examples of two sequences each: a row ``(2, time)`` has the good sentence and then the bad one."""

    draws_globally = False

    def __init__(self, pairs: list[Pair], tokenizer: Tokenizer, special: SpecialTokens, max_length: int) -> None:
        self.pairs, self.special = pairs, special
        self.tokens = [(tokenizer.encode(pair.good), tokenizer.encode(pair.bad)) for pair in pairs]
        end = int(special.eos is not None)
        self.lengths = np.array([max(len(good), len(bad)) + end for good, bad in self.tokens])
        longest = int(self.lengths.argmax())
        if self.lengths[longest] > max_length:
            size = f"{self.lengths[longest]} tokens, more than data.max_length {max_length}"
            raise DataError(f"{pairs[longest].origin}: the pair has {size}")
        self.fingerprint = str(len(pairs))

    def example(self, index: int, rng: np.random.Generator) -> tuple[Sequence, Sequence, str]:
        good, bad = (self._sequence(tokens) for tokens in self.tokens[index])
        return good, bad, self.pairs[index].phenomenon

    def _sequence(self, tokens: list[int]) -> Sequence:
        """[bos] sentence [eos]; where documents have no end, the sentence alone is scored."""
        ids = [self.special.bos, *tokens, *([] if self.special.eos is None else [self.special.eos])]
        return Sequence(np.array(ids[:-1]), np.array(ids[1:]), 0)

    def collate(self, rows: list[list[tuple[Sequence, Sequence, str]]]) -> Batch:
        sentences = collate([[sequence] for row in rows for sequence in row[0][:2]], self.special.pad)
        tensors = {name: tensor.unflatten(0, (len(rows), 2)) for name, tensor in sentences.tensors.items()}
        extra = {**sentences.extra, "phenomena": [row[0][2] for row in rows]}
        return Batch(tensors, {"pair": torch.ones(len(rows))}, extra=extra)

    def difficulty(self, measure: str) -> np.ndarray:
        raise UserError(f"minimal pairs are not trained on: they have no difficulty {measure}")

    def describe(self, index: int) -> str:
        return self.pairs[index].origin
