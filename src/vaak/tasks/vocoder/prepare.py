"""Corpora to cut stores, once (vaak.tasks.prepared_cuts), of recordings that a vocoder can be trained on."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from vaak.audio.config import AudioConfig
from vaak.audio.sources.cut_findings import SECONDS_AT_ONCE, SILENT_DECIBELS
from vaak.audio.waveforms.audio_file import samples_in
from vaak.audio.waveforms.reading import demand_frequencies, file_of, read_samples
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
                _demand_sound(cut, audio)
            except DataError as error:
                if not skip_bad:
                    raise
                log.warning("skipped: %s", error)
                continue
            yield cut

    further = {"highest": audio.mel.nyquist if audio.mel is not None else None, "skip_bad": skip_bad}
    return prepared_cuts.recipe(datasets, audio, splits, usable, further)


def _demand_sound(cut: Any, audio: AudioConfig) -> None:
    """Read a recording, some minutes at a time. Raises DataError where it can't be read, or is silent."""
    rate, peak = audio.sampling_rate, 0.0
    for first in range(0, samples_in(cut.duration, rate), SECONDS_AT_ONCE * rate):
        samples = read_samples(cut, audio, first, first + SECONDS_AT_ONCE * rate)
        peak = max(peak, float(np.abs(samples).max(initial=0.0)))
    if peak < 10 ** (SILENT_DECIBELS / 20):
        raise DataError(f"{cut.id} ({file_of(cut)}): it is silent; remove it, or record it again")
