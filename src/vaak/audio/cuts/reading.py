"""A line of a Lhotse manifest becomes a cut, and a cut audio with who speaks when; reading them can run nothing.

Lhotse reads what a manifest names: a source may be a shell command, an address or bytes, a stored array a pickle, and a
transform may hold another recording. So only what is on the lists below is let through, in every object of a line,
however deep it is: in the tracks of a mixed cut, in the impulse response of a reverberation, in custom fields.

Plain sections of files are read by ``vaak.audio.audio_file``, which checks what Lhotse doesn't: that a file has the
rate and the length of its manifest. Lhotse reads mixed and transformed cuts.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vaak.audio.audio_file import TOLERATED_LOSS_SECONDS, AudioFile, Header, read_header, report_once, samples_in
from vaak.audio.config import AudioConfig
from vaak.audio.embedded import EMBEDDED_TYPE, place_of_source
from vaak.audio.segments import Alignment, Interval, LabelledAudio, Segment, merged
from vaak.core.costs import time_part
from vaak.core.errors import DataError, optional_import

if TYPE_CHECKING:
    from lhotse.cut import Cut

NO_TIMES = "no_times"
"""In a supervision's ``custom``: who speaks is known, but not when. Said where a label is made, never guessed later.

Lines of JSON with a speaker alone get it, and labels of Lhotse's recipes that are as long as their recordings; in other
manifests, whoever writes them says it.
"""
EMPTY_TEXT = "complete it or remove the utterance, or set data.on_bad_example to skip"
"""Advice about an empty transcript."""
UNKNOWN_SPEAKER = "unknown"
"""The speaker of a supervision without a name."""
FILE_TOO_SHORT_SECONDS = TOLERATED_LOSS_SECONDS
"""Seconds by which a file may be shorter than its manifest says. They are filled with silence."""

MOST_SECONDS = 60
"""Read at once, where only the levels of channels are wanted."""


def read_cut(cut: Cut, audio: AudioConfig) -> LabelledAudio:
    """The cut's samples at ``audio.sampling_rate`` as one channel; segments count from its start and end with it.

    Raises DataError, naming the file, if it can't be read or disagrees with its manifest.
    """
    samples, rate = read_samples(cut, audio), audio.sampling_rate
    labels = read_segments(cut), get_text(cut), read_uem(cut), get_language(cut), merge_alignments(cut)
    return LabelledAudio(cut.id, samples, rate, *labels)


def read_samples(cut: Cut, audio: AudioConfig, first: int = 0, last: int | None = None) -> np.ndarray:
    """Samples ``first`` to ``last`` of the cut, or all, counted at ``audio.sampling_rate``."""
    end = samples_in(cut.duration, audio.sampling_rate)
    last = end if last is None else min(last, end)
    # Read plain sections of files ourselves, with checks that Lhotse lacks; leave mixed and transformed cuts to Lhotse.
    with time_part("reading"):
        if not (hasattr(cut, "recording") and cut.has_recording and not cut.recording.transforms):
            samples = _read_by_lhotse(cut, audio)[first:last]
        else:
            # Round the start once, so that all windows of the cut count from the same sample.
            offset = samples_in(cut.start, audio.sampling_rate)
            samples = _read_files(cut, audio, offset + first, offset + last)
    return samples if len(samples) == last - first else np.pad(samples, (0, last - first - len(samples)))


def read_segments(cut: Cut) -> tuple[Segment, ...]:
    """Return who speaks when in the cut, by start; overlapping supervisions of a speaker are merged."""
    return tuple(
        merged(
            Segment(max(0.0, s.start), min(s.end, cut.duration), s.speaker or UNKNOWN_SPEAKER)
            for s in cut.supervisions
            if s.start < cut.duration and s.end > 0
        )
    )


def lacks_times(cut: Cut) -> bool:
    """Return whether it is known who speaks, but not when: its only supervision is marked so."""
    labels = cut.supervisions
    return len(labels) == 1 and bool((labels[0].custom or {}).get(NO_TIMES))


def is_labelled_throughout(cut: Cut) -> bool:
    """Return whether its only supervision is as long as the cut, to the last digit."""
    labels = cut.supervisions
    return len(labels) == 1 and labels[0].start == 0 and abs(labels[0].duration - cut.duration) < 1e-6


def get_text(cut: Cut) -> str | None:
    """Return the texts of the supervisions, by start, stripped; None if all are empty."""
    texts = [(s.text or "").strip() for s in sorted(cut.supervisions, key=lambda s: s.start)]
    return " ".join(filter(None, texts)) or None


def get_language(cut: Cut) -> str | None:
    """Return the language of the supervisions; None if they have none, or several."""
    said = {s.language or (s.custom or {}).get("language") for s in cut.supervisions}
    return said.pop() if len(said) == 1 else None


LABEL_FIELDS = ("speaker", "language", "gender", "recording_id")
"""Labels that every supervision of Lhotse may have; others are keys of its manifest."""


def get_label(supervision: Any, name: str) -> str | None:
    """Return the value that a supervision has under a name; None without any."""
    value = getattr(supervision, name) if name in LABEL_FIELDS else None
    if value is None:
        value = (supervision.custom or {}).get(name)
    return None if value is None or value == "" else str(value)


def list_labels(supervision: Any) -> list[str]:
    """Return the names under which a supervision has values."""
    return [
        name for name in (*LABEL_FIELDS, *(supervision.custom or ())) if get_label(supervision, str(name)) is not None
    ]


def merge_alignments(cut: Cut) -> Alignment | None:
    """When words and phones are spoken, of all supervisions; None if none has an alignment.

    Times are those of the aligner: the last ones may be beyond the cut's end.
    """
    tiers: dict[str, list[Interval]] = {}
    for supervision in cut.supervisions:
        for tier, items in (supervision.alignment or {}).items():
            tiers.setdefault(tier, []).extend(
                Interval(item.start, round(item.start + item.duration, 8), item.symbol) for item in items
            )
    return {tier: tuple(sorted(intervals)) for tier, intervals in tiers.items()} or None


def read_uem(cut: Any) -> tuple[tuple[float, float], ...] | None:
    """Return the annotated parts of the cut, if that isn't all of it (``custom["uem"]``)."""
    parts = (getattr(cut, "custom", None) or {}).get("uem")
    if parts is None:
        return None
    inside = ((max(0.0, start), min(end, cut.duration)) for start, end in parts)
    return tuple(sorted((start, end) for start, end in inside if start < end))


