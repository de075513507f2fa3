"""Findings on a folder of data: its layout, its splits in figures, and what leaks between them.

Descriptions (tables, manifests, headers of tars) are read whole, as long as the time lasts; for audio, the headers of
some recordings of each split, drawn at random. Where not all were read, hours are extrapolated and marked as such.
"""

from __future__ import annotations

import hashlib
import logging
import random
import statistics
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from vaak.audio.audio_file import is_audio
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.audio.corpora.downloads import READERS
from vaak.audio.corpora.entries import CorpusReader, manifest_lines, resolve_path
from vaak.audio.corpora.layouts import LayoutReader, split_named, subfolders
from vaak.audio.corpora.transcripts import TranscriptsReader, lists_speakers
from vaak.audio.cuts.reading import get_language
from vaak.audio.cuts.recordings import ReadRecording, attempted
from vaak.core.errors import DataError, UserError
from vaak.core.splits import SPLITS
from vaak.core.storage.tables import Table, is_table
from vaak.runs.preflight.doctor.columns import MOST_ROWS, find_columns
from vaak.runs.preflight.doctor.text_layouts import recognize_texts
from vaak.runs.preflight.doctor.texts import Dialect, FoundTexts, find_texts, read_texts, said_of_tables
from vaak.runs.preflight.doctor.unusable import describe_unusable

log = logging.getLogger("vaak")
SECONDS = 45.0
"""How long a folder is looked at."""
SAMPLE = 2000
"""Recordings of a split whose headers are read."""
MOST_TEXTS = 20_000
"""Texts of a split whose lengths are kept."""
EXAMPLES = 3
KINDS = {"texts": "text", "labelled texts": "labelled text", "pairs": "pairs", "chat": "conversations",
         "preferences": "pairs of answers"}  # fmt: skip
"""Names of texts by what they are, or by type."""
MOST_CORPORA = 20
FIRST_RECORDINGS = 100
"""Recordings of which one, at least, has to be read where files may be in a layout."""
TIMES = frozenset({"offset", "end", "duration"})
"""Columns that say which section of a file a row is."""


class CorpusEntry(NamedTuple):
    """A recording's description: its labels, and how its audio is read."""

    name: str
    speakers: tuple[str, ...]
    texts: tuple[str, ...]
    language: str | None
    read: Callable[[], ReadRecording]


@dataclass
class SplitSurvey:
    """The part of a split that was read. ``is_whole`` where its description was read to the end."""

    num_entries: int = 0
    is_whole: bool = True
    num_texts: int = 0
    num_characters: int = 0
    speakers: set[str] = field(default_factory=set)
    labels: Counter[str] = field(default_factory=Counter)
    """Of labelled texts, how often each label is."""
    texts: set[int] = field(default_factory=set)
    """Digests, to compare splits."""
    languages: Counter[str] = field(default_factory=Counter)
    characters: Counter[str] = field(default_factory=Counter)
    lengths: list[int] = field(default_factory=list)
    """Characters of texts."""
    examples: list[str] = field(default_factory=list)
    durations: list[float] = field(default_factory=list)
    """Seconds of the recordings whose headers were read."""
    rates: Counter[int] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    without_labels: int = 0
    most_speakers: int = 0

    @property
    def num_read(self) -> int:
        return len(self.durations) + len(self.broken) + self.without_labels

    @property
    def hours(self) -> float | None:
        """The hours of all recordings, by the mean of those that were read."""
        mean = statistics.fmean(self.durations) if self.durations else None
        usable = self.num_entries * len(self.durations) / max(1, self.num_read)
        return None if mean is None else mean * usable / 3600

    @property
    def is_exact(self) -> bool:
        return self.is_whole and self.num_read == self.num_entries

    def add(self, entry: CorpusEntry) -> None:
        """Count what the description of a recording says."""
        self.num_entries += 1
        self.speakers.update(entry.speakers)
        self.most_speakers = max(self.most_speakers, len(set(entry.speakers)))
        if entry.language:
            self.languages[entry.language] += 1
        for text in entry.texts:
            self.add_text(text)

    def add_text(self, text: str) -> None:
        self.num_texts += 1
        self.num_characters += len(text)
        plain = text.casefold().translate(_PLAIN)  # without its case, punctuation and spaces
        digest = hashlib.blake2b(plain.encode(errors="surrogatepass"), digest_size=8).digest()
        self.texts.add(int.from_bytes(digest))
        if len(self.lengths) < MOST_TEXTS:
            self.lengths.append(len(text))
            self.characters.update(text)
        if len(self.examples) < EXAMPLES:
            self.examples.append(text)

    def add_reading(self, reading: ReadRecording) -> None:
        """Count what the header of a recording says."""
        if reading.problem is not None:
            self.broken.append(str(reading.problem))
        elif reading.cut is None:
            self.without_labels += 1
        else:
            self.durations.append(float(reading.cut.duration))
            self.rates[int(reading.cut.sampling_rate)] += 1


