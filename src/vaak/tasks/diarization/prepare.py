"""Corpora to cut stores, once (vaak.tasks.prepared_cuts); what a diarizer knows of them."""

from __future__ import annotations

from dataclasses import dataclass

from vaak.tasks.prepared_cuts import Datasets, PreparedCuts


@dataclass(frozen=True)
class Prepared(PreparedCuts):
    """Cut stores, by split and dataset."""

    def most_speakers(self, split: str) -> int:
        """The greatest number of speakers in one recording."""
        return int(self.about["statistics"][split].get("most_speakers", 0))


def corpora_differ(datasets: Datasets, others: Datasets) -> bool:
    """Whether other recordings are to be read than before; conversations are simulated from the same."""
    own, theirs = ([one.model_copy(update={"conversations": None}) for one in some] for some in (datasets, others))
    return own != theirs
