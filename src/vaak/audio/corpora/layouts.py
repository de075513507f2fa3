"""Corpora as downloaded, read in place: their folders and files, and their splits.

type          the folder, ``corpus_dir``, or one up to two levels below it
commonvoice   clips/  train.tsv dev.tsv test.tsv (validated.tsv, other.tsv, …)      a language of Common Voice
fleurs        audio/{train,dev,test}/  train.tsv dev.tsv test.tsv, without headers  a language of FLEURS
librispeech   {train-clean-100,dev-clean,…}/SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt
voxpopuli     asr_{train,dev,test}.tsv(.gz)  YEAR/ID.ogg                            a language of VoxPopuli
nemo          train_manifest.json, …: lines with audio_filepath, duration, text

Further layouts are in kaldi.py, ami.py and archives.py next to this. ``train``, ``valid`` and ``test`` of a dataset
name other files or folders in place of those that are found. What a line says is read as a line of JSON is
(``vaak.audio.corpora.json_manifest``), so its files, too, must be in the corpus' folder or in those of ``audio_root``.
"""

from __future__ import annotations

import codecs
import logging
import os
import re
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from vaak.audio.audio_file import is_audio
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.entries import (
    CorpusReader,
    ManifestLine,
    list_contents,
    list_entries,
    manifest_lines,
    rename_columns,
    require_columns,
    resolve_path,
)
from vaak.audio.corpora.json_manifest import KNOWN, EntryNames, make_reading
from vaak.audio.cuts.recordings import ReadRecording, attempted
from vaak.audio.embedded import Part
from vaak.audio.formats.annotation_lines import decoded, read_content
from vaak.core.errors import DataError
from vaak.core.progress import track
from vaak.core.splits import SPLITS
from vaak.core.storage.tables import Table
from vaak.core.storage.text_lines import open_utf8, split_lines

log = logging.getLogger("vaak")

Row = dict[str, Any]
DEPTH = 2
"""Levels below ``corpus_dir`` in which a corpus is looked for."""
_WORDS = {"valid": ("dev", "valid", "val", "cv"), "test": ("test", "eval"), "train": ("train", "tr")}


def split_named(name: str) -> str | None:
    """Return the split of a file or folder by the words in its name; dev comes before test and train.

    >>> [split_named(name) for name in ("train-clean-100", "train_nodev", "train_dev", "test_dev93", "Eval", "all")]
    ['train', 'train', 'valid', 'valid', 'test', None]
    """
    words = re.findall(r"[a-z]+", name.lower())
    for split, own in _WORDS.items():
        if any(word in own or (word == "validation" and split == "valid") for word in words):
            return split
    return None