@dataclass
class CorpusSurvey:
    """A corpus that was recognised: its options in a YAML, and its splits; ``problem`` is why it can't be read."""

    folder: Path
    kind: str
    options: dict[str, Any]
    splits: dict[str, SplitSurvey] = field(default_factory=dict)
    problem: str | None = None
    seconds: float = 0.0
    note: str = ""
    """Which columns, files or folders are what."""
    unread_audio: int = 0
    """Of texts: recordings that are there, too, and aren't read with them."""

    @property
    def is_text(self) -> bool:
        return "corpus" in self.options

    def leaks(self) -> Iterator[tuple[str, str, int, int]]:
        """Entries of other splits that are in train, too: of which kind and split, how many, of how many."""
        train = self.splits.get("train")
        for name, one in self.splits.items():
            if train is not None and one is not train:
                if one.speakers:
                    yield "speakers", name, len(one.speakers & train.speakers), len(one.speakers)
                if one.texts:
                    yield "texts", name, len(one.texts & train.texts), len(one.texts)


class _PlainCharacters(dict[int, int | None]):
    """For ``str.translate``: letters, marks and digits stay. Filled as characters come: to look one up is slow."""

    def __missing__(self, code: int) -> int | None:
        self[code] = code if unicodedata.category(chr(code))[0] in "LMN" else None
        return self[code]


_PLAIN = _PlainCharacters()


def survey_folder(folder: Path, seconds: float = SECONDS, dialect: Dialect | None = None) -> list[CorpusSurvey]:
    """Find the corpora in a folder, or the one that a file is. The ``dialect`` applies to all tables.

    Raises UserError where none are found, with a list of the contents.
    """
    if not folder.exists():
        raise UserError(f"{folder}: no such folder")
    try:
        found = (recognised if folder.is_dir() else recognised_file)(folder, dialect)
    except OSError as error:
        raise UserError(f"{error.filename}: can't be read: {error.strerror}") from error
    if not found:
        raise UserError(describe_unusable(folder))
    begun = time.monotonic()
    for number, corpus in enumerate(found):
        # Time that one corpus leaves goes to those after it; each gets a second, however late it is.
        left = seconds - (time.monotonic() - begun)
        _examine(corpus, max(1.0, left / (len(found) - number)))
    return found


def recognised(folder: Path, dialect: Dialect | None = None) -> list[CorpusSurvey]:
    """The corpora in a folder, of all layouts; where several fit the same files, the most specific one."""
    found: list[CorpusSurvey] = []

    def is_new(root: Path) -> bool:
        return not any(root.is_relative_to(one.folder) or one.folder.is_relative_to(root) for one in found)

    for kind in ORDER:
        for root in READERS[kind].roots_in(folder, [one.folder for one in found]):
            if is_new(root) and _fits(kind, root):
                options = _with_dialect({"type": kind, "corpus_dir": str(root)}, dialect)
                found.append(CorpusSurvey(root, kind, options))
    for find in (_options_by_files, find_texts):  # what has audio first: a list of it is no text
        for root in (folder, *subfolders(folder)):
            if is_new(root) and (by_files := find(root, dialect)):
                found.append(_survey(root, by_files))
                if root == folder:
                    break
    return found[:MOST_CORPORA]


def recognised_file(path: Path, dialect: Dialect | None = None) -> list[CorpusSurvey]:
    """The corpus that a single file is: a table or manifest, an archive, or audio with its text next to it."""
    if is_table(path) or path.name.endswith((".jsonl", ".jsonl.gz")):
        options = _options_by_manifests([path], path.parent, dialect)
    elif path.suffix.lower() in TranscriptsReader.ARCHIVES or is_audio(path):
        options = {"type": "transcripts", "corpus_dir": str(path.parent), "train": [path.name]}
        options = _with_dialect(options, dialect)
        options = options if _opens(options) else None
    else:
        options = None
    found = find_texts(path, dialect) if options is None else options
    return [] if found is None else [_survey(path, found)]