def get_file(cut: Cut) -> str:
    """Return the file that the cut is read from, or the first of several; for messages."""
    parts: list[Any] = [track.cut for track in cut.tracks] if hasattr(cut, "tracks") else [cut]
    recordings = [part.recording for part in parts if getattr(part, "recording", None) is not None]
    return next((str(source.source) for recording in recordings for source in recording.sources), "no file")


def require_frequencies(cut: Any, audio: AudioConfig) -> None:
    """Raises DataError for a recording whose sampling rate is too low for the mel filters."""
    rate, highest = int(cut.sampling_rate), audio.mel.nyquist if audio.mel is not None else 0.0
    if rate / 2 < highest:
        raise DataError(
            f"{cut.id} ({get_file(cut)}): it has {rate:,} Hz, so nothing above {rate // 2:,} Hz, but "
            f"global_config.mel.f_max is {highest:,.0f} Hz; leave it out, or lower f_max"
        )


def _read_files(cut: Any, audio: AudioConfig, first: int, last: int) -> np.ndarray:
    """Samples of the recording: the mean of the cut's channels, which may be in several files, or the first."""
    channels = cut.channel if isinstance(cut.channel, list | tuple) else [cut.channel]
    channels = channels[:1] if audio.channels == "first" else channels
    total: np.ndarray | None = None
    found: set[int] = set()
    for source in cut.recording.sources:
        require_file(source.type, cut.id)
        columns = [column for column, channel in enumerate(source.channels) if channel in channels]
        found.update(source.channels)
        if not columns:
            continue
        with AudioFile(place_of_source(source.type, source.source), audio.sampling_rate, columns) as file:
            _require_what_the_manifest_says(file, cut)
            samples = file.samples(first, last)
        # The usual case: one file has all channels, and its mean is the result.
        if len(columns) == len(channels):
            return samples
        if total is None:
            total = np.zeros(last - first, np.float32)
        # These samples are the mean over this file's channels, so weight them by their share of all channels.
        total[: len(samples)] += samples * np.float32(len(columns) / len(channels))
    if missing := set(channels) - found:
        raise DataError(f"cut {cut.id}: recording {cut.recording.id} has no channel {min(missing)}; fix the manifest")
    assert total is not None
    return total