def split_in_names(path: Path) -> str | None:
    """Return the split that a file is named by, up to the first dot and then after it, or else a folder that it is in.

    >>> [split_in_names(Path(name)) for name in ("test/train.tsv", "corpus.dev.en", "test/a.wav", "a.wav")]
    ['train', 'valid', 'test', None]
    """
    return next(filter(None, map(split_named, (*path.name.split("."), *reversed(path.parts[:-1])))), None)


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted by name; fast even among a million files."""
    with os.scandir(folder) as entries:
        return sorted(Path(one.path) for one in entries if one.is_dir())


class Line(NamedTuple):
    """An utterance or recording: where it is described, its labels, and the part of a file that holds its audio.

    ``problem`` is why nothing can be told of it.
    """

    where: str
    entry: Row
    part: Part | None = None
    problem: DataError | None = None


class LayoutReader(CorpusReader):
    """The recordings of a corpus in one layout (``vaak.core.corpus.Source``).

    NAMES
        Our keys, and the columns that they are called in the layout; ``columns`` of the dataset come first.
    EXPECTED
        The contents of such a folder, for messages.
    """

    NAMES: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    EXPECTED: ClassVar[str]

    def __init__(self, dataset: DatasetConfig, audio: AudioConfig) -> None:
        """Look up the folder and the parts of its splits. Raises DataError if there are none."""
        super().__init__(dataset)
        self.where = f"datasets, {dataset.name}"
        folder = Path(dataset.corpus_dir or Path(audio.corpus_dir) / dataset.name).expanduser()
        named = [Path(name).expanduser() for split in SPLITS for name in getattr(dataset, split)]
        if named and not folder.is_dir() and all(path.is_absolute() for path in named):
            # Absolute names don't need corpus_dir, which only says what names are relative to.
            folder = named[0].parent
            found = [folder]
        elif not folder.is_dir():
            raise DataError(f"{self.where}: corpus_dir: no such folder: {folder}")
        else:
            # The folder itself, or the only corpus in it.
            found = self.roots_in(folder)
        if len(found) > 1:
            names = ", ".join(str(one.relative_to(folder)) for one in found[:10])
            hint = f"give one: corpus_dir: {found[0]}"
            raise DataError(f"{self.where}: {folder} has several corpora ({names}); {hint}")
        if not found:
            raise DataError(f"{self.where}: {folder} isn't a corpus of type {dataset.type}: expected {self.EXPECTED}")
        [self.root] = found
        if any(getattr(dataset, split) for split in SPLITS):
            self.parts = list_entries(dataset.model_copy(update={"corpus_dir": str(self.root)}))
        else:
            self.parts = self.find_parts()
        self.given = tuple(self.parts)
        self.files = sorted({path for parts in self.parts.values() for part in parts for path in self.list_files(part)})
        self.folders_there = list_contents(self.root)
        if "train" not in self.parts:
            there = ", ".join(str(path.relative_to(self.root)) for paths in self.parts.values() for path in paths[:3])
            self.lacks_train = f"{self.lacks_train}; {self.root} has {there}"

    @classmethod
    def roots_in(cls, folder: Path, known: Container[Path] = ()) -> list[Path]:
        """Return the corpora in a folder: the folder itself, or else those up to two levels below it.

        ``known`` are folders in which none is looked for.
        """
        level = [folder]
        for _ in range(DEPTH + 1):
            level = [one for one in level if one not in known]
            if found := [one for one in level if cls.is_root(one)]:
                return found
            level = [path for one in level for path in subfolders(one)]
        return []

    @classmethod
    @abstractmethod
    def is_root(cls, folder: Path) -> bool:
        """Return whether the corpus is in this folder."""

    @abstractmethod
    def find_parts(self) -> dict[str, list[Path]]:
        """Return the files or folders of each split, as downloaded."""

    def list_files(self, part: Path) -> list[Path]:
        """Return the files that describe a part."""
        return [part]

    @abstractmethod
    def lines(self, part: Path) -> Iterator[Line]:
        """Read what a part says of its recordings."""

    def list_folders(self, part: Path) -> tuple[Path, ...]:
        """Where the audio that a part names may be."""
        return (self.root, *self.roots)

    def reading(self, line: Line, part: Path) -> ReadRecording:
        if line.problem is not None:
            raise line.problem
        names, manifest = self.names[part]
        unnamed = names.name(line.entry, manifest)
        return make_reading(line.entry, self.list_folders(part), line.where, line.part, unnamed)

    @cached_property
    def names(self) -> dict[Path, tuple[EntryNames, int]]:
        """Names for lines without an id, by the part of a split that they are in, and its number."""

        def entries(parts: Sequence[Path]) -> Iterator[tuple[int, Row]]:
            return ((number, line.entry) for number, part in enumerate(parts) for line in self.lines(part))

        together = {split: EntryNames(partial(entries, parts)) for split, parts in self.parts.items()}
        return {part: (together[split], n) for split, parts in self.parts.items() for n, part in enumerate(parts)}

    def read(self, split: str) -> Iterator[ReadRecording]:
        lines = ((line, part) for part in self.parts[split] for line in self.lines(part))
        for line, part in track(lines, f"recordings of {split}"):
            yield attempted(str(line.entry.get("audio", line.where)), partial(self.reading, line, part))

    def named_files(self) -> Iterator[tuple[str, Path]]:
        for parts in self.parts.values():
            for part in parts:
                for line in self.lines(part):
                    name = line.entry.get("audio")
                    if line.part is None and isinstance(name, str):
                        yield name, resolve_path(self.list_folders(part), name)

    def table_lines(self, table: Table) -> Iterator[Line]:
        """Yield each row of a table with our names; one that has another width with its problem.

        Raises DataError for a column of ``columns`` that it doesn't have.
        """
        for row, cells in table.entries():
            if row.problem is None:
                require_columns(cells, self.columns, row.where)
            yield self.named_line(ManifestLine(row.where, cells, row.problem))

    def named_line(self, line: ManifestLine, part: Part | None = None) -> Line:
        """Return a line with our names, or with the problem that it has, or that its columns have."""
        if line.problem is not None:
            return Line(line.where, {}, part, line.problem)
        try:
            return Line(line.where, self.rename(line.entry, line.where), part)
        except DataError as error:
            return Line(line.where, {}, part, error)

    @property
    def columns(self) -> dict[str, str]:
        """Columns of labels that have other names."""
        return self.dataset.columns

    def rename(self, row: Row, where: str) -> Row:
        """Return a row with our names; its own columns stay, but for those that mean something else here.

        Raises DataError for a column of ``columns`` that it doesn't have, and an ``end`` that isn't a number.
        """
        found = {name: next((one for one in own if one in row), None) for name, own in self.NAMES.items()}
        names = {name: column for name, column in found.items() if name not in self.columns}
        usual = {name: row[column] for name, column in names.items() if column is not None}
        renamed = rename_columns(row | usual, self.columns, where) if self.columns else {}
        given = {"duration" if name == "end" else name: None for name in self.columns}
        own = {name: renamed[name] for name in given}
        taken = {*names.values(), *self.columns.values(), *KNOWN}
        entry = {key: value for key, value in row.items() if key not in taken and value not in ("", None)}
        return entry | usual | own


def below(folder: str, name: str) -> str:
    """Return a name as seen from the folder above ``folder``; an absolute path stays, for ``audio_root`` to judge."""
    return name if Path(name).is_absolute() else f"{folder}/{name}"


class CommonVoiceReader(LayoutReader):
    """Common Voice: a table for each split, audio in ``clips``. Source: Ardila et al. 2020, "Common Voice"."""

    NAMES: ClassVar = {"speaker": ("client_id",), "text": ("sentence",), "language": ("locale",), "audio": ("path",)}
    EXPECTED = "the folder of a language, with clips and train.tsv"
    TABLES: ClassVar = {"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv"}

    @classmethod
    def is_root(cls, folder: Path) -> bool:
        return (folder / "clips").is_dir() and any(
            (folder / f"{name}.tsv").is_file() for name in ("train", "validated")
        )

    def find_parts(self) -> dict[str, list[Path]]:
        """Return the tables that have rows: those of a small language may have none."""
        found = {split: self.root / name for split, name in self.TABLES.items()}
        parts = {
            split: [path]
            for split, path in found.items()
            if path.is_file() and any(Table(path, given=self.dialect).rows())
        }
        if "train" not in parts:
            self.lacks_train = (
                f"{self.where}: {self.root} has no utterances in train.tsv, as of a language with few; read what is "
                "validated: train: [validated.tsv]"
            )
        return parts

    def lines(self, part: Path) -> Iterator[Line]:
        for line in self.table_lines(Table(part, given=self.dialect)):
            name = str(line.entry.get("audio") or "")
            audio = below("clips", name if is_audio(Path(name)) else f"{name}.mp3") if name else None
            yield line._replace(entry={**line.entry, "audio": audio})


class FleursReader(LayoutReader):
    """FLEURS: tables without headers. Source: Conneau et al. 2022, "FLEURS"."""

    COLUMNS = ("sentence_id", "file_name", "raw_transcription", "transcription", "characters", "num_samples", "gender")
    NAMES: ClassVar = {"audio": ("file_name",), "text": ("transcription",)}
    EXPECTED = "the folder of a language, with audio/train and train.tsv"
    TABLES = CommonVoiceReader.TABLES

    @classmethod
    def is_root(cls, folder: Path) -> bool:
        return (folder / "audio").is_dir() and any((folder / name).is_file() for name in cls.TABLES.values())

    def find_parts(self) -> dict[str, list[Path]]:
        found = {split: self.root / name for split, name in self.TABLES.items()}
        for path in found.values():
            packed = self.root / "audio" / f"{path.stem}.tar.gz"
            if packed.is_file() and not packed.with_name(path.stem).is_dir():
                raise DataError(f"{self.where}: unpack the audio first: tar -xzf {packed} -C {packed.parent}")
        return {split: [path] for split, path in found.items() if path.is_file()}

    def lines(self, part: Path) -> Iterator[Line]:
        for line in self.table_lines(
            Table(part, self.COLUMNS, given=self.dialect._replace(delimiter=self.dialect.delimiter or "\t"))
        ):
            entry = {name: value for name, value in line.entry.items() if name not in ("characters", "num_samples")}
            if line.problem is None:
                entry["audio"] = below(f"audio/{part.stem}", entry["audio"])
            yield line._replace(entry=entry)


class LibriSpeechReader(LayoutReader):
    """LibriSpeech: a file of transcripts for each chapter. Source: Panayotov et al. 2015, "Librispeech"."""

    EXPECTED = "folders such as train-clean-100 with SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt"

    @classmethod
    def is_root(cls, folder: Path) -> bool:
        return any(cls._parts_in(folder))

    @classmethod
    def _parts_in(cls, folder: Path) -> Iterator[Path]:
        for one in sorted(folder.iterdir()):
            if one.is_dir() and split_named(one.name) and next(one.glob("*/*/*.trans.txt"), None):
                yield one

    def find_parts(self) -> dict[str, list[Path]]:
        return by_split(self._parts_in(self.root), self.root)

    def list_files(self, part: Path) -> list[Path]:
        return sorted(part.glob("*/*/*.trans.txt"))

    @cached_property
    def genders(self) -> dict[str, str]:
        """The gender of each speaker, as SPEAKERS.TXT has it."""
        path = self.root / "SPEAKERS.TXT"
        lines = split_lines(decoded(read_content(path), str(path))) if path.is_file() else []
        rows = [line.split("|") for line in lines if not line.startswith(";")]
        return {row[0].strip(): row[1].strip() for row in rows if len(row) > 1}

    def lines(self, part: Path) -> Iterator[Line]:
        for path in self.list_files(part):
            folder = path.parent.relative_to(self.root)
            for where, name, text in keyed_lines(path):
                speaker = name.partition("-")[0]
                entry = {"id": name, "audio": f"{folder}/{name}.flac", "text": text, "speaker": speaker}
                yield Line(where, entry | ({"gender": self.genders[speaker]} if speaker in self.genders else {}))


class VoxPopuliReader(LayoutReader):
    """VoxPopuli's transcribed speech. Source: Wang et al. 2021, "VoxPopuli"."""

    NAMES: ClassVar = {
        "id": ("id", "id_"),
        "text": ("normalized_text", "normed_text"),
        "speaker": ("speaker_id",),
    }
    EXPECTED = "the folder of a language, with asr_train.tsv"

    @classmethod
    def is_root(cls, folder: Path) -> bool:
        return any(cls._tables(folder))

    @classmethod
    def _tables(cls, folder: Path) -> Iterator[Path]:
        for path in sorted(folder.glob("asr_*.tsv*")):
            if re.fullmatch(r"asr_(train|dev|test)\.tsv(\.gz)?", path.name):
                yield path

    def find_parts(self) -> dict[str, list[Path]]:
        return by_split(self._tables(self.root), self.root)

    @cached_property
    def _audio(self) -> dict[str, str]:
        """The file of each utterance, by its name: in a folder of its year, or of its split."""
        paths = (path for path in self.root.rglob("*") if is_audio(path))
        return {path.stem: str(path.relative_to(self.root)) for path in paths}

    def lines(self, part: Path) -> Iterator[Line]:
        for line in self.table_lines(Table(part, given=self.dialect)):
            if line.problem is not None:
                yield line
                continue
            entry = {"language": self.root.name, **line.entry}
            name = str(entry.get("id") or "")
            entry["audio"] = self._audio.get(name, f"{name}.ogg")
            # An empty text stays where nothing replaces it: there is no speech.
            entry["text"] = entry.get("text") or entry.get("raw_text") or entry.get("text")
            if entry.get("speaker") in ("None", "unknown"):
                del entry["speaker"]
            yield line._replace(entry=entry)


