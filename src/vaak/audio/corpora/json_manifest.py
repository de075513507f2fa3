"""JSON lines, or a table (CSV, TSV), of audio files, one recording or utterance per line; folders that have them.

{"audio": "audio/a.flac", "speaker": "Ann", "text": "so it is"}                     an utterance of one speaker
{"audio": "b.flac", "segments": [{"start": 0.5, "end": 2, "speaker": "Ann"}, …]}    a recording; "text" where known
{"audio": "c.flac", "rttm": "c.rttm", "uem": "c.uem"}                               the same, from files
{"audio": "d.flac", "text": "so it is", "textgrid": "d.TextGrid"}                   with its words and phones; or "ctm"
{"audio": "e.flac", "text": "so", "alignment": [[0, 0.2, "s"], [0.2, 0.3, "ow"]]}   with its phones (or a file)

``alignment`` may also have lists for ``word`` and ``phone``; an interval without a symbol is a pause. Further keys:
``id`` (default: the file's name); ``offset`` and ``duration``, the section of the file (default: all);
``sampling_rate``, which is compared with the file's; ``language``; ``split``, which each line must have in a manifest
that several splits name. Others are kept with the labels. A table has these keys in its header; ``columns`` of the
dataset says which have another name; ``end`` there is that of a section, from which its duration follows.

Files must be in the manifest's folder, or in those of ``audio_root``, where relative names are looked for, too. Paths
to outside of them (``..``, absolute paths, links) are refused. ``SplitFolderReader`` reads folders Train, Dev and Test,
which have manifests, a JSON file for each speaker (Speech Accessibility Project) or audio next to its transcript
(.txt).
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

from vaak.audio.audio_file import is_audio, read_header
from vaak.audio.config import DatasetConfig
from vaak.audio.corpora.entries import (
    CorpusReader,
    ManifestLine,
    list_contents,
    list_entries,
    manifest_lines,
    named_file,
    rename_columns,
    require_columns,
    resolve_path,
    seconds_in,
)
from vaak.audio.cuts.reading import EMPTY_TEXT, NO_TIMES
from vaak.audio.cuts.recordings import (
    OVERLAPPING,
    Labelled,
    ReadRecording,
    aligned,
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
from vaak.audio.embedded import Part
from vaak.audio.formats.alignments import LeftOutLabels, parse_alignment, read_alignment
from vaak.audio.formats.annotation_lines import as_seconds, read_rttm, read_uem
from vaak.audio.segments import Alignment, Segment, merged
from vaak.core.errors import DataError
from vaak.core.progress import track
from vaak.core.splits import hash_text
from vaak.core.storage.dialects import ENDINGS
from vaak.core.storage.tables import is_table
from vaak.core.storage.text_lines import read_text_lines

ALIGNMENTS = ("alignment", "ctm", "textgrid")
LABEL_FIELDS_READ = ("speaker", "speakers", "text", "segments", "rttm", "uem", *ALIGNMENTS)
FILE_KEYS = ("audio", "rttm", "uem", *ALIGNMENTS)
"""Keys that name files, unless they hold the content of one."""
KNOWN = frozenset(("id", "uri", "audio", "offset", "duration", "sampling_rate", "split", *LABEL_FIELDS_READ))
PLACE, PROBLEM = "\0where", "\0problem"
"""Keys of a segment's file and line, where a reader knows them, and why its times can't be used; no file has them."""
DURATION_SLACK_SECONDS = 0.1
"""Seconds that a manifest's duration may differ from the file's, because durations are rounded."""
SPLIT_NAMES = {
    "train": "train",
    "test": "test",
    # A folder whose name begins with the first one is meant by it: development.
    **dict.fromkeys(("dev", "valid", "validation", "val"), "valid"),
}
NOTHING_SAID = "lines without speaker, text, segments or rttm"
TEXT_COLUMNS = frozenset({"text", *ALIGNMENTS})
"""Columns of a table from which texts come."""


class JsonReader(CorpusReader):
    """Recordings and utterances of manifests (``vaak.core.corpus.Source``)."""

    def __init__(self, dataset: DatasetConfig) -> None:
        """Look up the manifests. Raises DataError for those that don't exist."""
        super().__init__(dataset)
        self._manifests, self._columns = list_entries(dataset), dataset.columns
        self.given = tuple(self._manifests)
        self.files = sorted({path for paths in self._manifests.values() for path in paths})
        self._names = {split: EntryNames(partial(self._read_entries, split)) for split in self.given}
        for path in self.files:
            if path.is_dir():
                raise DataError(f"datasets, {dataset.name}: {path} is a folder; give its manifests, {path}/*.jsonl")

    def read(self, split: str) -> Iterator[ReadRecording]:
        for manifest, path in enumerate(self._manifests[split]):
            # One manifest may be named for several splits; then each line says to which it belongs.
            is_shared = self._is_shared(path)
            for where, entry, problem in track(self._lines(path), f"recordings of {split}"):
                own: Any = entry.get("split")
                if problem is None and is_shared and not isinstance(own, str):
                    problem = DataError(
                        f"{where}: several splits name this manifest, so each line needs a split; this one has none"
                    )
                if problem is not None:
                    yield ReadRecording(where, None, problem=problem)
                    continue
                if not is_shared or SPLIT_NAMES.get(own, own) == split:
                    name = str(entry.get("audio", where))
                    unnamed = self._names[split].name(entry, manifest)
                    yield attempted(
                        name, partial(make_reading, entry, (path.parent, *self.roots), where, None, unnamed)
                    )

    def _read_entries(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        for manifest, path in enumerate(self._manifests[split]):
            for _, entry, problem in self._lines(path):
                own = str(entry.get("split"))
                if problem is None and (not self._is_shared(path) or SPLIT_NAMES.get(own, own) == split):
                    yield manifest, entry

    def _lines(self, path: Path) -> Iterator[ManifestLine]:
        """Yield the lines of a manifest with our names; a column that the dataset names and no line has is an error."""
        lacks: DataError | None = None
        has_any = not self._columns
        for line in manifest_lines(path, self.dialect):
            if line.problem is None and self._columns:
                # All rows of a table have the same columns, so a missing one is an error of the file, not of a row.
                if is_table(path):
                    require_columns(line.entry, self._columns, line.where)
                try:
                    line = line._replace(entry=rename_columns(line.entry, self._columns, line.where))
                    has_any = True
                except DataError as error:
                    lacks = lacks or error
                    line = line._replace(entry={}, problem=error)
            yield line
        if lacks is not None and not has_any:
            raise lacks

    def _is_shared(self, path: Path) -> bool:
        return sum(path in paths for paths in self._manifests.values()) > 1

    def require_texts(self) -> None:
        for path in self.files:
            # The first row is enough for a table; lines of JSON may each have other keys.
            for where, given, problem in islice(manifest_lines(path, self.dialect), 1 if is_table(path) else 0):
                if problem is not None:
                    continue
                entry = rename_columns(given, self._columns, where)
                if "audio" in entry and not TEXT_COLUMNS & entry.keys():
                    there = ", ".join(given)
                    raise DataError(f"{where}: the column text is missing, the transcript; there are {there} (columns)")

    def named_files(self) -> Iterator[tuple[str, Path]]:
        for path in self.files:
            yield from self._named_in(path)

    def _named_in(self, path: Path) -> Iterator[tuple[str, Path]]:
        for _, given, _ in manifest_lines(path, self.dialect):
            for key in FILE_KEYS:
                name = given.get(self._columns.get(key, key))
                if isinstance(name, str) and name:
                    yield name, resolve_path((path.parent, *self.roots), name)


class EntryNames:
    """Names of cuts for lines without an ``id``: the file's name; for a section, with where it begins.

    Where several lines of a manifest would have one name, each has its folders before it, as the manifest writes them,
    and a section its end: ``a/1.wav`` and ``b/1.wav`` are ``a-1`` and ``b-1``. So a name depends on its line, and on
    whether its manifest has another that would have the same, but not on the order of lines, nor on how many others
    there are. A further manifest of the split changes no name of those before it: its own lines have their folders
    where a name is taken.
    """

    def __init__(self, entries: Callable[[], Iterator[tuple[int, dict[str, Any]]]]) -> None:
        """``entries`` are all lines with the numbers of their manifests; they are read once, for the first name."""
        self._entries = entries

    @cached_property
    def _owners(self) -> dict[int, int | None]:
        """The manifest whose only line may have a name, by the name's digest; None if the first has several."""
        owners: dict[int, int | None] = {}
        last: dict[int, int] = {}
        for manifest, entry in self._entries():
            if (name := _short_name(entry)) is None:
                continue
            digest = hash_text(name)
            # Names are kept as digests: a manifest may have millions of lines.
            if owners.setdefault(digest, manifest) == manifest and last.get(digest) == manifest:
                owners[digest] = None
            last.setdefault(digest, manifest)
        return owners

    def name(self, entry: dict[str, Any], manifest: int) -> str | None:
        """Return the name of a line of a manifest; None if it has an id, or no audio."""
        short = _short_name(entry)
        if short is None or self._owners.get(hash_text(short), manifest) == manifest:
            return short
        audio, duration = PurePath(str(entry["audio"])), seconds_in(entry.get("duration"))
        # Without ``..`` and the root: a cut's name becomes the name of files.
        parts = [one for one in audio.with_suffix("").parts if one not in ("..", audio.anchor)]
        begin = seconds_in(entry.get("offset")) or 0.0
        if begin > 0 or duration is not None:
            parts.append(as_seconds(begin))
        if duration is not None:
            parts.append(as_seconds(begin + duration))
        return "-".join(parts)


def _short_name(entry: dict[str, Any]) -> str | None:
    audio, own = entry.get("audio"), [entry.get(key) not in (None, "") for key in ("id", "uri")]
    if any(own) or not isinstance(audio, str) or not audio:
        return None
    begin = seconds_in(entry.get("offset"))
    return f"{PurePath(audio).stem}-{as_seconds(begin)}" if begin else PurePath(audio).stem


def make_reading(
    entry: dict[str, Any],
    folders: Sequence[Path],
    where: str,
    part: Part | None = None,
    unnamed: str | None = None,
) -> ReadRecording:
    """Return the recording of a line, whose files are in ``folders``; its audio may be a ``part`` of one.

    ``unnamed`` is its name where the line has none. Raises DataError, with ``where`` it is.
    """
    audio = _text(entry, "audio", where)
    if audio is None:
        raise DataError(f"{where}: the key audio is missing, the name of the file; there are {', '.join(entry)}")
    path = named_file(folders, audio, where) if part is None else part
    try:
        header = read_header(path)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    rate = _number(entry, "sampling_rate", where)
    # Opus is decoded at any rate, so its manifest may name another one than its header.
    if rate is not None and rate != header.sampling_rate and not header.is_opus:
        raise DataError(
            f"{where}: {path} has {header.sampling_rate} Hz, but sampling_rate is {rate:g}; fix one of them"
        )
    name = _text(entry, "id", where) or _text(entry, "uri", where) or Path(audio).stem
    cut = recording_cut(name, path, header, audio)
    _take_stretch(cut, entry, path, where)
    labels, remarks = _labels(entry, cut, folders, where)
    problem: DataError | None = None
    if labels is None:
        if entry.get("text") is None:
            return ReadRecording(audio, None, (NOTHING_SAID,))
        problem = DataError(f"{where}: the text of {audio} is empty; {EMPTY_TEXT}")
        labels, remarks = [_label_whole(entry, cut, None, "")], [NOTHING_SAID]
    left_out: LeftOutLabels = []
    alignment = _alignment(entry, cut, folders, where, left_out)
    if alignment is not None:
        labels = list(aligned(labels, list_times(alignment)))
    kept, more = within(labels, cut.duration, where)
    # A UEM names the recording: keep its short name for that, where the cut gets a longer one to be unique.
    stem, cut.id = cut.id, _text(entry, "id", where) or _text(entry, "uri", where) or unnamed or cut.id
    label(cut, kept)
    more += name_left_out(left_out)
    uem = _text(entry, "uem", where)
    if uem is not None:
        parts = _find_annotations(read_uem(named_file(folders, uem, where), keep_bad=True), stem, uem, where)
        more += set_uem(cut, parts, where)
    return ReadRecording(audio, cut, (*remarks, *more, *header_remarks(header)), problem)


def _take_stretch(cut: Any, entry: dict[str, Any], path: Path | Part, where: str) -> None:
    """Trim the cut to ``offset`` and ``duration``."""
    offset, duration = _number(entry, "offset", where) or 0.0, _number(entry, "duration", where)
    rest = cut.duration - offset
    if duration is not None and duration > rest + DURATION_SLACK_SECONDS:
        raise DataError(
            f"{where}: {path} lasts {cut.duration:.3f} s, but the manifest says {offset + duration:.3f} s: the file is "
            "truncated, or the manifest is of another file"
        )
    if rest <= 0:
        raise DataError(f"{where}: offset {offset:g} s is beyond the end of {path} ({cut.duration:.3f} s)")
    cut.start = offset
    # A rounded duration near the end means the whole rest: don't cut off its last milliseconds.
    cut.duration = rest if duration is None or duration > rest - DURATION_SLACK_SECONDS else duration
    if cut.duration <= 0:
        raise DataError(f"{where}: duration is {duration:g} s")


def _labels(
    entry: dict[str, Any], cut: Any, folders: Sequence[Path], where: str
) -> tuple[list[Labelled] | None, list[str]]:
    """Who says what, in seconds of the cut; None if the line has no labels."""
    segments, rttm = entry.get("segments"), _text(entry, "rttm", where)
    # RTTM times count from the start of the file, segments from the start of the cut.
    if rttm is not None and cut.start > 0:
        raise DataError(
            f"{where}: times of rttm start at the beginning of the file, so offset can't be used; give segments"
        )
    if rttm is not None:
        found = _find_annotations(read_rttm(named_file(folders, rttm, where), keep_bad=True), cut.id, rttm, where)
        # No upper limit here: ``within`` clips labels beyond the end, or refuses them if they are most of all.
        found, remarks = usable_labels(found, [(one, "") for one in found], math.inf, where)
        joined = merged(found)
        return [Labelled(segment) for segment in joined], [*remarks, *[OVERLAPPING] * (len(joined) < len(found))]
    if segments is not None:
        if not isinstance(segments, list):
            raise DataError(f"{where}: segments is a {type(segments).__name__}, not a list of start, end, speaker")
        labels = [_labelled_segment(one, where, number) for number, one in enumerate(segments, 1)]
        # Before they are sorted: times that couldn't be read have no order.
        kept, remarks = usable_labels(labels, [(one.segment, one.where) for one in labels], math.inf, where)
        return sorted(kept, key=lambda one: one.segment), remarks
    speaker, text = _text(entry, "speaker", where), entry.get("text")
    # An empty text means silence, unlike a missing one.
    text = "" if isinstance(text, str) and not text.strip() else _text(entry, "text", where)
    if speaker is None and not text and all(entry.get(key) is None for key in ALIGNMENTS):
        return None, []
    return [_label_whole(entry, cut, speaker, text)], []


def _label_whole(entry: dict[str, Any], cut: Any, speaker: str | None, text: str | None) -> Labelled:
    """Return all of a cut, with a text and a line's own labels."""
    rest = {key: value for key, value in entry.items() if key not in KNOWN and isinstance(value, str | int | float)}
    return Labelled(Segment(0.0, cut.duration, speaker or ""), text, None, {**rest, NO_TIMES: True})


def _alignment(
    entry: dict[str, Any], cut: Any, folders: Sequence[Path], where: str, left_out: LeftOutLabels
) -> Alignment | None:
    """When its words and phones are spoken, in seconds of the cut; None if the line doesn't say.

    Those without times that can be used go to ``left_out``.
    """
    given = [key for key in ALIGNMENTS if entry.get(key) is not None]
    if len(given) > 1:
        raise DataError(f"{where}: {given[0]} and {given[1]} are alignments; give one of them")
    if not given:
        return None
    if given == ["alignment"] and not isinstance(entry["alignment"], str):
        return parse_alignment(entry["alignment"], where, left_out)
    if cut.start > 0:
        raise DataError(
            f"{where}: times of {given[0]} start at the beginning of the file, so offset can't be used; give them as a "
            "list of [start, end, symbol]"
        )
    path = named_file(folders, _text(entry, given[0], where) or "", where)
    if given != ["alignment"] and path.suffix.lower() != f".{given[0]}":
        raise DataError(f"{where}: {given[0]} is {path.name}; expected a file that ends with .{given[0]}")
    try:
        return read_alignment(path, cut.id, left_out)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def _labelled_segment(entry: Any, where: str, number: int) -> Labelled:
    if not isinstance(entry, dict):
        raise DataError(f"{where}: a segment is an object with start, end and speaker, not a {type(entry).__name__}")
    start = end = 0.0
    problem = str(entry.get(PROBLEM) or "")
    if not problem:
        try:
            start, end = _times(entry, where)
        except DataError as error:
            problem = str(error).removeprefix(f"{where}: ")
    segment, text = Segment(start, end, _text(entry, "speaker", where) or ""), _text(entry, "text", where)
    place = str(entry.get(PLACE) or f"{where}, segment {number}")
    return Labelled(segment, text, where=place, problem=problem)


def _times(entry: dict[str, Any], where: str) -> tuple[float, float]:
    start, end = _number(entry, "start", where), _number(entry, "end", where)
    if start is None or end is None:
        raise DataError(f"{where}: a segment from {start} to {end}; start and end are seconds, the end the later one")
    return start, end


def _find_annotations(found: dict[str, Any], name: str, file: str, where: str) -> Any:
    """The annotations of the recording: those of its name, or the only ones; an empty file means that there is none."""
    if not found:
        return []
    # With a single recording in the file, its name may differ from the audio's.
    if name not in found and len(found) != 1:
        raise DataError(f"{where}: {file} has no recording {name}; it has {', '.join(found) or 'none'}")
    return found[name] if name in found else next(iter(found.values()))


def _number(entry: dict[str, Any], key: str, where: str) -> float | None:
    """Return a number that isn't negative, or None if there is none. Raises DataError for anything else."""
    value = entry.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise DataError(f"{where}: {key} is {value!r}; expected a number, 0 or more")
    return float(value)


def _text(entry: dict[str, Any], key: str, where: str) -> str | None:
    """Return a text, or a whole number as one; None if there is none. Raises DataError for anything else."""
    value = entry.get(key)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DataError(f"{where}: {key} is a {type(value).__name__}; expected a text")
    return str(value)


SPLIT_FOLDERS = {"train": "Train", "valid": "Dev", "test": "Test"}
"""Usual names of the folders of splits."""
MANIFESTS = (".jsonl", *ENDINGS)
SIMILARITY = 0.66
"""How alike names are of which one is taken for the other misspelt: dve and dev, but not data and dev."""


class SplitFolderReader(JsonReader):
    """The recordings of a folder's splits (``vaak.core.corpus.Source``)."""

    def __init__(self, dataset: DatasetConfig) -> None:
        """Look up the folders.

        Raises DataError for a folder that isn't there, has no Train, or has another in place of a Dev, misspelt.
        """
        root = Path(dataset.corpus_dir or dataset.name).expanduser()
        if not root.is_dir():
            raise DataError(f"datasets, {dataset.name}: corpus_dir: no such folder: {root}")
        names = {one: SPLIT_NAMES.get(one.name.lower()) for one in sorted(root.iterdir())}
        self._splits = {split: one for one, split in names.items() if split is not None}
        self.folders_there = list_contents(root)
        others = sorted(one.name for one in root.iterdir() if one.is_dir() and one not in self._splits.values())
        for split in ("train", "valid"):
            meant = None if split in self._splits else _meant_for(split, root, others)
            if split not in self._splits and (meant or split == "train"):
                hint = f"; did you mean {meant}? Rename it {SPLIT_FOLDERS[split]}" if meant else ""
                raise DataError(
                    f"datasets, {dataset.name}: {root} has no folder {SPLIT_FOLDERS[split]}; "
                    f"it has {self.folders_there}{hint}"
                )
        CorpusReader.__init__(self, dataset)
        self.given, self._columns = tuple(self._splits), dataset.columns
        found = {split: sorted(one.rglob("*")) for split, one in self._splits.items()}
        self._manifests = {
            split: [path for path in paths if path.suffix.lower() in MANIFESTS] for split, paths in found.items()
        }
        # Without manifests, JSON files of speakers; without those, audio with texts of the same names.
        self._others = {
            split: [path for path in paths if path.suffix.lower() == ".json"] or list(filter(is_audio, paths))
            for split, paths in found.items()
        }
        self._names = {split: EntryNames(partial(self._read_entries, split)) for split in self.given}
        read = [path for split in self.given for path in self._manifests[split] or self._others[split]]
        texts = [path.with_suffix(".txt") for path in read if is_audio(path)]
        self.files = [*read, *(path for path in texts if path.exists())]

    def read(self, split: str) -> Iterator[ReadRecording]:
        if self._manifests[split]:
            yield from super().read(split)
            return
        for path in track(self._others[split], f"files of {split}"):
            if path.suffix.lower() == ".json":
                for where, entry, problem in _read_speaker(path):
                    read = partial(make_reading, entry, (path.parent, *self.roots), where)
                    yield attempted(where, read) if problem is None else ReadRecording(where, None, problem=problem)
            else:
                yield attempted(str(path), partial(self._read_audio, path, self._splits[split]))

    def named_files(self) -> Iterator[tuple[str, Path]]:
        for path in self.files:
            if path.suffix.lower() in MANIFESTS:
                yield from self._named_in(path)
            elif path.suffix.lower() == ".json":
                for _, entry, problem in _read_speaker(path):
                    if problem is None:
                        yield str(entry["audio"]), resolve_path((path.parent, *self.roots), str(entry["audio"]))

    def _read_audio(self, path: Path, root: Path) -> ReadRecording:
        transcript = path.with_suffix(".txt")
        if not transcript.is_file():
            raise DataError(f"{transcript}: the transcript of {path.name} doesn't exist")
        text = "\n".join(read_text_lines(transcript)).strip()
        *folders, name = path.relative_to(root).parts
        group = {"etiology": folders[0]} if folders else {}
        entry = {"id": "-".join(path.relative_to(root).with_suffix("").parts), "audio": name, "text": text, **group}
        return make_reading(entry, (path.parent, *self.roots), str(path))


def _meant_for(split: str, root: Path, names: list[str]) -> str | None:
    """Return the first folder with data whose name is nearly one of a split's, such as Deev or development."""
    known = [name for name, own in SPLIT_NAMES.items() if own == split]
    for name in names:
        is_alike = difflib.get_close_matches(name.lower(), known, n=1, cutoff=SIMILARITY) or name.lower().startswith(
            known[0]
        )
        if is_alike and any(
            path.suffix.lower() in (*MANIFESTS, ".json") or is_audio(path) for path in (root / name).rglob("*")
        ):
            return name
    return None


def _read_speaker(path: Path) -> Iterator[ManifestLine]:
    """The recordings of a speaker; a file of another kind is a problem, and so is each entry of Files without a key."""
    try:
        # The file may be in UTF-8, 16 or 32.
        about = json.loads(path.read_bytes())
        speaker, etiology, files = about.get("Contact ID", path.stem), about.get("Etiology"), list(about["Files"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        expected = "expected Etiology and Files, each with Filename and Prompt: Transcript"
        reason = f" ({error})" if isinstance(error, OSError | ValueError) else ""
        yield ManifestLine(str(path), {}, DataError(f"{path}: {expected}{reason}"))
        return
    for number, one in enumerate(files, start=1):
        where = f"{path}, file {number}"
        try:
            entry = {"audio": one["Filename"], "text": one["Prompt"]["Transcript"], "speaker": speaker}
        except (KeyError, TypeError):
            yield ManifestLine(where, {}, DataError(f"{where}: expected Filename and Prompt: Transcript"))
            continue
        yield ManifestLine(where, entry | ({"etiology": etiology} if etiology else {}))
