"""T5's relative positions: a learned number for each head and range of distances, added to attention's scores.

Near distances have a bucket each; farther ones share buckets that grow logarithmically, and all from 128 on the last.

Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", section
2.1; Shaw et al. 2018, "Self-Attention with Relative Position Representations", for the idea.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

NUM_BUCKETS = 32
MAX_DISTANCE = 128


class RelativeBias(nn.Module):
    """The number of each distance's bucket; ``bidirectional`` tells earlier from later, else later ones count as 0."""

    def __init__(self, num_heads: int, bidirectional: bool) -> None:
        super().__init__()
        self.bidirectional = bidirectional
        self.embedding = nn.Embedding(NUM_BUCKETS, num_heads)

    def forward(self, distance: Tensor) -> Tensor:
        """What is added to the scores, ``(heads, query, key)``, for distances ``(query, key)``."""
        bias: Tensor = self.embedding(distance_buckets(distance, self.bidirectional)).permute(2, 0, 1)
        return bias


def distance_buckets(distance: Tensor, bidirectional: bool) -> Tensor:
    """The bucket of each distance, key's place less query's.

    >>> distance_buckets(torch.tensor([-200, -20, -3, 0, 3, 200]), bidirectional=True)
    tensor([15, 10,  3,  0, 19, 31])
    >>> distance_buckets(torch.tensor([-200, -20, -3, 0, 3]), bidirectional=False)
    tensor([31, 17,  3,  0,  0])
    """
    num_buckets = NUM_BUCKETS // 2 if bidirectional else NUM_BUCKETS
    side = (distance > 0).long() * num_buckets if bidirectional else 0
    steps = distance.abs() if bidirectional else (-distance).clamp(min=0)
    num_exact = num_buckets // 2
    growth = torch.log(steps.clamp(min=1).float() / num_exact) / math.log(MAX_DISTANCE / num_exact)
    far = (num_exact + (growth * (num_buckets - num_exact)).long()).clamp(max=num_buckets - 1)
    return side + torch.where(steps < num_exact, steps, far)
