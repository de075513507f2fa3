"""How far spoken audio is from a recording of the same text: mel-cepstral distortion, F0 and voicing.

Both are analysed at 16 kHz, every 10 ms in windows of 25 ms. The log magnitudes of 40 mel filters (Slaney's scale, of
equal height, 0 to 8 kHz) are written as

    ln A(n) = c(0) / 2 + sum over m of c(m) cos(pi m (n + 1/2) / 40)

and of two frames, c and c', the distortion is ``10 / ln 10 * sqrt(2 * sum over m = 1 … 24 of (c(m) - c'(m))²)`` dB:
the root mean square difference of their spectral envelopes. c(0), the level, is left out. Dynamic time warping
finds the path with the least sum of distortions from the first frames to the last, in steps of one frame of
either or of both; a figure is a mean over this path.

Source: Kubichek 1993, "Mel-Cepstral Distance Measure for Objective Speech Quality Assessment". Differs: cepstra of mel
filters, where others have cepstra of a vocoder's envelope, so values of other programs can't be compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from vaak.audio.features.mel import MelSpectrogram
from vaak.audio.features.pitch import fundamental_frequency
from vaak.audio.mel_config import MelConfig, PitchConfig

ORDER = 24
DECIBELS = 10 * math.sqrt(2) / math.log(10)
ANALYSIS = MelConfig(
    sampling_rate=16_000,
    n_fft=1024,
    hop_length=160,
    win_length=400,
    n_mels=40,
    norm="none",
    floor=1e-2,  # 80 dB below a sine at full scale: digital silence is as silent as any other
)
PROTOCOL = (
    f"cepstra 1 to {ORDER} of {ANALYSIS.n_mels} mel filters, 16 kHz, every 10 ms; dynamic time warping; F0 in the "
    "range of its speaker"
)


@dataclass(frozen=True)
class Distance:
    """Sums over the frames of a path; utterances add up."""

    frames: int
    distortion: float
    """In dB."""
    voiced: int
    """Where both are."""
    squared_hz: float
    squared_cents: float
    other_voicing: int
    """Where one is voiced and the other isn't."""


def mel_cepstra(samples: np.ndarray) -> np.ndarray:
    """The coefficients c(1) to c(24) of each frame of ``samples`` ``(time,)`` at 16 kHz, ``(frame, 24)`` float64."""
    with torch.inference_mode():
        logs = MelSpectrogram(ANALYSIS)(torch.from_numpy(np.asarray(samples, np.float32))).double().numpy()
    places = np.pi * (np.arange(ANALYSIS.n_mels) + 0.5) / ANALYSIS.n_mels
    cosines = np.cos(np.outer(places, np.arange(1, ORDER + 1)))
    cepstra: np.ndarray = logs @ cosines * (2 / ANALYSIS.n_mels)
    return cepstra


def distance(reference: np.ndarray, hypothesis: np.ndarray) -> Distance:
    """Of two utterances of one text, samples ``(time,)`` at 16 kHz."""
    costs = _distortions(mel_cepstra(reference), mel_cepstra(hypothesis))
    path = warping_path(costs)
    pitches = [pitch_in_range(samples) for samples in (reference, hypothesis)]
    ours, theirs = (pitch[places] for pitch, places in zip(pitches, path.T, strict=True))
    both = (ours > 0) & (theirs > 0)
    cents = 1200 * np.log2(theirs[both] / ours[both])
    return Distance(
        frames=len(path),
        distortion=float(costs[path[:, 0], path[:, 1]].sum()),
        voiced=int(both.sum()),
        squared_hz=float(np.square(theirs[both] - ours[both], dtype=np.float64).sum()),
        squared_cents=float(np.square(cents, dtype=np.float64).sum()),
        other_voicing=int(((ours > 0) != (theirs > 0)).sum()),
    )


def pitch_in_range(samples: np.ndarray) -> np.ndarray:
    """F0 in Hz of each frame of ``samples`` ``(time,)`` at 16 kHz within the range of their speaker, 0 where unvoiced.

    Where audio is hardly periodic, as Griffin-Lim's often is, dips two octaves apart are equally deep, and the whole
    range of voices has both. So F0 is looked for twice: among all voices, and then from three quarters of the first
    quartile of what was found to one and a half times the third.

    Source: De Looze and Hirst 2008, "Detecting changes in key and range for the automatic modelling and coding of
    intonation".
    """
    found = fundamental_frequency(samples, ANALYSIS)
    if not (found > 0).any():
        return found
    lowest, highest = np.percentile(found[found > 0], (25, 75)) * (0.75, 1.5)
    return fundamental_frequency(samples, ANALYSIS, PitchConfig(f0_min=float(lowest), f0_max=float(highest)))


def _distortions(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """In dB, of each frame with each other: ``(frame, other frame)``."""
    squares = np.square(ours).sum(1)[:, None] + np.square(theirs).sum(1) - 2 * ours @ theirs.T
    distortions: np.ndarray = DECIBELS * np.sqrt(squares.clip(min=0))
    return distortions


def warping_path(costs: np.ndarray) -> np.ndarray:
    """The path ``(place, 2)`` of least total cost from the first to the last corner of ``costs (row, column)``.

    >>> warping_path(np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]])).tolist()
    [[0, 0], [1, 1], [1, 2]]
    """
    rows, columns = costs.shape
    totals = np.full((rows + 1, columns + 1), np.inf)
    totals[0, 0] = 0
    for diagonal in range(rows + columns - 1):  # its places depend only on those of the two before it
        row = np.arange(max(0, diagonal - columns + 1), min(diagonal, rows - 1) + 1)
        column = diagonal - row
        before = np.minimum(np.minimum(totals[row, column], totals[row, column + 1]), totals[row + 1, column])
        totals[row + 1, column + 1] = costs[row, column] + before
    path = [(rows - 1, columns - 1)]
    while path[-1] != (0, 0):
        row, column = path[-1]
        steps = ((row - 1, column - 1), (row - 1, column), (row, column - 1))
        path.append(min(steps, key=lambda step: totals[step[0] + 1, step[1] + 1]))
    return np.array(path[::-1])
