"""An interpolated n-gram model on a run's own tokens: the baseline that a neural language model has to beat.

It reads the same examples as the network and is scored on the same targets with the same bytes, so its figures are
those of ``vaak eval``; its context ends where an example begins, as the network's does.

Source: Chen and Goodman 1998, "An Empirical Study of Smoothing Techniques for Language Modeling", interpolated modified
Kneser-Ney. N-grams are integers in base ``vocab_size``. Differs: a discount that the counts of counts make negative is
0.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from vaak.core.progress import followed
from vaak.tasks.lm.data import IGNORED, StreamDataset, TextDataset

Tokens = list[int]
ORDER = 5


class KneserNey:
    """One order of the model: discounted counts, and what each context leaves to the order below."""

    def __init__(self, counts: Counter[int], vocab_size: int) -> None:
        self.counts, self.vocab_size = counts, vocab_size
        of_counts = Counter(counts.values())
        ones, twos, threes, fours = (of_counts[times] or 1 for times in (1, 2, 3, 4))
        y = ones / (ones + 2 * twos)
        discounts = (0.0, 1 - 2 * y * twos / ones, 2 - 3 * y * threes / twos, 3 - 4 * y * fours / threes)
        self.discounts = tuple(max(discount, 0.0) for discount in discounts)
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


class NgramModel:
    """The orders from 1 up; below the highest, an n-gram counts once for each different token before it."""

    def __init__(self, texts: Sequence[Tokens], order: int, vocab_size: int) -> None:
        """Each of ``texts`` is a sequence of ids; nothing is counted across two."""
        self.vocab_size = vocab_size
        grams: list[Counter[int]] = [Counter() for _ in range(order)]
        for tokens in followed(texts, f"{order}-grams", len(texts)):
            for size in range(1, order + 1):
                power, gram = vocab_size**size, 0
                for place, token in enumerate(tokens):
                    gram = (gram * vocab_size + token) % power
                    if place + 1 >= size:
                        grams[size - 1][gram] += 1
        continuations = [Counter(gram % vocab_size**size for gram in grams[size]) for size in range(1, order)]
        self.orders = [KneserNey(counts, vocab_size) for counts in (*continuations, grams[-1])]

    def probability(self, before: Tokens, token: int) -> float:
        """Of ``token`` after ``before``, of which the last ``order - 1`` are read.

        >>> model = NgramModel([[0, 1, 2, 1, 2, 3]], 3, 4)
        >>> round(sum(model.probability([1], token) for token in range(4)), 12)
        1.0
        """
        found, context = 1 / self.vocab_size, 0
        for size, order in enumerate(self.orders):
            if len(before) < size:
                break
            context += before[-size] * self.vocab_size ** (size - 1) if size else 0
            found = order.probability(context, token, found)
        return found


def ngram_figures(
    train: TextDataset | StreamDataset, evaluated: TextDataset | StreamDataset, vocab_size: int, order: int = ORDER
) -> dict[str, float]:
    """The loss, the perplexity and, where bytes are counted, the bits per byte of an n-gram model of ``train``."""
    texts = [train.ids(index).tolist() for index in range(len(train.lengths))]
    model = NgramModel(texts, order, vocab_size)
    nats, tokens, num_bytes = 0.0, 0, 0
    for before, token, scored_bytes in _scored(evaluated, order):
        num_bytes += scored_bytes
        if token is not None:
            nats -= math.log(model.probability(before, token))
            tokens += 1
    loss = nats / max(tokens, 1)
    found = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
    return found | ({"bits_per_byte": nats / math.log(2) / num_bytes} if num_bytes else {})


def _scored(dataset: TextDataset | StreamDataset, order: int) -> Iterator[tuple[Tokens, int | None, int]]:
    """Each scored token after those before it; and, without a token, the bytes of each example."""
    rng = np.random.default_rng(0)  # evaluations of decoders draw nothing
    for index in followed(range(len(dataset.lengths)), f"scoring by {order}-grams", len(dataset.lengths)):
        example, ids = dataset.example(index, rng), dataset.ids(index).tolist()
        yield [], None, int(example.num_bytes)
        for place in np.flatnonzero(example.targets != IGNORED).tolist():
            yield ids[max(0, place - order + 2) : place + 1], ids[place + 1], 0
