"""A parallel corpus: pairs of texts that belong together, read from files, cleaned, split and counted.

json   a list of objects, or JSON lines   a side is the value of a key, a string or a list; dots for nested keys
tsv    a table (tabs, commas, ;, |),       a column by the name in the first line, or by a number from 0; of Parquet,
       a spreadsheet, or Parquet          dots for nested keys
text   two files at a time                line i of both files

Evaluation must be honest. A split that is given is kept unchanged: every pair of it counts, duplicates too; a missing
side is an error that names its place. A split that is not given is cut from the training files by a hash of the
source, so no pair moves when others are added. A training pair whose source is in an evaluation split is dropped from
*training* (``evaluation_overlap``: or only the same pair, or one whose target is there, too); so are pairs with a
missing side, and duplicates (``deduplicate``); all are counted.

If a side is a list, training uses every variant of the source with every target (or the first,
``training_references``); evaluation uses the first source, and all targets as its references.

Texts are compared after normalisation, without the space around them (``cleaned``). Everything streams: 8 bytes of
digest (about 80 in a Python set) per training pair and side of an evaluation pair are in memory.
"""

from __future__ import annotations

import functools
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product, zip_longest
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from vaak.core.corpus import SplitCorpus
from vaak.core.errors import DataError, UserError
from vaak.core.splits import OTHER_SHARES, SPLITS
from vaak.core.storage.tables import Table
from vaak.text.corpora.readers import (
    BytesOptions,
    OnBad,
    checked,
    decoded,
    file_lines,
    find_files,
    missing_column,
    open_table,
    parse_json_values,
    read_records,
)
from vaak.text.corpora.sources import (
    FileSource,
    GrammarSource,
    HuggingFaceSource,
    SourceOptions,
    TextSource,
    count_sentences,
    list_split_files,
)
from vaak.text.corpora.statistics import Overlap, PairFilter, Reason, Sides, Skipped, SplitStatistics
from vaak.text.tokenizer import normalise


class ColumnOptions(BytesOptions, Protocol):
    """The columns of the two sides of a row."""

    @property
    def source_column(self) -> str: ...
    @property
    def target_column(self) -> str: ...


