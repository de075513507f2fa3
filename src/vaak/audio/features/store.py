"""Features computed once and stored: random access to any frames of any recording, none in memory.

::

    FOLDER/FINGERPRINT/        the fingerprint is of the recordings and of every option that the features depend on
      shard-00000.bin          features of consecutive recordings, half an hour or a little more
      lengths.bin              int64, the frames of each recording
      features.json            what they are, and the size of every file; written last: it means "complete"

Shards are cut by the recordings' durations alone and each is made by itself: so any number of processes makes the same
bytes, and an interrupted extraction makes only the missing shards. ``StoredSource`` gives examples with their features:
a window's are frames of those of its recording, with the audio around it at its edges. Computed from its audio alone,
which is mirrored, those within ``frame_length / 2`` of an edge would differ; all others are equal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vaak.audio.config import AudioConfig, to_samples
from vaak.audio.cuts.sources import CutSource, WindowSource
from vaak.audio.cuts.store import CutStore
from vaak.audio.features.extractors import Features
from vaak.audio.segments import Alignment, AudioSource, LabelledAudio, Segment
from vaak.core.artifact import SIZES_KEY, Artifact, suggest_remedy
from vaak.core.errors import DataError, MissingPackageError
from vaak.core.process_pool import in_processes
from vaak.core.progress import progress
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.storage.files import compute_fingerprint, replacing, write_bytes

log = logging.getLogger("vaak")
STORE_FORMAT = "vaak features 1"
FEATURES_FILE = "features.json"
PITCH = "pitch"
SHARD_SECONDS = 1800.0
BATCH_SECONDS = 300.0
WITHOUT_EFFECT = {
    "corpus_dir",
    "output_dir",
    "storage_path",
    "num_jobs",
    "progress_bar",
    "cache_gigabytes",
    "dither",
}
"""Options that stored features don't depend on."""
LATER_OPTIONS = ("mel", "pitch")
"""Left out of the fingerprint where they are null, so that features stored before they existed are still found."""


