"""Text of several sources, without duplicates, of some languages, mixed by weights, written once as shards to train on.

OUTPUT/
  train-00000.jsonl, train-00001.jsonl, ...   {"text": ..., "source": ...}
  cleaning.json                               options and counts by source; written last: it means "complete"

Sources are read twice, document by document. What the first pass notes of each (its size, why it is left out, a digest,
and a MinHash signature) is in files that are mapped, so memory depends on the number of documents alone, by some bytes
each, and not on the text.

near duplicates   a document is left out if its words' n-grams are as similar (Jaccard, estimated by 128 hashes) to
                  those of an earlier one; candidates are found by bands of hashes. Sources: Broder 1997; Lee et al.
                  2022, "Deduplicating Training Data Makes Language Models Better"
contamination     documents of evaluation sets of which an n-gram of words is in a document that is kept: counted, by
                  default. Source: Brown et al. 2020, "Language Models are Few-Shot Learners", appendix C (13-grams)
weights           shares of characters: given, or by temperature (n to the power 1/T, Conneau et al. 2020); a source
                  with less text than its share is repeated, one with more is sampled, by hashes
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from vaak.core.errors import DataError, UserError, optional_import
from vaak.core.left_out import report_files
from vaak.core.names import list_names, require_known
from vaak.core.progress import progress, track
from vaak.core.splits import hash_text, to_fraction
from vaak.core.storage.archives import open_file
from vaak.core.storage.files import sync_file, whole_folder, write_json
from vaak.core.storage.text_lines import detect_encoding
from vaak.text.corpora.readers import find_files, read_documents
from vaak.text.tokenizer import normalise

log = logging.getLogger("vaak")
CLEANING_FILE = "cleaning.json"
HUB = "hf:"
TYPE_BY_ENDING = {".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}
NUM_HASHES, NUM_BANDS = 128, 16
DOCUMENTS_AT_ONCE = 256
"""Documents whose signatures are computed together."""
REASONS = ("kept", "empty", "language", "duplicate", "near-duplicate", "contaminated")
TEXT_ROW = np.dtype([("source", "<u2"), ("reason", "u1"), ("length", "<u4"), ("digest", "<u8")])
LANGUAGE_CHARACTERS = 1000
"""At the beginning of a document, by which its language is told."""
MOST_REPEATS = 4.0
"""More gives little. Source: Muennighoff et al. 2023, "Scaling Data-Constrained Language Models"."""


@dataclass(frozen=True)
class CleaningOptions:
    """Which documents are left out, and how sources are mixed."""

    text_column: str = "text"
    document: str = "line"
    near_duplicates: float | None = 0.8
    """Similarity from which a document is one of an earlier one; None: only exact duplicates are left out."""
    ngram: int = 5
    languages: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    """Files of evaluation sets."""
    overlap: int = 13
    """Words that a document of an evaluation set and a training document share, where it is contaminated."""
    drop_contaminated: bool = False
    temperature: float | None = None
    shard_megabytes: int = 256

    # How files are read (vaak.text.corpora.readers.ReadingOptions).
    type: str = "text"
    on_invalid_utf8: str = "replace"


class CleaningSource(NamedTuple):
    """Documents of files or of a dataset, with their share of the mixture (None: in proportion to their size)."""

    name: str
    weight: float | None
    read: Callable[[], Iterator[str]]
    num_files: int | None = None
    """None for a dataset."""


@dataclass
class CleaningReport:
    """Counts of each source's documents; ``hit`` of ``evaluated`` evaluation documents are contaminated."""

    documents: dict[str, Counter[str]] = field(default_factory=dict)
    num_files: dict[str, int] = field(default_factory=dict)
    """Number of files of each source that has files."""
    characters: dict[str, int] = field(default_factory=dict)
    """The size of the documents that are kept."""
    repeats: dict[str, float] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    """Characters, repetitions among them."""
    evaluated: int = 0
    hit: int = 0
    shards: int = 0


