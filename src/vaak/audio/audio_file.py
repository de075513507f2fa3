"""Audio files: found by their suffixes, read window by window as one channel at one rate, written sentence by sentence.

Where rates differ, a file is resampled in blocks of whole seconds, each read with a little of what is around it:

    file      ──┤ margin │      block 1      │ margin ├──
    result            ──┤│   always the same  │├──

So a sample is the same in every window, and only a window and a block are in memory, however long the file is. After a
seek, decoders of Vorbis, Opus and MP3 give other samples, and those of GSM can't seek at all. So compressed files are
decoded in order and the latest samples are kept (``FromStart``): windows that move forward decode everything once.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from vaak.audio.containers.channels import HIGHEST, ChannelLevels, describe_scale
from vaak.audio.containers.contents import open_pieces
from vaak.audio.containers.counting import count_contents
from vaak.audio.containers.ffmpeg import NAMED, decoded, demuxer_by_content, read_said
from vaak.audio.embedded import Part
from vaak.core.errors import DataError, UserError, optional_import
from vaak.core.left_out import count_endings, report_files
from vaak.core.storage.files import replacing, require_file

BLOCK_SECONDS = 2
"""Seconds that are resampled at once."""
BLOCK_MARGIN_SECONDS = 0.05
"""Seconds around a block. soxr's filter is shorter: blocks agree with a whole file to 2e-7."""
MOST_FRAMES = 2**18
"""Read at once, so that many channels take little memory before they are mixed."""
MOST_SAMPLES = 1e12
"""Samples; libsndfile returns more if a header doesn't contain the length."""
TOLERATED_LOSS_SECONDS = 0.025
"""Share of a header's length that may be missing, as in Lhotse; it is reported. Where more is, a file is truncated."""
SEEKABLE = {"PCM_S8", "PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"}
"""Codings of which samples are the same after a seek; those of FLAC are PCM."""
MIN_JUDGED_SECONDS = 2
"""Seconds of channels, at least, before they are judged; all of a shorter file."""
Channels = Literal["mix", "first"] | Sequence[int]


class Header(NamedTuple):
    """The header of a file. Opus is decoded at any rate, so its rate says nothing about the recording."""

    sampling_rate: int
    num_samples: int
    num_channels: int
    is_opus: bool
    said: int | None = None
    """Samples by the file's own header; None if it doesn't say."""
    note: str = ""
    """Further oddities of the file, in words."""

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.num_samples / self.sampling_rate

    @property
    def difference(self) -> str:
        """How header and content differ, and other oddities; empty if there are none."""
        if self.said is None or self.said == self.num_samples:
            return self.note
        seconds = self.said / self.sampling_rate
        return (
            f"its header says {self.said:,} samples ({seconds:.3f} s), but there are {self.num_samples:,} "
            f"({self.duration:.3f} s){'; ' if self.note else ''}{self.note}"
        )


