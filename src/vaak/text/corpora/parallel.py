"""A parallel corpus: pairs of texts that belong together, cleaned, split and counted.

Evaluation must be honest, so splits are made as follows:

- A split that is given is kept unchanged: every pair of it counts, duplicates too. A pair without a source or with
  an empty reference is an error that names its place.
- A split that is not given is cut from the training files by a hash of the source. A pair's split never depends on the
  other pairs, so none moves when pairs are added; equal sources fall together.
- A training pair whose source or target is in any evaluation split is dropped from *training*, and counted.
- Pairs of the training files with a missing side, and duplicates (``deduplicate``), are dropped and counted.

If a side is a list, training uses every variant of the source with every target (or the first,
``training_references``); evaluation uses the first source, and all targets as its references.

Texts are compared after normalisation, without the space around them (``cleaned``). Everything streams: only the
current pair is in memory and, while training pairs are read, 8 bytes of digest (about 80 in a Python set) for each of
them, and for each side of an evaluation pair.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from vaak.core.corpus import SplitCorpus
from vaak.core.errors import DataError
from vaak.core.split_ranges import SPLITS
from vaak.text.corpora.kept import Kept, Reason, Sides
from vaak.text.corpora.parallel_readers import ColumnOptions, Row, read_rows, row_of
from vaak.text.corpora.readers import find_files, missing_column
from vaak.text.corpora.sources import (
    FileSource,
    GrammarSource,
    HuggingFaceSource,
    SourceOptions,
    TextSource,
    sentences_of_splits,
)
from vaak.text.corpora.statistics import SplitStatistics
from vaak.text.tokenizers.normalise import normalise

GRAMMAR_COLUMNS = ("en", "hi")
COLUMN_OPTIONS = ("source_column", "target_column")
DROPPED: dict[Reason, str] = {
    "empty": "a side is empty",
    "also_in_evaluation": "also in an evaluation split",
    "duplicates": "duplicate",
}


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


class Pair(NamedTuple):
    """A source, its target (several if they are references of an evaluation), and their place."""

    source: str
    targets: tuple[str, ...]
    where: str


@dataclass
class PairStatistics:
    """The contents of a split for each side (of the targets the first), and what was dropped, by reason."""

    source: SplitStatistics = field(default_factory=SplitStatistics)
    target: SplitStatistics = field(default_factory=SplitStatistics)
    references: int = 0
    replaced_bytes: int = 0
    dropped: dict[str, int] = field(default_factory=dict)

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
        self.dropped[DROPPED[reason]] = self.dropped.get(DROPPED[reason], 0) + 1

    def to_json(self) -> dict[str, Any]:
        """The values for a JSON file."""
        names = ("words", "characters", "bytes", "longest_document", "devanagari_share")
        sides = {"source": self.source.to_json(), "target": self.target.to_json()}
        figures = {side: {name: counts[name] for name in names} for side, counts in sides.items()}
        others = {"references": self.references, "replaced_bytes": self.replaced_bytes, "dropped": self.dropped}
        return {"pairs": self.pairs, **figures, **others}


class ParallelCorpus(SplitCorpus[Row, Pair, PairStatistics]):
    """The pairs that the options describe, by split."""

    def __init__(self, options: ParallelOptions) -> None:
        """Look up the sources without reading them. Raises UserError for those that don't exist."""
        self.options = options
        source = _open_source(options)
        self._described = source.describe
        super().__init__(source, options, "corpus")

    def pairs(self, split: str) -> Iterator[Pair]:
        """The pairs of ``split``. Raises DataError for what can't be read, and at the end when there was none."""
        return self.read(split)

    def new_statistics(self) -> PairStatistics:
        return PairStatistics()

    def cleaned(self, entry: Row) -> Row:
        sources, targets = (tuple(map(cleaned, texts)) for texts in (entry.sources, entry.targets))
        return entry._replace(sources=sources, targets=targets)

    def split_of(self, entry: Row, split: str, counts: PairStatistics) -> str | None:
        return self.division.of(entry.sources[0] if entry.sources else "")

    def name_of(self, entry: Row) -> tuple[str | None, str]:
        is_pair = any(entry.sources) and any(entry.targets)
        return entry.sources[0] if is_pair else None, entry.where

    def items(self, split: str, entries: Iterator[Row], counts: PairStatistics) -> Iterator[Pair]:
        is_cut = split in self.division.ranges
        kept = Kept(self._evaluated(split), deduplicate=self.options.deduplicate) if is_cut else None
        for row in entries:
            counts.replaced_bytes += row.replaced_bytes
            for pair in self._pairs_of(split, row):
                if kept is None:
                    _demand_complete(pair, split)
                    yield pair
                elif not pair.source or not all(pair.targets):
                    counts.drop("empty")
                elif reason := kept.why_dropped(_sides(pair)):
                    counts.drop(reason)
                else:
                    yield pair

    def _pairs_of(self, split: str, row: Row) -> Iterator[Pair]:
        """A row's pairs: one for evaluation, all its variants for training."""
        sources, targets = row.sources or ("",), row.targets or ("",)
        if split != "train":
            yield Pair(sources[0], targets, row.where)
            return
        if self.options.training_references == "first":
            targets = targets[:1]
        for source, target in product(sources, targets):
            yield Pair(source, (target,), row.where)

    def _evaluated(self, split: str) -> Iterator[Sides]:
        """What ``split`` must not share: the given evaluation splits, and for train those that are split off, too."""
        counts = PairStatistics()
        for given in self.division.given:
            if given != "train":
                yield from map(_sides, self.items(given, self.entries(given, counts), counts))
        if split == "train" and self.cut_splits:
            for row in self.sources_of("train"):
                if self.place_of(row, split, counts) != "train":
                    yield from map(_sides, self._pairs_of("valid", row))

    def why_empty(self, split: str, counts: PairStatistics) -> str:
        source = self._described(self.division.source_of(split))
        if counts.dropped:
            reasons = ", ".join(f"{number} because {reason}" for reason, number in counts.dropped.items())
            return f"all its pairs in {source} were dropped ({reasons})"
        if self.division.is_all_of_its_source(split):
            return f"{source} has no pair"
        return f"no pair of {source} fell into it; give more pairs, other fractions, or files for this split"


