"""Audio with its texts in files of the same names, or in one list; in a folder, a zip or a tar.

a.wav  a.txt (.lab, .srt, .vtt, .eaf, .json)        next to each other
wavs/a.wav  txt/a.txt                               in folders side by side
wav48/p225/p225_001.wav  txt/p225/p225_001.txt      VCTK: speakers by folder, whose name begins those of the files
wavs/a.wav  transcripts.txt                         a list without a header: name and text, between them a tab, a bar,
                                                    a comma or blanks

A text belongs to the audio of its name in its folder, or in a folder whose path ends the same, or else to the only
audio of its name. Audio of archives is read where it is: nothing is unpacked.
"""

from __future__ import annotations

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, NamedTuple

from vaak.audio.audio_file import AUDIO_ENDINGS
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.archives import LABEL_NAMES
from vaak.audio.corpora.json_manifest import PLACE, PROBLEM
from vaak.audio.corpora.layouts import LayoutReader, Line, by_split, split_named, subfolders
from vaak.audio.cuts.recordings import ReadRecording
from vaak.audio.embedded import Part
from vaak.audio.formats.timed_texts import read_eaf, read_json, read_labels_of_audacity, read_subtitles
from vaak.core.errors import DataError
from vaak.core.matching import compose
from vaak.core.names import list_names
from vaak.core.storage.archives import read_tar_members, read_zip_members
from vaak.core.storage.dialects import AS_FOUND, GivenDialect
from vaak.core.storage.spreadsheets import SPREADSHEETS, is_spreadsheet
from vaak.core.storage.tables import Table
from vaak.core.storage.text_lines import CONVERT, detect_encoding, read_text_lines, split_lines

log = logging.getLogger("vaak")
TRANSCRIPTS = (".eaf", ".vtt", ".srt", ".lab", ".txt", ".json")
"""Where several are of one recording, the first is read."""
LISTS = (".txt", ".tsv", ".csv", ".trans", ".list", ".data", *SPREADSHEETS)
MOST_FOLDERS = 1000
NO_TEXT = "recordings without a text of their name"
NO_AUDIO = "texts without audio of their name"
OTHER_MICROPHONE = "recordings of a second microphone (_mic2)"
_MICROPHONE = re.compile(r"[_-]mic(\d)$", re.IGNORECASE)
_TIMIT = re.compile(r"\A0\s+\d{4,}\s+(?=\S[^\n]*\s*\Z)")
"""The samples from 0 on that a text of TIMIT begins with."""
_FESTIVAL = re.compile(r'\(\s*(\S+)\s+"(.*)"\s*\)\s*')


class File(NamedTuple):
    """A file of a folder or of an archive: its name from there, and where it is."""

    name: PurePosixPath
    place: Path | Part

    @property
    def key(self) -> str:
        """The key that audio and its text share: the name without ending and microphone."""
        return compose(_MICROPHONE.sub("", self.name.stem))

    @property
    def ending(self) -> str:
        return self.name.suffix.lower()

    def read(self) -> bytes:
        """Return its bytes. Raises DataError if they can't be read."""
        try:
            if isinstance(self.place, Path):
                return self.place.read_bytes()
            with self.place.open() as file:
                return file.read()
        except OSError as error:
            raise DataError(f"{self.place}: can't be read: {error.strerror or error}") from error

    @property
    def path(self) -> Path:
        """Its path; for a member of an archive, as if the archive were a folder."""
        return self.place if isinstance(self.place, Path) else Path(self.place.path, self.name)

    def text(self, given: GivenDialect = AS_FOUND) -> str:
        """Return its text, in UTF-8, UTF-16 or the encoding that is given. Raises DataError for another encoding."""
        content = self.read()
        encoding = given.encoding or detect_encoding(content[: 1 << 16])
        try:
            return content.decode(encoding)
        except UnicodeDecodeError as error:
            byte = content[error.start]
            raise DataError(
                f"{self}: byte {error.start} (0x{byte:02X}) is not UTF-8; {CONVERT}{given.advise('encoding', 'cp1252')}"
            ) from error

    def __str__(self) -> str:
        return str(self.place) if isinstance(self.place, Path) else f"{self.place.path}, {self.name}"


