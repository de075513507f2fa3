"""Which split something belongs to where splits aren't given: its hash decides.

The split of a text, a recording or a speaker doesn't depend on the others, and none moves when others are added. Where
numbers are asked for instead of fractions, those with the highest hashes are valid and test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Protocol

from vaak.core.errors import UserError

SPLITS = ("train", "valid", "test")
OTHER_SHARES = "other fractions, a number (valid_examples, test_examples), or files for this split"
"""The remedy for a split that got nothing because there is too little data."""
Ranges = dict[str, tuple[float, float]]
"""The range, in [0, 1), of each split that is cut from the given train split."""


class SplittingOptions(Protocol):
    """How one source is divided into three splits."""

    @property
    def train_fraction(self) -> float: ...
    @property
    def valid_fraction(self) -> float: ...


class Splits:
    """The splits of a corpus: ``given`` ones, and those that are split off from train by their ``ranges``."""

    def __init__(self, given: Iterable[str], options: SplittingOptions, where: str) -> None:
        """Raises UserError, naming ``where``, for fractions with a sum above 1."""
        self.given = tuple(given)
        self.ranges = split_ranges(self.given, options.train_fraction, options.valid_fraction, where)

    @property
    def names(self) -> tuple[str, ...]:
        """All splits, given or split off."""
        return tuple(split for split in SPLITS if split in self.given or split in self.ranges)

    def find_source(self, split: str) -> str:
        """Return the given split that ``split`` is read from."""
        return "train" if split in self.ranges else split

    def list_sources(self, split: str) -> tuple[str, ...]:
        """Return all sources that are read for ``split``."""
        return (self.find_source(split),)

    def is_all_of_its_source(self, split: str) -> bool:
        """Return whether nothing in a split's source belongs to another split."""
        return self.ranges.get(split, (0.0, 1.0)) == (0.0, 1.0)

    def of(self, *names: str) -> str | None:
        """Return the split of an entry of the train split with these names; None if they belong to several."""
        found = {self.at(to_fraction(hash_text(name))) for name in names}
        return found.pop() if len(found) == 1 else None

    def at(self, place: float) -> str:
        """Return the split of a place in [0, 1)."""
        return next(split for split, (low, high) in self.ranges.items() if low <= place < high)

    def of_rank(self, rank: int, number: int) -> str:
        """Return the split of the entry at ``rank`` of ``number`` in their own order, from train to test."""
        return self.at((rank + 0.5) / number)


class CountedSplits(Splits):
    """Splits of which valid and test have as many names as asked for: ``valid_examples`` and ``test_examples``.

    ``given`` are the splits that exist, and ``names_given`` reads the names of train's; messages name ``where``.
    """

    def __init__(
        self,
        given: Iterable[str],
        valid_examples: int | None,
        test_examples: int | None,
        where: str,
        names_given: Callable[[], Iterable[str]],
    ) -> None:
        self.given, self.where, self._names_given = tuple(given), where, names_given
        self._counts = {"valid": valid_examples or 0, "test": test_examples or 0}
        self._counts = {split: number for split, number in self._counts.items() if number and split not in self.given}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(split for split in SPLITS if split in (*self.given, *self._counts))

    def find_source(self, split: str) -> str:
        return "train" if split in self._counts else split

    @cached_property
    def ranges(self) -> Ranges:  # type: ignore[override]  # known when the names have been read, once
        """The range of each split, between the hashes of the names. Raises UserError if none is left for train."""
        if "train" not in self.given:
            return {}
        places = sorted({to_fraction(hash_text(name)) for name in self._names_given()})
        left = len(places) - sum(self._counts.values())
        if left < 1:
            asked = " and ".join(f"{split}_examples: {number}" for split, number in self._counts.items())
            raise UserError(f"{self.where}: there are {len(places)}, of which {asked} leave none for train; give fewer")
        ranges, low = {}, 0.0
        for split, number in {"train": left, **self._counts}.items():
            places = places[number:]
            high = places[0] if places else 1.0
            ranges[split] = low, high
            low = high
        return ranges

    def of_rank(self, rank: int, number: int) -> str:
        last = number
        for split, count in reversed(self._counts.items()):
            last -= count
            if rank >= last:
                return split
        return "train"


def split_ranges(given: tuple[str, ...], train_fraction: float, valid_fraction: float, where: str) -> Ranges:
    """Return the ranges where the splits ``given`` exist; train alone is cut in three.

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


def to_fraction(digest: int) -> float:
    """The digest's place in [0, 1): its first 53 bits, since a float can't hold all 64 and would round up to 1."""
    return (digest >> 11) / 2**53


def hash_text(text: str) -> int:
    """Hash a text to 64 bits, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _without_empty(ranges: Ranges) -> Ranges:
    return {split: (low, high) for split, (low, high) in ranges.items() if low < high}
