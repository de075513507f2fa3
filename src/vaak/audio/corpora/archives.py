"""Corpora in archives, read in place: tars of WebDataset, Lhotse's Shar, and Parquet with a column of audio.

webdataset   train-000000.tar: members KEY.flac (wav, mp3, ogg, opus), KEY.txt, KEY.json are one utterance
shar         cuts.000000.jsonl.gz with recording.000000.tar, in one folder, or in train, dev and test
parquet      train-00000-of-00012.parquet: a column audio with bytes (or a path), and those of its labels

Splits are named by files and folders. A cut refers to its audio by where it is in the archive
(``vaak.audio.embedded``): nothing is unpacked, so a member's name can lead nowhere; one that would (``..``, an absolute
path, a link) is refused all the same. Of members only audio, text and JSON are read, never a pickle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

from vaak.audio.audio_file import AUDIO_ENDINGS
from vaak.audio.corpora.entries import ManifestLine, manifest_lines, require_columns
from vaak.audio.corpora.json_manifest import TEXT_COLUMNS
from vaak.audio.corpora.layouts import LayoutReader, Line, by_split
from vaak.audio.corpora.lhotse_manifests import remarks_on
from vaak.audio.cuts.reading import lhotse_object, require_harmless
from vaak.audio.cuts.recordings import ReadRecording, attempted, drop_bad_labels
from vaak.audio.embedded import EMBEDDED_TYPE, ParquetCell, open_parquet, read_rows, value_in
from vaak.core.class_names import class_names_in, name_classes
from vaak.core.errors import DataError
from vaak.core.names import nearest_name
from vaak.core.progress import track
from vaak.core.storage.archives import Member, read_tar_members

LABEL_NAMES = {
    "text": ("text", "sentence", "transcription", "transcript", "normalized_text", "raw_text"),
    "speaker": ("speaker", "speaker_id", "client_id", "spk_id", "spk"),
    "language": ("language", "lang", "locale"),
}
"""Usual names of columns of audio data; ``columns`` of a dataset comes first."""


class _ArchiveReader(LayoutReader):
    """Corpora of archive files, one or more per split."""

    ENDING: ClassVar[str]

    @classmethod
    def is_root(cls, folder: Path) -> bool:
        return any(cls._archives(folder))

    @classmethod
    def _archives(cls, folder: Path) -> Iterator[Path]:
        yield from sorted(folder.glob(f"*{cls.ENDING}"))
        for one in sorted(folder.iterdir()):
            if one.is_dir() and not one.name.startswith("."):
                yield from sorted(one.glob(f"*{cls.ENDING}"))

    def find_parts(self) -> dict[str, list[Path]]:
        return by_split(self._archives(self.root), self.root)


class WebDatasetReader(_ArchiveReader):
    """Tars of WebDataset; ``columns`` says what keys of KEY.json are, where they have other names.

    Source: github.com/webdataset/webdataset, "The WebDataset format".
    """

    NAMES = LABEL_NAMES
    EXPECTED = "tars (.tar) of audio with .txt or .json"
    ENDING = ".tar"

    def lines(self, part: Path) -> Iterator[Line]:
        # WebDataset stores the members of a sample next to each other, so one pass without an index is enough.
        for key, group in groupby(read_tar_members(part), lambda one: one.key):
            # Members of a recording, by their endings.
            members = {one.name[len(key) + 1 :].lower(): one for one in group}
            where = f"{part}, {key}"
            audio = next(
                (one for ending, one in members.items() if f".{ending.rpartition('.')[2]}" in AUDIO_ENDINGS), None
            )
            # Samples without audio, such as images, are skipped: a tar may mix kinds.
            if audio is None:
                continue
            line = self.named_line(_labels_among(members, where), audio.range)
            yield line._replace(entry={"id": key.replace("/", "-"), **line.entry, "audio": audio.name})


def _labels_among(members: dict[str, Member], where: str) -> ManifestLine:
    """Return the labels in a recording's members, given by their endings; a problem if one can't be read."""
    try:
        row = members["json"].json() if "json" in members else {}
        row |= {
            name: members[ending].text() for ending, name in (("txt", "text"), ("spk", "speaker")) if ending in members
        }
    except DataError as error:
        return ManifestLine(where, {}, error)
    return ManifestLine(where, row)


class ParquetReader(_ArchiveReader):
    """Tables of Hugging Face's with a column of audio: bytes, or a struct of ``bytes`` and ``path``."""

    NAMES = LABEL_NAMES
    EXPECTED = "Parquet files with a column of audio"
    ENDING = ".parquet"

    def lines(self, part: Path) -> Iterator[Line]:
        file = open_parquet(part)
        import pyarrow

        schema = file.schema_arrow
        audio = self._audio_column(part, schema)
        simple = [
            field.name
            for field in schema
            if field.name != audio and not pyarrow.types.is_nested(field.type) and not _is_bytes(field.type)
        ]
        # The column is bytes, or Hugging Face's struct of bytes and path; a struct may lack either.
        fields = _get_field_names(schema.field(audio).type)
        leaf = f"{audio}.bytes" if "bytes" in fields else audio if not fields else None
        names = class_names_in(schema)
        require_columns(simple, self.columns, str(part))
        prefix = "-".join(part.relative_to(self.root).with_suffix("").parts)
        number = 0
        # By row groups: a cell is found again later by its group and its row in it.
        for group in range(file.metadata.num_row_groups):
            row = 0
            columns = [*simple, *([leaf] if leaf else []), *([f"{audio}.path"] if "path" in fields else [])]
            for batch in read_rows(file, columns, group):
                for place in range(batch.num_rows):
                    values = name_classes({name: value_in(batch, name, place) for name in simple}, names)
                    path = value_in(batch, f"{audio}.path", place) if "path" in fields else None
                    # A null here means that the audio is in a file, which ``path`` names.
                    has_bytes = leaf is not None and value_in(batch, leaf, place) is not None
                    where = f"{part}, row {number + 1}"
                    cell = ParquetCell(part, group, row, leaf) if leaf is not None and has_bytes else None
                    line = self.named_line(ManifestLine(where, values), cell)
                    own = {"id": f"{prefix}-{number:07}", **line.entry, "audio": path or f"row {number + 1}"}
                    yield line._replace(entry=own)
                    row, number = row + 1, number + 1

    def _audio_column(self, part: Path, schema: Any) -> str:
        """The audio column: from ``columns``, else ``audio``, else the only candidate. Raises DataError without one."""
        named = self.dataset.columns.get("audio")
        possible = [
            field.name for field in schema if _is_bytes(field.type) or _get_field_names(field.type) & {"bytes", "path"}
        ]
        chosen = named or ("audio" if "audio" in possible else possible[0] if len(possible) == 1 else None)
        if chosen is None or chosen not in possible:
            what = "no column of audio, or several"
            if named:
                what = f"no column {named} of audio{nearest_name(named, possible)}"
            raise DataError(f"{part}: {what}; there are {', '.join(schema.names)} (columns: {{audio: …}})")
        return str(chosen)

    @property
    def columns(self) -> dict[str, str]:
        """The dataset's columns without the audio's, which isn't a label."""
        return {name: column for name, column in self.dataset.columns.items() if name != "audio"}

    def require_texts(self) -> None:
        for path in self.files:
            names = open_parquet(path).schema_arrow.names
            if not {*LABEL_NAMES["text"], *TEXT_COLUMNS} & {*names} and "text" not in self.dataset.columns:
                there = ", ".join(names)
                raise DataError(f"{path}: no column has the transcripts; there are {there} (columns: {{text: …}})")