class Row(NamedTuple):
    """The variants of each side (one if it is not a list, none for null), their place, and replaced bytes."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    where: str
    replaced_bytes: int = 0


def read_rows(
    files: Iterable[tuple[Path, ...]], kind: str, options: ColumnOptions, on_bad: OnBad | None = None
) -> Iterator[Row]:
    """Yield the rows of files, in order; of ``text`` each is a file of sources and one of targets.

    Raises DataError naming file and line for what can't be read; with ``on_bad``, that is told of rows.
    """
    for paths in files:
        try:
            if kind == "text":
                yield from _read_lines(paths[0], paths[1], options)
            elif kind == "json":
                yield from _read_json(paths[0], options, on_bad)
            else:
                read = _read_parquet if paths[0].suffix.lower() == ".parquet" else _read_tsv
                yield from read(paths[0], options, on_bad)
        except OSError as error:
            raise DataError(f"{error.filename or paths[0]}: {error.strerror or error}") from error


def _read_lines(source: Path, target: Path, options: ColumnOptions) -> Iterator[Row]:
    # Longest, so that a missing line at the end is an error instead of a silent cut.
    for left, right in zip_longest(file_lines(source), file_lines(target)):
        if left is None or right is None:
            raise DataError(
                f"{source} has {_count_lines(source)} lines and {target} has {_count_lines(target)}: "
                "line i of both must belong together"
            )
        first, second = decoded(left, source, options), decoded(right, target, options)
        replaced = first.replaced_bytes + second.replaced_bytes
        yield Row((first.text,), (second.text,), f"{source}:{left.line}", replaced)


def _count_lines(path: Path) -> int:
    return sum(1 for _ in file_lines(path))


def _read_json(path: Path, options: ColumnOptions, on_bad: OnBad | None = None) -> Iterator[Row]:
    def row(value: Any, where: str, replaced: int) -> Row:
        if not isinstance(value, dict):
            raise DataError(
                f"{where}: a pair is an object with the keys {options.source_column} and {options.target_column}, "
                f"not a {type(value).__name__}"
            )
        return make_row(value, where, options, replaced)

    yield from parse_json_values(path, options, row, on_bad)


def _read_tsv(path: Path, options: ColumnOptions, on_bad: OnBad | None = None) -> Iterator[Row]:
    source, target = options.source_column, options.target_column
    if source.isdecimal() != target.isdecimal():
        raise UserError(
            f"corpus: source_column {source!r} and target_column {target!r}: give two names of the first line, or "
            "two numbers for a file without a header"
        )
    table = open_table(path, options, has_header=not source.isdecimal())
    if source.isdecimal():
        columns = int(source), int(target)
    else:
        columns = _column(table, options, "source_column"), _column(table, options, "target_column")
    for row in table.rows():
        # A wrong column number is the user's mistake in all rows: raise it even where bad rows are skipped.
        if len(row.cells) <= max(columns) and not table.names and row.problem is None:
            raise DataError(
                f"{row.where}: this line has {len(row.cells)} cells separated by {table.separator}, but column "
                f"{max(columns)} (from 0) was requested"
            )
        if row.problem is not None:
            if on_bad is None:
                raise row.problem
            on_bad(row.problem)
            continue
        yield Row((row.cells[columns[0]],), (row.cells[columns[1]],), row.where, row.replaced)


def _read_parquet(path: Path, options: ColumnOptions, on_bad: OnBad | None = None) -> Iterator[Row]:
    columns = {getattr(options, option).split(".")[0]: option for option in COLUMN_OPTIONS}
    for record in read_records([path], columns, options, on_bad):
        yield make_row(record.values, record.where, options, record.replaced_bytes)


def _column(table: Table, options: ColumnOptions, option: str) -> int:
    column = getattr(options, option)
    if column not in table.names:
        raise missing_column(f"{table.path}:1", column, table.names, option)
    table.require_one(column)
    return table.names.index(column)


def make_row(entry: dict[str, Any], where: str, options: ColumnOptions, replaced: int = 0) -> Row:
    """Return the row of an object with a key for each side.

    Raises DataError for a key that isn't there, and a value that is neither text, nor a list of texts, nor null.
    """
    sides: list[tuple[str, ...]] = []
    for option in ("source_column", "target_column"):
        column = getattr(options, option)
        value = _value(entry, column, where, option)
        texts = [checked(text, 0, where, options) for text in _texts(value, column, where)]
        replaced += sum(text.replaced_bytes for text in texts)
        sides.append(tuple(text.text for text in texts))
    return Row(sides[0], sides[1], where, replaced)


def _value(entry: dict[str, Any], column: str, where: str, option: str) -> Any:
    """Return the value of a key, or of nested keys separated by dots."""
    # A key that contains dots itself wins over nested keys.
    if column in entry:
        return entry[column]
    value: Any = entry
    for key in column.split("."):
        if not isinstance(value, dict) or key not in value:
            raise missing_column(where, column, column_names(entry), option)
        value = value[key]
    return value


def column_names(entry: dict[str, Any]) -> list[str]:
    """Return the keys of an object; nested keys after dots.

    >>> column_names({"id": 1, "translation": {"en": "a", "hi": "b"}})
    ['id', 'translation.en', 'translation.hi']
    """
    names: list[str] = []
    for key, value in entry.items():
        names += [f"{key}.{name}" for name in column_names(value)] if isinstance(value, dict) else [str(key)]
    return names


def _texts(value: Any, column: str, where: str) -> list[str]:
    if value is None:
        return []
    texts = value if isinstance(value, list) else [value]
    for text in texts:
        if not isinstance(text, str):
            listed = "a list with a" if isinstance(value, list) else "a"
            raise DataError(
                f"{where}: {column} is {listed} {type(text).__name__}; a side is a string or a list of strings"
            )
    return texts


UNREADABLE = "a row can't be read"
GRAMMAR_COLUMNS = ("en", "hi")
COLUMN_OPTIONS = ("source_column", "target_column")
DROPPED: dict[Reason, str] = {"empty": "a side is empty", "duplicates": "duplicate"}
EVALUATED: dict[Overlap, str] = {
    "source": "its source is also in an evaluation split",
    "pair": "also in an evaluation split",
    "target": "its source or target is also in an evaluation split",
}
"""The reason given for dropping training pairs, by ``evaluation_overlap``."""


class ParallelOptions(ColumnOptions, SourceOptions, Protocol):
    """The source of the pairs and their splits; a ``corpus:`` section is one."""

    @property
    def train_target(self) -> tuple[str, ...]: ...
    @property
    def valid_target(self) -> tuple[str, ...]: ...
    @property
    def test_target(self) -> tuple[str, ...]: ...
    @property
    def seed(self) -> int: ...
    @property
    def training_references(self) -> str: ...
    @property
    def evaluation_overlap(self) -> Overlap: ...


class Pair(NamedTuple):
    """A source, its target (several if they are references of an evaluation), and their place."""

    source: str
    targets: tuple[str, ...]
    where: str


@dataclass
class PairStatistics:
    """The contents of a split for each side (of the targets the first), and what was dropped, by reason.

    ``shared_targets`` are the training pairs kept of which an evaluation split has the target, with another source.
    """

    overlap: Overlap = "source"
    source: SplitStatistics = field(default_factory=SplitStatistics)
    target: SplitStatistics = field(default_factory=SplitStatistics)
    references: int = 0
    replaced_bytes: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    shared_targets: int = 0

    @property
    def pairs(self) -> int:
        return self.source.documents

    def __len__(self) -> int:
        return self.pairs

    def add(self, pair: Pair) -> None:
        self.source.add(pair.source)
        self.target.add(pair.targets[0])
        self.references += len(pair.targets)

    def drop(self, reason: Reason) -> None:
        said = DROPPED.get(reason, EVALUATED[self.overlap])
        self.dropped[said] = self.dropped.get(said, 0) + 1

    def to_json(self) -> dict[str, Any]:
        """Return the values for a JSON file."""
        names = ("words", "characters", "bytes", "longest_document", "devanagari_share")
        sides = {"source": self.source.to_json(), "target": self.target.to_json()}
        metrics = {side: {name: counts[name] for name in names} for side, counts in sides.items()}
        others = {"references": self.references, "replaced_bytes": self.replaced_bytes, "dropped": self.dropped}
        return {"pairs": self.pairs, **metrics, **others, "shared_targets": self.shared_targets}


def _require_both_sides(pair: Pair, split: str) -> None:
    """Raise DataError if a side is empty: given evaluation splits stay complete, so that results are comparable."""
    for name, texts in (("source", (pair.source,)), ("target", pair.targets)):
        if not all(texts):
            raise DataError(f"{pair.where}: the {name} is empty; {split} is kept complete: fix or remove this pair")


class ParallelCorpus(SplitCorpus[Row, Pair, PairStatistics]):
    """The pairs that the options describe, by split."""

    def __init__(self, options: ParallelOptions, skip_bad: bool = False) -> None:
        """Look up the sources without reading them; with ``skip_bad``, rows that can't be used are left out.

        Raises UserError for those that don't exist.
        """
        self.options, self.skipped = options, Skipped()
        source = _open_source(options, (lambda error: self.skipped.add(str(error))) if skip_bad else None)
        self._described = source.describe
        super().__init__(source, options, "corpus")

    def new_statistics(self) -> PairStatistics:
        return PairStatistics(self.options.evaluation_overlap)

    def cleaned(self, entry: Row) -> Row:
        sources, targets = (tuple(map(cleaned, texts)) for texts in (entry.sources, entry.targets))
        return entry._replace(sources=sources, targets=targets)

    def choose_split(self, entry: Row, split: str, counts: PairStatistics) -> str | None:
        return self.division.of(entry.sources[0] if entry.sources else "")

    def name_entry(self, entry: Row) -> tuple[str | None, str]:
        is_pair = any(entry.sources) and any(entry.targets)
        return entry.sources[0] if is_pair else None, entry.where

    def items(self, split: str, entries: Iterator[Row], counts: PairStatistics) -> Iterator[Pair]:
        kept = self._make_filter(split) if split in self.division.ranges else None
        for row in entries:
            counts.replaced_bytes += row.replaced_bytes
            for pair in self._make_pairs(split, row):
                if kept is None:
                    _require_both_sides(pair, split)
                    yield pair
                elif not pair.source or not all(pair.targets):
                    counts.drop("empty")
                elif reason := kept.why_dropped(_sides(pair)):
                    counts.drop(reason)
                else:
                    yield pair
        counts.shared_targets = kept.num_shared_targets if kept is not None else 0
        if number := self.skipped.count_in(list_split_files(self.options, split)):
            counts.dropped[UNREADABLE] = number

    def _make_filter(self, split: str) -> PairFilter:
        options = self.options
        return PairFilter(self._evaluated(split), deduplicate=options.deduplicate, overlap=options.evaluation_overlap)

    def _make_pairs(self, split: str, row: Row) -> Iterator[Pair]:
        """Yield a row's pairs: one for evaluation, all its variants for training."""
        sources, targets = row.sources or ("",), row.targets or ("",)
        if split != "train":
            yield Pair(sources[0], targets, row.where)
            return
        if self.options.training_references == "first":
            targets = targets[:1]
        # Training learns every combination of variants; evaluation keeps references together, as one pair.
        for source, target in product(sources, targets):
            yield Pair(source, (target,), row.where)

    def _evaluated(self, split: str) -> Iterator[Sides]:
        """Yield what ``split`` must not share: the given evaluation splits, for train also those that are split off."""
        counts = PairStatistics()
        for given in self.division.given:
            if given != "train":
                yield from map(_sides, self.items(given, self.entries(given, counts), counts))
        if split == "train" and self.cut_splits:
            for row in self.iterate_sources("train"):
                # Rows that are split off come from the same file: their texts must not stay in train under another row.
                if self.find_split(row, split, counts) != "train":
                    yield from map(_sides, self._make_pairs("valid", row))

    def why_empty(self, split: str, counts: PairStatistics) -> str:
        source = self._described(self.division.find_source(split))
        if counts.dropped:
            reasons = ", ".join(f"{number} because {reason}" for reason, number in counts.dropped.items())
            return f"all its pairs in {source} were dropped ({reasons})"
        if self.division.is_all_of_its_source(split):
            return f"{source} has no pair"
        return f"no pair of {source} fell into it; give more pairs, {OTHER_SHARES}"


