"""Which split something belongs to, where splits aren't given: its hash decides.

So the split of a text, a recording or a speaker doesn't depend on the others, and none moves when others are added.
"""

from __future__ import annotations

import hashlib

from vaak.core.errors import UserError

SPLITS = ("train", "valid", "test")

Ranges = dict[str, tuple[float, float]]
"""The range, in [0, 1), of each split that is cut from what is given as train."""


def split_ranges(given: tuple[str, ...], train_fraction: float, valid_fraction: float, where: str) -> Ranges:
    """The ranges where the splits ``given`` exist; train alone is cut in three.

    Where only test is given besides, valid is cut from train; where valid is given, nothing is. Raises UserError,
    naming ``where``, for fractions that add up to more than 1.
    """
    if "train" not in given:
        return {}
    if "valid" in given:
        return {"train": (0.0, 1.0)}
    if "test" in given:
        return _without_empty({"train": (0.0, 1 - valid_fraction), "valid": (1 - valid_fraction, 1.0)})
    both = train_fraction + valid_fraction
    if both > 1 + 1e-9:
        raise UserError(f"{where}: train_fraction and valid_fraction add up to {both:g}, more than 1")
    both = 1.0 if both > 1 - 1e-9 else both
    return _without_empty({"train": (0.0, train_fraction), "valid": (train_fraction, both), "test": (both, 1.0)})


def fraction_of(digest: int) -> float:
    """The digest's place in [0, 1): its first 53 bits, since a float can't hold all 64 and would round up to 1."""
    return (digest >> 11) / 2**53


def digest_of(text: str) -> int:
    """64 bits that stand for a text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _without_empty(ranges: Ranges) -> Ranges:
    return {split: (low, high) for split, (low, high) in ranges.items() if low < high}