def parse_source(text: str, options: CleaningOptions) -> CleaningSource:
    """``PATTERN``, ``FOLDER`` or ``hf:NAME``, with ``@WEIGHT`` or without.

    Raises DataError for a pattern without files, UserError for a weight that isn't above 0.
    """
    name, at, tail = text.rpartition("@")
    try:
        # A name may contain @ itself: only a number after the last one is a weight.
        weight = float(tail) if at and name else None
    except ValueError:
        weight = None
    name = text if weight is None else name
    if weight is not None and not (math.isfinite(weight) and weight > 0):
        raise UserError(f"{text}: the weight {tail} is not a number above 0")
    if name.startswith(HUB):
        return CleaningSource(name, weight, functools.partial(_hub_documents, name.removeprefix(HUB), options))
    files = _find_texts(name)
    return CleaningSource(name, weight, functools.partial(_file_documents, files, options), len(files))


def _find_texts(name: str) -> list[Path]:
    """Return the files of a name, a pattern or a folder that are texts; the others are named with the reason.

    Raises DataError if none is left, and for a file that is named and isn't a text.
    """
    folder = Path(name)
    patterns = [str(folder / "**" / "*")] if folder.is_dir() else [name]
    # Patterns only match hidden files if they begin with a dot themselves; those are listed below.
    there = find_files(patterns, "source")
    left_out = {str(one): why for one in there if (why := _explain_not_text(one))}
    if folder.is_dir():
        below = {str(path) for path in folder.rglob("*") if path.is_file()}
        left_out |= dict.fromkeys(sorted(below - set(map(str, there))), "hidden")
    files = [one for one in there if str(one) not in left_out]
    if not files:
        raise DataError(f"source: {name}: has no text files; left out: {list_names(left_out)} (not text)")
    root = folder if folder.is_dir() else Path()
    report_files(f"source: {name}", len(files), {os.path.relpath(one, root): why for one, why in left_out.items()})
    return files


def _explain_not_text(path: Path) -> str:
    """Return why a file isn't read as text; empty if it is."""
    if path.suffix.lower() in TYPE_BY_ENDING:
        return ""
    with open_file(path) as file:
        start = file.read(2**12)
    # Compressed by gzip: the reader looks inside.
    is_packed = start.startswith(b"\x1f\x8b")
    is_known = is_packed or not detect_encoding(start).startswith("utf-8")
    is_other = start.startswith((b"%PDF", b"PK\x03\x04")) or (b"\0" in start and not is_known)
    return "not text" if is_other else ""


def _file_documents(files: Sequence[Path], options: CleaningOptions) -> Iterator[str]:
    for path in files:
        kind = TYPE_BY_ENDING.get(path.suffix.lower(), "text")
        own = CleaningOptions(**{**asdict(options), "type": kind})
        yield from (document.text for document in read_documents([path], own))


def _hub_documents(name: str, options: CleaningOptions) -> Iterator[str]:
    """Yield the rows of train of a dataset on the Hub, or in a folder, as they arrive: nothing of it is stored."""
    with optional_import("hf: requires the datasets library", "hf"):
        import datasets
    dataset, _, subset = name.partition(":")
    try:
        rows = datasets.load_dataset(dataset, subset or None, split="train", streaming=True)
        for row in rows:
            require_known([options.text_column], row, f"dataset {name}: --text-column: there is no column")
            yield row[options.text_column] or ""
    except UserError:
        raise
    except Exception as error:
        # The Hub's client, its HTTP library and the file readers each raise their own.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"dataset {name}: it can't be read ({reason}); check its name and the network") from error


