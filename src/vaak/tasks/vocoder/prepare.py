"""Corpora to cut stores, once (vaak.tasks.prepared_cuts), of recordings that a vocoder can be trained on."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from vaak.audio.config import AudioConfig
from vaak.audio.sources.cut_findings import demand_sound
from vaak.audio.waveforms.reading import demand_frequencies
from vaak.core.errors import DataError
from vaak.runs.prepared import Recipe
from vaak.tasks import prepared_cuts
from vaak.tasks.prepared_cuts import Datasets

log = logging.getLogger("vaak")


def recipe(datasets: Datasets, audio: AudioConfig, skip_bad: bool, splits: tuple[str, ...] | None = None) -> Recipe:
    """How the cut stores of ``splits`` (default: all) are made, with or without what can't be used."""

    def usable(cuts: Iterable[Any]) -> Iterator[Any]:
        for cut in cuts:
            try:
                demand_frequencies(cut, audio)
                demand_sound(cut, audio)
            except DataError as error:
                if not skip_bad:
                    raise
                log.warning("skipped: %s", error)
                continue
            yield cut

    further = {"highest": audio.mel.nyquist if audio.mel is not None else None, "skip_bad": skip_bad}
    return prepared_cuts.recipe(datasets, audio, splits, usable, further)
