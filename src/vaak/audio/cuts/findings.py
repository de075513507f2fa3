"""Defects in the audio of stored cuts: clipping, silence, gaps; found without any label.

Audio is examined as stored, before it is resampled, some minutes at a time; its channels also before they
are averaged. Headers and manifests are compared with the files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vaak.audio.audio_file import samples_in
from vaak.audio.config import AudioConfig
from vaak.audio.containers.channels import LOUD, SILENT
from vaak.audio.cuts.reading import channel_remarks, file_remarks, get_file, read_samples
from vaak.audio.cuts.store import CutStore
from vaak.audio.speech_regions import find_runs
from vaak.core.errors import DataError
from vaak.core.task import DataFinding

if TYPE_CHECKING:
    from lhotse.cut import Cut

SECONDS_AT_ONCE = 300
LARGEST_OFFSET = 0.05
"""The mean of samples above which there is something wrong with the recording device."""
FLAT_SAMPLES = 3
"""As many equal samples at the maximum are a flat peak: without clipping, there is hardly ever one."""
MOST_FLAT_PEAKS = 2
"""More of them are clipping."""
LEAST_CLIPPED = 0.1
"""A maximum below is that of noise: its peaks are flat because of few bits."""
SAMPLE_ROUNDING = 1.5 / 2**15
LONGEST_GAP = 1.0
"""Seconds of zeros, in the middle of other audio, that recordings don't have."""


@dataclass
class Waveform:
    """Counts of a cut's samples; ``first_flat`` and the longest gap are in seconds."""

    peak: float = 0.0
    least: float = math.inf
    most: float = -math.inf
    mean: float = 0.0
    flat_peaks: int = 0
    first_flat: float = 0.0
    longest_gap: float = 0.0
    gap_start: float = 0.0


def cut_findings(store: CutStore, audio: AudioConfig) -> Iterator[DataFinding]:
    """Yield the findings on each cut; one that can't be read is left to whoever reads examples."""
    for index in range(len(store)):
        cut = store[index]
        try:
            found = _measure_waveform(cut, audio)
            told = [("length", message) for message in file_remarks(cut)]
            told += [*_findings(found), *channel_remarks(cut, audio)]
        except DataError:
            continue
        for kind, message in told:
            yield DataFinding(store.describe(index), kind, message, "problem" if kind == "silent" else "warning")


def require_sound(cut: Cut, audio: AudioConfig) -> None:
    """Read a cut, some minutes at a time. Raises DataError if it can't be read, or is silent."""
    least, most = math.inf, -math.inf
    for _, samples in _stretches(cut, audio):
        least, most = min(least, float(samples.min())), max(most, float(samples.max()))
    if (most - least) / 2 < SILENT:
        raise DataError(f"{cut.id} ({get_file(cut)}): it is silent; remove it, or record it again")


def _findings(found: Waveform) -> Iterator[tuple[str, str]]:
    # Half the range, not the peak: an offset without sound has a high peak.
    if (found.most - found.least) / 2 < SILENT:
        level = f"the loudest sample is at {20 * math.log10(found.peak):.0f} dB" if found.peak else "all samples are 0"
        if found.peak >= SILENT:
            level = f"all samples are about {(found.most + found.least) / 2:.3f}: an offset, without any sound"
        yield "silent", f"{level}; remove it, or record it again"
        return
    if found.peak > LOUD:
        yield (
            "loud",
            f"the loudest sample is {found.peak:.2f}, where 1 is full scale: 16 bits can't hold it; scale it down",
        )
    if abs(found.mean) > LARGEST_OFFSET:
        yield "offset", f"its samples are {found.mean:+.3f} on average, where sound is 0; subtract that"
    if found.flat_peaks > MOST_FLAT_PEAKS:
        yield (
            "clipped",
            f"{found.flat_peaks:,} peaks are cut off at {found.peak:.3f}, the first at {found.first_flat:.2f} s",
        )
    if found.longest_gap > LONGEST_GAP:
        yield "gap", f"{found.longest_gap:.2f} s of zeros at {found.gap_start:.2f} s: samples may be missing"


def _measure_waveform(cut: Cut, audio: AudioConfig) -> Waveform:
    found, rate = Waveform(), int(cut.sampling_rate)
    number = total = 0.0
    open_since: int | None = None
    for first, signed in _stretches(cut, audio):
        number, total = number + len(signed), total + float(signed.sum(dtype=np.float64))
        found.least, found.most = min(found.least, float(signed.min())), max(found.most, float(signed.max()))
        samples = np.abs(signed)
        peak = float(samples.max(initial=0.0))
        found.peak = max(found.peak, peak)
        # Samples at the peak are only looked at if it is loud: peaks of quiet noise are flat because of few bits.
        for start, end in find_runs(samples >= peak - SAMPLE_ROUNDING) if peak >= LEAST_CLIPPED else ():
            if end - start >= FLAT_SAMPLES:
                found.first_flat = found.first_flat if found.flat_peaks else (first + start) / rate
                found.flat_peaks += 1
        before, open_since = open_since, None
        for start, end in find_runs(samples == 0):
            begin = before if start == 0 and before is not None else first + start
            # Zeros up to the end of the stretch may continue in the next one; at the ends of a cut they are silence.
            if end == len(samples):
                open_since = begin
            elif begin > 0 and (first + end - begin) / rate > found.longest_gap:
                found.longest_gap, found.gap_start = (first + end - begin) / rate, begin / rate
    found.mean = total / max(number, 1)
    return found


def _stretches(cut: Cut, audio: AudioConfig) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the samples of a cut at its own rate, some minutes at a time, each with the number of its first."""
    rate = int(cut.sampling_rate)
    native, length = audio.model_copy(update={"sampling_rate": rate}), samples_in(cut.duration, rate)
    for first in range(0, length, SECONDS_AT_ONCE * rate):
        yield first, read_samples(cut, native, first, min(first + SECONDS_AT_ONCE * rate, length))
