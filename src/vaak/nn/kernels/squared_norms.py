"""How large the queries and keys are that enter the feature maps of linear attention.

The variance of FAVOR+ grows exponentially with their squared norms, so training may keep these small: the auxiliary
loss ``norm_reg`` is their mean. A tally is the caller's, as a cache is: the forward pass adds to it, the model keeps
nothing.

Source: Choromanski et al. 2021, "Rethinking Attention with Performers", lemma 2 (the variance).
"""

from __future__ import annotations

import torch
from torch import Tensor

from vaak.core.batch import Term

NORM_REG = "norm_reg"


class SquaredNorms:
    """Adds up, over the places of one sequence, the squared norms of what they send into feature maps."""

    def __init__(self, real: Tensor) -> None:
        """``real`` ``(batch, time)`` is False where the sequence is padding, which doesn't count."""
        self.real = real
        self.sums: list[Tensor] = []
        self.vectors = 0

    def add(self, x: Tensor) -> None:
        """Add queries or keys ``(batch, heads, time, head_width)``, which enter a feature map divided by width^¼."""
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        squares = exact.square().sum((1, 3)) * x.shape[-1] ** -0.5
        self.sums.append((squares * self.real).sum())
        self.vectors += x.shape[1]

    def total(self) -> Tensor:
        """The sum over places of the mean over the vectors of a place; there must be some."""
        return torch.stack(self.sums).sum() / self.vectors


def norm_reg(*tallies: SquaredNorms) -> Term:
    """The mean over all places of these sequences, as a sum with its unit; an empty tally adds nothing."""
    return Term(torch.stack([tally.total() for tally in tallies if tally.sums]).sum(), per="position")
