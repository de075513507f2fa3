"""Lhotse's manifests as cuts, line by line: manifests of cuts, or of recordings with supervisions.

Paths are Lhotse's: absolute, or relative to the current folder; one that doesn't exist is looked up in the manifest's
folder, then in ``audio_root``. Without ``audio_root`` they may be anywhere, because Lhotse writes absolute paths; with
it, audio must be there or in the manifest's folder. What reading a line could execute is refused
(vaak.audio.waveforms.lhotse_objects).

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
from vaak.audio.corpora.entries import demand_inside, entries_of, lacks_train, roots_of
from vaak.audio.corpora.json_manifest import json_lines
from vaak.audio.waveforms.lhotse_objects import demand_harmless, lhotse_object, recordings_in
from vaak.audio.waveforms.reading import NO_TIMES, is_labelled_throughout, lacks_times
from vaak.audio.waveforms.recordings import ReadRecording, attempted
from vaak.core.errors import DataError
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
        self.lacks_train, self._roots = lacks_train(dataset), roots_of(dataset)
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
                    for name in _audio_in(entry):
                        yield name, _place_of(Path(name), (path.parent, *self._roots))

    def _read(self, manifests: Manifests) -> Iterator[ReadRecording]:
        yield from self._cuts(manifests.cuts)
        if manifests.recordings:
            recordings = (one for path in manifests.recordings for one in self._recordings(path))
            supervisions = (one for path in manifests.supervisions for one in _supervisions(path))
            yield from joined(recordings, supervisions)

    def _cuts(self, paths: Iterable[Path]) -> Iterator[ReadRecording]:
        for path in paths:
            for where, entry in json_lines(path):
                yield attempted(str(entry.get("id", where)), partial(self._cut, entry, path.parent, where))

    def _cut(self, entry: dict[str, Any], folder: Path, where: str) -> ReadRecording:
        has_audio = any(is_read for _, is_read in recordings_in(entry))
        cut = lhotse_object(self._with_files(entry, folder, where), where)
        if not has_audio:
            raise DataError(f"{where}: cut {cut.id} has no recording; give a manifest of cuts with recordings")
        return ReadRecording(getattr(cut, "recording_id", None) or cut.id, cut)

    def _recordings(self, path: Path) -> Iterator[Recording]:
        for where, entry in json_lines(path):
            yield lhotse_object(self._with_files(entry, path.parent, where), where)

    def _with_files(self, entry: dict[str, Any], folder: Path, where: str) -> dict[str, Any]:
        """The line with absolute paths of audio.

        Raises DataError for what reading it could execute, and for files that are missing or not where they may be.
        """
        demand_harmless(entry, where)
        for recording, is_read in recordings_in(entry):
            for source in recording["sources"]:
                path = _place_of(Path(source["source"]), (folder, *self._roots))
                if self._roots:
                    demand_inside(path, (folder, *self._roots), where)
                if is_read and not path.is_file():
                    raise DataError(f"{where}: the audio of recording {recording.get('id')} is missing: {path}")
                source["source"] = str(path.absolute())
        return entry


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
                    f"{file}: this is not a Lhotse manifest of cuts, recordings or supervisions in JSON lines, which "
                    "type: cuts reads"
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


def _supervisions(path: Path) -> Iterator[SupervisionSegment]:
    for where, entry in json_lines(path):
        yield lhotse_object(entry, where)


def _place_of(path: Path, folders: Iterable[Path]) -> Path:
    """Where a file is that a manifest names: there, or in one of the folders."""
    if path.is_absolute() or path.exists():
        return path
    return next((folder / path for folder in folders if (folder / path).exists()), path)


def _audio_in(entry: dict[str, Any]) -> Iterator[str]:
    """The files that are read of a line; of a broken one, none."""
    with contextlib.suppress(KeyError, TypeError):
        for recording, is_read in recordings_in(entry):
            yield from (str(source["source"]) for source in recording["sources"] if is_read)