class AudioFile:
    """Windows of a file. ``duration`` is in seconds, ``num_samples`` that of the whole at ``sampling_rate``."""

    def __init__(self, path: str | Path | Part, sampling_rate: int, channels: Channels = "mix") -> None:
        """Open a file or a part of one; ``channels``: the mean of all, the first, or the mean of these (from 0).

        Raises DataError if it is missing, empty, or not readable audio.
        """
        self.path, self.sampling_rate = Path(path) if isinstance(path, str) else path, sampling_rate
        self._file = open_sound_file(self.path)
        self.header = _read_header(self._file, self.path)
        self.duration = self.header.duration
        native = self.header.sampling_rate
        # Integer arithmetic, half rounded up: in floats, a long file could gain or lose its last sample.
        self.num_samples = (2 * self.header.num_samples * sampling_rate + native) // (2 * native)
        self.columns = (
            range(self.header.num_channels) if channels == "mix" else (0,) if channels == "first" else channels
        )
        self.levels = ChannelLevels(len(self.columns))
        """Levels of the samples read so far, if there are several channels."""
        self._from_start = None if self._file.subtype in SEEKABLE else FromStart(self.path, self._mix_channels)
        for column in self.columns:
            if int(column) >= self.header.num_channels:
                raise DataError(f"{path}: no channel {column}; the file has {self.header.num_channels}")
        if self.header.difference:
            report_once(self.path, "length", self.header.difference)

    def read(self, start: float, end: float) -> np.ndarray:
        """Return the samples ``(time,)`` from ``start`` to ``end`` in seconds; none outside of the file.

        Raises DataError for a file that is damaged, or contains NaN.
        """
        return self.samples(samples_in(start, self.sampling_rate), samples_in(end, self.sampling_rate))

    def samples(self, first: int, last: int) -> np.ndarray:
        """Like ``read``, with positions in samples of the result."""
        first, last = max(first, 0), min(last, self.num_samples)
        if last <= first:
            return np.zeros(0, np.float32)
        if self.header.sampling_rate == self.sampling_rate:
            return self._native(first, last)
        size = BLOCK_SECONDS * self.sampling_rate
        # Blocks are counted from the start of the file, so a sample has the same value in every window that contains
        # it.
        blocks = range(first // size, -(-last // size))
        joined = np.concatenate([self._resampled(block) for block in blocks])
        return joined[first - blocks.start * size : last - blocks.start * size]

    def _resampled(self, block: int) -> np.ndarray:
        """One block of the result."""
        with optional_import("resampling requires soxr", "audio"):
            import soxr
        native, wanted = self.header.sampling_rate, self.sampling_rate
        divisor = math.gcd(native, wanted)
        # these numbers of samples of the file, and of the result, have the same duration
        period, result_period = native // divisor, wanted // divisor
        # A whole number of periods, so that ``begin`` falls on a sample of the result too, and the slice below is
        # exact.
        margin = math.ceil(BLOCK_MARGIN_SECONDS * divisor)
        begin = max(0, block * BLOCK_SECONDS * native - margin * period)
        end = min(self.header.num_samples, (block + 1) * BLOCK_SECONDS * native + margin * period)
        resampled: np.ndarray = soxr.resample(self._native(begin, end), native, wanted)
        first = block * BLOCK_SECONDS * wanted - begin // period * result_period
        return resampled[first : first + BLOCK_SECONDS * wanted]

    def _native(self, first: int, last: int) -> np.ndarray:
        """Samples at the file's own rate, mixed to one channel."""
        import soundfile

        if self._from_start is not None:
            # It can't be read from the middle.
            try:
                decoded = self._from_start.read(first, last)
            except soundfile.LibsndfileError as error:
                raise self._is_damaged(self._from_start.last, str(error).removeprefix("Error : ")) from error
            return self._require_samples(decoded, first, last)
        mixed = np.empty(last - first, np.float32)
        done = 0
        try:
            self._file.seek(first)
            while done < len(mixed):
                piece = self._file.read(min(MOST_FRAMES, len(mixed) - done), dtype="float32", always_2d=True)
                # The file is shorter than its header claims; ``_require_samples`` raises the error.
                if not len(piece):
                    break
                mixed[done : done + len(piece)] = self._mix_channels(piece)
                done += len(piece)
        except soundfile.LibsndfileError as error:
            raise self._is_damaged(first + done, str(error).removeprefix("Error : ")) from error
        return self._require_samples(mixed[:done], first, last)

    def _require_samples(self, mixed: np.ndarray, first: int, last: int) -> np.ndarray:
        """Return the samples, if none is missing. Raises DataError otherwise, or if one is not a number."""
        if first + len(mixed) < last:
            raise self._is_damaged(first + len(mixed), f"its header says {self.duration:.2f} s")
        finite = np.isfinite(mixed)
        if not finite.all():
            place = int(np.argmin(finite))
            seconds = (first + place) / self.header.sampling_rate
            raise DataError(
                f"{self.path}: the sample at {seconds:.3f} s is {mixed[place]}, not a number; fix the file or remove it"
            )
        # libsndfile scales integer samples to ±1; only float files can exceed that.
        if self._file.subtype in ("FLOAT", "DOUBLE") and (peak := float(np.abs(mixed).max(initial=0))) > HIGHEST:
            raise DataError(f"{self.path}: {describe_scale(peak)}")
        return mixed

    def _mix_channels(self, piece: np.ndarray) -> np.ndarray:
        """Frames ``(time, channel)`` as one channel ``(time,)``."""
        columns = self.columns
        if len(columns) == 1:
            return piece[:, columns[0]]
        # Avoid the copy that a list index makes: most files are averaged over all channels, whose order doesn't matter.
        chosen = piece if len(columns) == piece.shape[1] else piece[:, list(columns)]
        # NaN and infinity are reported later, with their time, by ``_require_samples``.
        with np.errstate(all="ignore"):
            mixed: np.ndarray = chosen.mean(axis=1)
            self.levels.add(chosen, mixed)
        return mixed

    def _is_damaged(self, place: int, reason: str) -> DataError:
        seconds = place / self.header.sampling_rate
        return DataError(
            f"{self.path}: nothing can be read from {seconds:.2f} s on ({reason.rstrip('.')}): it is truncated or "
            "damaged; download it again or remove it"
        )

    def close(self) -> None:
        """Close the file. Oddities of averaged channels are reported, once for a file."""
        self._file.close()
        if self._from_start is not None:
            self._from_start.close()
        # Don't judge by a short window: a channel whose speaker pauses there would be reported as silent.
        if self.levels.num_samples >= min(self.header.num_samples, MIN_JUDGED_SECONDS * self.header.sampling_rate):
            for kind, what in self.levels.describe_odd():
                report_once(self.path, kind, what)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_header(path: str | Path | Part) -> Header:
    """Return the header of a file or a part of one. Raises DataError if it is missing, empty, or not readable audio."""
    place = Path(path) if isinstance(path, str) else path
    with open_sound_file(place) as file:
        return _read_header(file, place)


def samples_in(seconds: float, sampling_rate: int) -> int:
    """Return the number of samples, halves rounded up, as Lhotse counts them.

    >>> samples_in(0.1 + 0.2, 16000), samples_in(0.5 / 16000, 16000)
    (4800, 1)
    """
    # Round to 8 decimals first: a product that should end in .5 may be slightly below it in floats.
    return math.floor(round(seconds * sampling_rate, 8) + 0.5)


def open_sound_file(path: Path | Part) -> Any:
    """Return a ``soundfile.SoundFile``. Raises DataError, with the reason, if it can't be opened."""
    with optional_import(f"{path}: reading audio requires soundfile", "audio"):
        import soundfile
    try:
        require_file(path if isinstance(path, Path) else path.path)
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror}") from error
    # Count first: where the header is wrong, libsndfile reads these pieces instead of the file.
    pieces = count_contents(path).pieces
    try:
        if pieces:
            return soundfile.SoundFile(open_pieces(path, pieces))
        return soundfile.SoundFile(path if isinstance(path, Path) else path.open())
    except soundfile.LibsndfileError as error:
        # FFmpeg is the fallback, not the first choice: it decodes the whole file into memory.
        if isinstance(path, Path) and (other := decoded(path)) is not None:
            return soundfile.SoundFile(other)
        if isinstance(path, Path) and (kind := demuxer_by_content(path)) is not None:
            raise DataError(
                f"{path}: this is {NAMED[kind]}, which is read where PyAV is installed: pip install 'vaak[m4a]'; or "
                "convert it to FLAC or WAV"
            ) from error
        raise DataError(
            f"{path}: this is not audio that libsndfile can read ({error.error_string.rstrip('.')}); convert it to "
            "FLAC or WAV, or download it again"
        ) from error


