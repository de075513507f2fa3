"""How much is computed at once where features are made, used and forgotten: what a processor's cache holds.

Every example is computed alike in any company, so this changes nothing but time and memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from vaak.nn.kernels.device_paths import paths_on

FEWEST_TOKENS = 256
"""Examples are computed in groups before their tokens are taken in pieces shorter than this."""

FEWEST_AT_ONCE = 64
"""No piece has fewer tokens, however many heads there are."""


def num_tokens_at_once(rows: int, weights: Tensor) -> int:
    """How many tokens of each of the rows make a piece."""
    return max(FEWEST_AT_ONCE, paths_on(weights.device).features_at_once // (rows * weights.shape[0]))


def groups(tensors: Sequence[Any], time: int, heads: int, weights: Tensor) -> Iterator[list[Any]]:
    """The tensors, whose first dimension is the example, some examples at a time; None stays None."""
    batch = len(tensors[0])
    at_once = paths_on(weights.device).features_at_once
    size = max(1, at_once // (heads * min(time, FEWEST_TOKENS) * weights.shape[0]))
    for start in range(0, batch, size):
        yield [None if tensor is None else tensor[start : start + size] for tensor in tensors]


def joined(parts: Sequence[Tensor]) -> Tensor:
    """The groups' results as one."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))
