"""Pitch and energy of speech, frame by frame with the mel spectrogram; F0 by YIN and the best path through it.

Each frame has candidates, the dips of YIN's difference function, and the state of being unvoiced. The path through
them with the least cost is F0: a candidate costs its aperiodicity, and a little more for a longer period; unvoiced
costs what ``PitchConfig.voicing`` says; jumps and changes of voicing cost as below.

Sources: de Cheveigné and Kawahara 2002, "YIN, a fundamental frequency estimator for speech and music" (equations 6 to
8, step 5); Boersma 1993, "Accurate short-term analysis of the fundamental frequency" (the path).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vaak.audio.mel_config import MelConfig, PitchConfig

NUM_CANDIDATES = 6
"""How many candidates of a frame are kept, those that cost least."""
LONGER_PERIOD = 0.02
"""Cost of a candidate for each octave below the highest F0: multiples of a period have dips, too."""
JUMP = 0.35
"""Cost of an octave between frames 10 ms apart."""
VOICING_CHANGE = 0.2
"""Cost of a change from voiced to unvoiced, or back."""
SILENCE_DECIBELS = 40.0
"""Frames that are quieter than the loudest one by this are unvoiced."""
LOWEST_FREQUENCY = 40.0
"""In Hz; lower frequencies are removed: hum and handling noise are periodic, too."""
LOWEST_RATE = 16_000
"""Below it, audio is interpolated: a period between two samples would have no dip, and three of it one."""
FRAMES_AT_ONCE = 1024


def fundamental_frequency(samples: np.ndarray, mel: MelConfig, pitch: PitchConfig | None = None) -> np.ndarray:
    """F0 in Hz of each frame of the mel spectrogram of ``samples`` ``(time,)``, 0 where it is unvoiced.

    It is ``(frame,)`` float32. A frame looks at three periods of ``f0_min`` around its centre.
    """
    pitch = pitch or PitchConfig()
    num_frames = mel.num_frames(len(samples))
    if not num_frames:
        return np.zeros(0, np.float32)
    times = math.ceil(LOWEST_RATE / mel.sampling_rate)
    rate = times * mel.sampling_rate
    # One more than the longest period: a dip needs a neighbour on each side.
    longest = math.ceil(rate / pitch.f0_min) + 1
    shortest = max(int(rate / pitch.f0_max), 2)
    length = 3 * longest
    # What is compared for a period is centred at longest + period / 2: at the frame's centre for a period in between.
    before = longest + round(math.sqrt(shortest * longest) / 2)
    padded = np.pad(_without_hum(np.asarray(samples, np.float32), mel.sampling_rate, times), (before, length))
    sections = np.lib.stride_tricks.sliding_window_view(padded, length)[:: times * mel.hop_length][:num_frames]
    parts = [sections[first : first + FRAMES_AT_ONCE] for first in range(0, num_frames, FRAMES_AT_ONCE)]
    found = [_candidates(_differences(part, longest), shortest) for part in parts]
    periods, costs = (np.concatenate(some) for some in zip(*found, strict=True))
    power = np.concatenate([np.mean(np.square(part), axis=1) for part in parts])
    # Before the search for the path: a quiet periodic noise floor would pull the path through pauses.
    costs[power <= power.max() * 10 ** (-SILENCE_DECIBELS / 10)] = np.inf
    octaves = np.log2(periods)
    costs += LONGER_PERIOD * (octaves - np.log2(shortest))
    chosen = _best_path(octaves, costs, pitch.voicing, mel.frame_shift / 0.01)
    # The state after the candidates is unvoiced: an infinite period, so 0 Hz.
    periods = np.append(periods, np.full((num_frames, 1), np.inf), axis=1)
    frequencies: np.ndarray = rate / np.take_along_axis(periods, chosen[:, None], axis=1)[:, 0]
    return frequencies.astype(np.float32)


def _without_hum(samples: np.ndarray, sampling_rate: int, times: int) -> np.ndarray:
    """Return the samples, ``times`` as many, without their lowest frequencies, and without delay."""
    # At least 50 ms of zeros: filtering by FFT is circular, and the end would leak into the beginning.
    size = 1 << (len(samples) + sampling_rate // 20).bit_length()
    frequencies = np.fft.rfftfreq(size, 1 / sampling_rate)
    kept = 1 - 1 / (1 + (frequencies / LOWEST_FREQUENCY) ** 8)
    # Zero-padding the spectrum interpolates; ``times`` keeps the amplitude: the inverse divides by the larger size.
    spectrum = times * np.fft.rfft(samples, size) * kept.astype(np.float32)
    return np.asarray(np.fft.irfft(spectrum, times * size)[: times * len(samples)], np.float32)


def _differences(sections: np.ndarray, longest: int) -> np.ndarray:
    """YIN's normalised differences ``(frame, longest + 1)`` of each section for periods from 0 samples on.

    What is compared is two longest periods long. They are 1 where a section has no power.
    """
    window = 2 * longest
    size = 1 << (sections.shape[1] - 1).bit_length()
    spectrum = np.fft.rfft(sections, size)
    start = np.fft.rfft(sections[:, :window], size)
    # Circular correlation, but nothing wraps around: a section is longer than its start by the longest period.
    products = np.fft.irfft(spectrum * start.conj(), size)[:, : longest + 1]
    # float64, because the power below is a small difference of two growing sums.
    sums = np.cumsum(np.square(sections, dtype=np.float64), axis=1)
    power = np.concatenate([sums[:, window - 1 : window], sums[:, window:] - sums[:, :longest]], axis=1)
    # Equation 7; rounding can leave it slightly negative.
    differences = np.maximum(power[:, :1] + power - 2 * products, 0)
    # Equation 8: divide by the mean of the differences so far, so that a period of 0 isn't a dip.
    total = np.cumsum(differences[:, 1:], axis=1)
    normalised: np.ndarray = np.ones_like(differences)
    places = np.arange(1, longest + 1)
    np.divide(differences[:, 1:] * places, total, out=normalised[:, 1:], where=total > 1e-12 * power[:, :1] + 1e-20)
    return normalised


def _candidates(differences: np.ndarray, shortest: int) -> tuple[np.ndarray, np.ndarray]:
    """Periods in samples, and their differences, ``(frame, NUM_CANDIDATES)`` each; missing ones cost infinity."""
    before, here, after = differences[:, shortest - 1 : -2], differences[:, shortest:-1], differences[:, shortest + 1 :]
    # Select by the final cost; the caller adds this term again, from the refined period.
    longer = LONGER_PERIOD * np.log2(np.arange(shortest, shortest + here.shape[1]) / shortest)
    dips = np.where((here < before) & (here <= after), here + longer.astype(here.dtype), np.inf)
    places = np.argpartition(dips, NUM_CANDIDATES, axis=1)[:, :NUM_CANDIDATES]
    before, here, after = (np.take_along_axis(values, places, 1) for values in (before, here, after))
    # Step 5: the lowest point of the parabola through the dip and its neighbours.
    bend = np.maximum(before - 2 * here + after, 1e-12)
    offset = np.clip((before - after) / (2 * bend), -0.5, 0.5)
    costs = np.where(np.isfinite(np.take_along_axis(dips, places, 1)), here - bend * offset**2 / 2, np.inf)
    return places + shortest + offset, costs


def _best_path(octaves: np.ndarray, costs: np.ndarray, unvoiced: float, steps: float) -> np.ndarray:
    """Return the candidate of each frame on the path of least cost; the number of candidates where it is unvoiced.

    ``octaves`` are logarithms of periods, ``costs`` those of the candidates, both ``(frame, candidate)``; ``unvoiced``
    costs a frame without one; frames are ``steps`` times 10 ms apart.
    """
    num_frames, number = costs.shape
    # To each candidate of a frame (rows) from each of the one before (columns); ``moves`` adds the unvoiced state last.
    jumps = JUMP / steps * np.abs(octaves[1:, :, None] - octaves[:-1, None, :])
    total = np.append(costs[0], unvoiced)
    back = np.empty((num_frames, number + 1), np.int64)
    moves = np.full((number + 1, number + 1), VOICING_CHANGE)
    moves[-1, -1] = 0
    for frame in range(1, num_frames):
        moves[:-1, :-1] = jumps[frame - 1]
        reached = moves + total
        best = reached.argmin(axis=1)
        back[frame] = best
        total = reached[np.arange(number + 1), best]
        total[:-1] += costs[frame]
        total[-1] += unvoiced
    states = np.empty(num_frames, np.int64)
    states[-1] = total.argmin()
    for frame in range(num_frames - 1, 0, -1):
        states[frame - 1] = back[frame, states[frame]]
    return states


def phoneme_means(values: np.ndarray, durations: np.ndarray, counted: np.ndarray | None = None) -> np.ndarray:
    """Return the mean value of the frames of each phoneme, ``(phoneme,)`` float32.

    ``durations`` ``(phoneme,)`` are in frames, and add up to those of ``values`` ``(frame,)``. Only frames that are
    ``counted`` ``(frame,)`` do; where a phoneme has none, its mean is 0. Of F0, count what is voiced: ``values > 0``.

    >>> phoneme_means(np.array([4.0, 2.0, 0.0, 5.0]), np.array([2, 0, 1, 1])).tolist()
    [3.0, 0.0, 0.0, 5.0]
    """
    if durations.sum() != len(values):
        raise ValueError(f"phonemes of {durations.sum()} frames, values of {len(values)}")
    weights = np.ones(len(values)) if counted is None else counted.astype(np.float64)
    phonemes = np.repeat(np.arange(len(durations)), durations)
    totals = np.bincount(phonemes, values * weights, len(durations))
    numbers = np.bincount(phonemes, weights, len(durations))
    means: np.ndarray = totals / np.maximum(numbers, 1)
    return means.astype(np.float32)


def interpolate_pitch(pitch: np.ndarray, durations: np.ndarray) -> np.ndarray:
    """F0 of each frame, ``(frame,)`` float32, of the means of phonemes ``pitch`` ``(phoneme,)``; 0 where they are 0.

    ``durations`` ``(phoneme,)`` are in frames. A voiced phoneme has its mean in its middle, and from there F0 goes in a
    straight line of its logarithm to the next one that is voiced.

    >>> interpolate_pitch(np.array([100.0, 200.0, 0.0]), np.array([3, 1, 2])).round().tolist()
    [100.0, 100.0, 141.0, 200.0, 0.0, 0.0]
    """
    frames = np.repeat(pitch, durations)
    counted = (pitch > 0) & (durations > 0)
    if not counted.any():
        return np.zeros(len(frames), np.float32)
    middles = np.cumsum(durations) - (durations + 1) / 2
    logs = np.interp(np.arange(len(frames)), middles[counted], np.log(pitch[counted]))
    return np.where(frames > 0, np.exp(logs), 0.0).astype(np.float32)


def frame_durations(ends: Sequence[float], mel: MelConfig, num_samples: int) -> np.ndarray:
    """Return the number of mel frames that belong to each of consecutive intervals, ``(interval,)`` int64.

    ``ends`` are seconds; the first interval begins with the audio. A frame belongs to the interval of its centre; those
    after the last end belong to the last interval: so they always add up to the frames of ``num_samples``.

    >>> frame_durations([0.3, 0.3, 0.75, 1.0], MelConfig(sampling_rate=20000, hop_length=1000), 20000).tolist()
    [6, 0, 9, 6]
    """
    num_frames = mel.num_frames(num_samples)
    # Round first: a quotient slightly above a whole number, as floats leave it, would give the interval a frame more.
    beyond = [min(math.ceil(round(end / mel.frame_shift, 6)), num_frames) for end in ends]
    return np.diff([0, *beyond[:-1], num_frames])
