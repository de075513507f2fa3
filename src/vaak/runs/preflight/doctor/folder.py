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
from vaak.audio.corpora.downloads import READERS
from vaak.audio.corpora.entries import CorpusReader
from vaak.audio.corpora.layouts import LayoutReader, subfolders
from vaak.audio.corpora.transcripts import TranscriptsReader, lists_speakers
from vaak.audio.cuts.reading import get_language
from vaak.audio.cuts.recordings import ReadRecording, attempted
from vaak.core.errors import DataError, UserError
from vaak.core.splits import SPLITS
from vaak.core.storage.tables import is_table
from vaak.runs.preflight.doctor.manifests import (
    FIRST_RECORDINGS,
    Reasons,
    make_reader,
    opens,
    options_by_manifests,
    try_reading,
    with_dialect,
)
from vaak.runs.preflight.doctor.text_layouts import recognize_texts
from vaak.runs.preflight.doctor.texts import Dialect, FoundTexts, find_texts, read_texts
from vaak.runs.preflight.doctor.unusable import describe_unusable

log = logging.getLogger("vaak")
SURVEY_SECONDS = 45.0
"""How long a folder is looked at."""
SAMPLE = 2000
"""Recordings of a split whose headers are read."""
MOST_TEXTS = 20_000
"""Texts of a split whose lengths are kept."""
EXAMPLES_SHOWN = 3
LAYOUT_KINDS = {"texts": "text", "labelled texts": "labelled text", "pairs": "pairs", "chat": "conversations",
         "preferences": "pairs of answers"}  # fmt: skip
"""Names of texts by what they are, or by type."""
MOST_CORPORA = 20


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
    """Counts of the labels of labelled texts."""
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
        # Case, punctuation and spaces don't count.
        plain = text.casefold().translate(_PLAIN)
        digest = hashlib.blake2b(plain.encode(errors="surrogatepass"), digest_size=8).digest()
        self.texts.add(int.from_bytes(digest))
        if len(self.lengths) < MOST_TEXTS:
            self.lengths.append(len(text))
            self.characters.update(text)
        if len(self.examples) < EXAMPLES_SHOWN:
            self.examples.append(text)

    def add_reading(self, reading: ReadRecording) -> None:
        """Count what the header of a recording says."""
        # With a cut and remarks, only its text is empty.
        if reading.problem is not None and (reading.cut is None or not reading.remarks):
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
    """For texts: recordings that are there, too, and aren't read with them."""
    audio_problem: str | None = None
    """For texts: why the recordings that their files name can't be read."""

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


def survey_folder(folder: Path, seconds: float = SURVEY_SECONDS, dialect: Dialect | None = None) -> list[CorpusSurvey]:
    """Find the corpora in a folder, or the one that a file is. The ``dialect`` applies to all tables.

    Raises UserError if none are found, with a list of the contents.
    """
    if not folder.exists():
        raise UserError(f"{folder}: no such file or folder")
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
    """Return the corpora in a folder, of all layouts; where several fit the same files, the most specific one."""
    found: list[CorpusSurvey] = []
    reasons: Reasons = {}

    def is_new(root: Path) -> bool:
        return not any(root.is_relative_to(one.folder) or one.folder.is_relative_to(root) for one in found)

    for kind in LAYOUT_ORDER:
        for root in READERS[kind].roots_in(folder, [one.folder for one in found]):
            if is_new(root) and _fits(kind, root):
                options = with_dialect({"type": kind, "corpus_dir": str(root)}, dialect)
                found.append(CorpusSurvey(root, kind, options))
    # What has audio comes first: a list of it is no text.
    for find in (partial(_options_by_files, reasons=reasons), find_texts):
        for root in (folder, *subfolders(folder)):
            if is_new(root) and (by_files := find(root, dialect)):
                found.append(_survey(root, by_files))
                if root == folder:
                    break
    return _explain_unread(found, reasons)[:MOST_CORPORA]


