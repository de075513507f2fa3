"""Where documents and pairs come from, by split: files, a Hugging Face dataset, or the built-in grammar.

A source looks up what it reads (``vaak.core.corpus.Source``); it is told how an entry is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from vaak.core.class_names import ClassNames, get_class_names, name_classes
from vaak.core.corpus import Source
from vaak.core.errors import DataError, UserError, optional_import
from vaak.core.progress import progress, track
from vaak.core.splits import SPLITS, SplittingOptions
from vaak.core.storage.archives import locate_on_disk, read_state
from vaak.text.corpora.readers import Read, find_files, missing_column, read_class_names, read_records

Entry = TypeVar("Entry")
Given = TypeVar("Given", covariant=True)

ROWS_AT_ONCE = 1000
"""Rows of a dataset that are read at a time."""

TABLE_ENDINGS = (".json", ".jsonl", ".csv", ".tsv", ".parquet")
"""The endings of files with columns."""

# Names of splits in datasets, by our names.
_SPLIT_NAMES = {"train": ("train",), "valid": ("validation", "valid", "val", "dev"), "test": ("test",)}


class TextSource(Source[Given], Protocol[Given]):
    """A source that can say what a given split is read from."""

    def describe(self, split: str) -> str: ...


class GrammarOptions(SplittingOptions, Protocol):
    """The number of sentences of a grammar, and their splits."""

    @property
    def num_sentences(self) -> int: ...


class SourceOptions(GrammarOptions, Protocol):
    """Files of each split, or a dataset's name, and what becomes of duplicates."""

    @property
    def type(self) -> str: ...
    @property
    def train(self) -> tuple[str, ...]: ...
    @property
    def valid(self) -> tuple[str, ...]: ...
    @property
    def test(self) -> tuple[str, ...]: ...
    @property
    def name(self) -> str | None: ...
    @property
    def subset(self) -> str | None: ...
    @property
    def deduplicate(self) -> bool: ...


class FileSource(Generic[Entry]):
    """Entries of files by split; files that are read together are a tuple."""

    def __init__(
        self,
        files: Mapping[str, Sequence[tuple[Path, ...]]],
        read: Callable[[Sequence[tuple[Path, ...]]], Iterator[Entry]],
        lacks_train: str,
    ) -> None:
        """Raises DataError without any files."""
        self._files = {split: together for split, together in files.items() if together}
        if not self._files:
            raise DataError(lacks_train)
        self._read, self.lacks_train = read, lacks_train
        self.given = tuple(self._files)
        named = [path for together in self._files.values() for paths in together for path in paths]
        # Members of an archive are one file on disk: their archive, once.
        self.files = list(dict.fromkeys(map(locate_on_disk, named)))

    def read(self, split: str) -> Iterator[Entry]:
        files = self._files[split]
        sizes = [read_state(path)[0] for together in files for path in together if locate_on_disk(path).exists()]
        with progress(f"reading {split}", sum(sizes)) as advance:
            before = Read.num_bytes
            for entry in self._read(files):
                advance(Read.num_bytes - before)
                yield entry
                # Others may have read files meanwhile.
                before = Read.num_bytes

    def class_names(self, split: str) -> ClassNames:
        """Return the names of the classes of each column, where all files of a split have the same ones."""
        first, *others = (read_class_names(path) for path, *_ in self._files[split])
        return first if all(names == first for names in others) else {}

    def column(self, split: str, name: str) -> Iterator[Any]:
        paths, options = [path for path, *_ in self._files[split]], _ReplacedBytes()
        if any(path.suffix not in TABLE_ENDINGS for path in paths):
            raise UserError(
                f"{self.describe(split)} has no columns, so {name} is missing; expected {', '.join(TABLE_ENDINGS)}"
            )
        for record in read_records(paths, {name: "another column"}, options):
            yield record.values[name]

    def describe(self, split: str) -> str:
        first, *more = self._files[split]
        return f"{first[0]} and {len(more)} more" if more else str(first[0])


