"""Folders of audio as corpora: audio next to its annotations, LJ Speech, alignments in a separate folder.

A folder (type ``folder``) is searched recursively for audio and annotations. For audio files that are named one by one,
or by a pattern, annotations are those next to them, and those in folders ``rttm``, ``uem``, ``ctm``, ``textgrid`` next
to their folder or in it. They belong to a recording by its name, or its name up to the first dot; the exact name is
preferred.

    audio/a.flac  audio/b.flac  rttm/a.rttm  rttm/b.rttm  uem/a.uem      train: [FOLDER], or train: [FOLDER/audio/a*]
    a.wav  b.wav  all.rttm

LJ Speech (type ``ljspeech``) has a line for each utterance of one speaker, called as the dataset; the third field, the
text in words, is the spoken text (without one: the second). The corpus defines no splits: the hash of a name puts an
utterance in train, valid or test.

    CORPUS/metadata.csv   LJ001-0007|the Bible of about 1455,|the Bible of about fourteen fifty-five,
    CORPUS/wavs/          LJ001-0007.wav
    CORPUS/TextGrid/      LJ001-0007.TextGrid, at any depth: alignments, where the corpus has them
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaak.audio.audio_file import (
    AUDIO_ENDINGS,
    NOT_READ,
    audio_in_folder,
    explain_unread,
    in_words,
    is_audio,
    not_read,
    read_header,
)
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.entries import CorpusReader, list_entries, named_file, resolve_path
from vaak.audio.cuts.reading import NO_TIMES
from vaak.audio.cuts.recordings import (
    OVERLAPPING,
    Labelled,
    ReadRecording,
    Times,
    aligned,
    alignment_items,
    attempted,
    header_remarks,
    label,
    list_times,
    name_left_out,
    recording_cut,
    set_uem,
    usable_labels,
    within,
)
from vaak.audio.formats.alignments import (
    ALIGNMENT_ENDINGS,
    Interval,
    LeftOutLabels,
    checked,
    get_tier_unit,
    read_alignment,
    read_ctm_alignments,
    read_textgrid,
)
from vaak.audio.formats.annotation_lines import Word, read_ctm, read_rttm, read_uem
from vaak.audio.segments import Alignment, Region, Segment, cut_window, merged
from vaak.core.errors import DataError
from vaak.core.matching import fold_name
from vaak.core.progress import track
from vaak.core.storage.tables import Table, TableRow

if TYPE_CHECKING:
    from lhotse.cut import Cut

UNLABELLED_FILES = "audio files without RTTM or TextGrid"
NAMED_OTHERWISE = "recordings whose annotations differ in the case, spaces or Unicode form of the name"
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


class FolderReader(CorpusReader):
    """Recordings of folders (``vaak.core.corpus.Source``); with ``dataset.alignments``, those without labels, too."""

    def __init__(self, dataset: DatasetConfig) -> None:
        """Look up the files. Raises DataError if a split has no audio, or two have the same."""
        super().__init__(dataset)
        self.without_labels = dataset.alignments is not None
        self._found = {split: _found(entries) for split, entries in list_entries(dataset).items()}
        self.given = tuple(self._found)
        self.files = [path for found in self._found.values() for path in found.files]
        splits: dict[Path, str] = {}
        for split, found in self._found.items():
            if not found.audio:
                formats, others = " ".join(sorted(AUDIO_ENDINGS)), in_words(found.not_read)
                where = f"datasets, {dataset.name}, {split} (type: {dataset.type})"
                raise DataError(f"{where}: no audio found ({formats}){others and '; there are '}{others}")
            for path in found.audio:
                # By resolved path: the same recording in two splits would be trained on and tested.
                if splits.setdefault(path.resolve(), split) != split:
                    other = splits[path.resolve()]
                    raise DataError(f"datasets, {dataset.name}: {path} is in {other} and in {split}; keep it in one")

    def read(self, split: str) -> Iterator[ReadRecording]:
        found = self._found[split]
        annotations = Annotations([*found.annotations, *found.near])
        names: dict[str, Path] = {}
        for path in track(found.audio, f"recordings of {split}", len(found.audio)):
            name = annotations.find_name(path)
            if name in names:
                raise DataError(f"{path}: {names[name]} is recording {name}, too; rename one, or name one by a pattern")
            names[name] = path
            yield attempted(name, partial(_reading, name, path, annotations, self.without_labels))
        for path, reason in explain_unread(found.not_read).items():
            yield ReadRecording(path.name, None, (reason,))
        # Only annotations that were given: those found near the audio may describe other recordings too.
        own = Annotations(path for path in found.annotations if path.suffix.lower() == ".rttm")
        audio = [path for part in self._found.values() for path in part.audio]
        # Names of all splits: an RTTM may cover the whole corpus, and its other recordings aren't without audio.
        everyone = {name for path in audio for name in (*iterate_names(path), own.find_name(path))}
        for name in own.without_audio(everyone):
            yield ReadRecording(name, None, (WITHOUT_AUDIO,))


def labelled_cut(audio: Path, annotations: Path | None = None) -> Cut:
    """Return a recording with who speaks when: by the annotations given, else by those next to it.

    Raises DataError if they don't say it.
    """
    if annotations is not None and annotations.suffix.lower() not in READERS:
        raise DataError(f"{annotations}: this is none of {', '.join(READERS)}")
    files = _found([audio]).near if annotations is None else [annotations]
    found = Annotations(files)
    name = found.find_name(audio)
    cut = _reading(name, audio, found).cut
    if cut is None:
        where = "next to it" if annotations is None else f"in {annotations}"
        raise DataError(f"{audio}: no RTTM or TextGrid of a recording {name} {where}; give (audio, rttm)")
    return cut


def _reading(name: str, path: Path, annotations: Annotations, without_labels: bool = False) -> ReadRecording:
    """A recording with its labels; ``without_labels``, also one that has none yet: an alignment may give it some."""
    labels, remarks = annotations.read_labels(name)
    if name not in iterate_names(path):
        remarks = [NAMED_OTHERWISE, *remarks]
    if labels is None and not without_labels:
        return ReadRecording(name, None, (UNLABELLED_FILES,))
    header = read_header(path)
    cut = recording_cut(name, path, header)
    if labels is None:
        return ReadRecording(name, cut, header_remarks(header))
    inside, more = within(labels, cut.duration, str(path))
    label(cut, inside)
    more += set_uem(cut, annotations.find_uem(name), str(path))
    return ReadRecording(name, cut, (*remarks, *more, *header_remarks(header)))


def _found(entries: Iterable[Path]) -> Found:
    found = Found()
    parents: dict[Path, None] = {}
    for entry in entries:
        files = sorted(path for path in entry.rglob("*") if path.is_file()) if entry.is_dir() else [entry]
        files = [path for path in files if not path.name.startswith(".")]
        found.audio += (audio := [path for path in files if is_audio(path)])
        found.not_read += not_read(files)
        if entry.is_dir():
            # The error names what else is there.
            audio_in_folder(entry, also_read=(*READERS, *NOT_READ))
        found.annotations += [path for path in files if path.suffix.lower() in READERS]
        if not entry.is_dir():
            # For a folder, annotations inside it were collected above; for single files, look around them.
            parents.update(dict.fromkeys(path.parent for path in audio))
    own = set(found.annotations)
    found.near = [path for path in _annotations_beside(parents) if path not in own]
    return found


def _annotations_beside(parents: Iterable[Path]) -> list[Path]:
    """Annotations in the folders of audio files, and in folders named after a format, next to and in them."""
    kinds = {kind.removeprefix(".") for kind in READERS}
    folders: dict[Path, None] = {}
    for parent in parents:
        around = [path for path in (*parent.iterdir(), *parent.absolute().parent.iterdir()) if path.is_dir()]
        folders.update(dict.fromkeys([parent, *(path for path in around if path.name.lower() in kinds)]))
    # By resolved path: a folder may be found both inside one parent and next to another.
    files = {path.resolve(): path for folder in folders for path in folder.iterdir() if path.suffix.lower() in READERS}
    return sorted(files.values())


READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".rttm": partial(read_rttm, keep_bad=True),
    ".uem": partial(read_uem, keep_bad=True),
    ".ctm": partial(read_ctm, keep_bad=True),
    ".textgrid": lambda path: {path.stem: read_textgrid(path, keep_empty=True, keep_bad=True)},
}


class Annotations:
    """The contents of the files, by kind and name of recording."""

    def __init__(self, files: Iterable[Path]) -> None:
        """Read the files. Raises DataError with file and line."""
        self._said: dict[str, dict[str, dict[Path, Any]]] = {kind: {} for kind in READERS}
        self._silent: set[str] = set()
        for path in files:
            kind = path.suffix.lower()
            said = READERS[kind](path)
            for name, annotation in said.items():
                self._said[kind].setdefault(name, {})[path] = annotation
            if kind == ".rttm" and not said:
                # An empty RTTM says that nobody speaks in the recording of its name, unlike a missing one.
                self._silent.add(path.stem)

    def find_name(self, audio: Path) -> str:
        """Return the recording's name in the annotations, if only one is its own or alike; else its own name."""
        known = self._silent.union(*self._said.values())
        for name in iterate_names(audio):
            if name in known:
                return name
        alike = [name for name in known if fold_name(name) == fold_name(audio.stem)]
        return alike[0] if len(alike) == 1 else audio.stem

    def read_labels(self, name: str) -> tuple[list[Labelled] | None, list[str]]:
        """Who speaks when, by RTTM or by the tiers of a TextGrid, and remarks; None if there is neither.

        A TextGrid with nothing but words and phones of one speaker is an utterance.
        """
        # RTTM wins over the tiers of a TextGrid, which may also hold words only.
        segments: list[Segment] | None = self._find_annotations(".rttm", name)
        tiers: dict[str, list[Interval]] = self._find_annotations(".textgrid", name) or {}
        remarks: list[str] = []
        if segments is None and name in self._silent:
            segments = []
        if segments is not None:
            segments, remarks = usable_labels(segments, [(one, "") for one in segments], math.inf, name)
            joined = merged(segments)
            remarks += [OVERLAPPING] if len(joined) < len(segments) else []
            labels = [Labelled(segment) for segment in joined]
        else:
            found = [
                Labelled(
                    Segment(one.start, one.end, tier),
                    one.text,
                    where=getattr(one, "where", ""),
                    problem=getattr(one, "problem", ""),
                )
                for tier, intervals in tiers.items()
                if get_tier_unit(tier) is None
                for one in intervals
                if one.text
            ]
            # No upper limit here: the recording's end isn't known yet; ``within`` clips labels there.
            labels, remarks = usable_labels(found, [(one.segment, one.where) for one in found], math.inf, name)
            if not labels:
                whole, more = _utterance(tiers, name)
                return whole, [*remarks, *more]
        words, more = self._read_words(name, tiers)
        return list(aligned(sorted(labels, key=lambda one: one.segment), words)), [*remarks, *more]

    def find_uem(self, name: str) -> list[Region] | None:
        """Return the scored regions; None without a UEM."""
        parts: list[Region] | None = self._find_annotations(".uem", name)
        return parts

    def without_audio(self, names: Iterable[str]) -> list[str]:
        """Recordings of RTTM files that aren't among ``names``."""
        return sorted(set(self._said[".rttm"]) - set(names))

    def _read_words(
        self, name: str, tiers: dict[str, list[Interval]]
    ) -> tuple[list[tuple[str, str | None, Times]], list[str]]:
        """Kind, speaker (None is anyone) and times of what is aligned; a remark for each that can't be used."""
        words: list[Word] = self._find_annotations(".ctm", name) or []
        words, remarks = usable_labels(words, [(word, "") for word in words], math.inf, name)
        found: list[tuple[str, str | None, Times]] = [("word", None, (w.text, w.start, w.end)) for w in words]
        for tier, intervals in tiers.items():
            kind = get_tier_unit(tier)
            if kind is not None:
                speaker = tier.rpartition(" - ")[0] or None
                said = [one for one in intervals if one.text]
                said, more = usable_labels(said, [(one, "") for one in said], math.inf, name)
                found += [(kind, speaker, (text, start, end)) for start, end, text in said]
                remarks += more
        return found, remarks

    def _find_annotations(self, kind: str, name: str) -> Any:
        found = self._said[kind].get(name, {})
        # A file named after the recording wins over a collection that contains it too.
        own = [path for path in found if path.stem == name] or list(found)
        if len(own) > 1:
            raise DataError(f"{own[1]}: recording {name} is also in {own[0]}; keep it in one of them")
        return found[own[0]] if own else None