class FeatureStore:
    """The features of a source's recordings; ``lengths`` are their frames, ``frame_shift`` is in seconds.

    Where it ``has_pitch``, energy and F0 are the last two numbers of each frame.

    Pickles as its path, so workers map the same pages of memory instead of copying them.
    """

    def __init__(self, folder: str | Path) -> None:
        """Map the features in ``folder``.

        Raises DataError if there are none, or they are incomplete; FormatError if another version wrote them.
        """
        self.folder = Path(folder)
        about = _artifact_in(self.folder).read()
        if about["storage_type"] not in (*TYPES, "lilcom"):
            raise DataError(f"{self.folder / FEATURES_FILE}: this is damaged; delete {self.folder} and run again")
        self.dims: int = about["dims"]
        self.has_pitch: bool = about.get(PITCH, False)
        self.frame_shift: float = about["frame_shift"]
        self.storage_type: str = about["storage_type"]
        self.fingerprint: str = about["fingerprint"]
        # The first recording of each shard, to find a recording's shard by bisection.
        self._starts = np.concatenate([[0], np.cumsum(about["shards"], dtype=np.int64)])
        self._shards: dict[int, Shard] = {}
        try:
            self.lengths = np.fromfile(self.folder / "lengths.bin", "<i8")
        except OSError as error:
            raise DataError(f"{self.folder}/lengths.bin: {error.strerror}; {suggest_remedy(error)}") from error
        if len(self.lengths) != self._starts[-1]:
            raise DataError(f"{self.folder}/lengths.bin: this is truncated; delete the folder and run again")

    def frames(self, index: int, first: int = 0, last: int | None = None) -> np.ndarray:
        """Frames ``first`` to ``last`` of recording ``index``, ``(frame, dims)`` float32; clipped to the recording.

        Raises DataError if their file is missing or truncated.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"recording {index} of {len(self)}")
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        if number not in self._shards:
            size = int(self._starts[number + 1] - self._starts[number])
            self._shards[number] = Shard(_shard_path(self.folder, number), size, self.dims, self.storage_type)
        first, last, _ = slice(first, last).indices(int(self.lengths[index]))
        return self._shards[number].frames(index - int(self._starts[number]), first, max(first, last))

    def __len__(self) -> int:
        return len(self.lengths)

    def __reduce__(self) -> tuple[Any, ...]:
        return FeatureStore, (self.folder,)


def extract(source: AudioSource, audio: AudioConfig, folder: Path, device: str = "cpu") -> FeatureStore:
    """The features of all recordings of a source, made in ``folder/FINGERPRINT`` unless they are there, complete.

    ``audio.num_jobs`` processes make them, on the ``device``. The source must give the same audio each time. Processes
    that extract the same wait for one another. Raises UserError if nothing can be written, and what the source
    raises; complete shards are then kept.
    """
    if audio.storage_type == "lilcom":
        # Raise now if the package is missing, before anything is written.
        lilcom_module()
    mark = feature_fingerprint(source, audio)
    folder = folder / mark
    extraction = _Extraction(source, audio, folder, device, _runs(source.durations, SHARD_SECONDS))
    # Checked before taking the lock, so complete features can also be used from a read-only folder.
    lacking = extraction.lacking()
    if lacking is None:
        return FeatureStore(folder)
    artifact = _artifact_in(folder)
    if artifact.path.exists():
        log.warning("%s; damaged features in %s are recomputed", lacking, folder)
    remedy = "free some space, or set global_config.storage_path to another folder"
    with artifact.making(lambda: extraction.lacking() is None, remedy) as needed:
        if needed:
            # No other process has made it meanwhile.
            _make_shards(extraction)
            _finish(extraction, mark)
    return FeatureStore(folder)


def _artifact_in(folder: Path) -> Artifact:
    keys = {"fingerprint": str, "dims": int, "frame_shift": float, "storage_type": str, "shards": list}
    return Artifact(folder, FEATURES_FILE, "features", STORE_FORMAT, keys)


def feature_fingerprint(source: AudioSource, audio: AudioConfig) -> str:
    """Return a hash of the recordings and of every option that their features depend on."""
    absent = {name for name in LATER_OPTIONS if getattr(audio, name) is None}
    options = audio.model_dump(mode="json", exclude=WITHOUT_EFFECT | absent)
    return compute_fingerprint({"format": STORE_FORMAT, "source": source.fingerprint, "options": options})


@dataclass(frozen=True)
class _Extraction:
    """An extraction of features to a folder; ``shards`` are the recordings of each."""

    source: AudioSource
    audio: AudioConfig
    folder: Path
    device: str
    shards: list[range]

    def path(self, number: int) -> Path:
        """Return the path of a shard."""
        return _shard_path(self.folder, number)

    def lacking(self) -> str | None:
        """Describe the first missing or damaged part; None if everything is there.

        Of a store without recorded sizes, which older versions made, the tables of every shard are read instead.
        """
        try:
            store, artifact = FeatureStore(self.folder), _artifact_in(self.folder)
            if SIZES_KEY in artifact.read():
                return artifact.damage()
        except DataError as error:
            return str(error)
        missing = self.missing(store.dims)
        return f"{self.path(missing[0])}: this is truncated" if missing else None

    def missing(self, dims: int) -> list[int]:
        """Return the numbers of the shards that are missing or incomplete."""
        found = []
        for number, indices in enumerate(self.shards):
            try:
                Shard(self.path(number), len(indices), dims, self.audio.storage_type)
            except DataError:
                found.append(number)
        return found


def _runs(durations: np.ndarray, seconds: float) -> list[range]:
    """Consecutive recordings, each run but the last ``seconds`` or longer.

    >>> _runs(np.array([2.0, 1.0, 5.0, 1.0]), 3.0)
    [range(0, 2), range(2, 3), range(3, 4)]
    """
    found, start, total = [], 0, 0.0
    for index, duration in enumerate(durations.tolist()):
        total += duration
        if total >= seconds:
            found.append(range(start, index + 1))
            start, total = index + 1, 0.0
    return found + ([range(start, len(durations))] if start < len(durations) else [])


def _make_shards(extraction: _Extraction) -> None:
    """Make the shards that are missing, here or in separate processes."""
    audio, shards, durations = extraction.audio, extraction.shards, extraction.source.durations
    missing = extraction.missing(Features(audio).dims)
    if len(missing) < len(shards):
        there = len(shards) - len(missing)
        log.info("features: %d of %d parts are in %s already", there, len(shards), extraction.folder)
    seconds = [float(np.sum(durations[indices.start : indices.stop])) for indices in shards]
    remedy = "the same command continues where it stopped, perhaps with fewer global_config.num_jobs"
    there_already = sum(seconds) - sum(seconds[number] for number in missing)
    with progress("extracting features", sum(seconds), audio.progress_bar, there_already) as advance:
        for number, _ in in_processes(partial(_maker, extraction), missing, audio.num_jobs, remedy):
            advance(seconds[number])


def _maker(extraction: _Extraction) -> Callable[[int], None]:
    """Return the function that makes the shard of a number, in the process that calls this."""
    source, features = extraction.source, Features(extraction.audio, extraction.device)

    def compute_features(indices: range) -> Iterator[np.ndarray]:
        for together in _runs(source.durations[indices.start : indices.stop], BATCH_SECONDS):
            batch = indices[together.start : together.stop]
            # One generator per recording: draws don't depend on shards, batches or processes.
            rngs = [np.random.default_rng(draw_key(Purpose.FEATURE_EXTRACTION, index)) for index in batch]
            loaded = [source.load(index, rng).samples for index, rng in zip(batch, rngs, strict=True)]
            yield from features.batch(loaded)

    def make(number: int) -> None:
        recordings = compute_features(extraction.shards[number])
        write_shard(extraction.path(number), recordings, extraction.audio.storage_type)

    return make


def _finish(extraction: _Extraction, mark: str) -> None:
    """Write what all shards have in common, once all are there."""
    features, audio = Features(extraction.audio), extraction.audio
    lengths = [np.empty(0, "<i8")]
    for number, indices in enumerate(extraction.shards):
        # Read back from the shards: an earlier, interrupted process may have made some of them.
        lengths.append(Shard(extraction.path(number), len(indices), features.dims, audio.storage_type).lengths)
    write_bytes(extraction.folder / "lengths.bin", np.concatenate(lengths).tobytes())
    about = {
        "format": STORE_FORMAT,
        "fingerprint": mark,
        "dims": features.dims,
        PITCH: audio.pitch is not None,
        "frame_shift": features.frame_shift,
        "storage_type": audio.storage_type,
        "shards": [len(indices) for indices in extraction.shards],
    }
    _artifact_in(extraction.folder).finish(about)
    durations = extraction.source.durations
    log.info(
        "features of %d recordings, %.1f hours, are in %s", len(durations), np.sum(durations) / 3600, extraction.folder
    )


def _shard_path(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05d}.bin"


BLOCK_FRAMES = 500
TYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}


def lilcom_module() -> Any:
    """Return the codec, by Lhotse. Raises UserError if it isn't installed."""
    try:
        from lhotse.features.io import get_lilcom_module

        return get_lilcom_module()
    except (ImportError, OSError) as error:
        raise MissingPackageError("storage_type lilcom requires lilcom: pip install 'vaak[lilcom]'") from error


