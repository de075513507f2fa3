"""Audio files next to their annotations.

A folder is searched recursively for both. For audio files that are named one by one, or by a pattern, the annotations
are those next to them, and those in folders ``rttm``, ``uem``, ``ctm``, ``textgrid`` next to their folder or in it:

    audio/a.flac  audio/b.flac  rttm/a.rttm  rttm/b.rttm  uem/a.uem        train: [FOLDER], or train: [FOLDER/audio/a*]
    a.wav  b.wav  all.rttm
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vaak.audio.config import DatasetConfig
from vaak.audio.corpora.entries import entries_of, lacks_train
from vaak.audio.formats.annotations import READERS, Annotations, names_of
from vaak.audio.waveforms.audio_file import read_header
from vaak.audio.waveforms.recordings import ReadRecording, attempted, label, recording_cut, set_uem, within
from vaak.audio.waveforms.suffixes import AUDIO, in_words, is_audio, not_read, why_not
from vaak.core.errors import DataError
from vaak.core.progress import followed

if TYPE_CHECKING:
    from lhotse.cut import Cut

UNLABELLED = "audio files without RTTM or TextGrid"
WITHOUT_AUDIO = "recordings of RTTM files that have no audio"


@dataclass
class Found:
    """The audio of a split, its annotations, and annotations near it, which may be of other audio, too.

    ``not_read`` is audio whose format can't be read.
    """

    audio: list[Path] = field(default_factory=list)
    not_read: list[Path] = field(default_factory=list)
    annotations: list[Path] = field(default_factory=list)
    near: list[Path] = field(default_factory=list)

    @property
    def files(self) -> list[Path]:
        return [*self.audio, *self.annotations, *self.near]


class FolderReader:
    """Recordings of folders (``vaak.core.corpus.Source``); with ``dataset.alignments``, those without labels, too."""

    def __init__(self, dataset: DatasetConfig) -> None:
        """Look up the files. Raises DataError if a split has no audio, or two have the same."""
        self.lacks_train, self.without_labels = lacks_train(dataset), dataset.alignments is not None
        self._found = {split: _found(entries) for split, entries in entries_of(dataset).items()}
        self.given = tuple(self._found)
        self.files = [path for found in self._found.values() for path in found.files]
        splits: dict[Path, str] = {}
        for split, found in self._found.items():
            if not found.audio:
                formats, others = " ".join(sorted(AUDIO)), in_words(found.not_read)
                where = f"datasets, {dataset.name}, {split} (type: {dataset.type})"
                raise DataError(f"{where}: no audio found ({formats}){others and '; there are '}{others}")
            for path in found.audio:
                if splits.setdefault(path.resolve(), split) != split:
                    other = splits[path.resolve()]
                    raise DataError(f"datasets, {dataset.name}: {path} is in {other} and in {split}; keep it in one")

    def read(self, split: str) -> Iterator[ReadRecording]:
        found = self._found[split]
        annotations = Annotations([*found.annotations, *found.near])
        names: dict[str, Path] = {}
        for path in followed(found.audio, f"recordings of {split}", len(found.audio)):
            name = annotations.name_of(path)
            if name in names:
                raise DataError(f"{path}: {names[name]} is recording {name}, too; rename one, or name one by a pattern")
            names[name] = path
            yield attempted(name, partial(_reading, name, path, annotations, self.without_labels))
        for path, reason in why_not(found.not_read).items():
            yield ReadRecording(path.name, None, (reason,))
        own = Annotations(path for path in found.annotations if path.suffix.lower() == ".rttm")
        everyone = {name for part in self._found.values() for path in part.audio for name in names_of(path)}
        for name in own.without_audio(everyone):
            yield ReadRecording(name, None, (WITHOUT_AUDIO,))


def labelled_cut(audio: Path, annotations: Path | None = None) -> Cut:
    """A recording with who speaks when: by the annotations given, else by those next to it.

    Raises DataError if they don't say it.
    """
    if annotations is not None and annotations.suffix.lower() not in READERS:
        raise DataError(f"{annotations}: this is none of {', '.join(READERS)}")
    files = _found([audio]).near if annotations is None else [annotations]
    found = Annotations(files)
    name = found.name_of(audio)
    cut = _reading(name, audio, found).cut
    if cut is None:
        where = "next to it" if annotations is None else f"in {annotations}"
        raise DataError(f"{audio}: no RTTM or TextGrid of a recording {name} {where}; give (audio, rttm)")
    return cut


def _reading(name: str, path: Path, annotations: Annotations, without_labels: bool = False) -> ReadRecording:
    """A recording with its labels; ``without_labels``, also one that has none yet: an alignment may give it some."""
    labels, remarks = annotations.labels_of(name)
    if labels is None and not without_labels:
        return ReadRecording(name, None, (UNLABELLED,))
    cut = recording_cut(name, path, read_header(path))
    if labels is None:
        return ReadRecording(name, cut, ())
    inside, more = within(labels, cut.duration, str(path))
    label(cut, inside)
    set_uem(cut, annotations.uem_of(name), str(path))
    return ReadRecording(name, cut, (*remarks, *more))


def _found(entries: Iterable[Path]) -> Found:
    found = Found()
    parents: dict[Path, None] = {}
    for entry in entries:
        files = sorted(path for path in entry.rglob("*") if path.is_file()) if entry.is_dir() else [entry]
        files = [path for path in files if not path.name.startswith(".")]
        found.audio += (audio := [path for path in files if is_audio(path)])
        found.not_read += not_read(files)
        found.annotations += [path for path in files if path.suffix.lower() in READERS]
        if not entry.is_dir():
            parents.update(dict.fromkeys(path.parent for path in audio))
    own = set(found.annotations)
    found.near = [path for path in _beside(parents) if path not in own]
    return found


def _beside(parents: Iterable[Path]) -> list[Path]:
    """Annotations in the folders of audio files, and in folders named after a format, next to and in them."""
    kinds = {kind.removeprefix(".") for kind in READERS}
    folders: dict[Path, None] = {}
    for parent in parents:
        around = [path for path in (*parent.iterdir(), *parent.absolute().parent.iterdir()) if path.is_dir()]
        folders.update(dict.fromkeys([parent, *(path for path in around if path.name.lower() in kinds)]))
    files = {path.resolve(): path for folder in folders for path in folder.iterdir() if path.suffix.lower() in READERS}
    return sorted(files.values())
