"""Which path a device takes where there are several to the same numbers, up to rounding.

torch's own kernels are the quick ones on CUDA. On a CPU some are slow, and products of matrices take their place:

    what                             on a CPU                              on CUDA
    depthwise convolution            blocks of a Toeplitz matrix           conv1d
    softmax attention in bfloat16    the formula, row by row               scaled_dot_product_attention
    features of linear attention     as many at once as a cache holds      as many at once as keep it busy
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DevicePaths:
    """``toeplitz_convolution`` and ``explicit_bfloat16_attention`` are the paths without torch's kernels.

    ``features_at_once`` are those of linear attention that are computed together, over all heads.
    """

    toeplitz_convolution: bool
    explicit_bfloat16_attention: bool
    features_at_once: int


PATHS: dict[str, DevicePaths] = {
    "cpu": DevicePaths(toeplitz_convolution=True, explicit_bfloat16_attention=True, features_at_once=2**19),
    "cuda": DevicePaths(toeplitz_convolution=False, explicit_bfloat16_attention=False, features_at_once=2**26),
}

OTHERS = DevicePaths(toeplitz_convolution=True, explicit_bfloat16_attention=False, features_at_once=2**26)
"""MPS and the like, on which the convolutions were not compared."""


def paths_on(device: torch.device) -> DevicePaths:
    """The paths that computations on a device take."""
    return PATHS.get(device.type, OTHERS)
