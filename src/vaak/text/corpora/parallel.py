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

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from vaak.core.errors import DataError
from vaak.core.split_ranges import SPLITS, digest_of, fraction_of, split_ranges
from vaak.text.corpora.parallel_readers import Row
from vaak.text.corpora.parallel_sources import SourceOptions, open_source
from vaak.text.corpora.statistics import SplitStatistics
from vaak.text.tokenizers.normalise import normalise


class ParallelOptions(SourceOptions, Protocol):
    """The source of the pairs and their splits; a ``corpus:`` section is one."""

    @property
    def training_references(self) -> str: ...
    @property
    def deduplicate(self) -> bool: ...


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

    def add(self, pair: Pair) -> None:
        self.source.add(pair.source)
        self.target.add(pair.targets[0])
        self.references += len(pair.targets)

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def to_json(self) -> dict[str, Any]:
        """The values for a JSON file."""
        names = ("words", "characters", "bytes", "longest_document", "devanagari_share")
        sides = {"source": self.source.to_json(), "target": self.target.to_json()}
        figures = {side: {name: counts[name] for name in names} for side, counts in sides.items()}
        others = {"references": self.references, "replaced_bytes": self.replaced_bytes, "dropped": self.dropped}
        return {"pairs": self.pairs, **figures, **others}


class HeldOut(NamedTuple):
    """Digests of evaluation texts, which training must not have seen."""

    sources: set[int]
    targets: set[int]

    def add(self, pair: Pair) -> None:
        self.sources.add(digest_of(pair.source))
        self.targets.update(map(digest_of, pair.targets))

    def has(self, pair: Pair) -> bool:
        """Whether the pair shares a side with them."""
        return digest_of(pair.source) in self.sources or any(digest_of(text) in self.targets for text in pair.targets)


class ParallelCorpus:
    """The pairs that the options describe, by split; the same ones in the same order each time they are read."""

    def __init__(self, options: ParallelOptions) -> None:
        """Look up the sources without reading them. Raises UserError for those that don't exist."""
        self.options = options
        self._source = open_source(options)
        self._ranges = split_ranges(self._source.given, options.train_fraction, options.valid_fraction, "corpus")
        self.statistics: dict[str, PairStatistics] = {}

    @property
    def splits(self) -> tuple[str, ...]:
        """All splits, given or split off from train."""
        return tuple(split for split in SPLITS if split in self._ranges or split in self._source.given)

    @property
    def cut_splits(self) -> tuple[str, ...]:
        """The evaluation splits that are split off from train."""
        return tuple(split for split in self._ranges if split != "train")

    @property
    def files(self) -> list[Path]:
        """The files it reads, to detect whether they have changed."""
        return self._source.source_files

    def pairs(self, split: str) -> Iterator[Pair]:
        """The pairs of ``split``; at the end its ``statistics`` are complete.

        Raises DataError for what can't be read, and at the end when there was no pair at all.
        """
        if split not in self.splits:
            if split == "train":
                raise DataError(self._source.lacks_train)
            raise DataError(f"corpus: there is no split {split!r}; expected one of {', '.join(self.splits)}")
        counts = PairStatistics()
        for pair in self._from_train(split, counts) if split in self._ranges else self._given(split, counts):
            counts.add(pair)
            yield pair
        if not counts.pairs:
            raise DataError(self._why_empty(split, counts))
        self.statistics[split] = counts

    def _given(self, split: str, counts: PairStatistics) -> Iterator[Pair]:
        for row in self._source.read(split):
            counts.replaced_bytes += row.replaced_bytes
            row = cleaned_row(row)
            for name, texts in (("source", row.sources[:1]), ("target", row.targets)):
                if not texts or not all(texts):
                    raise DataError(
                        f"{row.where}: the {name} is empty; {split} is kept complete: fix or remove this pair"
                    )
            yield Pair(row.sources[0], row.targets, row.where)

    def _from_train(self, split: str, counts: PairStatistics) -> Iterator[Pair]:
        """Pairs of the training source whose hash falls in the split's range."""
        held_out = self._held_out(split)
        seen: set[int] = set()
        for row in self._source.read("train"):
            row = cleaned_row(row)
            if not self._falls_in(split, row):
                continue
            counts.replaced_bytes += row.replaced_bytes
            for pair in self._pairs_of(split, row):
                digest = digest_of("\0".join((pair.source, *pair.targets)))
                if not pair.source or not all(pair.targets):
                    counts.drop("a side is empty")
                elif held_out.has(pair):
                    counts.drop("also in an evaluation split")
                elif digest in seen:
                    counts.drop("duplicate")
                else:
                    if self.options.deduplicate:
                        seen.add(digest)
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

    def _held_out(self, split: str) -> HeldOut:
        """What ``split`` must not share: the given evaluation splits, and for train those that are split off, too."""
        held_out = HeldOut(set(), set())
        for given in self._source.given:
            if given != "train":
                for pair in self._given(given, PairStatistics()):
                    held_out.add(pair)
        if split == "train" and self.cut_splits:
            for row in map(cleaned_row, self._source.read("train")):
                if not self._falls_in("train", row):
                    held_out.add(next(self._pairs_of("valid", row)))
        return held_out

    def _falls_in(self, split: str, row: Row) -> bool:
        low, high = self._ranges[split]
        return low <= fraction_of(digest_of(row.sources[0] if row.sources else "")) < high

    def _why_empty(self, split: str, counts: PairStatistics) -> str:
        source = self._source.describe("train" if split in self._ranges else split)
        if counts.dropped:
            reasons = ", ".join(f"{number} because {reason}" for reason, number in counts.dropped.items())
            return f"corpus: {split} is empty: all its pairs in {source} were dropped ({reasons})"
        if self._ranges.get(split, (0.0, 1.0)) == (0.0, 1.0):
            return f"corpus: {split} is empty: {source} has no pair"
        return (
            f"corpus: {split} is empty: no pair of {source} fell into it; give more pairs, other fractions, or files "
            "for this split"
        )


def cleaned_row(row: Row) -> Row:
    """The row with its texts cleaned."""
    return row._replace(sources=tuple(map(cleaned, row.sources)), targets=tuple(map(cleaned, row.targets)))


def cleaned(text: str) -> str:
    """The form in which a side is stored, compared and translated: normalised, without surrounding space."""
    return normalise(text).strip()