def _read_header(file: Any, path: Path | Part) -> Header:
    contents = count_contents(path)
    held = file.frames if contents.held is None else contents.held
    if file.frames == 0 or held == 0:
        raise DataError(f"{path}: this file holds no samples; download it again or remove it")
    if held > MOST_SAMPLES:
        raise DataError(f"{path}: its header doesn't contain its length; convert it to FLAC or WAV")
    # After FFmpeg, ``file`` is a decoded copy with a correct header; the original's length was recorded when decoding.
    said = read_said(path) if contents.said is None and isinstance(path, Path) else contents.said
    header = Header(file.samplerate, held, file.channels, file.subtype == "OPUS", said, contents.note)
    if said is not None and held < said - TOLERATED_LOSS_SECONDS * file.samplerate:
        numbers = header._replace(note="").difference
        raise DataError(f"{path}: {numbers}: it is truncated; download it again or remove it")
    return header


log = logging.getLogger("vaak")
PIECE = 2**18
"""Frames that are decoded at once."""
KEPT_SAMPLES = 2**24
"""Samples that are kept: more than five minutes at 48 kHz."""
LONG_WAY = 600
"""Seconds; to decode more of a file for nothing is worth a warning."""
_warned: set[Path | Part] = set()
MOST_REPORTED = 20
"""Files of which something is reported, in one process; ``vaak data check`` lists all."""
_reported: set[tuple[Path | Part, str]] = set()


def report_once(path: Path | Part, kind: str, what: str) -> None:
    """Log an oddity of a file: each kind once per file, and only the first ones in a process."""
    # One entry above the limit is let in: in its place, the last line announces that there are more.
    if (path, kind) in _reported or len(_reported) > MOST_REPORTED:
        return
    _reported.add((path, kind))
    if len(_reported) > MOST_REPORTED:
        log.warning("more than %d odd audio files: others aren't listed here; vaak data check lists all", MOST_REPORTED)
    else:
        log.warning("%s: %s", path, what)