def iterate_names(audio: Path) -> Iterator[str]:
    """Yield the possible names of its recording."""
    yield audio.stem
    yield audio.name.partition(".")[0]


def _utterance(tiers: dict[str, list[Interval]], name: str) -> tuple[list[Labelled] | None, list[str]]:
    """The whole recording as one speaker's utterance, with its pauses; a remark for each word that can't be used.

    None if nothing is aligned, or several speak.
    """
    own = {str(get_tier_unit(tier)): intervals for tier, intervals in tiers.items() if get_tier_unit(tier) is not None}
    speakers = {tier.rpartition(" - ")[0] for tier in tiers if get_tier_unit(tier) is not None}
    # An aligner's grid covers the whole recording, so its last end is the utterance's.
    end = max((interval.end for intervals in own.values() for interval in intervals), default=0.0)
    if len(speakers) != 1 or not end:
        return None, []
    whole = Labelled(Segment(0.0, end, *speakers), custom={NO_TIMES: True})
    left_out: LeftOutLabels = []
    alignment = checked(own, name, left_out)
    return list(aligned([whole], list_times(alignment))), name_left_out(left_out)


METADATA, WAVS, TEXTGRIDS = "metadata.csv", "wavs", "TextGrid"


def ljspeech_dataset(dataset: DatasetConfig, audio: AudioConfig) -> DatasetConfig:
    """Return the dataset with its folder, its metadata and its TextGrids; those that it names itself stay."""
    folder = Path(dataset.corpus_dir or Path(audio.corpus_dir) / dataset.name).expanduser()
    found = {"corpus_dir": str(folder)}
    if dataset.alignments is None and (folder / TEXTGRIDS).is_dir():
        found["alignments"] = str(folder / TEXTGRIDS)
    names = {} if dataset.train or dataset.valid or dataset.test else {"train": (METADATA,)}
    return dataset.model_copy(update={**found, **names})


