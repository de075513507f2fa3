"""Audio while it comes: raw samples from a stream, such as standard input, or from a microphone.

A thread reads, so nothing is lost while a model computes. Each block says whether more has already come: then the
listener is behind, and may leave out what can wait.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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

    Raises UserError for a rate that no audio has.
    """
    waiting: queue.Queue[bytes | BaseException | None] = queue.Queue(round(MOST_WAITING_SECONDS / BLOCK_SECONDS))
    size = BYTES_OF_A_SAMPLE * round(BLOCK_SECONDS * rate)

    def read() -> None:
        try:
            while content := stream.read(size):
                waiting.put(content)
            waiting.put(None)
        except BaseException as error:  # it is raised where the blocks are read
            waiting.put(error)

    resampled = make_resampler(rate, wanted_rate)
    threading.Thread(target=read, name="vaak live audio", daemon=True).start()
    yield from _blocks(iter(waiting.get, None), waiting, size, resampled, lost)


def hear_microphone(wanted_rate: int, lost: Lost) -> Iterator[Block]:
    """Samples of the default microphone, until the iterator is closed. Raises UserError where there is none."""
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


def make_resampler(rate: int, wanted_rate: int) -> Any:
    """Return what converts samples at ``rate``, piece by piece, by ``(samples, is_last)``.

    Raises UserError for a rate that no audio has.
    """
    if not SLOWEST_RATE <= rate <= FASTEST_RATE:
        raise UserError(f"--rate {rate}: expected the samples in a second, {SLOWEST_RATE} to {FASTEST_RATE}")
    if rate == wanted_rate:
        return lambda samples, is_last: samples
    with optional_import("audio of another rate requires soxr", "audio"):
        import soxr
    stream = soxr.ResampleStream(rate, wanted_rate, 1, dtype="float32", quality="HQ")
    return lambda samples, is_last: stream.resample_chunk(samples, last=is_last)
