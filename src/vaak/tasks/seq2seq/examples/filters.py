"""Which pairs are used, by the lengths of their sides in tokens.

Training skips pairs that are too long or too uneven. An evaluation split that is given is used completely: a source
that the model can't read is an error. One that was split off from the training files has no such sources; a
target that is too long stays, and its loss is that of its beginning (``vaak.tasks.seq2seq.data``).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from vaak.core.errors import DataError
from vaak.tasks.seq2seq.config import Seq2SeqDataConfig
from vaak.text.corpora.pair_store import PairStore
from vaak.text.corpora.token_store import TokenStore


class SplitStores(NamedTuple):
    """A prepared split: its texts, and the tokens of both sides."""

    pairs: PairStore
    source: TokenStore
    target: TokenStore

    @classmethod
    def open(cls, folder: Path) -> SplitStores:
        return cls(PairStore(folder), TokenStore(folder / "source"), TokenStore(folder / "target"))


class Selection(NamedTuple):
    """The indices of the pairs that are used, ``(pair,)``, and the numbers of those that were dropped, by reason."""

    indices: np.ndarray
    dropped: dict[str, int]


def used_pairs(split: str, stores: SplitStores, data: Seq2SeqDataConfig, *, cut: bool) -> Selection:
    """The pairs of a split that are used; ``cut``: it was split off from the training files.

    Raises DataError for a pair of a given evaluation split whose source is too long.
    """
    too_long = stores.source.lengths >= data.max_source_length  # one token is the end's
    reasons = {f"source longer than max_source_length ({data.max_source_length})": too_long}
    if split == "train":
        reasons |= _training_reasons(stores, data)
    elif too_long.any() and not cut:
        index = int(np.argmax(stores.source.lengths))
        most = int(stores.source.lengths[index]) + 1
        raise DataError(
            f"{stores.pairs[index].where}: the source has {most} tokens, more than data.max_source_length "
            f"({data.max_source_length}), the longest of {too_long.sum()} such in {split}; evaluation skips none: "
            f"raise data.max_source_length to {most}, or shorten them"
        )
    return _without(reasons, len(too_long))


def _training_reasons(stores: SplitStores, data: Seq2SeqDataConfig) -> dict[str, np.ndarray]:
    """What training doesn't use besides long sources."""
    source, target = stores.source.lengths, stores.target.lengths
    ratio = data.corpus.max_length_ratio
    reasons = {f"target longer than max_target_length ({data.max_target_length})": target >= data.max_target_length}
    if ratio is not None:
        uneven = np.maximum(source, target) > ratio * np.maximum(np.minimum(source, target), 1)
        reasons[f"one side longer than {ratio:g} times the other (max_length_ratio)"] = uneven
    return reasons


def _without(reasons: dict[str, np.ndarray], number: int) -> Selection:
    """The pairs for which no reason holds; a pair with several reasons is counted under the first."""
    kept = np.ones(number, dtype=bool)
    dropped = {}
    for reason, holds in reasons.items():
        if (kept & holds).any():
            dropped[reason] = int((kept & holds).sum())
        kept &= ~holds
    return Selection(np.flatnonzero(kept), dropped)
