"""Utterances whose text doesn't seem to be that of their audio: spoken much faster or slower than the others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vaak.core.task import DataFinding
from vaak.tasks.tts.utterances.store import UtteranceStore

LEAST = 8
"""Utterances below which nothing is usual."""
FACTOR, DEVIATIONS = 1.6, 5.0
"""How much faster or slower than the median is unusual: both of these, for corpora of short and of alike utterances."""


def unusual_rates(store: UtteranceStore) -> Iterator[DataFinding]:
    """Warnings of utterances with many more or fewer symbols per second than the median."""
    if len(store) < LEAST:
        return
    rates = np.array([len(store.line(index).ids) for index in range(len(store))]) / store.durations
    median = float(np.median(rates))
    distances = np.abs(np.log(rates / median))
    limit = max(np.log(FACTOR), DEVIATIONS * 1.4826 * float(np.median(distances)))
    for index in np.flatnonzero(distances > limit).tolist():
        yield DataFinding(
            store.describe(index),
            "rate",
            f"{rates[index]:.1f} symbols per second, while {median:.1f} are usual; is its text that of the audio?",
            "warning",
        )
