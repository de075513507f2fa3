"""Rows that a model generates token by token: each continues until a token ends it, and then leaves the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from vaak.nn.decoding.sampling import SamplingSettings, next_tokens, uniform_numbers


class Writer(Protocol):
    """A model in the midst of writing rows."""

    def next_logits(self, tokens: Tensor) -> Tensor:
        """Scores of what follows each row, ``(rows, vocab)``, after it has read its newest token, ``(rows,)``.

        In float32 at least; minus infinity for a token that can't follow.
        """
        ...

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; one may be taken several times."""
        ...


@dataclass(frozen=True)
class Hypothesis:
    """What was written for a row, without the token that ended it."""

    tokens: tuple[int, ...]
    log_probability: float
    """Of the tokens and, where ``ended``, of the one that ended them; before temperature and filters."""
    ended: bool
    """False where it was cut off at the greatest length."""

    def score(self, length_penalty: float) -> float:
        """The log-probability divided by this power of the length, which counts the token that ends it.

        >>> Hypothesis((7, 8, 9), -6.0, ended=True).score(0.5)
        -3.0
        """
        return penalised_score(self.log_probability, len(self.tokens) + self.ended, length_penalty)


def penalised_score(log_probability: float, length: int, length_penalty: float) -> float:
    """How hypotheses of different lengths are compared: of two log-probabilities alike, the longer is never lower.

    Source: Murray and Chiang 2018, "Correcting Length Bias in Neural Machine Translation" (a power of 1: length
    normalisation).
    """
    score: float = log_probability / length**length_penalty
    return score


def write(writer: Writer, begin: Tensor, settings: SamplingSettings, keys: Sequence[int] = ()) -> list[Hypothesis]:
    """What a row generates after its first token, ``begin`` ``(rows,)``: drawn, or the most probable (temperature 0).

    What row ``i`` draws is decided by ``keys[i]``; greedy rows need none.
    """
    texts: list[list[int]] = [[] for _ in range(len(begin))]
    log_probabilities = [0.0] * len(texts)
    ended = [False] * len(texts)
    writing, tokens, own = list(range(len(texts))), begin, np.array(keys, dtype=np.uint64)
    for position in range(settings.max_new_tokens):
        logits = writer.next_logits(tokens)
        uniforms = uniform_numbers(own[writing], position) if settings.temperature else None
        tokens = next_tokens(logits, [texts[row] for row in writing], settings, uniforms)
        gained = logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(-1)
        for row, token, gain in zip(writing, tokens.tolist(), gained.tolist(), strict=True):
            log_probabilities[row] += gain
            ended[row] = token in settings.stop_ids
            texts[row] += [] if ended[row] else [token]
        going_on = [place for place, row in enumerate(writing) if not ended[row]]
        if not going_on:
            break
        if len(going_on) < len(writing):
            kept = torch.tensor(going_on, device=begin.device)
            writer.select(kept)
            tokens, writing = tokens[kept], [writing[place] for place in going_on]
    return [Hypothesis(*found) for found in zip(map(tuple, texts), log_probabilities, ended, strict=True)]


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; on exit, its mode is restored."""
    in_training = [module for module in model.modules() if module.training]
    for module in in_training:
        module.training = False
    try:
        yield
    finally:
        for module in in_training:
            module.training = True