class FromStart:
    """The samples of a file, mixed to one channel by ``mix``."""

    def __init__(self, path: Path | Part, mix: Callable[[np.ndarray], np.ndarray]) -> None:
        self.path, self.mix = path, mix
        self.file = open_sound_file(path)
        self.pieces: deque[np.ndarray] = deque()
        self.first = self.last = 0
        """The samples that are kept."""

    def read(self, first: int, last: int) -> np.ndarray:
        """Samples ``first`` to ``last``; fewer where the file ends before.

        Raises soundfile.LibsndfileError where it is damaged.
        """
        if first < self.first:
            # These decoders aren't exact after a seek, so going back means decoding again from the beginning.
            self.file.close()
            self.file = open_sound_file(self.path)
            self.pieces.clear()
            self.first = self.last = 0
        if first - self.last > LONG_WAY * self.file.samplerate and self.path not in _warned:
            _warned.add(self.path)
            log.warning(
                "%s: compressed audio is decoded from its beginning: %d s to read a window; convert long recordings to "
                "FLAC, or store features (global_config.storage_path)",
                self.path,
                first // self.file.samplerate,
            )
        while self.last < last:
            frames = self.file.read(PIECE, dtype="float32", always_2d=True)
            if not len(frames):
                break
            # Copy: for a single channel ``mix`` returns a view, which would keep all channels in memory.
            self.pieces.append(np.array(self.mix(frames), np.float32))
            self.last += len(frames)
            # Drop only pieces that end before the window, so a window longer than KEPT stays complete.
            while self.last - self.first > KEPT_SAMPLES and self.first + len(self.pieces[0]) <= first:
                self.first += len(self.pieces.popleft())
        found, start = [np.zeros(0, np.float32)], self.first
        for piece in self.pieces:
            found.append(piece[max(0, first - start) : max(0, last - start)])
            start += len(piece)
        return np.concatenate(found)

    def close(self) -> None:
        self.file.close()


FORMATS = {".wav": "WAV", ".flac": "FLAC"}


class SpeechFile:
    """A file that audio is appended to, with ``pause`` seconds between its parts."""

    def __init__(self, file: Any, sampling_rate: int, pause: float) -> None:
        self._file, self.sampling_rate, self.pause = file, sampling_rate, pause
        self.num_samples = 0

    @property
    def duration(self) -> float:
        """Seconds so far."""
        return self.num_samples / self.sampling_rate

    def append(self, samples: np.ndarray, silence: float | None = None) -> None:
        """Add samples ``(time,)`` within ±1 after ``silence`` seconds; None: the pause, and none before the first."""
        if silence is None:
            silence = self.pause if self.num_samples else 0.0
        for part in (np.zeros(round(silence * self.sampling_rate), np.float32), samples):
            self._file.write(part)
            self.num_samples += len(part)


@contextlib.contextmanager
def speech_file(path: Path, sampling_rate: int, pause: float) -> Iterator[SpeechFile]:
    """A 16-bit audio file at ``path``, which appears complete or not at all.

    Raises UserError for one that can't be written, or that isn't called .wav or .flac.
    """
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"{path}: expected a file that ends in {' or '.join(FORMATS)}")
    with optional_import("audio files require soundfile", "audio"):
        import soundfile
    kind = FORMATS[path.suffix.lower()]
    try:
        with (
            # Written under a temporary name: an interrupted command leaves no half of a file.
            replacing(path) as temporary,
            soundfile.SoundFile(temporary, "w", sampling_rate, 1, "PCM_16", format=kind) as file,
        ):
            yield SpeechFile(file, sampling_rate, pause)
    except (OSError, soundfile.LibsndfileError) as error:
        raise UserError(f"{path} can't be written: {getattr(error, 'strerror', None) or error}") from error


AUDIO_ENDINGS = frozenset({".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif", ".au", ".sph", ".w64", ".caf"})
"""Suffixes of files that libsndfile reads."""
NOT_READ = frozenset(
    {".m4a", ".m4b", ".aac", ".mp4", ".3gp", ".amr", ".wma", ".webm", ".mka", ".weba", ".ac3", ".ape", ".wv", ".tta"}
)
"""Audio, sometimes with pictures, for which libsndfile has no decoder."""


def is_audio(path: Path) -> bool:
    """Return whether the suffix belongs to a format that can be read."""
    return path.suffix.lower() in AUDIO_ENDINGS