class LJSpeechReader(CorpusReader):
    """The utterances of a corpus (``vaak.core.corpus.Source``)."""

    def __init__(self, dataset: DatasetConfig) -> None:
        """Look up the files of metadata. Raises DataError for those that don't exist."""
        super().__init__(dataset)
        self.speaker, self._metadata = dataset.name, list_entries(dataset)
        self.given = tuple(self._metadata)
        self.files = sorted({path for paths in self._metadata.values() for path in paths})

    def read(self, split: str) -> Iterator[ReadRecording]:
        for path in self._metadata[split]:
            for row in track(self._rows(path), f"utterances of {split}"):
                yield attempted(row.cells[0] if row.cells else row.where, partial(self._reading, row, path.parent))

    def named_files(self) -> Iterator[tuple[str, Path]]:
        for path in self.files:
            for row in self._rows(path):
                name = f"{WAVS}/{''.join(row.cells[:1]).strip()}.wav"
                yield name, resolve_path((path.parent, *self.roots), name)

    def _reading(self, row: TableRow, folder: Path) -> ReadRecording:
        fields, where = [field.strip() for field in row.cells], row.where
        if row.problem is not None and not fields:
            raise row.problem
        if len(fields) not in (2, 3):
            raise DataError(f"{where}: expected id|text|text in words, found {len(fields)} fields")
        # The third field is the text in words; where it is empty, the second one as printed.
        name, text = fields[0], fields[-1] or fields[1]
        if not name:
            raise DataError(f"{where}: the id is empty; remove the line or complete it")
        path = named_file((folder, *self.roots), f"{WAVS}/{name}.wav", where)
        try:
            header = read_header(path)
            cut = recording_cut(name, path, header)
        except DataError as error:
            raise DataError(f"{where}: {error}") from error
        label(cut, [Labelled(Segment(0.0, cut.duration, self.speaker), text, None, {NO_TIMES: True})])
        empty = None if text else DataError(f"{where}: the text is empty; remove the line or complete it")
        # Without remarks, an empty text is a problem for those who don't learn texts of recordings without speech.
        return ReadRecording(name, cut, header_remarks(header) if text else (), empty)

    def _rows(self, path: Path) -> Iterator[TableRow]:
        given = self.dialect._replace(delimiter=self.dialect.delimiter or "|")
        return Table(path, has_header=False, given=given).rows()


