"""The next token of each row: the most probable one, or one drawn from a filtered distribution.

Sources: Fan et al. 2018, "Hierarchical Neural Story Generation" (top-k); Holtzman et al. 2020, "The Curious Case of
Neural Text Degeneration" (top-p); Keskar et al. 2019, "CTRL" (repetition penalty).

Each row draws from a separate generator, on the CPU, so they depend neither on the other rows nor on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vaak.core.errors import UserError


@dataclass(frozen=True)
class SamplingSettings:
    """How the next token is chosen: repetition penalty, then temperature, then top-k, then top-p.

    Raises UserError where a value makes no sense.
    """

    max_new_tokens: int = 100
    temperature: float = 1.0
    """0 takes the most probable token, always."""
    top_k: int = 0
    """Sample only from the N most probable tokens; 0 is all. Of equal ones, those with lower numbers."""
    top_p: float = 1.0
    """Only the fewest most probable tokens that together have this probability; at least one."""
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
            "repetition_penalty": (0 < self.repetition_penalty < math.inf, "above 0"),
        }
        for name, (holds, expected) in limits.items():
            if not holds:
                raise UserError(f"{name} is {getattr(self, name)}; it must be {expected}.")


def next_tokens(
    logits: Tensor,
    contexts: Sequence[Sequence[int]],
    settings: SamplingSettings,
    generators: Sequence[torch.Generator],
) -> list[int]:
    """One token for each row of ``logits`` ``(rows, vocab)``; ``contexts`` are the tokens that each row has read.

    A logit of minus infinity is a token that can't follow. Raises UserError where a score is NaN.
    """
    scored = penalised(checked(logits), contexts, settings.repetition_penalty)
    if settings.temperature == 0:
        return scored.argmax(-1).tolist()
    choices = probabilities(scored.cpu(), settings)
    return [
        int(torch.multinomial(row, 1, generator=generator)) for row, generator in zip(choices, generators, strict=True)
    ]


def probabilities(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """The distribution that the next token is drawn from, ``(..., vocab)``: 0 for tokens filtered out.

    >>> probabilities(torch.tensor([1.0, 3.0, 2.0]).log(), SamplingSettings(top_k=2))
    tensor([0.0000, 0.6000, 0.4000], dtype=torch.float64)
    """
    if settings.temperature == 0:
        return nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).double()
    shifted = (logits.double() - logits.double().amax(-1, keepdim=True)) / settings.temperature
    ranked, order = shifted.sort(dim=-1, descending=True, stable=True)
    if settings.top_k:
        ranked[..., settings.top_k :] = -math.inf
    weights = ranked.softmax(-1)
    if settings.top_p < 1:
        before = weights.cumsum(-1) - weights
        dropped = before >= settings.top_p
        dropped[..., 0] = False
        weights = weights.masked_fill(dropped, 0.0)
        weights = weights / weights.sum(-1, keepdim=True)
    return torch.zeros_like(weights).scatter(-1, order, weights)


def penalised(logits: Tensor, contexts: Sequence[Sequence[int]], penalty: float) -> Tensor:
    """Scores with those of the tokens read divided by ``penalty`` where positive, multiplied where negative."""
    if penalty == 1:
        return logits
    seen = torch.zeros_like(logits, dtype=torch.bool)
    for row, context in enumerate(contexts):
        seen[row, list(context)] = True
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def checked(logits: Tensor) -> Tensor:
    """``logits`` as they are, if the highest of each row is finite. Raises UserError where it isn't, or one is NaN."""
    if not logits.amax(-1).isfinite().all():
        raise UserError("The model's scores are not finite numbers: its training has diverged.")
    return logits
