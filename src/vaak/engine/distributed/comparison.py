"""Whether all ranks run the same: hashes of what they run, and what is different where the hashes are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

CHUNK = 2**20
"""Elements whose weighted sum is taken at a time: what a fingerprint needs of memory is 16 MB."""

MIX = 0x9E3779B97F4A7C15 - 2**64
"""An odd number without a pattern (2**64 over the golden ratio, as a signed one)."""

SHOWN = 5
"""Differences that one line names."""

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def canonical(values: Any) -> str:
    """Values as text that is the same wherever they are."""
    return json.dumps(values, sort_keys=True, default=str)


def describe_differences(every: list[Any]) -> str:
    """What the ranks run differently, against rank 0.

    >>> describe_differences([{"seed": 42, "data": {"max": 9}}, {"seed": 7, "data": {"max": 9}}])
    'rank 1 runs with seed 7, rank 0 with 42'
    """
    flat = [_flatten(values) for values in every]
    differing: dict[tuple[str, str], list[int]] = {}
    for key in sorted({key for values in flat for key in values}):
        for rank, values in enumerate(flat):
            if values.get(key) != flat[0].get(key):
                differing.setdefault((key, _shown(values.get(key))), []).append(rank)
    said = [
        f"{name_ranks(ranks)} {'runs' if len(ranks) == 1 else 'run'} with {key} {value}, "
        f"rank 0 with {_shown(flat[0].get(key))}"
        for (key, value), ranks in differing.items()
    ]
    more = f"; and {len(said) - SHOWN} more" if len(said) > SHOWN else ""
    return "; ".join(said[:SHOWN]) + more


def name_ranks(ranks: list[int]) -> str:
    """Ranks as they are named in a sentence.

    >>> name_ranks([1]), name_ranks([1, 2, 5])
    ('rank 1', 'ranks 1, 2, 5')
    """
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def weights_fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A hash of tensors' names, shapes and bits, which stay on their device.

    Each tensor gives the sum, modulo 2**64, of its elements' bits, each times an odd weight of its position: a bit
    that changes changes the sum, and so do two elements that trade places.
    """
    sums = [_weighted_bits(tensor.detach()) for tensor in tensors.values()]
    by_device: dict[torch.device, list[int]] = {}
    for place, total in enumerate(sums):
        by_device.setdefault(total.device, []).append(place)
    numbers = [0] * len(sums)
    for places in by_device.values():  # one wait for each device, not one for each tensor
        for place, number in zip(places, torch.stack([sums[place] for place in places]).tolist(), strict=True):
            numbers[place] = number
    described = [
        [name, str(tensor.dtype), list(tensor.shape), number]
        for (name, tensor), number in zip(tensors.items(), numbers, strict=True)
    ]
    return hashlib.sha256(canonical(described).encode()).hexdigest()[:16]


def _weighted_bits(tensor: Tensor) -> Tensor:
    flat = tensor.contiguous().reshape(-1)
    bits = flat.view(INTEGERS.get(tensor.dtype.itemsize, torch.int64))
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    weights = torch.arange(min(CHUNK, len(bits)), device=tensor.device).mul_(MIX).bitwise_or_(1)
    for number, chunk in enumerate(bits.split(CHUNK)):
        weighted = chunk.to(torch.int64) * weights[: len(chunk)]
        total = total * MIX + weighted.sum() + number
    return total


def _flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """Nested values by their dotted keys."""
    if not isinstance(values, dict) or not values:
        return {prefix: values}
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _shown(value: Any) -> str:
    text = "nothing" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
