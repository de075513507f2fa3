"""Noise, and its level relative to speech."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vaak.audio.waveforms.audio_file import AudioFile
from vaak.core.errors import DataError, UserError

if TYPE_CHECKING:
    from vaak.audio.config import NoiseConfig

FLAT_BELOW = (
    50 / 16000
)  # coloured noise is flat below: a slope down to 0 Hz would put all power at inaudible frequencies
ACTIVE_BLOCK = 320  # samples; 20 ms at 16 kHz
ACTIVE_DECIBELS = 30  # a block is active if it is less than this below the loudest one
BABBLE_VOICES = (3, 7)  # fewer are talkers that one follows, more are noise
SUFFIXES = {".wav", ".flac", ".ogg", ".opus", ".mp3", ".aif", ".aiff", ".au", ".sph"}


def coloured_noise(num_samples: int, rng: np.random.Generator) -> np.ndarray:
    """Noise ``(num_samples,)`` of power 1 whose power falls as ``frequency ** -slope``, float32.

    The slope is drawn between 0 (white) and 2 (brown).
    """
    from scipy import fft

    slope = rng.uniform(0, 2)
    size = fft.next_fast_len(max(num_samples, 2), real=True)
    bins = size // 2 + 1
    spectrum = rng.standard_normal(2 * bins, dtype=np.float32).view(np.complex64)
    frequencies = np.maximum(np.arange(bins) / size, FLAT_BELOW)
    spectrum *= (frequencies ** (-slope / 2)).astype(np.float32)
    spectrum[0] = 0
    return _with_unit_power(fft.irfft(spectrum, size)[:num_samples])


def babble(voices: Callable[[], np.ndarray], num_samples: int, num_voices: int, rng: np.random.Generator) -> np.ndarray:
    """Several voices at once ``(num_samples,)``, of power 1, float32.

    ``voices()`` gives the samples of another utterance. All voices are equally loud; each starts at a random place
    and is repeated if it is short.
    """
    total = np.zeros(num_samples, dtype=np.float32)
    for _ in range(num_voices):
        voice = voices()
        level = np.sqrt(active_power(voice))
        if level > 0:
            total += _looped(voice, int(rng.integers(len(voice))), num_samples) / level
    return _with_unit_power(total)


def file_noise(folder: str | Path, num_samples: int, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
    """A random section ``(num_samples,)`` of a random recording of ``folder``, at its original level, float32.

    Recordings are searched recursively; a short one is repeated. Raises DataError, naming the file.
    """
    paths = _recordings(str(folder))
    path, place = paths[int(rng.integers(len(paths)))], rng.random()
    with AudioFile(path, sampling_rate) as file:
        first = int(place * max(file.num_samples - num_samples + 1, 1))
        samples = file.samples(first, first + num_samples)
    return _looped(samples, int(place * len(samples)) if len(samples) < num_samples else 0, num_samples)


def drawn_noise(
    config: NoiseConfig,
    num_samples: int,
    sampling_rate: int,
    rng: np.random.Generator,
    voices: Callable[[], np.ndarray] | None = None,
) -> np.ndarray:
    """Noise ``(num_samples,)`` of the type in ``config``; babble is made of ``voices``.

    ``voices`` gives samples ``(time,)`` of one speaker, another one each time; ``sampling_rate`` in Hz is that of the
    result, and ``rng`` draws all that is random.
    """
    if config.type == "coloured":
        return coloured_noise(num_samples, rng)
    if config.type == "files":
        assert config.folder is not None  # checked by the config
        return file_noise(config.folder, num_samples, sampling_rate, rng)
    if voices is None:
        raise UserError("noise of type babble requires utterances of single speakers; use coloured or files here")
    return babble(voices, num_samples, int(rng.integers(*BABBLE_VOICES, endpoint=True)), rng)


def at_snr(speech: np.ndarray, noise: np.ndarray, snr_db: float) -> np.ndarray:
    """``speech`` (time,) with ``noise`` (time,) so much quieter, in decibels, float32.

    The power of speech is that of its active parts, so pauses don't make the noise quieter. Silence gets no noise.
    """
    noise_power = float(np.mean(np.square(noise, dtype=np.float64))) if len(noise) else 0.0
    if noise_power == 0:
        return np.asarray(speech, dtype=np.float32)
    gain = np.sqrt(active_power(speech) / noise_power) * 10 ** (-snr_db / 20)
    return np.asarray(speech + np.float32(gain) * noise, dtype=np.float32)


def active_power(samples: np.ndarray) -> float:
    """Mean square over the blocks within 30 dB of the loudest; 0 of silence.

    Differs: an active level as in ITU-T P.56 (2011), with blocks instead of an envelope.
    """
    if not len(samples):
        return 0.0
    blocks = np.add.reduceat(np.square(samples, dtype=np.float64), np.arange(0, len(samples), ACTIVE_BLOCK))
    sizes = np.full(len(blocks), ACTIVE_BLOCK)
    sizes[-1] = len(samples) - ACTIVE_BLOCK * (len(blocks) - 1)
    powers = blocks / sizes
    active = powers >= powers.max() * 10 ** (-ACTIVE_DECIBELS / 10)
    return float(blocks[active].sum() / sizes[active].sum())


def _with_unit_power(samples: np.ndarray) -> np.ndarray:
    level = float(np.sqrt(np.mean(np.square(samples, dtype=np.float64)))) if len(samples) else 0.0
    return np.asarray(samples / level if level > 0 else samples, dtype=np.float32)


def _looped(samples: np.ndarray, first: int, num_samples: int) -> np.ndarray:
    """``num_samples`` of them from ``first`` on, repeated."""
    if first + num_samples <= len(samples):
        return samples[first : first + num_samples]
    return np.resize(np.roll(samples, -first), num_samples)


@lru_cache(maxsize=8)
def _recordings(folder: str) -> tuple[Path, ...]:
    """The recordings of a folder, searched recursively, sorted."""
    found = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if not found:
        raise DataError(f"{folder}: no recordings of noise here (looked for {', '.join(sorted(SUFFIXES))})")
    return tuple(found)
