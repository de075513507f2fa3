"""Where rows of parallel text come from, by split: files, a Hugging Face dataset, or the built-in grammar."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from vaak.core.errors import DataError
from vaak.core.split_ranges import SPLITS
from vaak.text.corpora import huggingface
from vaak.text.corpora.corpus import GrammarOptions, sentences_of_splits
from vaak.text.corpora.parallel_readers import ColumnOptions, Row, read_rows, row_of
from vaak.text.corpora.readers import find_files, missing_column

GRAMMAR_COLUMNS = ("en", "hi")


class SourceOptions(ColumnOptions, GrammarOptions, Protocol):
    """What names a source."""

    @property
    def type(self) -> str: ...
    @property
    def train(self) -> tuple[str, ...]: ...
    @property
    def valid(self) -> tuple[str, ...]: ...
    @property
    def test(self) -> tuple[str, ...]: ...
    @property
    def train_target(self) -> tuple[str, ...]: ...
    @property
    def valid_target(self) -> tuple[str, ...]: ...
    @property
    def test_target(self) -> tuple[str, ...]: ...
    @property
    def name(self) -> str | None: ...
    @property
    def subset(self) -> str | None: ...
    @property
    def seed(self) -> int: ...


class RowSource(Protocol):
    """Raw rows; ``given`` names the splits that have a separate source.

    ``lacks_train`` is what to say to who wants training pairs where there are none.
    """

    @property
    def given(self) -> tuple[str, ...]: ...

    @property
    def lacks_train(self) -> str: ...

    @property
    def source_files(self) -> list[Path]: ...

    def read(self, split: str) -> Iterator[Row]: ...

    def describe(self, split: str) -> str: ...


def open_source(options: SourceOptions) -> RowSource:
    """The source that the options name, looked up and not yet read. Raises UserError for one that isn't there."""
    if options.type == "grammar":
        return GrammarRows(options)
    if options.type == "huggingface":
        return HuggingFaceRows(options)
    return FileRows(options)


class FileRows:
    """Rows of files; of ``text`` the files of sources and those of targets go together in their order."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.lacks_train = f"corpus.train: give the files of the training pairs (type: {options.type})"
        self.files = {split: files for split in SPLITS if (files := self._files(split))}
        if not self.files:
            raise DataError(self.lacks_train)
        self.given = tuple(self.files)
        self.source_files = [path for files in self.files.values() for paths in files for path in paths]

    def _files(self, split: str) -> list[tuple[Path, ...]]:
        """A tuple for each file, or for the two that belong together."""
        patterns: tuple[str, ...] = getattr(self.options, split)
        sources = find_files(patterns, f"corpus.{split}")
        if self.options.type != "text":
            return [(path,) for path in sources]
        targets = find_files(getattr(self.options, f"{split}_target"), f"corpus.{split}_target")
        if len(sources) != len(targets):
            raise DataError(
                f"corpus: {split} names {len(sources)} files and {split}_target {len(targets)}: "
                "each file of sources requires one of targets"
            )
        return list(zip(sources, targets, strict=True))

    def read(self, split: str) -> Iterator[Row]:
        return read_rows(self.files[split], self.options.type, self.options)

    def describe(self, split: str) -> str:
        files = self.files[split]
        return str(files[0][0]) if len(files) == 1 else f"{files[0][0]} and {len(files) - 1} more"


class HuggingFaceRows:
    """The rows of a dataset, read from its memory-mapped Arrow files."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.splits, self.lacks_train = huggingface.load_splits(options.name, options.subset)
        self.name = str(options.name)
        self.given = tuple(self.splits)
        self.source_files = huggingface.files_of(self.name)
        for split in self.splits.values():
            for option in ("source_column", "target_column"):
                column = getattr(options, option)
                if not {column, column.split(".")[0]} & set(split.column_names):
                    raise missing_column(f"dataset {self.name}", column, split.column_names, option)

    def read(self, split: str) -> Iterator[Row]:
        dataset = self.splits[split]
        asked = (self.options.source_column, self.options.target_column)
        columns = [name for name in dataset.column_names if name in asked or name in (a.split(".")[0] for a in asked)]
        number = 0
        for batch in dataset.select_columns(columns).iter(batch_size=1000):
            for values in zip(*(batch[column] for column in columns), strict=True):
                where = f"{self.describe(split)}: row {number}"
                yield row_of(dict(zip(columns, values, strict=True)), where, self.options)
                number += 1

    def describe(self, split: str) -> str:
        return f"dataset {self.name}, {split}"


class GrammarRows:
    """Sentences of the built-in grammar in English and Hindi; its splits hold out combinations of words.

    Raises DataError if a split requires more pairs than there are.
    """

    given = SPLITS
    lacks_train = ""
    source_files: list[Path] = []  # noqa: RUF012 - never changed

    def __init__(self, options: SourceOptions) -> None:
        for option in ("source_column", "target_column"):
            if getattr(options, option) not in GRAMMAR_COLUMNS:
                raise missing_column("the grammar", getattr(options, option), GRAMMAR_COLUMNS, option)
        self.options = options
        self.counts = sentences_of_splits(options)
        self._check_counts()

    def _check_counts(self) -> None:
        from vaak.text.grammar.translation import NUM_PAIRS

        for split, count in self.counts.items():
            if count > NUM_PAIRS[split]:
                raise DataError(
                    f"corpus.num_sentences: {split} would have {count} of {self.options.num_sentences} pairs; the "
                    f"built-in grammar has {NUM_PAIRS[split]} for it: give a smaller number, or other fractions"
                )

    def read(self, split: str) -> Iterator[Row]:
        from vaak.text.grammar.translation import grammar_pairs

        pairs = grammar_pairs(split, self.counts[split], self.options.seed)
        for number, (english, hindi) in enumerate(pairs):
            entry = {"en": english, "hi": hindi}
            yield row_of(entry, f"the grammar's {split}: pair {number}", self.options)

    def describe(self, split: str) -> str:
        return f"the grammar's {self.counts[split]} pairs"