def clean(sources: Sequence[CleaningSource], output: Path, options: CleaningOptions) -> CleaningReport:
    """Write the kept documents of the sources to ``output``, completely or not at all; return counts per source.

    Raises UserError for an output that has something in it, and for weights of some sources only; DataError for what
    can't be read, and if nothing is kept.
    """
    given = [one.weight is not None for one in sources]
    if any(given) and not all(given):
        missing = next(one.name for one in sources if one.weight is None)
        raise UserError(f"{missing} has no weight, but others have: give each one as SOURCE@WEIGHT, or none")
    if any(given) and options.temperature is not None:
        raise UserError("--temperature gives the weights of sources; leave it out, or leave out @WEIGHT")
    report = CleaningReport()
    with whole_folder(output) as folder, contextlib.closing(_Notes(folder, options.near_duplicates)) as notes:
        contamination = _Contamination(options)
        report.evaluated = len(contamination.is_hit)
        _examine(sources, options, notes, contamination)
        rows = notes.finish()
        _mark_duplicates(rows, notes, options)
        _count(sources, rows, report, contamination)
        repeats = _repeats(sources, report, options)
        report.shards = _write(sources, folder, rows, repeats, report, options.shard_megabytes * 2**20)
        # Before the marker is written, so that a finished folder holds only documents.
        notes.remove()
        about = {**asdict(options), "sources": {one.name: one.weight for one in sources}}
        write_json(folder / CLEANING_FILE, {"options": about, "report": to_json(report)})
    return report


def to_json(report: CleaningReport) -> dict[str, Any]:
    """Return the metrics for a JSON file."""
    return asdict(report) | {"documents": {name: dict(counts) for name, counts in report.documents.items()}}


class _Notes:
    """A row for each document, and its signature, in files."""

    def __init__(self, folder: Path, near_duplicates: float | None) -> None:
        self.paths = {"rows": folder / ".rows.bin"}
        if near_duplicates is not None:
            self.paths["signatures"] = folder / ".signatures.bin"
        self.files: dict[str, IO[bytes]] = {name: open(path, "wb") for name, path in self.paths.items()}  # noqa: SIM115

    def finish(self) -> np.ndarray:
        """Return the rows as a writable memory map of the file."""
        self.close()
        if not self.paths["rows"].stat().st_size:
            raise DataError("the sources have no documents")
        return np.memmap(self.paths["rows"], TEXT_ROW, "r+")

    def signatures(self) -> np.ndarray:
        return np.memmap(self.paths["signatures"], "<u4", "r").reshape(-1, NUM_HASHES)

    def close(self) -> None:
        for file in self.files.values():
            file.close()

    def remove(self) -> None:
        for path in self.paths.values():
            path.unlink()


def iterate_documents(sources: Sequence[CleaningSource]) -> Iterator[tuple[int, str]]:
    """Yield each document with the number of its source, normalised; the same ones each time."""
    for number, source in enumerate(sources):
        for text in source.read():
            yield number, normalise(text)


def _examine(
    sources: Sequence[CleaningSource], options: CleaningOptions, notes: _Notes, contamination: _Contamination
) -> None:
    """Note the length and digest of each document, and whether it is left out regardless of others."""
    speaks = _language_filter(options.languages)
    documents = iterate_documents(sources)
    with progress("examining documents", None) as advance:
        while together := list(islice(documents, DOCUMENTS_AT_ONCE)):
            rows = np.zeros(len(together), TEXT_ROW)
            for row, (number, text) in zip(rows, together, strict=True):
                reason = "empty" if not text.strip() else "kept" if speaks(text) else "language"
                if reason == "kept" and contamination.finds(text) and options.drop_contaminated:
                    reason = "contaminated"
                # Notes, not texts, are kept: sources may be larger than memory, and are read again for writing.
                row["source"], row["reason"], row["length"] = number, REASONS.index(reason), len(text)
                row["digest"] = hash_text(text)
            notes.files["rows"].write(rows.tobytes())
            if "signatures" in notes.files:
                # A signature for every document, also those left out: row i of both files is document i.
                shingles = [make_shingles(text, options.ngram) for _, text in together]
                notes.files["signatures"].write(compute_signatures(shingles).tobytes())
            advance(len(together))


def _language_filter(languages: tuple[str, ...]) -> Callable[[str], bool]:
    """Return a test for texts in one of the languages (ISO 639-1); without any, every text passes."""
    if not languages:
        return lambda text: True
    with optional_import("--language requires py3langid", "cleaning"):
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    # The package's own file.
    identifier = LanguageIdentifier.from_pickled_model(MODEL_FILE)
    require_known(languages, sorted(identifier.nb_classes), "--language: unknown", error=UserError)
    return lambda text: identifier.classify(text[:LANGUAGE_CHARACTERS])[0] in languages


