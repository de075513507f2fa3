"""A writer whose scores are a table: each prefix of tokens has different random scores."""

from __future__ import annotations

import torch
from torch import Tensor

from vaak.core.random_keys import Purpose, draw_key


class TableWriter:
    """Row ``i`` writes after the first token ``begin[i]``; counts the rows that were scored in each step."""

    def __init__(self, vocab_size: int, begin: list[int], *, impossible: tuple[int, ...] = (), seed: int = 0) -> None:
        self.vocab_size, self.impossible, self.seed = vocab_size, list(impossible), seed
        self.prefixes: list[tuple[int, ...]] = [() for _ in begin]
        self.rows_scored: list[int] = []
        self.longest = 0

    def scores(self, prefix: tuple[int, ...]) -> Tensor:
        """The logits after a prefix, whose first token is the row's."""
        drawn = torch.Generator().manual_seed(draw_key(Purpose.CHECK, self.seed, *prefix))
        logits = 2 * torch.randn(self.vocab_size, generator=drawn, dtype=torch.float64)
        logits[self.impossible] = -torch.inf
        return logits

    def next_logits(self, tokens: Tensor) -> Tensor:
        assert len(tokens) == len(self.prefixes)
        self.prefixes = [(*prefix, token) for prefix, token in zip(self.prefixes, tokens.tolist(), strict=True)]
        self.rows_scored.append(len(self.prefixes))
        self.longest = max(self.longest, *(len(prefix) for prefix in self.prefixes))
        return torch.stack([self.scores(prefix) for prefix in self.prefixes])

    def select(self, rows: Tensor) -> None:
        self.prefixes = [self.prefixes[row] for row in rows.tolist()]
