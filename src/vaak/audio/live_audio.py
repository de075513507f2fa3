"""Live audio: raw samples from a stream, such as standard input, or from a microphone.

A thread reads, so nothing is lost while a model computes. Each block says whether more has already arrived; then the
consumer is too slow, and may skip work that can wait.
"""

from __future__ import annotations

import math
import queue
import select
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from io import RawIOBase
from typing import Any, NamedTuple

import numpy as np

from vaak.core.errors import UserError, optional_import

BLOCK_SECONDS = 0.02
MOST_WAITING_SECONDS = 600.0
"""A stream isn't read further ahead than this, and of a microphone, what comes then is lost and counted."""
BYTES_OF_A_SAMPLE = 2
"""16 bits, signed, little-endian."""
SLOWEST_RATE, FASTEST_RATE = 4_000, 192_000
HALF_LENGTH, PASSED, KAISER = 50, 0.95, 0.1102 * (80 - 8.7)
"""Samples of the lower rate on each side of a result, for a Kaiser window of 80 dB and an edge of a tenth of the band;
the middle of that edge; and the window's parameter. Source: Oppenheim and Schafer, Discrete-Time Signal Processing."""
MOST_PHASES, RESAMPLED_TOGETHER = 512, 4096
"""Places between two samples whose filters are kept: at odd rates, others are between two of these."""


FILE_MARKS = {
    **dict.fromkeys((b"RIFF", b"RF64"), "a WAV file"),
    b"fLaC": "a FLAC file",
    b"OggS": "an Ogg file",
    b"ID3": "an MP3 file",
    b"FORM": "an AIFF file",
    b"caff": "a CAF file",
    b"\x1aE\xdf\xa3": "a Matroska or WebM file",
}
"""How audio files begin."""
LONGEST_MARK = max(map(len, FILE_MARKS))


class Block(NamedTuple):
    """Samples ``(time,)`` float32, and whether more of them wait."""

    samples: np.ndarray
    is_behind: bool


@dataclass
class Lost:
    """Audio that didn't become samples."""

    num_bytes: int = 0
    """At the end of a stream, less than a sample."""
    seconds: float = 0.0
    """Lost by a microphone while nobody listened."""


def hear_stream(stream: RawIOBase, rate: int, wanted_rate: int, lost: Lost) -> Iterator[Block]:
    """Raw 16-bit mono samples of a stream at ``rate``, at the ``wanted_rate``, until it ends.

    The stream isn't buffered: a read gives what has come, and holds no lock that the end of the process would need.

    Raises UserError for a rate that no audio has, and for an audio file: its header and coding would be samples.
    """
    waiting: queue.Queue[bytes | BaseException | None] = queue.Queue(round(MOST_WAITING_SECONDS / BLOCK_SECONDS))
    size = BYTES_OF_A_SAMPLE * round(BLOCK_SECONDS * rate)

    def read() -> None:
        begin = b""
        try:
            while (content := stream.read(size)) != b"":
                if content is None:
                    # Another process has set that a read of it doesn't wait: that isn't its end.
                    select.select([stream], [], [])
                    continue
                if len(begin) < LONGEST_MARK:
                    begin = (begin + content)[:LONGEST_MARK]
                    require_raw(begin, wanted_rate)
                waiting.put(content)
            waiting.put(None)
        except BaseException as error:  # it is raised where the blocks are read
            waiting.put(error)

    resampled = make_resampler(rate, wanted_rate)
    threading.Thread(target=read, name="vaak live audio", daemon=True).start()
    yield from _blocks(iter(waiting.get, None), waiting, size, resampled, lost)


def require_raw(begin: bytes, rate: int) -> None:
    """Raise UserError for a stream that begins as a file does."""
    if (kind := next((name for mark, name in FILE_MARKS.items() if begin.startswith(mark)), None)) is not None:
        how = f"ffmpeg -i FILE -f s16le -ac 1 -ar {rate} - | vaak transcribe RUN --live"
        raise UserError(f"standard input is {kind}, not raw samples; pipe those, such as: {how} --rate {rate}")


def hear_microphone(wanted_rate: int, lost: Lost) -> Iterator[Block]:
    """Samples of the default microphone, until the iterator is closed. Raises UserError if there is none."""
    with optional_import("a microphone is heard by sounddevice and PortAudio", "live"):
        import sounddevice
    waiting: queue.Queue[bytes] = queue.Queue(round(MOST_WAITING_SECONDS / BLOCK_SECONDS))
    frames = round(BLOCK_SECONDS * wanted_rate)

    def take(content: Any, number: int, time: Any, status: Any) -> None:
        if status:
            # The system gave up samples; it doesn't say how many: at least those of a block.
            lost.seconds += BLOCK_SECONDS
        try:
            waiting.put_nowait(bytes(content))
        except queue.Full:
            lost.seconds += number / wanted_rate

    options = {"samplerate": wanted_rate, "blocksize": frames, "channels": 1, "dtype": "int16", "callback": take}
    try:
        microphone = sounddevice.RawInputStream(**options)
    except (sounddevice.PortAudioError, ValueError) as error:
        raise UserError(f"the microphone can't be opened ({error}); pipe raw samples to standard input") from error
    with microphone:
        resampled = make_resampler(wanted_rate, wanted_rate)
        yield from _blocks(iter(waiting.get, None), waiting, BYTES_OF_A_SAMPLE * frames, resampled, lost)