def _with_dialect(options: dict[str, Any], dialect: Dialect | None) -> dict[str, Any]:
    """The options with the dialect of tables, where their type reads some."""
    extra: Any = DatasetConfig.model_fields["dialect"].json_schema_extra
    return options | ({"dialect": {**dialect}} if dialect and options["type"] in extra["only_for"] else {})


def _survey(place: Path, found: dict[str, Any] | FoundTexts) -> CorpusSurvey:
    if isinstance(found, dict):
        return CorpusSurvey(place, str(found["type"]), found)
    kind = KINDS.get(found.corpus["type"]) or KINDS[recognize_texts(found.corpus)]
    return CorpusSurvey(place, kind, {"corpus": found.corpus}, note=found.note, unread_audio=found.unread_audio)


ORDER = (
    *("commonvoice", "fleurs", "voxpopuli", "librispeech", "ami", "shar", "webdataset", "espnet", "kaldi", "nemo"),
    "parquet",
)
"""Layouts that are known by their folders; ``transcripts`` is what other audio may be, and comes last."""


def _fits(kind: str, root: Path) -> bool:
    """Whether a folder with this layout's files has this layout, where other layouts have such files, too."""
    if kind == "espnet":
        return (root / "dump" / "raw").is_dir() or next(root.glob("*/feats_type"), None) is not None
    if kind in ("parquet", "webdataset"):
        try:
            reader = READERS[kind](DatasetConfig(name="data", type=kind, corpus_dir=str(root)), AudioConfig())
            lines = list(islice(reader.lines(next(iter(reader.parts.values()))[0]), FIRST_RECORDINGS))
            # Tars whose entries have neither text nor speaker may be plain archives of audio, with texts in files next
            # to them.
            has_labels = any("text" in line.entry or "speaker" in line.entry for line in lines)
            paired = {"type": "transcripts", "corpus_dir": str(root)}
            return bool(lines) and (kind == "parquet" or has_labels or not _opens(paired))
        except DataError:
            return False
    return True


def _options_by_files(root: Path, dialect: Dialect | None) -> dict[str, Any] | None:
    """Return the options of a corpus of audio recognised by its files: manifests, or audio with annotations."""
    options = _with_dialect({"type": "ljspeech", "corpus_dir": str(root)}, dialect)
    listed = root / "metadata.csv"
    if listed.is_file() and (root / "wavs").is_dir() and not lists_speakers(listed) and _opens(options):
        return options
    options = _with_dialect({"type": "splits", "corpus_dir": str(root)}, dialect)
    if any(one.name.lower() == "train" for one in subfolders(root)) and _opens(options):
        return options
    manifests = sorted(path for path in root.iterdir() if is_table(path) or path.name.endswith((".jsonl", ".jsonl.gz")))
    if by_manifests := _options_by_manifests(manifests, root, dialect):
        return by_manifests
    for kind in ({"type": "folder", "train": [str(root)]}, {"type": "transcripts", "corpus_dir": str(root)}):
        if _opens(options := _with_dialect(kind, dialect)):
            return options
    return None


def _options_by_manifests(manifests: list[Path], root: Path, dialect: Dialect | None) -> dict[str, Any] | None:
    if manifests and is_table(manifests[0]) and _is_without_header(manifests[0], root, dialect):
        # Its first row is a recording: this is a list of names and texts, not a manifest.
        return None
    named: dict[str, list[str]] = {}
    for path in manifests:
        named.setdefault(split_named(path.name.partition(".")[0]) or "train", []).append(str(path))
    first = [*map(Path, named.get("train", ())), *manifests]
    found = _with_dialect({"type": "json", **named, **_columns_in(first, root, dialect)}, dialect)
    whole = found | {"columns": {key: one for key, one in found.get("columns", {}).items() if key not in TIMES}}
    # lhotse's cuts are JSON lines, too, so their own reader tries first.
    cuts = [] if any(map(is_table, manifests)) else [{"type": "cuts", **named}]
    # Columns of times may be in other units, or times in something else: then the table is read without them.
    for options in (*cuts, found, whole):
        if manifests and _opens(options):
            return options
    return None


