"""Which split a recording belongs to, where splits are made here.

The hash of a recording's name, or of its speaker's, says it, so none moves when others are added. By speaker, no
speaker is in two splits: a recording with speakers of several splits belongs to none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from vaak.audio.config import DatasetConfig
from vaak.core.errors import UserError

SPLITS = ("train", "valid", "test")


class CorpusSplits:
    """The splits of a corpus: ``given`` ones, and those that are cut from what is given as train."""

    def __init__(self, given: Iterable[str], dataset: DatasetConfig) -> None:
        """Raises UserError for fractions that are more than a whole."""
        self.given, self.split_by = tuple(given), dataset.split_by
        self.ranges = _ranges(self.given, dataset)

    @property
    def names(self) -> tuple[str, ...]:
        """Those that there are, given or cut."""
        return tuple(split for split in SPLITS if split in self.given or split in self.ranges)

    def source_of(self, split: str) -> str:
        """The given split that ``split`` is read from."""
        return "train" if split in self.ranges else split

    def of(self, recording: str, speakers: Iterable[str]) -> str | None:
        """The split of a recording that was given as train; None where its speakers belong to several."""
        names = [f"speaker {name}" for name in sorted(set(speakers))] if self.split_by == "speaker" else []
        found = {self._at(fraction_of(name)) for name in names or [f"recording {recording}"]}
        return found.pop() if len(found) == 1 else None

    def _at(self, place: float) -> str:
        return next(split for split, (low, high) in self.ranges.items() if low <= place < high)


def _ranges(given: tuple[str, ...], dataset: DatasetConfig) -> dict[str, tuple[float, float]]:
    """The hashes, in [0, 1), of each split that comes from train; train alone is cut in three.

    Where only test is given, valid is cut from train; where valid is given, nothing is.
    """
    if "train" not in given:
        return {}
    if "valid" in given:
        return {"train": (0.0, 1.0)}
    if "test" in given:
        end_of_train = 1 - dataset.valid_fraction
        return _without_empty({"train": (0.0, end_of_train), "valid": (end_of_train, 1.0)})
    end_of_train, end_of_valid = dataset.train_fraction, dataset.train_fraction + dataset.valid_fraction
    if end_of_valid > 1 + 1e-9:
        raise UserError(
            f"datasets, {dataset.name}: train_fraction and valid_fraction add up to {end_of_valid:g}, more than 1"
        )
    end_of_valid = 1.0 if end_of_valid > 1 - 1e-9 else end_of_valid
    thirds = {"train": (0.0, end_of_train), "valid": (end_of_train, end_of_valid), "test": (end_of_valid, 1.0)}
    return _without_empty(thirds)


def _without_empty(ranges: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    return {split: (low, high) for split, (low, high) in ranges.items() if low < high}


def fraction_of(name: str) -> float:
    """A place in [0, 1) for a name, the same in every process."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53