def make_shingles(text: str, size: int) -> list[str]:
    """N-grams of words; of characters where a script has no spaces between them.

    >>> make_shingles("So it is, so", 3), make_shingles("今日は", 5)
    (['so it is,', 'it is, so'], ['今日は'])
    """
    words: Sequence[str] = text.casefold().split()
    space = " "
    # Words of over 15 characters on average aren't words: Chinese, Japanese or Thai, written without spaces.
    if len(words) * 15 < len(text):
        words, space = "".join(words), ""
    return [space.join(words[place : place + size]) for place in range(max(1, len(words) - size + 1))]


def compute_signatures(shingles: Sequence[Sequence[str]]) -> np.ndarray:
    """MinHash signatures ``(document, hash)``, uint32."""
    with optional_import("near duplicates require rensa", "cleaning"):
        import rensa
    return np.array(rensa.RMinHash.digests_from_token_sets(list(shingles), NUM_HASHES, 0), "<u4")


def _mark_duplicates(rows: np.ndarray, notes: _Notes, options: CleaningOptions) -> None:
    """Exact duplicates of an earlier document first, then near ones."""
    kept = np.flatnonzero(rows["reason"] == REASONS.index("kept"))
    later, _ = _later_equals(rows["digest"][kept])
    rows["reason"][kept[later]] = REASONS.index("duplicate")
    if options.near_duplicates is None:
        return
    signatures = notes.signatures()
    # Locality-sensitive hashing: only documents that agree in all hashes of a band are compared.
    for band in range(NUM_BANDS):
        kept = np.flatnonzero(rows["reason"] == REASONS.index("kept"))
        later, first = _later_equals(_band_keys(signatures, kept, band))
        near = np.zeros(len(later), bool)
        # In blocks, so that the signatures compared at once stay small.
        for start in range(0, len(later), 4096):
            some = slice(start, start + 4096)
            same = signatures[kept[later[some]]] == signatures[kept[first[some]]]
            # The share of equal MinHashes estimates the Jaccard similarity of the shingles.
            near[some] = same.mean(axis=1) >= options.near_duplicates
        rows["reason"][kept[later[near]]] = REASONS.index("near-duplicate")


def _band_keys(signatures: np.ndarray, documents: np.ndarray, band: int) -> np.ndarray:
    """Return a number of 64 bits for the hashes of a band, of each document."""
    width = NUM_HASHES // NUM_BANDS
    keys = np.zeros(len(documents), np.uint64)
    for start in range(0, len(documents), 65536):
        some = signatures[documents[start : start + 65536], band * width : (band + 1) * width].astype(np.uint64)
        key = np.zeros(len(some), np.uint64)
        for column in some.T:
            key = (key ^ column) * np.uint64(0x9E3779B97F4A7C15)
            key ^= key >> np.uint64(29)
        keys[start : start + len(some)] = key
    return keys