def _require_what_the_manifest_says(file: AudioFile, cut: Any) -> None:
    header, recording = file.header, cut.recording
    # Opus can be decoded at any rate, so its header's rate proves nothing.
    if header.sampling_rate != recording.sampling_rate and not header.is_opus:
        raise DataError(
            f"{file.path}: the file has {header.sampling_rate} Hz, but its manifest says {recording.sampling_rate} Hz "
            f"(recording {recording.id}); make the manifest again"
        )
    if header.duration < recording.duration - FILE_TOO_SHORT_SECONDS:
        raise DataError(
            f"{file.path}: the file lasts {header.duration:.3f} s, but its manifest says {recording.duration:.3f} s "
            f"(recording {recording.id}): it is truncated or has changed; download it again or make the manifest again"
        )
    if header.duration > recording.duration + FILE_TOO_SHORT_SECONDS:
        report_once(file.path, "manifest", _longer(header, recording))


def _longer(header: Header, recording: Any) -> str:
    return (
        f"the file lasts {header.duration:.3f} s, but its manifest says {recording.duration:.3f} s: the rest isn't "
        "used; make the manifest again"
    )


def file_remarks(cut: Any) -> Iterator[str]:
    """Where the headers of the cut's files or its manifest are wrong, with both numbers.

    Raises DataError for a file that can't be read.
    """
    recording = getattr(cut, "recording", None)
    if recording is None:
        return
    for source in recording.sources:
        require_file(source.type, cut.id)
        header = read_header(place_of_source(source.type, source.source))
        if header.difference:
            yield header.difference
        if header.duration > recording.duration + FILE_TOO_SHORT_SECONDS and not recording.transforms:
            yield _longer(header, recording)
        if header.num_channels != len(source.channels):
            yield f"the file has {header.num_channels} channels, but its manifest names {len(source.channels)}"


def channel_remarks(cut: Any, audio: AudioConfig) -> Iterator[tuple[str, str]]:
    """Oddities of the channels that are averaged for the cut; nothing if there is only one."""
    recording = getattr(cut, "recording", None)
    channels = cut.channel if isinstance(getattr(cut, "channel", None), list | tuple) else ()
    if recording is None or audio.channels == "first" or len(channels) < 2:
        return
    rate = int(recording.sampling_rate)
    first, last = samples_in(cut.start, rate), samples_in(cut.start + cut.duration, rate)
    for source in recording.sources:
        columns = [column for column, channel in enumerate(source.channels) if channel in channels]
        if len(columns) > 1:
            with AudioFile(place_of_source(source.type, source.source), rate, columns) as file:
                # Read for its side effect: the file adds up the levels of its channels, in bounded memory.
                for begin in range(first, last, MOST_SECONDS * rate):
                    file.samples(begin, min(begin + MOST_SECONDS * rate, last))
                yield from file.levels.describe_odd()


