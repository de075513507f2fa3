"""Which split a recording belongs to, if valid and test are not given.

The hash of a recording's name, or of its speaker's, decides, so none moves when others are added. By speaker, no
speaker is in two splits: a recording with speakers of several splits belongs to none.
"""

from __future__ import annotations

from collections.abc import Iterable

from vaak.audio.config import DatasetConfig
from vaak.core.split_ranges import SPLITS, digest_of, fraction_of, split_ranges


class CorpusSplits:
    """The splits of a corpus: ``given`` ones, and those that are split off from train."""

    def __init__(self, given: Iterable[str], dataset: DatasetConfig) -> None:
        """Raises UserError for fractions with a sum above 1."""
        self.given, self.split_by = tuple(given), dataset.split_by
        where = f"datasets, {dataset.name}"
        self.ranges = split_ranges(self.given, dataset.train_fraction, dataset.valid_fraction, where)

    @property
    def names(self) -> tuple[str, ...]:
        """All splits, given or split off."""
        return tuple(split for split in SPLITS if split in self.given or split in self.ranges)

    def source_of(self, split: str) -> str:
        """The given split that ``split`` is read from."""
        return "train" if split in self.ranges else split

    def of(self, recording: str, speakers: Iterable[str]) -> str | None:
        """The split of a recording that was given as train; None if its speakers belong to several."""
        names = [f"speaker {name}" for name in sorted(set(speakers))] if self.split_by == "speaker" else []
        found = {self._at(fraction_of(digest_of(name))) for name in names or [f"recording {recording}"]}
        return found.pop() if len(found) == 1 else None

    def _at(self, place: float) -> str:
        return next(split for split, (low, high) in self.ranges.items() if low <= place < high)