def _later_equals(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of keys that occurred before, and the first position of each of these keys."""
    # Stable, so that among equal keys the earliest document comes first and is kept.
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    begins = np.ones(len(keys), bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    firsts = order[begins][np.cumsum(begins) - 1]
    return order[~begins], firsts[~begins]


class _Contamination:
    """N-grams of evaluation sets, looked for in training documents."""

    def __init__(self, options: CleaningOptions) -> None:
        """Read the evaluation sets. Raises DataError for files that don't exist."""
        self.size = options.overlap
        self.is_hit: list[bool] = []
        found: dict[int, set[int]] = defaultdict(set)
        paths = find_files(options.against, "--against") if options.against else []
        for text in map(normalise, _file_documents(paths, options)):
            for ngram in self._ngrams(text):
                found[ngram].add(len(self.is_hit))
            self.is_hit.append(False)
        self.found = dict(found)

    def _ngrams(self, text: str) -> Iterator[int]:
        words = text.casefold().split()
        for place in range(len(words) - self.size + 1):
            # Python's hash is salted per process, which is fine: these never leave it.
            yield hash(tuple(words[place : place + self.size]))
        if 0 < len(words) < self.size:
            # All of a short one.
            yield hash(tuple(words))

    def finds(self, text: str) -> bool:
        """Return whether a training document has an n-gram of an evaluation document, which is then noted."""
        hits = [place for ngram in self._ngrams(text) for place in self.found.get(ngram, ())] if self.found else []
        for place in hits:
            self.is_hit[place] = True
        return bool(hits)


def _count(
    sources: Sequence[CleaningSource], rows: np.ndarray, report: CleaningReport, contamination: _Contamination
) -> None:
    """Fill in the report. Raises DataError if nothing is kept of a source that has a share."""
    for number, source in enumerate(sources):
        own = rows[rows["source"] == number]
        counts = np.bincount(own["reason"], minlength=len(REASONS)).tolist()
        if source.num_files is not None:
            report.num_files[source.name] = source.num_files
        report.documents[source.name] = Counter(dict(zip(REASONS, counts, strict=True)))
        report.characters[source.name] = int(own["length"][own["reason"] == 0].sum(dtype=np.int64))
        if not report.characters[source.name]:
            why = ", ".join(f"{reason}: {n:,}" for reason, n in zip(REASONS[1:], counts[1:], strict=True) if n)
            raise DataError(f"{source.name}: nothing is kept of its {len(own):,} documents ({why or 'there are none'})")
    report.hit = sum(contamination.is_hit)


def _repeats(sources: Sequence[CleaningSource], report: CleaningReport, options: CleaningOptions) -> list[float]:
    """How often each source's documents are written to reach the requested shares at the same total size."""
    sizes = [report.characters[source.name] for source in sources]
    if options.temperature is not None:
        weights = [size ** (1 / options.temperature) for size in sizes]
    else:
        weights = [float(size) if one.weight is None else one.weight for one, size in zip(sources, sizes, strict=True)]
    total = sum(sizes)
    repeats = [weight / sum(weights) * total / size for weight, size in zip(weights, sizes, strict=True)]
    for source, number in zip(sources, repeats, strict=True):
        report.repeats[source.name] = round(number, 4)
        if number > MOST_REPEATS:
            log.warning("%s: to have its share, its text is repeated %.1f times", source.name, number)
    return repeats


def _write(
    sources: Sequence[CleaningSource],
    folder: Path,
    rows: np.ndarray,
    repeats: Sequence[float],
    report: CleaningReport,
    shard_bytes: int,
) -> int:
    """Write the shards of kept documents; returns how many. Raises DataError if a source isn't what it was before."""
    names = [source.name for source in sources]
    report.written = dict.fromkeys(names, 0)
    number = 0
    with contextlib.closing(_Shards(folder, shard_bytes)) as shards:
        for source, text in track(iterate_documents(sources), "writing documents", len(rows)):
            # The second reading must give the same documents as the first, or rows would apply to others.
            if number >= len(rows) or rows[number]["digest"] != hash_text(text):
                raise DataError(f"{names[source]}: it changed while it was read; run this again")
            if not rows[number]["reason"]:
                times = int(repeats[source])
                # The fraction of a repetition is decided by a hash of the document's number: the same in every run.
                times += to_fraction(hash_text(str(number))) < repeats[source] - times
                line = json.dumps({"text": text, "source": names[source]}, ensure_ascii=False) + "\n"
                shards.write(line.encode(), times)
                report.written[names[source]] += len(text) * times
            number += 1
    if number != len(rows):
        raise DataError("the sources have fewer documents than before; run this again")
    return shards.number


class _Shards:
    """Files that are written one after another, each until it is full."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size, self.number = folder, size, 0
        self.file: IO[bytes] | None = None

    def write(self, line: bytes, times: int) -> None:
        for _ in range(times):
            if self.file is None or self.file.tell() >= self.size:
                self.close()
                self.file = open(self.folder / f"train-{self.number:05}.jsonl", "wb")  # noqa: SIM115
                self.number += 1
            self.file.write(line)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            sync_file(Path(self.file.name))