class TranscriptsReader(LayoutReader):
    """Recordings whose texts are in files of their names, or in a list."""

    EXPECTED = "audio with .txt, .lab, .srt, .vtt or .eaf files of the same names, or with a list of names and texts"
    ARCHIVES: ClassVar = (".zip", ".tar")

    @classmethod
    def roots_in(cls, folder: Path, known: object = ()) -> list[Path]:
        return [folder]

    @classmethod
    def is_root(cls, folder: Path) -> bool:
        return folder.is_dir()

    def __init__(self, dataset: DatasetConfig, audio: AudioConfig) -> None:
        super().__init__(dataset, audio)
        # They aren't those of splits, so that none is missing.
        self.folders_there = ""

    def find_parts(self) -> dict[str, list[Path]]:
        archives = [path for path in sorted(self.root.iterdir()) if path.suffix.lower() in self.ARCHIVES]
        if archives:
            return by_split(archives, self.root)
        level = subfolders(self.root)
        # Splits may be one folder down, as in corpus/wavs/train. Only a few folders are searched: some corpora have
        # thousands.
        for folders in (level, [path for one in level[:MOST_FOLDERS] for path in subfolders(one)]):
            named = by_split([path for path in folders if split_named(path.name) and _has_both(path)], self.root)
            if "train" in named and len(named) > 1:
                _name_others(self.root, [path for paths in named.values() for path in paths])
                return named
        return self._lists_of_splits() or {"train": [self.root]}

    def _lists_of_splits(self) -> dict[str, list[Path]]:
        """Return the lists of the splits, such as filelists/train.txt; none if one of them names no recording."""
        there = [path for folder in (self.root, self.root / "filelists") for path in sorted(folder.glob("*"))]
        lists = [path for path in there if path.suffix.lower() in LISTS and split_named(path.stem)]
        named = by_split(lists, self.root)
        if "train" not in named or len(named) == 1:
            return {}
        of_lists = {
            path: _read_lists(*_split_files(path, self.root), self.dialect)
            for paths in named.values()
            for path in paths
        }
        # A text file called train.txt needn't be a list; one that names no recording isn't.
        return named if all(of_lists.values()) else {}

    def list_files(self, part: Path) -> list[Path]:
        found = [
            one.place
            for one in files_in(part, self.root)
            if isinstance(one.place, Path) and one.ending not in AUDIO_ENDINGS
        ]
        return list(dict.fromkeys([part, *found])) if part.is_file() else found

    @cached_property
    def _found(self) -> dict[Path, list[Line]]:
        found = {
            part: list(pair(files_in(part, self.root), self.root, self.dialect))
            for parts in self.parts.values()
            for part in parts
        }
        lists = [part for part in found if part.suffix.lower() in LISTS and part.is_file()]
        listed = {line.where for part in lists for line in found[part] if line.entry.get("left out") != NO_TEXT}
        for number, part in enumerate(lists):
            # Recordings in no list are named once.
            found[part] = [one for one in found[part] if one.where in listed or not number]
            own = {line.where for line in found[part] if line.entry.get("left out") != NO_TEXT}
            found[part] = [one for one in found[part] if one.where in own or one.where not in listed]
        return found

    def lines(self, part: Path) -> Iterator[Line]:
        yield from self._found[part]

    def reading(self, line: Line, part: Path) -> ReadRecording:
        if (reason := line.entry.get("left out")) is not None:
            return ReadRecording(line.where, None, (str(reason),))
        return super().reading(line, part)