def cleaned(text: str) -> str:
    """The form in which a side is stored, compared and translated: normalised, without surrounding space."""
    return normalise(text).strip()


def _sides(pair: Pair) -> Sides:
    return (pair.source,), pair.targets


def _demand_complete(pair: Pair, split: str) -> None:
    """Raises DataError for a pair of a given evaluation split that lacks a text."""
    for name, texts in (("source", (pair.source,)), ("target", pair.targets)):
        if not all(texts):
            raise DataError(f"{pair.where}: the {name} is empty; {split} is kept complete: fix or remove this pair")


def _open_source(options: ParallelOptions) -> TextSource[Row]:
    """The source that the options name, looked up and not yet read. Raises UserError for one that isn't there."""
    if options.type == "grammar":
        return _open_grammar(options)
    if options.type == "huggingface":
        columns = functools.partial(_side_columns, options)
        return HuggingFaceSource(options.name, options.subset, columns, lambda row, where: row_of(row, where, options))
    lacks_train = f"corpus.train: give the files of the training pairs (type: {options.type})"
    files = {split: _files(options, split) for split in SPLITS}
    return FileSource(files, lambda together: read_rows(together, options.type, options), lacks_train)


def _files(options: ParallelOptions, split: str) -> list[tuple[Path, ...]]:
    """A tuple for each file; of ``text`` for the two, of sources and of targets, that belong together."""
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
    """The columns of the two sides, or those that they are nested in."""
    asked: set[str] = set()
    for option in COLUMN_OPTIONS:
        column = getattr(options, option)
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
    counts = sentences_of_splits(options)
    for split, count in counts.items():
        if count > NUM_PAIRS[split]:
            raise DataError(
                f"corpus.num_sentences: {split} would have {count} of {options.num_sentences} pairs; the "
                f"built-in grammar has {NUM_PAIRS[split]} for it: give a smaller number, or other fractions"
            )

    def rows(split: str, count: int) -> Iterator[Row]:
        for number, pair in enumerate(grammar_pairs(split, count, options.seed)):
            entry = dict(zip(GRAMMAR_COLUMNS, pair, strict=True))
            yield row_of(entry, f"the grammar's {split}: pair {number}", options)

    return GrammarSource(counts, rows, "pairs")