def _read_by_lhotse(cut: Any, audio: AudioConfig) -> np.ndarray:
    """Return a cut that is mixed, padded or transformed."""
    entry = cut.to_dict()
    require_harmless(entry, cut.id)
    # Open each file with our reader first: its errors name the file and what to do.
    for recording, is_read in recordings_in(entry):
        for source in recording["sources"] if is_read else ():
            read_header(place_of_source(source["type"], source["source"]))
    try:
        with _our_files():
            loaded = cut.load_audio()
    except Exception as error:
        # Lhotse, its transforms and its file readers each raise their own.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"cut {cut.id} ({get_file(cut)}): Lhotse can't read it: {reason}") from error
    if loaded is None:
        raise DataError(f"cut {cut.id}: it has no recording; give a manifest of cuts with recordings")
    samples: np.ndarray = np.asarray(loaded, np.float32)
    samples = samples[0] if audio.channels == "first" else samples.mean(axis=0)
    if not np.isfinite(samples).all():
        raise DataError(f"{get_file(cut)}: cut {cut.id} has samples that are not numbers; fix the file or remove it")
    if cut.sampling_rate == audio.sampling_rate:
        return samples
    from soxr import resample

    resampled: np.ndarray = resample(samples, cut.sampling_rate, audio.sampling_rate)
    return resampled


@contextlib.contextmanager
def _our_files() -> Iterator[None]:
    """Make Lhotse read files with our reader: others of its readers start programs, one through a shell."""
    from lhotse.audio.backend import get_current_audio_backend, set_current_audio_backend

    before = get_current_audio_backend()
    set_current_audio_backend(_backend())
    try:
        yield
    finally:
        set_current_audio_backend(before)


@functools.cache
def _backend() -> Any:
    """Return a reader of audio for Lhotse; sources other than files are read by libsndfile."""
    from lhotse.audio.backend import LibsndfileBackend

    class VaakBackend(LibsndfileBackend):  # type: ignore[misc]
        def read_audio(
            self,
            path_or_fd: Any,
            offset: float = 0.0,
            duration: float | None = None,
            force_opus_sampling_rate: int | None = None,
        ) -> tuple[np.ndarray, int]:
            if not isinstance(path_or_fd, str | Path):
                found: tuple[np.ndarray, int] = super().read_audio(path_or_fd, offset, duration)
                return found
            header = read_header(path_or_fd)
            end = header.duration if duration is None else offset + duration
            rows = []
            # One channel at a time, because ``AudioFile`` averages the channels it is given.
            for channel in range(header.num_channels):
                with AudioFile(path_or_fd, header.sampling_rate, (channel,)) as file:
                    rows.append(file.read(offset, end))
            return np.stack(rows), header.sampling_rate

    return VaakBackend()


SOURCES = frozenset({"file", EMBEDDED_TYPE})
"""Where audio may come from: a file, or a part of one (``vaak.audio.embedded``). Not from a ``command``, a ``url``,
``memory`` or what is filled in later (``shar``)."""
TRANSFORMS = frozenset({
    *("Clipping", "Compress", "DereverbWPE", "LoudnessNormalization", "Narrowband"),
    *("Resample", "ReverbWithImpulseResponse", "Speed", "Tempo", "Volume"),
})  # fmt: skip
"""Transforms that may be applied to audio: Lhotse's own; packages that are imported may have registered others."""
STORAGES = frozenset({
    *("chunked_lilcom_hdf5", "lilcom_chunky", "lilcom_files", "lilcom_hdf5", "memory_lilcom", "memory_npy"),
    *("numpy_files", "numpy_hdf5", "pillow_files"),
})  # fmt: skip
"""How arrays may be stored. Not as pickles (``memory_raw``, ``pillow_memory``), nor where a name may be a command
(``kaldiio``) or an address (``lilcom_url``)."""
_CONTAINERS = (dict, list)
_ADDRESS = re.compile(r"[A-Za-z][\w+.-]+:|\||-$")
"""Sources that Lhotse doesn't open as a file: an address, ``pipe:`` with a command, standard input. C: is a drive."""


