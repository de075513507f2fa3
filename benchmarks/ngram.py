"""Bits per byte of an interpolated n-gram model on a run's own tokens: the baseline that a neural model has to beat.

    python benchmarks/ngram.py RUN [--order 5] [--split test]

It reads the run's prepared tokens, so both models are scored on the same bytes with the same vocabulary; every token of
the split is scored, each document after one [bos].

Source: Chen and Goodman 1998, "An Empirical Study of Smoothing Techniques for Language Modeling", interpolated modified
Kneser-Ney. N-grams are integers in base ``vocab_size``.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter, defaultdict
from pathlib import Path

from vaak.runs.prepared import prepared_folder
from vaak.tasks.lm.prepare import Prepared
from vaak.text.corpora.token_store import TokenStore


class KneserNey:
    """One order of the model: discounted counts, and what each context leaves to the order below."""

    def __init__(self, counts: Counter[int], vocab_size: int) -> None:
        self.counts, self.vocab_size = counts, vocab_size
        of_counts = Counter(counts.values())
        ones, twos, threes, fours = (of_counts[times] or 1 for times in (1, 2, 3, 4))
        y = ones / (ones + 2 * twos)
        self.discounts = (0.0, 1 - 2 * y * twos / ones, 2 - 3 * y * threes / twos, 3 - 4 * y * fours / threes)
        self.totals: dict[int, int] = defaultdict(int)
        self.left_over: dict[int, float] = defaultdict(float)
        for gram, count in counts.items():
            self.totals[gram // vocab_size] += count
            self.left_over[gram // vocab_size] += self.discounts[min(count, 3)]

    def probability(self, context: int, token: int, below: float) -> float:
        """The probability of ``token`` after ``context``, given that of the lower order."""
        total = self.totals.get(context)
        if total is None:
            return below
        count = self.counts.get(context * self.vocab_size + token, 0)
        return (count - self.discounts[min(count, 3)] + self.left_over[context] * below) / total


def train(store: TokenStore, order: int, bos: int, vocab_size: int) -> list[KneserNey]:
    """The orders from 1 up; below the highest, an n-gram counts once for each different token before it."""
    grams: list[Counter[int]] = [Counter() for _ in range(order)]
    for index in range(len(store)):
        tokens = [bos, *store.document(index).tolist()]
        for size in range(1, order + 1):
            power, gram = vocab_size**size, 0
            for place, token in enumerate(tokens):
                gram = (gram * vocab_size + token) % power
                if place + 1 >= size:
                    grams[size - 1][gram] += 1
    continuations = [Counter(gram % vocab_size**size for gram in grams[size]) for size in range(1, order)]
    return [KneserNey(counts, vocab_size) for counts in (*continuations, grams[-1])]


def nats(models: list[KneserNey], store: TokenStore, bos: int, vocab_size: int) -> float:
    """Negative log-likelihood of every token of a split."""
    total = 0.0
    for index in range(len(store)):
        tokens = [bos, *store.document(index).tolist()]
        for place in range(1, len(tokens)):
            probability, context = 1 / vocab_size, 0
            for size, model in enumerate(models):
                if place < size:
                    break
                context += tokens[place - size] * vocab_size ** (size - 1) if size else 0
                probability = model.probability(context, tokens[place], probability)
            total -= math.log(probability)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--split", default="test")
    options = parser.parse_args()
    prepared = Prepared.open(prepared_folder(options.run))
    tokenizer, store = prepared.tokenizer, prepared.store(options.split)
    models = train(prepared.store("train"), options.order, tokenizer.bos_id, tokenizer.vocab_size)
    bits = nats(models, store, tokenizer.bos_id, tokenizer.vocab_size) / math.log(2) / int(store.num_bytes.sum())
    print(f"{options.order}-gram, modified Kneser-Ney, {tokenizer.vocab_size} tokens: {bits:.4f} bits per byte")


if __name__ == "__main__":
    main()
