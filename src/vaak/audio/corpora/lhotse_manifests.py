"""Lhotse's manifests as cuts, line by line: manifests of cuts, or of recordings with supervisions.

Paths are Lhotse's: absolute, or relative to the current folder; one that doesn't exist is looked up in the manifest's
folder. They may be anywhere, because Lhotse writes absolute paths, and the manifest is the user's own; but a source
that is not a file (a command would be executed) is refused.

A supervision is taken as it is, also if it is as long as its cut: only ``custom: {"no_times": true}`` says that it
doesn't know when the speaker speaks. Cuts of recipes have that mark (recipe_corpus.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vaak.audio.config import DatasetConfig
from vaak.audio.corpora.entries import entries_of, lacks_train
from vaak.audio.corpora.json_manifest import json_lines
from vaak.audio.waveforms.reading import NO_TIMES, demand_file, is_labelled_throughout, lacks_times
from vaak.audio.waveforms.recordings import ReadRecording, attempted
from vaak.core.errors import DataError, optional_import
from vaak.core.progress import followed

if TYPE_CHECKING:
    from lhotse import Recording, SupervisionSegment
    from lhotse.cut import Cut

WITHOUT_SUPERVISIONS = "recordings without supervisions"
WITHOUT_RECORDING = "recordings that only supervisions name"
LABELLED_THROUGHOUT = (
    "utterances with a text whose label is as long as they are, taken as speech from start to end; if it only says who "
    f'speaks, add "{NO_TIMES}": true to its custom fields'
)


class Manifests(NamedTuple):
    """The files of a split, by what their lines are."""

    cuts: list[Path]
    recordings: list[Path]
    supervisions: list[Path]


class ManifestReader:
    """Cuts of Lhotse's manifests (``vaak.core.corpus.Source``)."""

    def __init__(self, dataset: DatasetConfig, entries: dict[str, list[Path]] | None = None) -> None:
        """Check the first line of each file. Raises DataError if it is not a manifest."""
        self.lacks_train = lacks_train(dataset)
        self._manifests = {
            split: sorted_by_kind(paths, f"datasets, {dataset.name}, {split}")
            for split, paths in (entries_of(dataset) if entries is None else entries).items()
        }
        self.given = tuple(self._manifests)
        self.files = [path for manifests in self._manifests.values() for paths in manifests for path in paths]

    def read(self, split: str) -> Iterator[ReadRecording]:
        for reading in followed(self._read(self._manifests[split]), f"recordings of {split}"):
            yield reading if reading.cut is None else reading._replace(remarks=remarks_on(reading.cut))

    def named_files(self) -> Iterator[tuple[str, Path]]:
        for manifests in self._manifests.values():
            for path in (*manifests.cuts, *manifests.recordings):
                for _, entry in json_lines(path):
                    yield from ((name, _place_of(Path(name), path.parent)) for name in _audio_in(entry))

    def _read(self, manifests: Manifests) -> Iterator[ReadRecording]:
        yield from _cuts(manifests.cuts)
        if manifests.recordings:
            recordings = (one for path in manifests.recordings for one in _recordings(path))
            supervisions = (one for path in manifests.supervisions for one in _supervisions(path))
            yield from joined(recordings, supervisions)


def remarks_on(cut: Cut) -> tuple[str, ...]:
    """What to tell the user of a cut: that its label may be one without times, and doesn't say so."""
    unmarked = is_labelled_throughout(cut) and not lacks_times(cut)
    return (LABELLED_THROUGHOUT,) if unmarked and cut.supervisions[0].text else ()


def sorted_by_kind(paths: Iterable[Path], option: str) -> Manifests:
    """The files, and those of folders, by their contents; features and other manifests are ignored.

    Raises DataError if a file is not a manifest, or there are neither cuts nor recordings.
    """
    found = Manifests([], [], [])
    for path in paths:
        for file in sorted([*path.glob("*.jsonl"), *path.glob("*.jsonl.gz")]) if path.is_dir() else [path]:
            kind = _kind_of(file)
            if kind is not None:
                found[("cuts", "recordings", "supervisions").index(kind)].append(file)
            elif not path.is_dir():
                raise DataError(
                    f"{file}: this is not a Lhotse manifest of cuts, recordings or supervisions in JSON lines"
                )
    if not found.cuts and not found.recordings:
        raise DataError(f"{option}: give a manifest of cuts, or those of recordings and supervisions together")
    return found


