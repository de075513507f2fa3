"""Which path a device takes where there are several to the same numbers, and how much is computed there at once.

torch's own kernels are the quick ones on CUDA. On a CPU some are slow, and products of matrices take their place:

    what                             on a CPU                              on CUDA
    depthwise convolution            blocks of a Toeplitz matrix           conv1d
    softmax attention in bfloat16    the formula, row by row               scaled_dot_product_attention
    features of linear attention     as many at once as a cache holds      as many at once as keep it busy
    several documents in a row       softmax attention with a mask         kernels of variable length, in 16 bits
    cross-entropy of many classes    some rows at a time, in its cache     a kernel of ours, row by row
    rotation to positions            torch's operators                     a kernel of ours, row by row
    layers of one input, lengths     an operator each                      fewer operators, where they are small

Every example is computed alike in any company, up to rounding: this changes nothing but time and memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class DevicePaths:
    """``toeplitz_convolution`` and ``explicit_bfloat16_attention`` are the paths without torch's kernels.

    ``features_at_once`` are those of linear attention that are computed together, over all heads.
    ``variable_length_attention`` are torch's kernels for documents of different lengths, where they fit;
    ``row_kernels`` are ours. ``fewer_operators`` compute the same, rounded otherwise: a small model waits for each to
    be started.
    """

    toeplitz_convolution: bool
    explicit_bfloat16_attention: bool
    features_at_once: int
    variable_length_attention: bool = False
    row_kernels: bool = False
    fewer_operators: bool = False


PATHS: dict[str, DevicePaths] = {
    "cpu": DevicePaths(toeplitz_convolution=True, explicit_bfloat16_attention=True, features_at_once=2**19),
    "cuda": DevicePaths(
        toeplitz_convolution=False,
        explicit_bfloat16_attention=False,
        features_at_once=2**26,
        variable_length_attention=True,
        row_kernels=True,
        fewer_operators=True,
    ),
}
PATHS_OF_OTHER_DEVICES = DevicePaths(
    toeplitz_convolution=True, explicit_bfloat16_attention=False, features_at_once=2**26
)
"""MPS and the like, on which the convolutions were not compared."""


def paths_on(device: torch.device) -> DevicePaths:
    """Return the paths that computations on a device take."""
    return PATHS.get(device.type, PATHS_OF_OTHER_DEVICES)


FEWEST_TOKENS = 256
"""Examples are computed in groups before their tokens are taken in chunks shorter than this."""
FEWEST_AT_ONCE = 64
"""No chunk has fewer tokens, however many heads there are."""


def num_tokens_at_once(rows: int, weights: Tensor) -> int:
    """Return how many tokens of each of the rows make a chunk."""
    return max(FEWEST_AT_ONCE, paths_on(weights.device).features_at_once // (rows * weights.shape[0]))


def groups(tensors: Sequence[Any], time: int, heads: int, weights: Tensor) -> Iterator[list[Any]]:
    """Yield the tensors, whose first dimension is the example, some examples at a time; None stays None."""
    batch = len(tensors[0])
    at_once = paths_on(weights.device).features_at_once
    size = max(1, at_once // (heads * min(time, FEWEST_TOKENS) * weights.shape[0]))
    for start in range(0, batch, size):
        yield [None if tensor is None else tensor[start : start + size] for tensor in tensors]


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return the groups' results as one."""
    # cat of a single tensor would copy it
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))