def not_read(files: Iterable[Path]) -> list[Path]:
    """Return the files in formats that can't be read, except those with a converted copy next to them."""
    files = list(files)
    converted = {path.with_suffix("") for path in files if is_audio(path)}
    return [path for path in files if path.suffix.lower() in NOT_READ and path.with_suffix("") not in converted]


def explain_unread(skipped: Iterable[Path]) -> dict[Path, str]:
    """For each file that isn't read, the reason and what to do; the same for all files of a format.

    >>> list(explain_unread([Path("b.m4a"), Path("a.m4a")]).values())[0]
    "audio files in a format that can't be read (.m4a); convert them, such as: ffmpeg -i a.m4a a.flac"
    """
    paths = sorted(skipped)
    first: dict[str, Path] = {}
    for path in paths:
        first.setdefault(path.suffix.lower(), path)
    reasons = {
        kind: f"audio files in a format that can't be read ({kind}); convert them, such as: ffmpeg -i {path} "
        f"{path.with_suffix('.flac')}"
        for kind, path in first.items()
    }
    return {path: reasons[path.suffix.lower()] for path in paths}


def in_words(skipped: Iterable[Path]) -> str:
    """Return the number of files that aren't read, for each reason."""
    return "; ".join(f"{number:,} {reason}" for reason, number in Counter(explain_unread(skipped).values()).items())


def audio_files(paths: Iterable[Path]) -> tuple[list[Path], dict[Path, UserError]]:
    """Return the files given and those in given folders, searched recursively, each once; and the folders without any.

    A file that is named may have any extension; in a folder, the extension tells which files are audio. Audio of
    formats that can't be read is reported.
    """
    found: dict[Path, Path] = {}
    without: dict[Path, UserError] = {}
    for path in paths:
        files = audio_in_folder(path) if path.is_dir() else [path]
        # Keyed by resolved path: a file given directly and again through its folder appears once, under its first name.
        found |= {file.resolve(): file for file in files if file.resolve() not in found}
        if not files:
            without[path] = _has_no_audio(path)
    return list(found.values()), without


def audio_in_folder(folder: Path, also_read: Collection[str] = ()) -> list[Path]:
    """Return the audio of a folder and its subfolders; other contents are reported (``vaak.core.left_out``).

    Files with the endings ``also_read`` aren't mentioned: another reader reports them.
    """
    below = sorted(folder.rglob("*"))
    visible = [one for one in below if not one.name.startswith(".") and one.is_file()]
    files = [one for one in visible if is_audio(one)]
    reasons = explain_unread(not_read(visible))
    reasons = {one: why for one, why in reasons.items() if one.suffix.lower() not in also_read}
    # ``rglob`` doesn't follow links to folders, so recordings in linked ones would be missing silently: report them.
    left_out = {one: why for one in below if (why := reasons.get(one) or _explain_left_out(one))}
    others = [one for one in visible if one.suffix.lower() not in (*AUDIO_ENDINGS, *NOT_READ, *also_read)]
    # Without any, the caller raises an error that lists the files.
    if files:
        report_files(folder, len(files), {str(one.relative_to(folder)): why for one, why in left_out.items()}, others)
    return files


def _explain_left_out(path: Path) -> str:
    """Return why an apparent recording, or folder of recordings, isn't read; empty if it is, or for anything else."""
    if path.is_symlink() and path.is_dir():
        return "a link to a folder"
    if not is_audio(path) or path.is_dir():
        return ""
    return "hidden" if path.name.startswith(".") else "" if path.is_file() else "not a file"


def _has_no_audio(folder: Path) -> DataError:
    visible = [one for one in folder.rglob("*") if not one.name.startswith(".") and one.is_file()]
    unread = not_read(visible)
    others = [f"{number:,} {ending}" for ending, number in count_endings(set(visible) - set(unread)).items()]
    there = "; ".join(filter(None, (in_words(unread), ", ".join(others))))
    formats = " ".join(sorted(AUDIO_ENDINGS))
    return DataError(f"{folder}: no audio in this folder ({formats}){there and '; there are '}{there}")


NUM_WITH_AUDIO, MAX_AUDIO_SECONDS = 4, 15
"""How many examples of an evaluation are kept as audio, and how many seconds of each."""


def encode_wav(samples: np.ndarray, sampling_rate: int) -> bytes:
    """Return a 16-bit WAV file with ``samples`` ``(time,)`` within ±1. Raises UserError without soundfile."""
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise UserError(f"audio files require soundfile ({error}); pip install 'vaak[audio]'") from error
    content = BytesIO()
    soundfile.write(content, samples, sampling_rate, "PCM_16", format="WAV")
    return content.getvalue()