def cleaned(text: str) -> str:
    """Return the form in which a side is stored, compared and translated: normalised, without surrounding space."""
    return normalise(text).strip()


def _sides(pair: Pair) -> Sides:
    return (pair.source,), pair.targets


def _open_source(options: ParallelOptions, on_bad: OnBad | None = None) -> TextSource[Row]:
    """The source that the options name, looked up and not yet read. Raises UserError for one that isn't there."""
    if options.type == "grammar":
        return _open_grammar(options)
    if options.type == "huggingface":
        columns = functools.partial(_side_columns, options)
        return HuggingFaceSource(
            options.name, options.subset, columns, lambda row, where: make_row(row, where, options)
        )
    lacks_train = f"corpus.train: give the files of the training pairs (type: {options.type})"
    files = {split: _files(options, split) for split in SPLITS}
    return FileSource(files, lambda together: read_rows(together, options.type, options, on_bad), lacks_train)


def _files(options: ParallelOptions, split: str) -> list[tuple[Path, ...]]:
    """Return a tuple for each file; for type ``text``, the file of sources and that of targets that belong together."""
    sources = find_files(getattr(options, split), f"corpus.{split}")
    if options.type != "text":
        return [(path,) for path in sources]
    targets = find_files(getattr(options, f"{split}_target"), f"corpus.{split}_target")
    if len(sources) != len(targets):
        raise DataError(
            f"corpus: {split} names {len(sources)} files and {split}_target {len(targets)}: "
            "each file of sources requires one of targets"
        )
    return list(zip(sources, targets, strict=True))