def _is_without_header(table: Path, root: Path, dialect: Dialect | None) -> bool:
    """Whether the first row of a table names a recording that is there."""
    try:
        first = dict.fromkeys(Table(table, given=said_of_tables(dialect)).names)
    except DataError:
        return False
    folders = [table.parent, *_folders_of_audio(root)]
    endings = ("", ".wav", ".flac", ".mp3", ".ogg", ".opus")
    named = {f"{name}{ending}": f"{name}{ending}" for name in first for ending in endings}
    return any(True for folder in folders for _ in _names_in(named, folder))


def _columns_in(manifests: list[Path], root: Path, dialect: Dialect | None) -> dict[str, Any]:
    """The columns of the first manifest that have other names than ours, and the folder in which its audio is."""
    try:
        lines = islice(manifest_lines(manifests[0], said_of_tables(dialect)), MOST_ROWS)
        rows = [line.entry for line in lines if line.problem is None]
    except (DataError, IndexError):
        return {}
    if not rows:
        return {}
    folders = [manifests[0].parent, *_folders_of_audio(root)]
    # In reverse, so that the first folder wins where several have a file of this name.
    where = {name: one for one in reversed(folders) for row in rows for name in _names_in(row, one)}
    roles = ("audio", "text", "speaker", "language", "start", "end", "duration")
    found = find_columns(list(rows[0]), rows, roles, is_audio=where.__contains__)
    columns = {name: own for name, own in _sections_in(found.columns).items() if own != name}
    log.info("%s: %s", manifests[0], found.describe())
    options: dict[str, Any] = {"columns": columns} if columns else {}
    named = [str(row[found.columns["audio"]]) for row in rows] if "audio" in found.columns else []
    # The folder that has most of them comes first in audio_root.
    elsewhere = Counter(where[name] for name in named if name in where and where[name] != folders[0])
    return options | ({"audio_root": [str(one) for one, _ in elsewhere.most_common()]} if elsewhere else {})


def _sections_in(columns: dict[str, str]) -> dict[str, str]:
    """The columns as a manifest of sections has them: a start needs an end, or a duration.

    >>> _sections_in({"audio": "file", "start": "from", "end": "to"})
    {'audio': 'file', 'offset': 'from', 'end': 'to'}
    """
    start, end = columns.get("start"), columns.get("end")
    named = {name: own for name, own in columns.items() if name not in ("start", "end")}
    if start is not None and "duration" in columns:
        return named | {"offset": start}
    return named | ({"offset": start, "end": end} if start is not None and end is not None else {})


def _folders_of_audio(root: Path) -> list[Path]:
    """The folders below a folder that have audio, at most ``MOST_CORPORA``."""
    found: list[Path] = []
    level = subfolders(root)
    for _ in range(3):
        found += [one for one in level if any(map(is_audio, islice(one.iterdir(), FIRST_RECORDINGS)))]
        level = [path for one in level[:FIRST_RECORDINGS] for path in subfolders(one)]
    return found[:MOST_CORPORA]


def _names_in(row: dict[str, Any], folder: Path) -> Iterator[str]:
    """The values of a row that name a file of audio in a folder, with its ending or without."""
    for value in row.values():
        if isinstance(value, str) and 0 < len(value) < 256:
            path = resolve_path((folder,), value)
            try:
                if is_audio(path) and path.is_file():
                    yield value
            except (OSError, ValueError):
                continue


def _opens(options: dict[str, Any]) -> bool:
    """Whether the options describe a corpus of which something can be read."""
    try:
        reader = _make_reader(options)
        first = islice(reader.read(reader.given[0]), FIRST_RECORDINGS)
        return any(one.cut is not None for one in first)
    except UserError:
        return False


def _make_reader(options: dict[str, Any]) -> CorpusReader:
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    return AudioCorpus(DatasetConfig(**{"name": "data", **plain}), AudioConfig()).reader


def _examine(corpus: CorpusSurvey, seconds: float) -> None:
    """Fill in the splits of a corpus, within about ``seconds``."""
    begun = time.monotonic()
    try:
        if corpus.is_text:
            _examine_texts(corpus, begun + seconds)
        else:
            _examine_recordings(corpus, _make_reader(corpus.options), seconds)
    except UserError as error:
        corpus.problem = str(error)
    except OSError as error:
        corpus.problem = f"{error.filename}: can't be read: {error.strerror}"
    corpus.seconds = time.monotonic() - begun


