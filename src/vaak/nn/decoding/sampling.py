"""Token by token: the next token of each row, the most probable or one drawn, until a token ends the row.

A row that ended leaves the batch. Everything happens on the device of the scores, in their precision; a GPU is waited
for once a token (with top-p twice). Each row has a
key; its draw is one uniform number, a hash of the key and of how many tokens the row has drawn. So a row depends
neither on the other rows nor on when it is drawn, and the same scores give the same token. The vocabulary is sorted
nowhere: top-k needs its k best, top-p as many as together reach the probability.

Sources: Fan et al. 2018, "Hierarchical Neural Story Generation" (top-k); Holtzman et al. 2020, "The Curious Case of
Neural Text Degeneration" (top-p); Nguyen et al. 2024, "Turning Up the Heat: Min-p Sampling" (min-p); Keskar et al.
2019, "CTRL" (repetition penalty); Paulus et al. 2018, "A Deep Reinforced Model for Abstractive Summarization" (no
n-gram twice).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from vaak.core.batch import read_together, running_sum, send
from vaak.core.errors import UserError

FIRST_RANKED = 256
"""Tokens that top-p looks at first; eight times as many where these don't reach the probability."""
TOP_P_BLOCK = 512
"""Tokens of the vocabulary whose weights are added up together before one of them is looked for."""
SMALLEST_TEMPERATURE = 1e-30
"""Smaller ones would be 0 in float32; at this one everything but the most probable token is already at 0."""
DIVERGED = "The model's scores are not finite numbers: its training has diverged."


@dataclass(frozen=True)
class SamplingSettings:
    """How the next token is chosen: repetition penalty, then temperature, then top-k, then top-p and min-p.

    Raises UserError if a value makes no sense.
    """

    max_new_tokens: int = 100
    temperature: float = 1.0
    """0 takes the most probable token, always."""
    top_k: int = 0
    """Sample only from the N most probable tokens; 0 is all. Of equal ones, those with lower numbers."""
    top_p: float = 1.0
    """Only the fewest most probable tokens that together have this probability; at least one."""
    min_p: float = 0.0
    """Only tokens that are at least this fraction as probable as the most probable one."""
    repetition_penalty: float = 1.0
    """Above 1, tokens that the model has read become less probable."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end the text; they are not given out."""
    seed: int = 0

    def __post_init__(self) -> None:
        limits = {
            "max_new_tokens": (self.max_new_tokens >= 1, "at least 1"),
            "temperature": (0 <= self.temperature < math.inf, "0 (greedy) or more"),
            "top_k": (self.top_k >= 0, "0 (off) or more"),
            "top_p": (0 <= self.top_p <= 1, "from 0 to 1"),
            "min_p": (0 <= self.min_p <= 1, "from 0 to 1"),
            "repetition_penalty": (0 < self.repetition_penalty < math.inf, "above 0"),
        }
        for name, (holds, expected) in limits.items():
            if not holds:
                raise UserError(f"{name} is {getattr(self, name)}; it must be {expected}.")


def next_tokens(
    logits: Tensor,
    contexts: Sequence[Sequence[int]],
    settings: SamplingSettings,
    uniforms: np.ndarray | None = None,
) -> Tensor:
    """One token for each row of ``logits`` ``(rows, vocab)``, on their device: ``(rows,)``; -1 where they are NaN.

    ``contexts`` are the tokens that each row has read. ``uniforms`` ``(rows,)`` decide the draws; greedy needs none.
    A logit of minus infinity is a token that can't follow. ``require_tokens`` looks for -1, once they are read.
    """
    scored = penalised(logits, contexts, settings.repetition_penalty)
    if settings.temperature == 0:
        # The highest score is NaN where any is.
        best = scored.argmax(-1, keepdim=True)
        return torch.where(logits.gather(-1, best).isfinite(), best, -1)[:, 0]
    is_finite = logits.amax(-1).isfinite()
    assert uniforms is not None, "what is drawn needs uniform numbers"
    weights, tokens = _candidates(scored.masked_fill(~is_finite[:, None], 0.0), settings)
    places = drawn(weights, send(torch.from_numpy(uniforms).to(weights.dtype), weights.device))
    return torch.where(is_finite, places if tokens is None else tokens.gather(-1, places[:, None])[:, 0], -1)