def _side_columns(options: ParallelOptions, where: str, columns: list[str]) -> list[str]:
    """Return the columns of the two sides, or those that they are nested in."""
    asked: set[str] = set()
    for option in COLUMN_OPTIONS:
        column = getattr(options, option)
        # Datasets of the Hub nest both sides in one column: translation.en is in translation.
        own = {column, column.split(".")[0]}
        if not own & set(columns):
            raise missing_column(where, column, columns, option)
        asked |= own
    return [column for column in columns if column in asked]


def _open_grammar(options: ParallelOptions) -> GrammarSource[Row]:
    """The grammar's pairs, in English and Hindi. Raises DataError if a split requires more pairs than there are."""
    from vaak.text.grammar.translation import NUM_PAIRS, grammar_pairs

    for option in COLUMN_OPTIONS:
        if getattr(options, option) not in GRAMMAR_COLUMNS:
            raise missing_column("the grammar", getattr(options, option), GRAMMAR_COLUMNS, option)
    counts = count_sentences(options)
    for split, count in counts.items():
        if count > NUM_PAIRS[split]:
            raise DataError(
                f"corpus.num_sentences: {split} would have {count} of {options.num_sentences} pairs; the "
                f"built-in grammar has {NUM_PAIRS[split]} for it: give a smaller number, or other fractions"
            )

    def rows(split: str, count: int) -> Iterator[Row]:
        for number, pair in enumerate(grammar_pairs(split, count, options.seed)):
            entry = dict(zip(GRAMMAR_COLUMNS, pair, strict=True))
            yield make_row(entry, f"the grammar's {split}: pair {number}", options)

    return GrammarSource(counts, rows, "pairs")