def _examine_recordings(corpus: CorpusSurvey, reader: CorpusReader, seconds: float) -> None:
    """Read the descriptions in about half of the time, those of train last; then headers of what was drawn."""
    begun = time.monotonic()
    corpus.splits = {split: SplitSurvey() for split in reader.given}
    drawn: dict[str, list[CorpusEntry]] = {}
    # Training data is usually the largest by far, and would leave the other splits no time.
    order = sorted(reader.given, key=lambda split: split == "train")
    for number, split in enumerate(order):
        left = begun + seconds / 2 - time.monotonic()
        drawn[split] = _count_entries(corpus.splits[split], read_entries(reader, split), left / (len(order) - number))
    for number, split in enumerate(order):
        until = time.monotonic() + (begun + seconds - time.monotonic()) / (len(order) - number)
        for entry in drawn[split]:
            corpus.splits[split].add_reading(entry.read())
            if time.monotonic() > until:
                break
    said = any(one.num_texts or one.speakers for one in corpus.splits.values())
    if not said and (number := sum(1 for path in corpus.folder.rglob("*") if path.suffix.lower() == ".textgrid")):
        corpus.note = f"{number:,} .TextGrid have no tier of words or of speakers, so nothing is read of them"


def _count_entries(found: SplitSurvey, entries: Iterator[CorpusEntry], seconds: float) -> list[CorpusEntry]:
    """Count what is described within some seconds; returns some of it, drawn at random and shuffled."""
    rng, sample, until = random.Random(0), list[CorpusEntry](), time.monotonic() + seconds
    for entry in entries:
        found.add(entry)
        if len(sample) < SAMPLE:
            sample.append(entry)
        # Reservoir sampling (Vitter 1985, algorithm R): each entry so far is in the sample with the same probability.
        elif (place := rng.randrange(found.num_entries)) < SAMPLE:
            sample[place] = entry
        if found.num_entries % 100 == 0 and time.monotonic() > until:
            found.is_whole = False
            break
    # Headers are read in this order until the time is over, so it must be random as well.
    rng.shuffle(sample)
    return sample


def read_entries(reader: CorpusReader, split: str) -> Iterator[CorpusEntry]:
    """Yield the recordings of a split as described; a layout's audio isn't opened."""
    if isinstance(reader, LayoutReader):
        for part in reader.parts[split]:
            for line in reader.lines(part):
                # Not called here: audio is opened only for the entries that are drawn.
                read = partial(attempted, line.where, partial(reader.reading, line, part))
                said = line.entry
                labels = said.get("segments") or said.get("supervisions") or [said]
                speakers = tuple(str(one["speaker"]) for one in labels if one.get("speaker") not in (None, ""))
                texts = tuple(str(one["text"]) for one in labels if one.get("text"))
                language = said.get("language") or next(
                    (one["language"] for one in labels if one.get("language")), None
                )
                yield CorpusEntry(line.where, speakers, texts, language and str(language), read)
        return
    for reading in reader.read(split):
        labels = reading.cut.supervisions if reading.cut is not None else []
        speakers = tuple(one.speaker for one in labels if one.speaker)
        texts = tuple(one.text for one in labels if one.text)
        language = get_language(reading.cut) if reading.cut is not None else None
        yield CorpusEntry(reading.name, speakers, texts, language, partial(lambda one: one, reading))


def _examine_texts(corpus: CorpusSurvey, until: float) -> None:
    options = corpus.options["corpus"]
    for split in SPLITS:
        if split not in options:
            continue
        found = corpus.splits[split] = SplitSurvey()
        for one in read_texts(options, split):
            found.num_entries += 1
            found.broken += [one.problem] if one.problem else []
            if one.text.strip():
                found.add_text(one.text)
            if one.label is not None:
                found.labels[one.label] += 1
            if one.target is not None:
                found.num_characters += len(one.target)
                found.characters.update(one.target)
            if found.num_entries % 100 == 0 and time.monotonic() > until:
                found.is_whole = False
                break
    broken = [message for found in corpus.splits.values() for message in found.broken]
    if broken and not any(found.num_texts for found in corpus.splits.values()):
        corpus.problem = f"none of its texts can be used: {broken[0]}"
