"""Beam search: the most probable rows that a search of limited width finds, for many rows at once.

At each step every live hypothesis of a row is continued by every token, and the ``beam_size`` most probable
continuations are looked at: those that end are finished, and compete by ``penalised_score``. As many that don't end,
the most probable, live on. At the greatest length all are finished.

A row is done when no live hypothesis can beat its ``n_best`` finished ones any more. Probabilities only fall as a
hypothesis grows, and the division by a power of the length is kindest at the greatest length. So the score of a live
one is at most its present log-probability, divided by that power of the greatest length. This stops no row whose result
would change, but with a penalty of 1 and a limit of hundreds of tokens it rarely stops any. So with ``early_stopping``
a row is also done once ``beam_size`` hypotheses have finished. Rows that are done leave the batch.

Sources: Graves 2012, "Sequence Transduction with Recurrent Neural Networks" (beam search); Wu et al. 2016,
"Google's Neural Machine Translation System", section 7 (length normalisation); Kasai et al. 2022, "A Call for Clarity
in Beam Search: How It Works and When It Stops" (their "first come, first served" is ``early_stopping``). Differs from
Wu: the plain power of the length, not of (5 + length) / 6; no coverage penalty; live hypotheses are not pruned by
distance from the best.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vaak.core.batch import read_together, send
from vaak.core.errors import UserError
from vaak.nn.decoding.sampling import (
    DIVERGED,
    Hypothesis,
    SamplingSettings,
    Writer,
    highest,
    penalised_score,
    write,
)


@dataclass(frozen=True)
class BeamSettings:
    """How wide the search is and how its hypotheses are compared.

    Raises UserError if a value makes no sense.
    """

    end_id: int
    """The token that ends a row; it is not given out."""
    max_new_tokens: int = 100
    """Tokens written at most, the one that ends them among them."""
    beam_size: int = 4
    """Live hypotheses of each row; one is a greedy search."""
    length_penalty: float = 1.0
    """Log-probabilities are divided by this power of the length; 0 prefers short rows."""
    early_stopping: bool = True
    """A row is done once ``beam_size`` hypotheses have finished; else, only once no live one can win any more."""
    n_best: int = 1
    """Maximum number of hypotheses returned for each row."""

    def __post_init__(self) -> None:
        limits = {
            "max_new_tokens": (self.max_new_tokens >= 1, "at least 1"),
            "beam_size": (self.beam_size >= 1, "at least 1"),
            "length_penalty": (0 <= self.length_penalty < math.inf, "0 or more"),
            "n_best": (1 <= self.n_best <= self.beam_size, f"from 1 to beam_size ({self.beam_size})"),
        }
        for name, (holds, expected) in limits.items():
            if not holds:
                raise UserError(f"{name} is {getattr(self, name)}; it must be {expected}.")


def beam_search(
    writer: Writer, begin: Tensor, settings: BeamSettings, find_gains: Callable[[], Tensor] | None = None
) -> list[list[Hypothesis]]:
    """The best hypotheses of each row after its first token, ``begin`` ``(rows,)``; the best first, all different.

    Of equal ones those that finished first are first, and of those that live on the ones with lower numbers.
    ``find_gains`` returns what tokens add to the log-probabilities of rows just scored, ``(rows, vocab)``; with it, a
    hypothesis may win later, so that only ``early_stopping`` ends a row before the greatest length. It needs two live
    hypotheses at least.
    """
    if settings.beam_size == 1:
        greedy = SamplingSettings(settings.max_new_tokens, temperature=0, stop_ids=(settings.end_id,))
        return [[hypothesis] for hypothesis in write(writer, begin, greedy)]
    search = _Search(begin, settings)
    for _ in range(settings.max_new_tokens):
        logits = writer.next_logits(send(search.newest, begin.device))
        rows = search.step(logits, None if find_gains is None else find_gains())
        if not len(rows):
            break
        writer.select(rows)
    return search.best


class _Search:
    """The live hypotheses of the rows that aren't done, and the finished ones of all: on the CPU.

    ``tokens`` is ``(rows, width, time)`` and ``totals``, their log-probabilities, ``(rows, width)``; the width grows
    from 1 to ``beam_size``. A hypothesis that can't be continued has a total of minus infinity.
    """

    def __init__(self, begin: Tensor, settings: BeamSettings) -> None:
        self.settings = settings
        self.best: list[list[Hypothesis]] = [[] for _ in range(len(begin))]
        self.num_finished = [0] * len(begin)
        self.rows = list(range(len(begin)))
        self.tokens = begin.cpu()[:, None, None]
        self.totals = torch.zeros(len(begin), 1)
        self.has_gains = False

    @property
    def newest(self) -> Tensor:
        """The last token of each live hypothesis, ``(rows · width,)``."""
        return self.tokens[..., -1].flatten()

    def step(self, logits: Tensor, gains: Tensor | None = None) -> Tensor:
        """Continue all hypotheses by one token; which of them, by place, those that live on come from.

        ``logits`` is ``(rows · width, vocab)``. Raises UserError if they are NaN.
        """
        # Time is the length of the continuations: 1 for the first token.
        num_rows, width, time = self.tokens.shape
        before = send(self.totals, logits.device)
        added = logits.log_softmax(-1) if gains is None else logits.log_softmax(-1) + gains
        self.has_gains = gains is not None
        continued = before[..., None] + added.unflatten(0, (num_rows, width))
        # At least half of these continuations don't end.
        count = min(2 * self.settings.beam_size, continued[0].numel())
        found = highest(continued.flatten(1), count)
        totals, places, are_finite = read_together(*found, logits.amax(-1).isfinite().all())
        if not are_finite:
            raise UserError(DIVERGED)
        parents, tokens = places // logits.shape[-1], places % logits.shape[-1]
        last = time == self.settings.max_new_tokens
        self._finish(totals, parents, tokens, everything=last)
        if last:
            return places.new_empty(0)
        return self._live_on(totals, parents, tokens)

    def _finish(self, totals: Tensor, parents: Tensor, tokens: Tensor, *, everything: bool) -> None:
        """Keep those of the ``beam_size`` best continuations that end, if they are good enough."""
        size = self.settings.beam_size
        ends = (tokens[:, :size] == self.settings.end_id) | everything
        found = (ends & (totals[:, :size] > -math.inf)).nonzero()
        histories = self.tokens[found[:, 0], parents[found[:, 0], found[:, 1]], 1:]
        columns = (found[:, 0], tokens[found[:, 0], found[:, 1]], totals[found[:, 0], found[:, 1]], histories)
        for place, token, total, history in zip(*(column.tolist() for column in columns), strict=True):
            ended = token == self.settings.end_id
            hypothesis = Hypothesis(tuple(history) if ended else (*history, token), total, ended)
            best = self.best[self.rows[place]]
            self.num_finished[self.rows[place]] += 1
            bisect.insort_right(best, hypothesis, key=lambda one: -one.score(self.settings.length_penalty))
            del best[self.settings.n_best :]

    def _live_on(self, totals: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
        """Keep the best continuations that don't end, in the rows where one may still win."""
        totals = totals.masked_fill(tokens == self.settings.end_id, -math.inf)
        self.totals, order = highest(totals, min(self.settings.beam_size, totals.shape[1]))
        parents, tokens = parents.gather(1, order), tokens.gather(1, order)
        going_on = [place for place, total in enumerate(self.totals[:, 0].tolist()) if self._may_win(place, total)]
        kept = torch.tensor(going_on, dtype=torch.long)
        parents, tokens, width = parents[kept], tokens[kept], self.tokens.shape[1]
        self.rows = [self.rows[place] for place in going_on]
        self.totals = self.totals[kept]
        self.tokens = torch.cat((self.tokens[kept[:, None], parents], tokens[..., None]), -1)
        return (kept[:, None] * width + parents).flatten()

    def _may_win(self, place: int, total: float) -> bool:
        """Return whether a live hypothesis of this log-probability may yet be among the best of its row."""
        enough = self.settings.early_stopping and self.num_finished[self.rows[place]] >= self.settings.beam_size
        if enough or total == -math.inf:
            return False
        best = self.best[self.rows[place]]
        if len(best) < self.settings.n_best or self.has_gains:
            return True
        penalty = self.settings.length_penalty
        return penalised_score(total, self.settings.max_new_tokens, penalty) > best[-1].score(penalty)
