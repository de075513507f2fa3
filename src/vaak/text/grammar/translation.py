"""Pairs of sentences, English and Hindi, in three splits; ``scripts/bilingual_grammar`` generated them.

>>> next(grammar_pairs("train", 1, seed=0)) == next(grammar_pairs("train", 9, seed=0))
True

The English has its mark after the last word as usual; the Hindi is as in ``corpus``: its mark stands apart.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator
from importlib.resources import files
from itertools import islice

from vaak.core.random_keys import Purpose, draw_key

NUM_PAIRS = {"train": 20_000, "valid": 2_500, "test": 2_500}
"""How many pairs each split has."""


def grammar_pairs(split: str, num_sentences: int, seed: int) -> Iterator[tuple[str, str]]:
    """``num_sentences`` pairs (English, Hindi) of "train", "valid" or "test", no Hindi sentence twice.

    A pure function of its arguments; a smaller number gives the beginning of a larger one. Seed 0 takes them in the
    order of the file, another seed a different order. The splits are those of ``corpus.sentences``: the set of a
    sentence's nouns, verbs and adjectives decides, and what is held out is in none.

    Raises ValueError for another split, and for more pairs than there are.
    """
    if split not in NUM_PAIRS:
        raise ValueError(f"split is {split!r}; expected one of {', '.join(NUM_PAIRS)}")
    if num_sentences > NUM_PAIRS[split]:
        raise ValueError(f"{split} has {NUM_PAIRS[split]} pairs, not {num_sentences}")
    pairs = _read_stored(split)
    if seed:
        shuffled = list(pairs)
        random.Random(draw_key(Purpose.GRAMMAR_PAIRS, split, seed)).shuffle(shuffled)
        pairs = iter(shuffled)
    return islice(pairs, num_sentences)


def _read_stored(split: str) -> Iterator[tuple[str, str]]:
    with (
        (files(__package__) / "data" / name_file(split)).open("rb") as packed,
        gzip.open(packed, "rt", encoding="utf-8") as lines,
    ):
        for line in lines:
            english, hindi = line.rstrip("\n").split("\t")
            yield english, hindi


def name_file(split: str) -> str:
    """The name of the file that holds a split's pairs, in ``data``."""
    return f"pairs.{split}.tsv.gz"