def _blocks(
    contents: Iterable[bytes | BaseException], waiting: queue.Queue[Any], size: int, resampled: Any, lost: Lost
) -> Iterator[Block]:
    """Blocks of ``size`` bytes, however the ``contents`` come, as samples; the last one may be smaller."""
    rest = b""
    for content in contents:
        if isinstance(content, BaseException):
            raise content
        rest += content
        while len(rest) >= size:
            block, rest = rest[:size], rest[size:]
            yield Block(resampled(_to_samples(block), False), len(rest) >= size or not waiting.empty())
    lost.num_bytes = len(rest) % BYTES_OF_A_SAMPLE
    yield Block(resampled(_to_samples(rest[: len(rest) - lost.num_bytes]), True), False)


def _to_samples(content: bytes) -> np.ndarray:
    return np.frombuffer(content, "<i2").astype(np.float32) / np.float32(32768)


def make_resampler(rate: int, wanted_rate: int) -> Callable[[np.ndarray, bool], np.ndarray]:
    """Return a function of ``(samples, is_last)`` that resamples from ``rate`` to ``wanted_rate``, piece by piece.

    Raises UserError for a rate that no audio has.
    """
    if not SLOWEST_RATE <= rate <= FASTEST_RATE:
        raise UserError(f"--rate {rate}: expected the samples in a second, {SLOWEST_RATE} to {FASTEST_RATE}")
    if rate == wanted_rate:
        return lambda samples, is_last: samples
    return Resampler(rate, wanted_rate)


class Resampler:
    """Converts samples of another rate while they come: a windowed sinc, whose right half is all that it waits for.

    That is 6.25 ms at 8 kHz. soxr's streams compute in blocks, and are up to 0.115 s late there.
    """

    def __init__(self, rate: int, wanted_rate: int) -> None:
        common = math.gcd(rate, wanted_rate)
        self.up, self.down = wanted_rate // common, rate // common
        self.filters = _make_filters(rate, wanted_rate)
        self.half = self.filters.shape[1] // 2
        self._kept, self._first, self._given = np.zeros(self.half, np.float32), -self.half, 0
        """Samples that are still needed, the number of the first of them, and how many results were given."""

    def __call__(self, samples: np.ndarray, is_last: bool) -> np.ndarray:
        """Return the samples ``(time,)`` that further ones complete; all that are left where they are the last."""
        silence = np.zeros(self.half if is_last else 0, np.float32)
        self._kept = np.concatenate((self._kept, np.asarray(samples, np.float32), silence))
        end = -(-(self._first + len(self._kept) - self.half) * self.up // self.down)
        blocks = range(self._given, end, RESAMPLED_TOGETHER)
        found = [self._resample(np.arange(at, min(end, at + RESAMPLED_TOGETHER))) for at in blocks]
        self._given = max(self._given, end)
        unused = self._given * self.down // self.up - self.half + 1 - self._first
        self._kept, self._first = self._kept[unused:], self._first + unused
        return np.concatenate(found) if found else np.zeros(0, np.float32)

    def _resample(self, numbers: np.ndarray) -> np.ndarray:
        """Return the results of these numbers ``(time,)``, each of which is between two samples."""
        before, rest = np.divmod(numbers * self.down, self.up)
        windows = np.lib.stride_tricks.sliding_window_view(self._kept, 2 * self.half)
        windows = windows[before - self.half + 1 - self._first]
        phases = len(self.filters) - 1
        place, between = np.divmod(rest * phases, self.up)
        filters = self.filters[place]
        if phases != self.up:
            filters += (between / self.up).astype(np.float32)[:, None] * (self.filters[place + 1] - filters)
        found: np.ndarray = np.einsum("ij,ij->i", windows, filters)
        return found


@lru_cache(maxsize=8)
def _make_filters(rate: int, wanted_rate: int) -> np.ndarray:
    """Return the sinc, with a Kaiser window of 80 dB, at each place of a result between two samples ``(place, tap)``.

    It passes nine tenths of the band that both rates have.
    """
    band = min(1.0, wanted_rate / rate)
    half = math.ceil(HALF_LENGTH / band)
    phases = min(MOST_PHASES, wanted_rate // math.gcd(rate, wanted_rate))
    places = np.arange(1 - half, half + 1) - np.arange(phases + 1)[:, None] / phases
    window = np.i0(KAISER * np.sqrt(np.maximum(0, 1 - np.square(places / half))))
    found = np.sinc(PASSED * band * places) * window
    filters: np.ndarray = (found / found.sum(1, keepdims=True)).astype(np.float32)
    filters.flags.writeable = False
    return filters