def _kind_of(path: Path) -> str | None:
    first = next(json_lines(path), None)
    if first is None:
        raise DataError(f"{path}: this manifest is empty")
    keys = first[1].keys()
    if "sources" in keys:
        return "recordings"
    if "type" in keys and ("duration" in keys or "tracks" in keys):
        return "cuts"
    return "supervisions" if {"recording_id", "start", "duration"} <= keys and "num_features" not in keys else None


def joined(recordings: Iterable[Recording], supervisions: Iterable[SupervisionSegment]) -> Iterator[ReadRecording]:
    """A cut of each recording with its supervisions, which are kept in memory: they may be in any order."""
    waiting: dict[str, list[SupervisionSegment]] = {}
    for one in supervisions:
        waiting.setdefault(one.recording_id, []).append(one)
    for recording in recordings:
        own = waiting.pop(recording.id, None)
        if own is None:
            yield ReadRecording(recording.id, None, (WITHOUT_SUPERVISIONS,))
            continue
        cut = recording.to_cut()
        cut.supervisions = own
        yield ReadRecording(recording.id, cut)
    for name in waiting:
        yield ReadRecording(name, None, (WITHOUT_RECORDING,))


def _cuts(paths: Iterable[Path]) -> Iterator[ReadRecording]:
    for path in paths:
        for where, entry in json_lines(path):
            yield attempted(str(entry.get("id", where)), partial(_cut, entry, path.parent, where))


def _cut(entry: dict[str, Any], folder: Path, where: str) -> ReadRecording:
    cut = _made(entry, where)
    parts = [track.cut for track in cut.tracks] if hasattr(cut, "tracks") else [cut]
    for part in parts:
        if getattr(part, "recording", None) is not None:
            _find_files(part.recording, folder, where)
    if all(getattr(part, "recording", None) is None for part in parts):
        raise DataError(f"{where}: cut {cut.id} has no recording; give a manifest of cuts with recordings")
    return ReadRecording(getattr(cut, "recording_id", None) or cut.id, cut)


def _recordings(path: Path) -> Iterator[Recording]:
    for where, entry in json_lines(path):
        recording = _made(entry, where)
        _find_files(recording, path.parent, where)
        yield recording


def _supervisions(path: Path) -> Iterator[SupervisionSegment]:
    for where, entry in json_lines(path):
        yield _made(entry, where)


def _made(entry: dict[str, Any], where: str) -> Any:
    """The line as one of Lhotse's objects."""
    with optional_import("reading manifests requires lhotse", "audio"):
        from lhotse.serialization import deserialize_item
    try:
        return deserialize_item(entry)
    except Exception as error:  # Lhotse's constructors raise exceptions of any type
        raise DataError(f"{where}: Lhotse can't read this line: {type(error).__name__}: {error}") from error


def _find_files(recording: Recording, folder: Path, where: str) -> None:
    """Make the paths of a recording absolute. Raises DataError for missing files and for other sources."""
    for source in recording.sources:
        demand_file(source, where)
        path = _place_of(Path(str(source.source)), folder)
        if not path.is_file():
            raise DataError(f"{where}: the audio of recording {recording.id} is missing: {path}")
        source.source = str(path.absolute())


def _place_of(path: Path, folder: Path) -> Path:
    """Where a file is that a manifest in a folder names."""
    return folder / path if not path.is_absolute() and not path.exists() and (folder / path).exists() else path


def _audio_in(entry: dict[str, Any]) -> Iterator[str]:
    """The files of a recording, of a cut, or of all that are mixed in one; of a broken line, none."""
    with contextlib.suppress(AttributeError, KeyError, TypeError):
        for track in entry.get("tracks") or ():
            yield from _audio_in(track["cut"])
        for source in (entry.get("recording") or entry).get("sources") or ():
            yield str(source["source"])
