"""A corpus: from files to splits to statistics, in one way whatever its items are (texts, pairs, recordings).

source      reads the given files, by split
splits      given, or split off from train by the hash of an entry's name (``vaak.core.splits``), or those
            of a fold (``vaak.core.splits``)
items       the entries of a split that a kind of corpus keeps; dropped ones are counted
statistics  of each split that has been read completely
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from vaak.core.errors import DataError, UserError
from vaak.core.folds import FoldExample, FoldSplits
from vaak.core.names import require_known
from vaak.core.splits import CountedSplits, Splits, SplittingOptions

Entry = TypeVar("Entry")
Given = TypeVar("Given", covariant=True)
Item = TypeVar("Item")
Counted = TypeVar("Counted", contravariant=True)


class Source(Protocol[Given]):
    """Reads the ``given`` splits; ``files`` are those that determine the entries.

    ``lacks_train`` is the message for a corpus without training data.
    """

    @property
    def given(self) -> tuple[str, ...]: ...
    @property
    def files(self) -> list[Path]: ...
    @property
    def lacks_train(self) -> str: ...

    def read(self, split: str) -> Iterator[Given]: ...


@runtime_checkable
class HasColumns(Protocol):
    """A source of tables."""

    def column(self, split: str, name: str) -> Iterator[Any]:
        """Return the values of a column, in the order of ``read``. Raises UserError if it isn't there."""
        ...


class Counts(Protocol[Counted]):
    """Statistics of a split; their length is the number of items."""

    def add(self, item: Counted, /) -> None: ...

    def __len__(self) -> int: ...


Statistics = TypeVar("Statistics", bound=Counts[Any])


NONE = "none"


