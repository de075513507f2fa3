"""How a beam search over CTC's frames is made, and which of their tokens it looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vaak.nn.decoding.ctc_words import NEVER, Endings, WordModel
from vaak.nn.decoding.hotwords import Hotwords

Found = list[tuple[float, tuple[int, ...]]]
"""Scores and tokens of texts, the best first."""


@dataclass(frozen=True)
class CtcBeam:
    """How the search is made.

    ``pieces`` are the texts of tokens, a space where a word begins or ends; ``words`` is a language model, or None. A
    frame's tokens with less than ``token_min_logp`` are left out, but for the best; so are prefixes whose score is
    ``beam_threshold`` below the best one's. None: neither.
    """

    pieces: Sequence[str]
    blank: int
    beam_size: int
    words: WordModel | None = None
    alpha: float = 0.0
    beta: float = 0.0
    hotwords: Hotwords | None = None
    token_min_logp: float | None = None
    beam_threshold: float | None = None

    @cached_property
    def endings(self) -> Endings | None:
        """Return the effect of each token on words; None if words add nothing."""
        return None if self.words is None and not self.beta else Endings(self.pieces)

    def prune_tokens(self, log_probs: np.ndarray) -> np.ndarray:
        """Return log-probabilities ``(frame, vocab)`` with -inf for tokens that are left out."""
        if self.token_min_logp is None or not log_probs.size:
            return log_probs
        floors = np.minimum(log_probs.max(1, keepdims=True), self.token_min_logp)
        found: np.ndarray = np.where(log_probs < floors, NEVER, log_probs)
        return found
