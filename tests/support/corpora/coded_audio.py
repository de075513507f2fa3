"""Audio files of every container and codec, written and decoded by FFmpeg (PyAV)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

SECONDS = 0.9173
LAYOUTS = {1: "mono", 2: "stereo", 3: "2.1", 6: "5.1"}


class Coded(NamedTuple):
    """How a file is written; ``options`` are the encoder's, ``muxing`` the container's."""

    suffix: str
    codec: str
    rates: tuple[int, ...]
    channels: tuple[int, ...]
    options: dict[str, str] = {}  # noqa: RUF012  (never changed)
    muxing: dict[str, str] = {}  # noqa: RUF012
    with_times: bool = True


RATES = (8000, 11025, 16000, 22050, 24000, 32000, 44100, 48000)
OPUS = (8000, 16000, 48000)
VORBIS_ORDER = (0, 2, 1, 5, 3, 4)
"""The order in which libsndfile has the channels of 5.1: Opus's, with the centre second."""
VBR = {"global_quality": "472", "flags": "+qscale"}
WITHOUT_HEADER = {"write_xing": "0"}
TABLE = {
    "wav, 16 bits": Coded("wav", "pcm_s16le", RATES, (1, 2, 6)),
    "wav, floats": Coded("wav", "pcm_f32le", (16000,), (1, 2)),
    "flac": Coded("flac", "flac", RATES, (1, 2, 6)),
    "mp3, one bit rate": Coded("mp3", "libmp3lame", RATES, (1, 2)),
    "mp3, bit rate varies": Coded("mp3", "libmp3lame", RATES, (1, 2), VBR),
    "mp3, one bit rate, no header": Coded("mp3", "libmp3lame", RATES, (1, 2), {}, WITHOUT_HEADER),
    "mp3, bit rate varies, no header": Coded("mp3", "libmp3lame", RATES, (1, 2), VBR, WITHOUT_HEADER),
    "ogg, flac": Coded("ogg", "flac", (16000, 44100), (1, 2)),
    "opus": Coded("opus", "libopus", OPUS, (1, 2, 6)),
    "opus that begins later": Coded("opus", "libopus", OPUS, (1, 2, 6), with_times=False),
    "m4a": Coded("m4a", "aac", RATES, (1, 2, 6)),
    "m4a, no times": Coded("m4a", "aac", (16000, 44100), (1, 2), with_times=False),
    "m4a, lossless": Coded("m4a", "alac", (16000, 44100), (1, 2)),
    "aac": Coded("aac", "aac", (16000, 44100), (1, 2)),
    "webm, opus": Coded("webm", "libopus", OPUS, (1, 2, 6)),
    "webm, vorbis": Coded("webm", "vorbis", (16000, 44100), (2,), {"strict": "-2"}),
    "mka, aac": Coded("mka", "aac", (16000, 44100), (1, 2)),
    "wma": Coded("wma", "wmav2", (16000, 44100), (1, 2), {"b": "64000"}),
}


def sounds(rate: int, channels: int, seconds: float = SECONDS) -> np.ndarray:
    """Samples ``(channel, time)``: a tone, noise, another tone, other ones in each channel."""
    time = np.arange(round(seconds * rate)) / rate
    third = (3 * time / seconds).astype(int)
    rows = []
    for channel in range(channels):
        rng = np.random.default_rng(channel)
        tones = [0.3 * np.sin(2 * np.pi * (pitch + 90 * channel) * time) for pitch in (300, 900)]
        rows.append(np.choose(third, [tones[0], 0.2 * rng.standard_normal(len(time)).clip(-3, 3), tones[1]]))
    return np.array(rows, np.float32)


def write_coded(path: Path, coded: Coded, rate: int, channels: int, seconds: float = SECONDS) -> None:
    av = pytest.importorskip("av")
    with av.open(str(path), "w", options=coded.muxing) as container:
        stream = container.add_stream(coded.codec, rate=rate, options=coded.options)
        stream.layout = LAYOUTS[channels]
        samples = sounds(rate, channels, seconds)
        for first in range(0, samples.shape[1], 1000):
            piece = np.ascontiguousarray(samples[:, first : first + 1000])
            frame = av.AudioFrame.from_ndarray(piece, format="fltp", layout=LAYOUTS[channels])
            frame.sample_rate = rate
            frame.pts = first if coded.with_times else None
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)


def decode(path: Path) -> tuple[np.ndarray, int]:
    """Samples ``(channel, time)`` and their rate, by FFmpeg."""
    av = pytest.importorskip("av")
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        pack = av.AudioResampler(format="fltp", layout=stream.layout, rate=stream.rate)
        found = [one.to_ndarray() for frame in (*container.decode(stream), None) for one in pack.resample(frame)]
        return np.concatenate(found, axis=1), stream.rate


def lag(first: np.ndarray, second: np.ndarray) -> int:
    """By how many samples the second is later than the first."""
    size = 2 ** (len(first) + len(second)).bit_length()
    spectrum = np.fft.rfft(second, size) * np.fft.rfft(first, size).conj()
    place = int(np.fft.irfft(spectrum).argmax())
    return place - size if place > size // 2 else place