class SplitCorpus(ABC, Generic[Entry, Item, Statistics]):
    """Items by split; the same ones in the same order each time they are read.

    ``statistics`` has those of the splits that have been read completely. Messages name the corpus by ``where``.
    """

    def __init__(self, source: Source[Entry], options: SplittingOptions, where: str) -> None:
        """Raises UserError for fractions with a sum above 1."""
        self.source, self.where = source, where
        fold = getattr(options, "fold", None)
        self.fold = FoldSplits(fold, getattr(options, "folds_file", None), source.given, where) if fold else None
        valid, test = (getattr(options, f"{split}_examples", None) for split in ("valid", "test"))
        self.division = self.fold or Splits(source.given, options, where)
        if self.fold is None and (valid, test) != (None, None):
            self.division = CountedSplits(source.given, valid, test, where, self.deciding)
        self.statistics: dict[str, Statistics] = {}

    @property
    def splits(self) -> tuple[str, ...]:
        """All splits, given or split off from train."""
        return self.division.names

    @property
    def cut_splits(self) -> tuple[str, ...]:
        """The evaluation splits that are split off from train."""
        return tuple(split for split in self.division.ranges if split != "train")

    @property
    def files(self) -> list[Path]:
        """The files it reads, to detect whether they have changed."""
        return [*self.source.files, *([self.fold.file] if self.fold else ())]

    def with_train_first(self) -> tuple[str, ...]:
        """Return all splits to prepare: train, without which there is nothing to do, and the others."""
        return ("train", *(split for split in self.splits if split != "train"))

    def read(self, split: str) -> Iterator[Item]:
        """Yield the items of ``split``; at the end its ``statistics`` are complete.

        Raises DataError for what can't be read, and at the end if a split that must have items has none.
        """
        if split not in self.splits:
            if split == "train":
                raise DataError(self.source.lacks_train)
            require_known([split], self.splits, f"{self.where}: unknown split")
        counts = self.new_statistics()
        for item in self.items(split, self.entries(split, counts), counts):
            counts.add(item)
            yield item
        if not len(counts) and not self.may_be_empty(split):
            raise DataError(f"{self.where}: {split} is empty: {self.why_empty(split, counts)}")
        self.statistics[split] = counts

    def entries(self, split: str, counts: Statistics) -> Iterator[Entry]:
        """Yield the cleaned entries that belong to ``split``."""
        is_all = split not in self.division.ranges
        for entry in self.iterate_sources(split):
            if is_all or self.find_split(entry, split, counts) == split:
                yield entry

    def iterate_sources(self, split: str) -> Iterator[Entry]:
        """Yield the cleaned entries that ``split`` is chosen from."""
        for source in self.division.list_sources(split):
            yield from map(self.cleaned, self.source.read(source))

    def find_split(self, entry: Entry, split: str, counts: Statistics) -> str | None:
        """Return the split of an entry of train, asked while ``split`` is read: that of its fold, if there is one."""
        if self.fold is None:
            return self.choose_split(entry, split, counts)
        key, where = self.name_entry(entry)
        return self.fold.of_key(key, where)

    def examples(self, split: str, stratify_by: str | None, group_by: str | None) -> Iterator[FoldExample]:
        """Yield the entries of a given split as folds see them, without those that no split keeps.

        stratify_by, group_by
            A column whose values are their strata or groups; ``none``: without any; None: as the corpus declares.

        Raises UserError for a column that isn't there.
        """
        names = [name for name in (stratify_by, group_by) if name not in (None, NONE)]
        columns = [map(_values, self.column(split, str(name))) for name in names]
        for entry, *found in zip(map(self.cleaned, self.source.read(split)), *columns, strict=True):
            key, where = self.name_entry(entry)
            if key is None:
                continue
            groups = () if group_by in (None, NONE) else found.pop()
            stratum = self.get_stratum(entry) if stratify_by is None else "|".join(found.pop()) if found else ""
            yield FoldExample(key, where, stratum, groups)

    # What a kind of corpus answers.

    @abstractmethod
    def new_statistics(self) -> Statistics:
        """Return the entries of a split of which nothing has been read."""

    @abstractmethod
    def choose_split(self, entry: Entry, split: str, counts: Statistics) -> str | None:
        """Return the split that an entry of train belongs to, asked while ``split`` is read; None if to none."""

    @abstractmethod
    def items(self, split: str, entries: Iterator[Entry], counts: Statistics) -> Iterator[Item]:
        """Yield the entries that are kept; count the dropped ones."""

    @abstractmethod
    def why_empty(self, split: str, counts: Statistics) -> str:
        """Return why nothing was found in a split."""

    @abstractmethod
    def name_entry(self, entry: Entry) -> tuple[str | None, str]:
        """Return an entry's key in a fold, None for one that no split keeps; and its place, for messages."""

    def deciding(self) -> Iterator[str]:
        """Return the names by which the entries of train are split."""
        keys = (self.name_entry(entry)[0] for entry in self.iterate_sources("train"))
        return (key for key in keys if key is not None)

    def get_stratum(self, entry: Entry) -> str:
        """Return the entry's stratum, of which all folds have alike shares."""
        return ""

    def column(self, split: str, name: str) -> Iterator[Any]:
        """Return the values of a column, in the order of the entries. Raises UserError if the source has no columns."""
        if not isinstance(self.source, HasColumns):
            raise UserError(f"{self.where} has no columns, so no {name} either")
        return self.source.column(split, name)

    def find_label_names(self, split: str) -> set[str]:
        """Return the names under which entries have values, of a kind of corpus in which each has its own."""
        return set()

    def cleaned(self, entry: Entry) -> Entry:
        """Return an entry in the form that is compared and stored."""
        return entry

    def may_be_empty(self, split: str) -> bool:
        """Return whether it is right that a split has no item."""
        return False


def _values(value: Any) -> tuple[str, ...]:
    """Return the values of a cell: none of an empty one."""
    values = value if isinstance(value, list | tuple | set) else (value,)
    return tuple(str(one) for one in values if one is not None and one != "")