class HuggingFaceSource(Generic[Entry]):
    """The rows of a dataset by its name on the Hub or from a folder, read from its memory-mapped Arrow files."""

    def __init__(
        self,
        name: str | None,
        subset: str | None,
        columns: Callable[[str, list[str]], list[str]],
        entry: Callable[[dict[str, Any], str], Entry],
    ) -> None:
        """Load the dataset (from the Hub's cache if it is there).

        ``columns`` chooses those that are read; ``entry`` is made of a row and its place. Raises UserError if the
        dataset is unavailable, DataError when it has no split of a known name.
        """
        if not name:
            raise UserError("corpus.name: give the name of a dataset on the Hugging Face Hub, or a folder")
        there = _load(name, subset)
        found = {ours: [one for one in names if one in there] for ours, names in _SPLIT_NAMES.items()}
        self.lacks_train = f"dataset {name}: no train split; it has {', '.join(map(str, there))}"
        self.given = tuple(split for split, names in found.items() if names)
        if not self.given:
            raise DataError(self.lacks_train)
        self.name, self.files, self._entry = name, list_files(name), entry
        # The first name that a dataset has wins, where it has several for one split (validation, dev).
        self._all = {split: there[found[split][0]] for split in self.given}
        self._rows = {
            split: rows.select_columns(columns(f"dataset {name}", rows.column_names))
            for split, rows in self._all.items()
        }

    def read(self, split: str) -> Iterator[Entry]:
        number, batches = 0, self._rows[split].iter(batch_size=ROWS_AT_ONCE)
        names = self.class_names(split)
        for batch in track(batches, f"reading {split}", len(self._rows[split]) / ROWS_AT_ONCE):
            for values in zip(*batch.values(), strict=True):
                row = name_classes(dict(zip(batch, values, strict=True)), names)
                yield self._entry(row, f"{self.describe(split)}: row {number}")
                number += 1

    def class_names(self, split: str) -> ClassNames:
        """Return the names of the classes of each column that is read."""
        return get_class_names(self._rows[split].features.to_dict())

    def column(self, split: str, name: str) -> Iterator[Any]:
        rows = self._all[split]
        if name not in rows.column_names:
            raise missing_column(self.describe(split), name, rows.column_names, "another column")
        names = get_class_names(rows.features.to_dict())
        return (name_classes({name: value}, names)[name] for value in rows[name])

    def describe(self, split: str) -> str:
        return f"dataset {self.name}, {split}"


class GrammarSource(Generic[Entry]):
    """Sentences of the built-in grammar; its splits hold out combinations of words."""

    given = SPLITS
    lacks_train = ""

    def __init__(self, counts: Mapping[str, int], make: Callable[[str, int], Iterator[Entry]], what: str) -> None:
        """``make(split, number)`` gives ``number`` entries, which messages call ``what``."""
        self._counts, self._make, self._what = counts, make, what
        self.files: list[Path] = []

    def read(self, split: str) -> Iterator[Entry]:
        number = self._counts[split]
        return track(self._make(split, number), f"sentences of {split}", number)

    def describe(self, split: str) -> str:
        return f"the grammar's {self._counts[split]} {self._what}"


class _ReplacedBytes:
    """Options for reading a column, whatever else is wrong in its rows."""

    on_invalid_utf8 = "replace"


def count_sentences(options: GrammarOptions) -> dict[str, int]:
    """Return the number of sentences of a grammar in each split."""
    valid = round(options.num_sentences * options.valid_fraction)
    train = round(options.num_sentences * options.train_fraction)
    return {"train": train, "valid": valid, "test": max(options.num_sentences - train - valid, 0)}


def list_split_files(options: SourceOptions, split: str) -> list[Path]:
    """Return the files that a split, or train for it, names; none for datasets and the grammar."""
    patterns = getattr(options, split) or (options.train if split == "train" else ())
    return find_files(patterns, f"corpus.{split}") if patterns else []


def list_files(name: str) -> list[Path]:
    """Return the files of a dataset in a folder; of one on the Hub none."""
    return sorted(path for path in Path(name).rglob("*") if path.is_file()) if name else []


def _load(name: str, subset: str | None) -> dict[Any, Any]:
    """Return the dataset's splits by name."""
    with optional_import("corpus.type: huggingface requires the datasets library", "hf"):
        import datasets
    folder = Path(name)
    # A folder written by save_to_disk needs another loader than a folder of data files.
    saved = (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()
    if saved and subset is not None:
        raise UserError(f"corpus.subset: the dataset that was saved in {name} has no configurations; leave it out")
    try:
        loaded = datasets.load_from_disk(name) if saved else datasets.load_dataset(name, subset)
    except Exception as error:
        # The Hub's client, its HTTP library and the file readers each raise their own.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"corpus.name: the dataset {name!r} can't be loaded ({reason}); check its name and the network, "
            "or give the folder that contains it"
        ) from error
    return dict(loaded) if isinstance(loaded, dict) else {"train": loaded}