def _explain_unread(found: list[CorpusSurvey], reasons: Reasons) -> list[CorpusSurvey]:
    """What was found, texts with why the recordings that they name can't be read; without texts, the reasons alone."""
    for root, reason in reasons.items():
        texts = [one for one in found if root.is_relative_to(one.folder) or one.folder.is_relative_to(root)]
        for one in texts:
            one.audio_problem = one.audio_problem or reason
        if not texts:
            found.append(CorpusSurvey(root, "audio", {}, problem=reason))
    return found


def recognised_file(path: Path, dialect: Dialect | None = None) -> list[CorpusSurvey]:
    """Return the corpus that a single file is: a table or manifest, an archive, or audio with its text next to it."""
    reasons: Reasons = {}
    if is_table(path) or path.name.endswith((".jsonl", ".jsonl.gz")):
        options = options_by_manifests([path], path.parent, dialect, reasons)
    elif path.suffix.lower() in TranscriptsReader.ARCHIVES or is_audio(path):
        options = {"type": "transcripts", "corpus_dir": str(path.parent), "train": [path.name]}
        options = with_dialect(options, dialect)
        options = options if opens(options) else None
    else:
        options = None
    found = find_texts(path, dialect) if options is None else options
    return _explain_unread([] if found is None else [_survey(path, found)], reasons)


def _survey(place: Path, found: dict[str, Any] | FoundTexts) -> CorpusSurvey:
    if isinstance(found, dict):
        return CorpusSurvey(place, str(found["type"]), found)
    kind = LAYOUT_KINDS.get(found.corpus["type"]) or LAYOUT_KINDS[recognize_texts(found.corpus)]
    return CorpusSurvey(place, kind, {"corpus": found.corpus}, note=found.note, unread_audio=found.unread_audio)


LAYOUT_ORDER = (
    *("commonvoice", "fleurs", "voxpopuli", "librispeech", "ami", "shar", "webdataset", "espnet", "kaldi", "nemo"),
    "parquet",
)
"""Layouts that are known by their folders; ``transcripts`` is what other audio may be, and comes last."""


def _fits(kind: str, root: Path) -> bool:
    """Return whether a folder with this layout's files has this layout, where other layouts have such files, too."""
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
            return bool(lines) and (kind == "parquet" or has_labels or not opens(paired))
        except DataError:
            return False
    return True


def _options_by_files(root: Path, dialect: Dialect | None, reasons: Reasons) -> dict[str, Any] | None:
    """Return the options of a corpus of audio recognised by its files: manifests, or audio with annotations."""
    # The most particular layout first: a folder of audio opens nearly anything.
    options = with_dialect({"type": "ljspeech", "corpus_dir": str(root)}, dialect)
    listed = root / "metadata.csv"
    if listed.is_file() and (root / "wavs").is_dir() and not lists_speakers(listed) and opens(options):
        return options
    options = with_dialect({"type": "splits", "corpus_dir": str(root)}, dialect)
    if any(one.name.lower() == "train" for one in subfolders(root)) and opens(options):
        return options
    manifests = sorted(path for path in root.iterdir() if is_table(path) or path.name.endswith((".jsonl", ".jsonl.gz")))
    if by_manifests := options_by_manifests(manifests, root, dialect, reasons):
        return by_manifests
    for kind in ({"type": "folder", "train": [str(root)]}, {"type": "transcripts", "corpus_dir": str(root)}):
        options = with_dialect(kind, dialect)
        attempt = try_reading(options)
        if attempt.opens:
            return options
        if attempt.problem:
            reasons.setdefault(root, attempt.problem)
    return None


def _examine(corpus: CorpusSurvey, seconds: float) -> None:
    """Fill in the splits of a corpus, within about ``seconds``."""
    if corpus.problem is not None:
        return
    begun = time.monotonic()
    try:
        if corpus.is_text:
            _examine_texts(corpus, begun + seconds)
        else:
            _examine_recordings(corpus, make_reader(corpus.options), seconds)
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