def lhotse_object(entry: dict[str, Any], where: str) -> Any:
    """Return the cut, recording or supervision in a line of a manifest; ``entry`` is modified.

    Features are left out: Vaak makes its own. Raises DataError for a line that isn't one, and for what reading it
    could execute.
    """
    require_harmless(entry, where)
    with optional_import("reading manifests requires lhotse", "audio"):
        from lhotse.serialization import deserialize_item
    try:
        return deserialize_item(entry)
    except Exception as error:
        # Lhotse's constructors raise exceptions of any type.
        raise DataError(f"{where}: Lhotse can't read this line: {type(error).__name__}: {error}") from error


def require_harmless(entry: dict[str, Any], where: str) -> None:
    """Take stored features out of a line.

    Raises DataError for a source, a transform or an array in it, or in what it holds, that isn't allowed.
    """
    for part, _ in _objects(entry):
        if "sources" in part:
            _require_files(part["sources"], where)
        if "transforms" in part:
            _require_known(part["transforms"], where)
        if "storage_type" in part:
            _require_stored_in_a_file(part, where)
        if _is_stored(part.get("features")):
            del part["features"]


def _require_files(sources: Any, where: str) -> None:
    for source in sources if isinstance(sources, list) else ():
        if isinstance(source, dict) and {"source", "channels"} <= source.keys():
            require_file(source.get("type"), where)


def _require_known(transforms: Any, where: str) -> None:
    for transform in transforms if isinstance(transforms, list) else ():
        if isinstance(transform, dict) and "kwargs" in transform:
            name = transform.get("name")
            if not isinstance(name, str) or name not in TRANSFORMS:
                raise DataError(
                    f"{where}: its audio is changed by {name}, which is refused; expected one of "
                    f"{', '.join(sorted(TRANSFORMS))}; save the changed audio as a file and use that in the manifest"
                )


def _require_stored_in_a_file(part: dict[str, Any], where: str) -> None:
    kind, path = str(part["storage_type"]), str(part.get("storage_path", ""))
    if kind not in STORAGES:
        raise DataError(
            f"{where}: it has an array stored as {kind}, which is refused; expected one of "
            f"{', '.join(sorted(STORAGES))}; leave it out or store it again"
        )
    if _ADDRESS.match(path):
        raise DataError(
            f"{where}: it has an array at {path}, which is not a file and is refused; leave it out or store it again"
        )


def require_file(kind: Any, where: str) -> None:
    """Raises DataError for a type of source other than a file: a manifest's ``command`` could run anything."""
    if not isinstance(kind, str) or kind not in SOURCES:
        raise DataError(
            f"{where}: its audio comes from a {kind}, which is refused; save it as a file and use that in the manifest"
        )


def recordings_in(entry: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield every recording in a line, with whether its audio is read: custom fields may hold others."""
    for part, is_read in _objects(entry):
        if "sources" in part and ("sampling_rate" in part or part is entry):
            yield part, is_read


def _objects(entry: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bool]]:
    """All objects in a line, itself included, and whether they are outside of custom fields; not those of features.

    Without recursion, since who wrote the line says how deep it is; fast, since each example of training is read so.
    """
    waiting: list[tuple[Any, bool]] = [(entry, True)]
    while waiting:
        value, is_read = waiting.pop()
        if isinstance(value, dict):
            yield value, is_read
            for key, one in value.items():
                if isinstance(one, _CONTAINERS) and not (key == "features" and _is_stored(one)):
                    waiting.append((one, is_read and key != "custom"))
        else:
            waiting += [(one, is_read) for one in value if isinstance(one, _CONTAINERS)]


def _is_stored(value: Any) -> bool:
    """Return whether this describes an array in a file, or features, which are one."""
    return isinstance(value, dict) and "storage_type" in value