class NemoReader(LayoutReader):
    """Manifests of NeMo, one for each split: ``train_manifest.json``, ``dev.jsonl``, …"""

    NAMES: ClassVar = {
        "audio": ("audio_filepath", "audio_file"),
        "text": ("text",),
        "speaker": ("speaker", "speaker_id"),
        "language": ("lang", "language", "source_lang"),
        "offset": ("offset",),
        "duration": ("duration",),
        "id": ("id",),
    }
    EXPECTED = "manifests (.json, .jsonl) with audio_filepath"

    @classmethod
    def is_root(cls, folder: Path) -> bool:
        return any(cls._manifests(folder))

    @classmethod
    def _manifests(cls, folder: Path) -> Iterator[Path]:
        for path in sorted(folder.glob("*.json*")):
            if re.search(r"\.jsonl?(\.gz)?$", path.name) is None:
                continue
            try:
                first = next((line.entry for line in manifest_lines(path) if line.problem is None), {})
            except DataError as error:
                log.warning("%s: it is left out", error)
                continue
            if "audio_filepath" in first:
                yield path

    def find_parts(self) -> dict[str, list[Path]]:
        return by_split(self._manifests(self.root), self.root)

    def list_folders(self, part: Path) -> tuple[Path, ...]:
        return (part.parent, self.root, *self.roots)

    def lines(self, part: Path) -> Iterator[Line]:
        yield from map(self.named_line, manifest_lines(part, self.dialect))


def keyed_lines(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the place, the first word and the rest of each line that isn't blank. Raises DataError."""
    try:
        with open_utf8(path) as lines:
            for number, content in enumerate(lines, start=1):
                where = f"{path}:{number}"
                content = content.removeprefix(codecs.BOM_UTF8) if number == 1 else content
                # Bytes are split at ASCII's blanks alone.
                name, *rest = content.strip().split(maxsplit=1) or [b""]
                if name:
                    yield where, decoded(name, where), decoded(b"".join(rest), where)
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror}") from error


def by_split(paths: Iterable[Path], root: Path) -> dict[str, list[Path]]:
    """Files or folders by the split that their names say, or those of the folders below ``root`` that they are in.

    All are train where none says one.
    """
    found: dict[str, list[Path]] = defaultdict(list)
    others: list[Path] = []
    for path in paths:
        split = split_in_names(path.relative_to(root))
        (others if split is None else found[split]).append(path)
    if not found and others:
        return {"train": others}
    return {split: found[split] for split in SPLITS if split in found}