def _has_both(folder: Path) -> bool:
    """Return whether a folder has audio and texts."""
    endings = [{*AUDIO_ENDINGS}, {*TRANSCRIPTS, *LISTS}]
    return all(any(path.suffix.lower() in own for path in folder.rglob("*")) for own in endings)


def _is_in(path: Path, folders: list[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _name_others(root: Path, folders: list[Path]) -> None:
    """Name the recordings that are in no folder of a split."""
    left = [path for path in root.rglob("*") if path.suffix.lower() in AUDIO_ENDINGS and not _is_in(path, folders)]
    if left:
        log.warning("%s: recordings in no folder of a split, left out: %s", root, list_names(map(str, left)))


def _split_files(listing: Path, root: Path) -> tuple[list[File], list[File]]:
    """Return the recordings below a root, and a list of some."""
    audio = [one for one in files_in(root, root) if one.ending in AUDIO_ENDINGS]
    return audio, [File(PurePosixPath(listing.name), listing)]


def files_in(part: Path, root: Path) -> list[File]:
    """Return the files of a folder, a zip or a tar, by name; hidden ones, and those of a Mac's archives, are none.

    Of a list of recordings, those below the root, and the list.
    """
    if part.suffix.lower() in LISTS and part.is_file():
        audio, lists = _split_files(part, root)
        return [*audio, *lists]
    if part.suffix.lower() in AUDIO_ENDINGS and part.is_file():
        # Alone: with what is of its name.
        near = [one for one in part.parent.iterdir() if one == part or one.suffix.lower() in TRANSCRIPTS]
        named = [File(PurePosixPath(one.name), one) for one in near if one.is_file()]
        return sorted(one for one in named if one.name.name.startswith(part.stem))
    if part.is_dir():
        paths = [path for path in part.rglob("*") if path.is_file()]
        found = [File(PurePosixPath(path.relative_to(part).as_posix()), path) for path in paths]
    else:
        members = read_zip_members(part) if part.suffix.lower() == ".zip" else read_tar_members(part)
        found = [File(PurePosixPath(one.name), one.range) for one in members]
    return sorted(one for one in found if not any(name.startswith((".", "__MACOSX")) for name in one.name.parts))


def pair(files: list[File], root: Path, given: GivenDialect = AS_FOUND) -> Iterator[Line]:
    """Yield a line for each recording, with its text; half a pair has the reason why it is left out.

    ``given`` are the known parts of the lists' dialect.
    """
    audio = [one for one in files if one.ending in AUDIO_ENDINGS]
    own, used = _texts_by_name(audio, files), set[File]()
    # Lists are only considered if no recording has a text file: a README could look like a list.
    listed = {} if own else _read_lists(audio, files, given)
    speakers = _find_speakers(audio)
    # VCTK has each utterance by two microphones; the second is used only where the first is missing.
    first = {(one.name.parent, one.key) for one in audio if not one.name.stem.lower().endswith("mic2")}
    for one in audio:
        name = one.place.relative_to(root).as_posix() if isinstance(one.place, Path) else str(one.name)
        part = None if isinstance(one.place, Path) else one.place
        where = str(one)
        entry: dict[str, object] = {"audio": name}
        if one.name.stem.lower().endswith("mic2") and (one.name.parent, one.key) in first:
            yield Line(where, {**entry, "left out": OTHER_MICROPHONE}, part)
            continue
        try:
            if (file := own.get(one)) is not None:
                used.add(file)
                entry |= read_transcript(file)
            elif isinstance(said := listed.get(one), DataError):
                raise said
            elif said is not None:
                entry |= said
            else:
                entry |= {"left out": NO_TEXT}
        except DataError as error:
            yield Line(where, entry, part, error)
            continue
        if "text" in entry and "speaker" not in entry and (speaker := speakers.get(one)) is not None:
            entry |= {"speaker": speaker}
        yield Line(where, entry, part)
    # Texts without audio are reported only next to texts that were used: other files of the same ending may be
    # anything.
    places, keys = {(one.name.parent, one.ending) for one in used}, {one.key for one in used}
    for file in files:
        if (file.name.parent, file.ending) in places and file not in used and file.key not in keys:
            yield Line(str(file), {"left out": NO_AUDIO})


def read_transcript(file: File) -> dict[str, object]:
    """Return what a file says: ``text``, or ``segments`` with times. Raises DataError."""
    said: dict[str, Any]
    if file.ending == ".json":
        said = read_json(file.read(), str(file)) or {"left out": NO_TEXT}
    elif file.ending in (".txt", ".lab"):
        text = file.text()
        # A .txt may be a transcript or Audacity's labels: only if every line has two times, it is the latter.
        timed = read_labels_of_audacity(text, str(file))
        said = {"text": " ".join(_TIMIT.sub("", text).split())} if timed is None else {"segments": timed}
    elif file.ending == ".eaf":
        said = {"segments": read_eaf(file.read(), str(file))}
    else:
        said = {"segments": read_subtitles(file.text(), str(file))}
    if "segments" not in said:
        return said
    hidden = {"where": PLACE, "problem": PROBLEM}
    return {"segments": [{hidden.get(key, key): value for key, value in one.items()} for one in said["segments"]]}


def _texts_by_name(audio: list[File], files: list[File]) -> dict[File, File]:
    """The text of each recording: of its folder, of a folder whose path ends the same, or the only one of its name."""
    by_key = defaultdict[str, list[File]](list)
    for one in files:
        if one.ending in TRANSCRIPTS:
            by_key[one.key].append(one)
            if (short := compose(one.name.name.partition(".")[0])) != one.key and one.ending in (".srt", ".vtt"):
                by_key[short].append(one)  # a.en.srt
    same = defaultdict[str, int](int)
    for one in audio:
        same[one.key] += 1
    found = dict[File, File]()
    for one in audio:
        possible = by_key.get(one.key, [])
        near = [file for file in possible if file.name.parent == one.name.parent]
        for depth in (2, 1):
            tail = one.name.parent.parts[-depth:]
            # Audio and texts are often in parallel trees, such as wav/s1/a.wav and txt/s1/a.txt.
            near = near or [file for file in possible if tail and file.name.parent.parts[-depth:] == tail]
        # One text may serve two recordings of its name: those of two microphones.
        is_only = len({file.name.parent for file in possible}) == 1 and same[one.key] <= 2
        if chosen := near or (possible if is_only else []):
            found[one] = min(chosen, key=lambda file: (TRANSCRIPTS.index(file.ending), file.name))
    return found


def _read_lists(audio: list[File], files: list[File], given: GivenDialect) -> dict[File, dict[str, str] | DataError]:
    """The texts of recordings by lists without headers: lines that begin with a recording's name; or their problem."""
    names = dict[str, File | None]()
    for one in audio:
        for name in {str(one.name), str(one.name.with_suffix("")), one.name.name, one.name.stem}:
            # A name that two files share identifies neither.
            names[compose(name)] = None if compose(name) in names else one
    found = dict[File, dict[str, str] | DataError]()
    for file in (one for one in files if one.ending in LISTS):
        rows = _read_list(file, names, given)
        # A list names a recording in most of its lines; in other texts, a name may occur by chance.
        if sum(row.audio is not None for row in rows) * 2 > len(rows):
            for audio_file, text, speaker, problem in rows:
                if audio_file is not None:
                    found[audio_file] = problem or {"text": text} | ({"speaker": speaker} if speaker else {})
    return found


class _Row(NamedTuple):
    """A line of a list: its recording (None: none is named), its text and its speaker; or its problem."""

    audio: File | None
    text: str
    speaker: str | None = None
    problem: DataError | None = None


def _read_list(file: File, names: dict[str, File | None], given: GivenDialect) -> list[_Row]:
    """Read the rows of a list, as a table, or by the delimiter after which most lines name a recording."""
    read = list(Table(file.path, has_header=False, given=given).rows())
    problems = {id(row.cells): row.problem for row in read}
    tables = [[row.cells for row in read]]
    if not is_spreadsheet(file.path):
        lines = [line for line in split_lines(file.text(given)) if line.strip()]
        tables += [
            [line.split("|") for line in lines],
            [line.split("\t") for line in lines],
            [line.split(",", 1) for line in lines],
            [[match[1], match[2]] if (match := _FESTIVAL.fullmatch(line)) else [line] for line in lines],
            [line.strip().split(maxsplit=1) for line in lines],
        ]

    def named(row: list[str]) -> File | None:
        return names.get(compose(row[0].strip().removeprefix("./"))) if len(row) > 1 else None

    # The dialect under which most rows name a recording is the right one.
    rows = max(tables, key=lambda rows: sum(named(row) is not None for row in rows))
    if rows is tables[-1] and sum(len(row) > 1 for row in rows) * 2 > len(rows):
        # Between blanks, nothing shows an empty text: where most lines have one, a name alone is such a line.
        rows = [[*row, ""] if len(row) == 1 else row for row in rows]
    header = rows[0] if rows and named(rows[0]) is None else []
    place = _find_column("text", header)
    if place is None:
        place = _longest(row for row in rows if named(row) is not None)
    of_speaker = _find_column("speaker", header)
    # With a header that names no speaker, no column is one; without a header, evidence decides.
    if of_speaker is None and len(header) < 2:
        of_speaker = _find_speaker_column([row for row in rows if named(row) is not None], place)
    found: list[_Row] = []
    for row in rows[1 if len(header) > 1 else 0 :]:
        speaker = row[of_speaker].strip() if of_speaker is not None and of_speaker < len(row) else None
        text = row[place].strip() if place < len(row) else ""
        found.append(_Row(named(row), text, speaker, problems.get(id(row))))
    return found


def _find_speaker_column(rows: list[list[str]], of_text: int) -> int | None:
    """The column of a list without a header whose few values are single words: speakers, by name or by number."""
    width = min(map(len, rows), default=0)
    for place in (one for one in range(1, width) if one != of_text):
        values = {row[place].strip() for row in rows}
        # At least two values, each used twice on average: otherwise the column may be an id, or a constant.
        if 2 <= len(values) <= len(rows) / 2 and all(value and " " not in value for value in values):
            return place
    return None


def lists_speakers(file: Path) -> bool:
    """Whether a list separated by bars, like LJ Speech's, has a column of speakers; False if it can't be read."""
    try:
        lines = read_text_lines(file)
    except DataError:
        return False
    rows = [line.split("|") for line in lines if line.strip()]
    width = min(map(len, rows), default=0)
    return width > 2 and _find_speaker_column(rows, _longest(iter(rows))) is not None


def _find_column(key: str, header: list[str]) -> int | None:
    """Return the column of a header that has one of a key's usual names."""
    plain = [re.sub(r"[\W_]+", "_", cell.strip().lower()) for cell in header]
    return next((plain.index(name) for name in LABEL_NAMES[key] if name in plain), None)


def _longest(rows: Iterator[list[str]]) -> int:
    """Return the column whose cells are the longest, without the first."""
    lengths = Counter[int]()
    for row in rows:
        lengths.update({place: len(cell) for place, cell in enumerate(row) if place})
    return lengths.most_common(1)[0][0] if lengths else 1


def _find_speakers(audio: list[File]) -> dict[File, str]:
    """The speaker of each recording, where they are in folders whose names all of their names begin with (VCTK)."""
    folders = {one.name.parent.name for one in audio}
    is_named = not any(map(split_named, folders)) and all(
        folder and one.name.name.startswith(folder) for one in audio for folder in [one.name.parent.name]
    )
    return {one: one.name.parent.name for one in audio} if is_named and len(folders) > 1 else {}
