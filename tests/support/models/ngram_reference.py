"""An interpolated modified Kneser-Ney model of dictionaries: slow, and short enough to be checked by reading it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

Tokens = list[int]


class KneserNey:
    """One order of the model: discounted counts, and the mass that each context leaves to the order below."""

    def __init__(self, counts: Counter[int], vocab_size: int) -> None:
        self.counts, self.vocab_size = counts, vocab_size
        of_counts = Counter(counts.values())
        # The discounts divide by these; a small corpus may have no n-gram of one of the counts.
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
        for tokens in texts:
            for size in range(1, order + 1):
                power, gram = vocab_size**size, 0
                for index, token in enumerate(tokens):
                    gram = (gram * vocab_size + token) % power
                    if index + 1 >= size:
                        grams[size - 1][gram] += 1
        # A Counter over the keys of the longer n-grams: each different token before an n-gram counts once.
        continuations = [Counter(gram % vocab_size**size for gram in grams[size]) for size in range(1, order)]
        self.orders = [KneserNey(counts, vocab_size) for counts in (*continuations, grams[-1])]

    def probability(self, before: Tokens, token: int) -> float:
        """Return the probability of ``token`` after ``before``, of which the last ``order - 1`` are read.

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
