"""Several sources as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vaak.audio.labelled import AudioSource, LabelledAudio
from vaak.core.storage.files import fingerprint_of


class Sources:
    """The examples of each source, one source after another (``vaak.audio.labelled.AudioSource``)."""

    def __init__(self, sources: Sequence[AudioSource]) -> None:
        self.sources = list(sources)
        self.durations = np.concatenate([source.durations for source in sources])
        self.speakers = tuple(sorted({name for source in sources for name in source.speakers}))
        self.fingerprint = fingerprint_of([source.fingerprint for source in sources])
        self._starts = np.cumsum([0, *(len(source.durations) for source in sources)])

    def load(self, index: int, rng: np.random.Generator) -> LabelledAudio:
        source, within = self.find(index)
        return source.load(within, rng)

    def describe(self, index: int) -> str:
        source, within = self.find(index)
        return source.describe(within)

    def find(self, index: int) -> tuple[AudioSource, int]:
        """Whose example it is, and its index there."""
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self.sources[number], index - int(self._starts[number])
