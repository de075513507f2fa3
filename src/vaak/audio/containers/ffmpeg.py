"""Formats that libsndfile lacks, such as M4A, decoded by FFmpeg's libraries where PyAV is installed (``av``).

A file is decoded whole, to 16 bits in memory, when it is opened; the latest stays, and of each the length that its
header says (``read_said``). The demuxer is chosen by the first bytes, where they name one, or by the ending, and gets
the open file: FFmpeg guesses no format, so none that refers to other files or addresses (playlists) is read. Browsers
send recordings without a name, and converters of videos write M4A that is called .mp3.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import re
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO

from vaak.core.errors import DataError

DEMUXERS = {
    **dict.fromkeys((".m4a", ".m4b", ".mp4", ".3gp"), "mov"),
    **dict.fromkeys((".webm", ".weba", ".mka"), "matroska"),
    ".aac": "aac",
    ".amr": "amr",
    ".wma": "asf",
    **dict.fromkeys((".ogg", ".oga", ".spx"), "ogg"),
    ".wav": "wav",
}
"""By ending; of Ogg and WAV there are kinds that libsndfile can't decode (FLAC or Speex in Ogg, AAC in WAV)."""
NAMED = {"matroska": "Matroska (WebM)", "mov": "MP4 (M4A)"}
"""The demuxers that a file's first bytes name, in words."""
ENDINGS_OF_LIBSNDFILE = frozenset({".ogg", ".oga", ".spx", ".wav"})
"""Endings that libsndfile mostly reads: a file that FFmpeg can't read either isn't audio."""


SAYING = frozenset({"mov", "matroska", "asf"})
"""Demuxers whose formats say how long a stream is; of others FFmpeg estimates it from the bit rate."""
TOLERATED_SECONDS = 0.025
"""Header and content may differ by this and one block: times are rounded, and decoders trim the ends."""
MOST_BLOCK = 2048
"""Samples of the largest block that a codec has, where it doesn't say."""
_said: dict[tuple[Path, int, int], int | None] = {}
_most_bytes: ContextVar[float] = ContextVar("most_bytes", default=math.inf)


class TooLargeError(DataError):
    """A file has more audio than may be decoded."""


@contextlib.contextmanager
def decoding_at_most(num_bytes: int) -> Iterator[None]:
    """Within this context, a file of which more would be in memory, once decoded, raises TooLargeError."""
    before = _most_bytes.set(num_bytes)
    try:
        yield
    finally:
        _most_bytes.reset(before)


def find_demuxer(path: Path) -> str | None:
    """Return the demuxer for a file, by its first bytes or its ending; None if there is none."""
    return demuxer_by_content(path) or DEMUXERS.get(path.suffix.lower())


def demuxer_by_content(path: Path) -> str | None:
    """Return the demuxer that a file's first bytes name; None if they name none."""
    with path.open("rb") as file:
        begin = file.read(8)
    return "matroska" if begin[:4] == b"\x1aE\xdf\xa3" else "mov" if begin[4:] == b"ftyp" else None


def read_said(path: Path) -> int | None:
    """The number of samples in the header of a decoded file; None if it gives none, or agrees with the content."""
    if not _said:
        return None
    stamp = path.stat()
    return _said.get((path, stamp.st_size, stamp.st_mtime_ns))


def _said_by(container: Any, stream: Any) -> float | None:
    """Return the seconds of a stream by its header."""
    if stream.duration is not None:
        return float(stream.duration * stream.time_base)
    start = float((stream.start_time or 0) * stream.time_base)
    # Matroska's tag and the container's duration give the end of the stream, not its length: subtract its start.
    named = re.fullmatch(r"(\d+):(\d+):([\d.]+)", stream.metadata.get("DURATION", ""))
    if named is not None:
        return 3600 * int(named[1]) + 60 * int(named[2]) + float(named[3]) - start
    # With several streams, the container's duration may be that of another one.
    is_alone = container.duration is not None and len(container.streams) == 1
    return container.duration / 1e6 - start if is_alone else None


def decoded(path: Path) -> BinaryIO | None:
    """Return the samples as a file of W64; None for other formats, and where PyAV isn't installed.

    Raises DataError for a file that can't be decoded.
    """
    demuxer = find_demuxer(path)
    if demuxer is None:
        return None
    stamp = path.stat()
    try:
        content = _decode_whole(path, stamp.st_size, stamp.st_mtime_ns, demuxer)
    except DataError:
        if demuxer not in NAMED and path.suffix.lower() in ENDINGS_OF_LIBSNDFILE:
            return None
        raise
    return None if content is None else io.BytesIO(content)


@functools.lru_cache(1)
def _decode_whole(path: Path, size: int, changed: int, demuxer: str) -> bytes | None:
    try:
        import av
    except ImportError:
        return None
    import soundfile

    samples = io.BytesIO()
    try:
        with open(path, "rb") as file, av.open(file, "r", format=demuxer) as container:
            stream = container.streams.audio[0]
            channels, most = stream.codec_context.channels, _most_bytes.get()
            seconds = _said_by(container, stream) if demuxer in SAYING else None
            tolerated = TOLERATED_SECONDS * stream.rate + (stream.codec_context.frame_size or MOST_BLOCK)
            packed = av.AudioResampler(format="s16", layout=stream.codec_context.layout, rate=stream.rate)
            # W64, because WAV can't hold more than 4 GB.
            with soundfile.SoundFile(samples, "w", stream.rate, channels, "PCM_16", format="W64") as writer:
                # None at the end flushes what the resampler still holds.
                for frame in (*container.decode(stream), None):
                    for part in packed.resample(frame):
                        writer.write(part.to_ndarray().reshape(-1, channels))
                    if samples.tell() > most:
                        raise TooLargeError(
                            f"{path}: more than {most / 2**20:.4g} MiB of samples in {NAMED.get(demuxer, demuxer)}, "
                            "which is decoded whole; convert it to FLAC or Ogg"
                        )
                num_samples = writer.frames
            # Recorded for ``read_said``: libsndfile only sees the decoded copy, whose header is always right.
            said = None if seconds is None else round(seconds * stream.rate)
            _said[path, size, changed] = None if said is None or abs(said - num_samples) <= tolerated else said
    except (
        av.FFmpegError,
        # A stream of an unknown codec has no context.
        AttributeError,
        IndexError,
        ValueError,
    ) as error:
        reason = str(error) or type(error).__name__
        raise DataError(f"{path}: FFmpeg can't decode this ({reason}); convert it to FLAC or WAV") from error
    if not num_samples:
        raise DataError(f"{path}: FFmpeg finds no samples in this; download it again or remove it")
    return samples.getvalue()