SCRIPTS: dict[str, tuple[str, ...]] = {
    "ARABIC": ("ar", "fa", "ps", "sd", "ug", "ur"),
    "BENGALI": ("as", "bn"),
    "CJK": ("ja", "zh"),
    "CYRILLIC": ("be", "bg", "kk", "ky", "mk", "mn", "ru", "tg", "uk"),
    "DEVANAGARI": ("bho", "doi", "hi", "kok", "mai", "mr", "ne", "sa"),
    "ETHIOPIC": ("am", "ti"),
    "GREEK": ("el",),
    "GUJARATI": ("gu",),
    "GURMUKHI": ("pa",),
    "HANGUL": ("ko",),
    "HEBREW": ("he", "yi"),
    "KANNADA": ("kn",),
    "LATIN": ("cs", "da", "de", "en", "es", "fi", "fr", "id", "it", "nl", "no", "pl", "pt", "sv", "sw", "tr", "vi"),
    "MALAYALAM": ("ml",),
    "ORIYA": ("or",),
    "SINHALA": ("si",),
    "TAMIL": ("ta",),
    "TELUGU": ("te",),
    "THAI": ("th",),
}
"""Languages by their codes (ISO 639), under the first word of their letters' names in Unicode."""
_SCRIPT_OF = {language: script for script, languages in SCRIPTS.items() for language in languages}


def get_script(code: str) -> str | None:
    """Return the script that a language is written in; None for an unknown code.

    >>> get_script("hi"), get_script("target")
    ('DEVANAGARI', None)
    """
    return _SCRIPT_OF.get(code.lower().replace("_", "-").partition("-")[0])


def detect_script(texts: Iterable[str]) -> str | None:
    """Return the script of most of the letters; None if there are none.

    >>> detect_script(["वह OK है", "1984"])
    'DEVANAGARI'
    """
    letters = Counter(character for text in texts for character in text if character.isalpha())
    scripts: Counter[str] = Counter()
    for letter, number in letters.items():
        name = unicodedata.name(letter, "").partition(" ")[0]
        # Japanese mixes three scripts.
        scripts["CJK" if name in ("HIRAGANA", "KATAKANA") else name] += number
    return scripts.most_common(1)[0][0] if scripts else None