def write_shard(path: Path, recordings: Iterable[np.ndarray], storage_type: str) -> None:
    """Stream the features ``(frame, dims)`` of recordings to ``path``.

    If anything fails, including ``recordings``, nothing is left.
    """
    lengths: list[int] = []
    ends: list[int] = []
    with replacing(path) as temporary, open(temporary, "wb") as file:
        for frames in recordings:
            lengths.append(len(frames))
            if storage_type != "lilcom":
                file.write(frames.astype(TYPES[storage_type]).tobytes())
                continue
            for start in range(0, len(frames), BLOCK_FRAMES):
                # In blocks, so that a window decompresses only what it needs. The tick is Lhotse's default.
                file.write(lilcom_module().compress(frames[start : start + BLOCK_FRAMES], tick_power=-5))
                ends.append(file.tell())
        # The tables come last because lengths aren't known until all recordings have been streamed.
        file.write(np.array([*ends, *lengths], "<i8").tobytes())


class Shard:
    """A shard's features, memory-mapped: ``lengths`` are the frames of each of its recordings."""

    def __init__(self, path: Path, num_recordings: int, dims: int, storage_type: str) -> None:
        """Raises DataError if the file is missing or incomplete."""
        self.dims, self.storage_type = dims, storage_type
        try:
            size = path.stat().st_size
            self._bytes = np.asarray(np.memmap(path, "u1", mode="r")) if size else np.empty(0, "u1")
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}; {suggest_remedy(error)}") from error
        if not self._tables_fit(size - 8 * num_recordings):
            raise DataError(f"{path}: this is truncated; delete the folder and run again")

    def _tables_fit(self, begin: int) -> bool:
        """Read the tables, the last one of which begins there; whether the features end where they begin."""
        if begin < 0:
            return False
        self.lengths = self._bytes[begin:].copy().view("<i8")
        # Before summing: damaged lengths may be negative or overflow.
        if not all(0 <= length <= begin for length in self.lengths.tolist()):
            return False
        if self.storage_type != "lilcom":
            self._offsets = np.concatenate([[0], np.cumsum(self.lengths)])
            return int(self._offsets[-1]) * self.dims * TYPES[self.storage_type].itemsize == begin
        self._offsets = np.concatenate([[0], np.cumsum(-(-self.lengths // BLOCK_FRAMES))])
        end, begin = begin, begin - 8 * int(self._offsets[-1])
        if begin < 0:
            return False
        self._ends = np.concatenate([[0], self._bytes[begin:end].copy().view("<i8")])
        return bool(self._ends[-1] == begin and (np.diff(self._ends) > 0).all())

    def frames(self, index: int, first: int, last: int) -> np.ndarray:
        """Frames ``first`` to ``last`` of a recording, ``(frame, dims)`` float32, its own memory."""
        if self.storage_type == "lilcom":
            first_block, last_block = first // BLOCK_FRAMES, -(-last // BLOCK_FRAMES)
            # An empty block first, so that an empty range concatenates to the right shape.
            blocks = [np.empty((0, self.dims), np.float32)]
            for block in range(int(self._offsets[index]) + first_block, int(self._offsets[index]) + last_block):
                blocks.append(
                    lilcom_module().decompress(self._bytes[self._ends[block] : self._ends[block + 1]].tobytes())
                )
            skipped = first_block * BLOCK_FRAMES
            return np.concatenate(blocks)[first - skipped : last - skipped]
        dtype = TYPES[self.storage_type]
        width = self.dims * dtype.itemsize
        start = int(self._offsets[index]) * width
        part = self._bytes[start + first * width : start + last * width]
        return part.view(dtype).reshape(-1, self.dims).astype(np.float32)


@dataclass(frozen=True)
class LabelledFeatures:
    """Features ``(frame, dims)`` of a section of ``duration`` seconds, and its labels, as in LabelledAudio.

    Where a device makes the features, they are the samples ``(time,)`` of their windows here.
    """

    name: str
    features: np.ndarray
    duration: float
    segments: tuple[Segment, ...] = ()
    uem: tuple[tuple[float, float], ...] | None = None
    text: str | None = None
    language: str | None = None
    alignment: Alignment | None = None


class StoredSource:
    """A source of cuts (``vaak.audio.segments.AudioSource``) that has their features too."""

    def __init__(self, source: CutSource | WindowSource, store: FeatureStore, features: Features) -> None:
        """``store`` has the features of whole cuts; ``features`` compute those of cuts that couldn't be read then."""
        self.source, self.store, self.features = source, store, features
        self.durations, self.speakers = source.durations, source.speakers
        self.fingerprint = compute_fingerprint([source.fingerprint, "stored"])

    def load(self, index: int, rng: np.random.Generator) -> LabelledAudio:
        return self.source.load(index, rng)

    def describe(self, index: int) -> str:
        return self.source.describe(index)

    def load_features(self, index: int, rng: np.random.Generator) -> LabelledFeatures:
        """Example ``index``, with the draws of ``load``.

        Audio is read only if pauses must be found in it. Raises DataError, naming the file.
        """
        place = self.source.place(index, rng)
        rate = self.source.audio.sampling_rate
        duration, spoken = (place.last - place.first) / rate, self.source.spoken(place)
        segments = spoken.segments
        if self.source.hides_pauses(place.cut):
            segments = self.source.at(place).segments
        rest = spoken.uem, spoken.text, spoken.language, spoken.alignment
        audio, number = self.source.audio, self.features.num_frames(place.last - place.first)
        # Exact: windows begin at whole frames (``WindowSource.place``).
        first = place.first // to_samples(audio.frame_shift, audio.sampling_rate)
        found = self.store.frames(place.cut, first, first + number)
        # a window that ends past what is stored, as its cut does, is extracted from its samples
        frames = found if len(found) == number else self.features(self.source.at(place).samples)
        return LabelledFeatures(spoken.name, frames, duration, segments, *rest)


class _Readable:
    """Whole cuts to be extracted; one that can't be read has no samples, with a warning."""

    def __init__(self, source: CutSource) -> None:
        self.source, self.durations, self.speakers = source, source.durations, source.speakers
        self.fingerprint = source.fingerprint

    def load(self, index: int, rng: np.random.Generator) -> LabelledAudio:
        try:
            return self.source.load(index, rng)
        except DataError as error:
            log.warning("its features aren't stored: %s", error)
            nothing = np.zeros(0, np.float32)
            return LabelledAudio(self.describe(index), nothing, self.source.audio.sampling_rate)

    def describe(self, index: int) -> str:
        return self.source.describe(index)


def extract_cuts(store: CutStore, audio: AudioConfig, device: str, *, skip_bad: bool) -> FeatureStore:
    """Return the features of whole cuts, made in ``audio.storage_path`` unless they exist.

    With ``skip_bad``, cuts that can't be read are skipped with a warning. Raises DataError for it otherwise, and what
    ``extract`` raises.
    """
    # Each recording is read once, so a cache would only cost memory.
    source = CutSource(store, audio.model_copy(update={"cache_gigabytes": 0.0}))
    return extract(_Readable(source) if skip_bad else source, audio, _folder(audio), device)


def stored_cuts(store: CutStore, audio: AudioConfig) -> FeatureStore | None:
    """Return the features that ``extract_cuts`` has made of the cuts; None if there are none."""
    folder = _folder(audio) / feature_fingerprint(CutSource(store, audio), audio)
    try:
        return FeatureStore(folder)
    except DataError:
        return None


def _folder(audio: AudioConfig) -> Path:
    assert audio.storage_path is not None
    return Path(audio.storage_path).expanduser()