class AlignmentFolder:
    """The files below a folder, by name; ``files`` are all of them."""

    def __init__(self, dataset: DatasetConfig) -> None:
        """Look up the files of ``dataset.alignments``. Raises DataError if there are none, or two of one name."""
        assert dataset.alignments is not None
        self.folder = Path(dataset.alignments).expanduser()
        where = f"datasets, {dataset.name}, alignments"
        if not self.folder.is_dir():
            raise DataError(f"{where}: no such folder: {self.folder}")
        self.files = sorted(path for path in self.folder.rglob("*") if path.suffix.lower() in ALIGNMENT_ENDINGS)
        if not self.files:
            raise DataError(f"{where}: no files in {self.folder} end with .TextGrid, .ctm or .json")
        self._paths: dict[str, Path] = {}
        self._words: dict[str, tuple[Alignment, LeftOutLabels]] = {}
        for path in self.files:
            words = read_ctm_alignments(path) if path.suffix.lower() == ".ctm" else {}
            for name in words or (path.stem,):
                if name in self._paths:
                    raise DataError(f"{path}: {name} is also in {self._paths[name]}; keep one of them")
                self._paths[name] = path
            self._words |= words

    def attach(self, cut: Any) -> list[str] | None:
        """Replace the alignments of a cut's labels by those of its file; None if it has no file.

        Otherwise, a remark for each word and phone that can't be used.
        A file is named after the cut, or after its recording: then its times count from the recording's start.
        """
        if hasattr(cut, "tracks"):
            return None
        stem = Path(cut.recording_id).stem
        # An alignment of a cut with its own id is named after the id or the whole recording, not after the audio file.
        is_own = f"-{stem}-" not in f"-{cut.id}-"
        names = (cut.id, cut.recording_id, *(() if is_own else (stem,)))
        name = next((one for one in names if one in self._paths), None)
        if name is None:
            return None
        if name in self._words:
            alignment, left_out = self._words[name]
        else:
            left_out = []
            alignment = read_alignment(self._paths[name], left_out=left_out)
        # A file named after the recording counts from the recording's start, but the cut begins later.
        if name != cut.id and cut.start > 0:
            alignment = cut_window(alignment, cut.start, cut.end)
        if not cut.supervisions:
            label(cut, [Labelled(Segment(0.0, cut.duration, ""), custom={NO_TIMES: True})])
        alone = len(cut.supervisions) == 1
        for one in cut.supervisions:
            # A single label gets everything, even words beyond its end; with several, each word belongs to the one
            # around its middle.
            segment = Segment(0.0, float("inf"), "") if alone else Segment(one.start, one.end, "")
            [found] = aligned([Labelled(segment, one.text)], list_times(alignment))
            one.text, one.alignment = found.text, alignment_items(found.alignment)
        return name_left_out(left_out)