def require_tokens(tokens: Tensor) -> list[int]:
    """Return the tokens that ``next_tokens`` gave, ``(rows,)``. Raises UserError if the scores weren't finite."""
    found: list[int] = tokens.tolist()
    if -1 in found:
        raise UserError(DIVERGED)
    return found


def uniform_numbers(keys: np.ndarray, position: int | np.ndarray) -> np.ndarray:
    """Numbers in [0, 1), ``(rows,)``: a function of each row's key, ``(rows,)`` uint64, and its position alone.

    They have 24 bits, so that float32 holds them exactly, and none becomes 1.
    Source: Steele et al. 2014, "Fast Splittable Pseudorandom Number Generators" (SplitMix64).

    >>> both, second = (uniform_numbers(np.array(keys, np.uint64), 7) for keys in ([1, 2], [2]))
    >>> bool(both[1] == second[0])
    True
    """
    with np.errstate(over="ignore"):
        states = _mixed(keys.astype(np.uint64)) + (np.asarray(position, np.uint64) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        return (_mixed(states) >> np.uint64(40)).astype(np.float64) * 2.0**-24


def _mixed(states: np.ndarray) -> np.ndarray:
    states = (states ^ (states >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    states = (states ^ (states >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = states ^ (states >> np.uint64(31))
    return mixed


def probabilities(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """Return the distribution that the next token is drawn from, ``(..., vocab)``: 0 for tokens filtered out.

    >>> probabilities(torch.tensor([1.0, 3.0, 2.0]).log(), SamplingSettings(top_k=2))
    tensor([0.0000, 0.6000, 0.4000])
    """
    if settings.temperature == 0:
        return nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
    weights, tokens = _candidates(logits.reshape(-1, logits.shape[-1]), settings)
    weights = weights / weights.sum(-1, keepdim=True)
    if tokens is not None:
        weights = weights.new_zeros(len(weights), logits.shape[-1]).scatter(-1, tokens, weights)
    return weights.view(logits.shape)


def _candidates(logits: Tensor, settings: SamplingSettings) -> tuple[Tensor, Tensor | None]:
    """Weights of tokens ``(rows, count)``, 0 where one may not be drawn; and the tokens, None for all in their order.

    The best are first where there are fewer than all.
    """
    shifted = (logits - logits.amax(-1, keepdim=True)) / max(settings.temperature, SMALLEST_TEMPERATURE)
    tokens = None
    if 0 < settings.top_k < logits.shape[-1]:
        shifted, tokens = highest(shifted, settings.top_k)
    weights = shifted.softmax(-1)
    if settings.top_p < 1:
        if tokens is None:
            weights, tokens = _reaching(shifted, settings.top_p)
        dropped = running_sum(weights) - weights >= settings.top_p
        dropped[:, 0] = False
        weights = weights.masked_fill(dropped, 0.0)
    if settings.min_p:
        weights = weights.masked_fill(weights < settings.min_p * weights.amax(-1, keepdim=True), 0.0)
    return weights, tokens


def _reaching(shifted: Tensor, probability: float) -> tuple[Tensor, Tensor]:
    """Probabilities of the best tokens, ``(rows, count)``, and the tokens: as many as every row needs."""
    total, count = shifted.logsumexp(-1, keepdim=True), FIRST_RANKED
    while True:
        ranked, tokens = highest(shifted, min(count, shifted.shape[-1]))
        weights = (ranked - total).exp()
        if count >= shifted.shape[-1] or bool((weights.sum(-1) >= probability).all()):
            return weights, tokens
        count *= 8


def drawn(weights: Tensor, uniforms: Tensor) -> Tensor:
    """A place of each row of weights ``(rows, count)``, as probable as its weight, by a number in [0, 1): ``(rows,)``.

    First a block, then a place in it: sums of few numbers round little, and in one order on every device.
    """
    blocks = nn.functional.pad(weights, (0, -weights.shape[-1] % TOP_P_BLOCK)).unflatten(-1, (-1, TOP_P_BLOCK))
    sums = blocks.sum(-1)
    block, rest = _reached(sums, uniforms * sums.sum(-1))
    within, _ = _reached(blocks[torch.arange(len(blocks), device=blocks.device), block], rest)
    return block * TOP_P_BLOCK + within


def _reached(weights: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The first place of each row where the running sum exceeds the target, and what of the target that place has."""
    sums = running_sum(weights)
    reached = (sums > targets[:, None]) & (weights > 0)
    # Rounding may leave a target that no sum exceeds: then the largest weight has it.
    places = torch.where(reached.any(-1), reached.int().argmax(-1), weights.argmax(-1))
    before = (sums - weights).gather(-1, places[:, None])[:, 0]
    return places, (targets - before).clamp(min=0)


def highest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest scores of each row and their places, ``(rows, count)``, in order; of equal ones the earlier first.

    >>> highest(torch.tensor([[1.0, 3.0, 2.0, 3.0]]), 2)[1]
    tensor([[1, 3]])
    """
    if scores.device.type == "cuda" and scores.dtype == torch.float32:
        # without asking whether some are equal: no two of the numbers that are compared are. Their upper half is the
        # score, as a whole number in the same order; the lower half puts earlier places first
        # There is only one zero.
        bits = (scores + 0.0).view(torch.int32).long()
        # Bits of negative numbers grow with the size.
        ordered = torch.where(bits < 0, -1 - 2**31 - bits, bits)
        later = torch.arange(scores.shape[-1] - 1, -1, -1, device=scores.device)
        places = (2**32 * ordered + later).topk(count).indices
        return scores.gather(-1, places), places
    values, places = scores.topk(count)
    if ((scores >= values[:, -1:]).sum(-1) > count).any():
        # Equal ones on both sides of the border: topk picks any.
        values, places = scores.sort(descending=True, stable=True)
        return values[:, :count], places[:, :count]
    places, order = places.sort(-1)
    values, order = values.gather(1, order).sort(descending=True, stable=True)
    return values, places.gather(1, order)


def penalised(logits: Tensor, contexts: Sequence[Sequence[int]], penalty: float) -> Tensor:
    """Scores with those of the tokens read divided by ``penalty`` where positive, multiplied where negative."""
    if penalty == 1:
        return logits
    read = torch.zeros(logits.shape, dtype=torch.bool)
    for row, context in enumerate(contexts):
        read[row, list(context)] = True
    seen = send(read, logits.device)
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


class Writer(Protocol):
    """A model in the midst of writing rows."""

    def next_logits(self, tokens: Tensor) -> Tensor:
        """Scores of what follows each row, ``(rows, vocab)``, after it has read its newest token, ``(rows,)``.

        In float32 at least; minus infinity for a token that can't follow.
        """
        ...

    def select(self, rows: Tensor) -> None:
        """Keep these rows ``(rows,)``, on the CPU, in this order; one may be taken several times."""
        ...


class WithoutRepeats:
    """A writer in whose rows no run of ``size`` tokens occurs twice: the token that would complete one can't follow.

    The probabilities are those of the tokens that can. What a row begins with isn't part of a run, so that the token
    that ends it always can, also where it is the one that begins it.
    """

    def __init__(self, writer: Writer, size: int) -> None:
        assert size >= 1
        self.writer, self.size = writer, size
        self.written: Tensor | None = None
        """``(rows, time)``; None before the first token."""

    def next_logits(self, tokens: Tensor) -> Tensor:
        newest = tokens[:, None]
        self.written = newest[:, :0] if self.written is None else torch.cat((self.written, newest), 1)
        logits = self.writer.next_logits(tokens)
        length = self.written.shape[1]
        if length < self.size:
            return logits
        runs, latest = self.written.unfold(1, self.size, 1), self.written[:, length - self.size + 1 :]
        begun = (runs[..., :-1] == latest[:, None]).all(-1)
        # Tokens that don't complete a run go to a column more. All are written alike, so the order doesn't matter.
        vocab = logits.shape[1]
        forbidden = logits.new_zeros(len(logits), vocab + 1)
        forbidden.scatter_(1, runs[..., -1].masked_fill(~begun, vocab), -torch.inf)
        return logits + forbidden[:, :vocab]

    def select(self, rows: Tensor) -> None:
        self.writer.select(rows)
        if self.written is not None:
            self.written = self.written[send(rows, self.written.device)]


@dataclass(frozen=True)
class Hypothesis:
    """The tokens written for a row, without the token that ended it."""

    tokens: tuple[int, ...]
    log_probability: float
    """Summed over the tokens and, where ``ended``, the one that ended them; before temperature and filters."""
    ended: bool
    """False where it was cut off at the greatest length."""

    def score(self, length_penalty: float) -> float:
        """Return the log-probability divided by this power of the length, which counts the token that ends it.

        >>> Hypothesis((7, 8, 9), -6.0, ended=True).score(0.5)
        -3.0
        """
        return penalised_score(self.log_probability, len(self.tokens) + self.ended, length_penalty)


def penalised_score(log_probability: float, length: int, length_penalty: float) -> float:
    """Return the score by which hypotheses are compared: at equal log-probability, the longer is never lower.

    Source: Murray and Chiang 2018, "Correcting Length Bias in Neural Machine Translation" (a power of 1: length
    normalisation).
    """
    score: float = log_probability / length**length_penalty
    return score


def write(writer: Writer, begin: Tensor, settings: SamplingSettings, keys: Sequence[int] = ()) -> list[Hypothesis]:
    """Generate after the tokens ``begin`` ``(rows,)``, by sampling, or by the most probable token (temperature 0).

    ``keys[i]`` determines the draws of row ``i``; greedy rows need none.
    """
    texts: list[list[int]] = [[] for _ in range(len(begin))]
    log_probabilities = [0.0] * len(texts)
    ended = [False] * len(texts)
    writing, tokens, own = list(range(len(texts))), begin, np.array(keys, dtype=np.uint64)
    for position in range(settings.max_new_tokens):
        logits = writer.next_logits(tokens)
        # a function of the row's key and the position alone: a row draws the same in any batch
        uniforms = uniform_numbers(own[writing], position) if settings.temperature else None
        tokens = next_tokens(logits, [texts[row] for row in writing], settings, uniforms)
        gained = logits.gather(1, tokens.clamp(min=0)[:, None])[:, 0] - logits.logsumexp(-1)
        # one transfer: each one waits for the device
        read, gains = read_together(tokens, gained)
        for row, token, gain in zip(writing, require_tokens(read), gains.tolist(), strict=True):
            log_probabilities[row] += gain
            ended[row] = token in settings.stop_ids
            texts[row] += [] if ended[row] else [token]
        going_on = [place for place, row in enumerate(writing) if not ended[row]]
        if not going_on:
            break
        # rows that are done leave the batch, so that they cost no more passes
        if len(going_on) < len(writing):
            kept = torch.tensor(going_on)
            writer.select(kept)
            tokens, writing = tokens[send(kept, begin.device)], [writing[place] for place in going_on]
    return [Hypothesis(*found) for found in zip(map(tuple, texts), log_probabilities, ended, strict=True)]


@contextmanager
def without_dropout(model: nn.Module | Sequence[nn.Module]) -> Iterator[None]:
    """The model, or these modules of one, in evaluation mode; on exit, its mode is restored."""
    modules = model.modules() if isinstance(model, nn.Module) else model
    in_training = [module for module in modules if module.training]
    for module in in_training:
        module.training = False
    try:
        yield
    finally:
        for module in in_training:
            module.training = True