def _is_bytes(kind: Any) -> bool:
    import pyarrow

    return bool(pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind))


def _get_field_names(kind: Any) -> set[str]:
    """Return the names of a struct's fields."""
    import pyarrow

    return {kind.field(number).name for number in range(kind.num_fields)} if pyarrow.types.is_struct(kind) else set()


class SharReader(LayoutReader):
    """Lhotse's Shar: manifests of cuts, and tars of their recordings in the same order.

    Features and other arrays are left out. Source: lhotse.shar.
    """

    EXPECTED = "cuts.000000.jsonl.gz and recording.000000.tar, in it or in train, dev and test"

    @classmethod
    def is_root(cls, folder: Path) -> bool:
        return any(cls._folders(folder))

    @classmethod
    def _folders(cls, folder: Path) -> Iterator[Path]:
        for one in (folder, *sorted(path for path in folder.iterdir() if path.is_dir())):
            if next(one.glob("cuts.*.jsonl*"), None) and next(one.glob("recording.*"), None):
                yield one

    def find_parts(self) -> dict[str, list[Path]]:
        found = list(self._folders(self.root))
        return {"train": found} if found == [self.root] else by_split(found, self.root)

    def list_files(self, part: Path) -> list[Path]:
        return sorted([*part.glob("cuts.*.jsonl*"), *part.glob("recording.*")])

    def read(self, split: str) -> Iterator[ReadRecording]:
        readings = (
            attempted(str(line.entry.get("id", line.where)), partial(self.reading, line, part))
            for part in self.parts[split]
            for line in self.lines(part)
        )
        for reading in track(readings, f"recordings of {split}"):
            cut, remarks = reading.cut, reading.remarks
            yield reading if cut is None else reading._replace(remarks=(*remarks, *remarks_on(cut)))

    def lines(self, part: Path) -> Iterator[Line]:
        for cuts in sorted(part.glob("cuts.*.jsonl*")):
            number = re.sub(r"^cuts\.|\.jsonl(\.gz)?$", "", cuts.name)
            tar = part / f"recording.{number}.tar"
            if not tar.is_file():
                raise DataError(f"{cuts}: its recordings are missing, {tar.name}; copy it there, not compressed")
            # Fields in separate tars, such as features, are only placeholders in the cut: leave them out.
            others = {path.name.partition(".")[0] for path in part.iterdir()} - {"cuts", "recording"}
            members = read_tar_members(tar)
            for where, entry, problem in manifest_lines(cuts):
                # A recording, then its description.
                data, about = next(members, None), next(members, None)
                if data is not None and about is None:
                    raise DataError(f"{data.range.path}: nothing follows {data.name}; this is not a tar of Shar")
                if problem is not None:
                    yield Line(where, {}, problem=problem)
                    continue
                # Cuts and tars are matched by position alone, so check the name: after one missing member, all others
                # would be shifted.
                if data is None or about is None or data.name.rpartition(".")[0] != entry.get("id"):
                    instead = f"has {data.name}" if data else "ends"
                    raise DataError(f"{where}: {tar} {instead} where the recording of {entry.get('id')} is expected")
                for name in others:
                    # Fields in separate tars.
                    entry.pop(name, None)
                    if isinstance(entry.get("custom"), dict):
                        entry["custom"].pop(name, None)
                recording = about.json() if data.name.rpartition(".")[2] != "nodata" else None
                yield Line(where, {**entry, "recording": recording}, data.range)

    def reading(self, line: Line, part: Path) -> ReadRecording:
        entry, where, recording = line.entry, line.where, line.entry["recording"]
        if recording is None:
            raise DataError(f"{where}: cut {entry['id']} has no recording")
        sources = recording.get("sources")
        if not isinstance(sources, list) or len(sources) != 1 or not isinstance(sources[0], dict):
            raise DataError(f"{where}: the recording of {entry['id']} must have exactly one source")
        absolute = line.part._replace(path=line.part.path.absolute()) if line.part else None
        # Absolute, because the manifest is read later from another folder. Written before the check, which allows only
        # files.
        sources[0] |= {"type": EMBEDDED_TYPE, "source": str(absolute)}
        require_harmless(entry, where)
        name, cut = str(entry["id"]), lhotse_object(entry, where)
        return ReadRecording(name, cut, tuple(drop_bad_labels(cut, where)))
