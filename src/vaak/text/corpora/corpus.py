"""A corpus: documents from files, a Hugging Face dataset or the built-in grammar, cleaned, split and counted.

Evaluation must be honest, so splits are made as follows:

- A split that is given is kept unchanged: every document and every byte of it counts, duplicates too.
- A training document that equals one of a given evaluation split is dropped from *training*, and counted.
- A split that is not given is cut from the training files by a hash of the content. A document's split never depends
  on the other documents, so none is in two, and none moves when documents are added. Equal documents fall together.
- Exact duplicates are dropped from what comes from the training files (``deduplicate``).

Documents are compared after normalisation (``vaak.text.tokenizers.normalise``). Everything streams: only the current
document is in memory and, while training documents are read, 8 bytes of digest (about 80 in a Python set) for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from vaak.core.errors import DataError
from vaak.core.split_ranges import SPLITS, digest_of, fraction_of, split_ranges
from vaak.text.corpora import huggingface
from vaak.text.corpora.readers import Document, ReadingOptions, find_files, read_documents
from vaak.text.corpora.statistics import SplitStatistics
from vaak.text.tokenizers.normalise import normalise


class SplittingOptions(Protocol):
    """How one source is divided into three splits."""

    @property
    def train_fraction(self) -> float: ...
    @property
    def valid_fraction(self) -> float: ...


class GrammarOptions(SplittingOptions, Protocol):
    """The number of sentences of a grammar, and their splits."""

    @property
    def num_sentences(self) -> int: ...


class CorpusOptions(ReadingOptions, GrammarOptions, Protocol):
    """The source of the text and its splits; the language model's ``corpus:`` section is one."""

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


class Splits(dict[str, list[str]]):
    """Documents by split; ``val`` and ``validation`` are other names of ``valid``."""

    def __missing__(self, split: str) -> list[str]:
        if split in ("val", "validation") and "valid" in self:
            return self["valid"]
        raise KeyError(split)


class CorpusBuilder:
    """The documents that the options describe, by split; the same ones in the same order each time they are read."""

    def __init__(self, options: CorpusOptions, seed: int = 0):
        """Look up the sources without reading them; ``seed`` is the grammar's.

        Raises DataError for files, patterns and datasets that don't exist.
        """
        self.options = options
        self._source = _open_source(options, seed)
        self._ranges = split_ranges(self._source.given, options.train_fraction, options.valid_fraction, "corpus")
        self._statistics: dict[str, SplitStatistics] = {}

    @property
    def splits(self) -> tuple[str, ...]:
        """All splits, given or split off from train."""
        return tuple(split for split in SPLITS if split in self._ranges or split in self._source.given)

    @property
    def files(self) -> list[Path]:
        """The files it reads, to detect whether they have changed."""
        return self._source.source_files

    def documents(self, split: str) -> Iterator[str]:
        """The normalised documents of ``split``, none of them empty.

        Raises DataError for what can't be read, and at the end when there was no document at all.
        """
        if split not in self.splits:
            if split == "train":
                raise DataError(self._source.lacks_train)
            raise DataError(f"corpus: there is no split {split!r}; expected one of {', '.join(self.splits)}")
        counts = SplitStatistics()
        documents = self._from_train(split, counts) if split in self._ranges else self._given(split, counts)
        for text in documents:
            counts.add(text)
            yield text
        if not counts.documents:
            raise DataError(self._why_empty(split, counts))
        self._statistics[split] = counts

    def statistics(self, splits: tuple[str, ...] | None = None) -> dict[str, SplitStatistics]:
        """Statistics of ``splits`` (default: all); reads those that haven't been read completely."""
        splits = self.splits if splits is None else splits
        for split in splits:
            if split not in self._statistics:
                for _ in self.documents(split):
                    pass
        return {split: self._statistics[split] for split in splits}

    def load_splits(self) -> Splits:
        """All documents in memory, for corpora that fit."""
        return Splits({split: list(self.documents(split)) for split in self.splits})

    def _given(self, split: str, counts: SplitStatistics) -> Iterator[str]:
        for document in self._source.read(split):
            text = normalise(document.text)
            counts.replaced_bytes += document.replaced_bytes
            if self._is_document(text):
                yield text
            else:
                counts.empty += 1

    def _from_train(self, split: str, counts: SplitStatistics) -> Iterator[str]:
        """Documents of the training source whose hash falls in the split's range."""
        held_out = self._held_out()
        low, high = self._ranges[split]
        seen: set[int] = set()
        for document in self._source.read("train"):
            text = normalise(document.text)
            digest = digest_of(text)
            if not low <= fraction_of(digest) < high:
                continue
            counts.replaced_bytes += document.replaced_bytes
            if not self._is_document(text):
                counts.empty += 1
            elif digest in held_out:
                counts.also_in_evaluation += 1
            elif digest in seen:
                counts.duplicates += 1
            else:
                if self.options.deduplicate:
                    seen.add(digest)
                yield text

    def _held_out(self) -> set[int]:
        """Digests of the given evaluation documents."""
        given = [split for split in self._source.given if split != "train"]
        return {digest_of(normalise(document.text)) for split in given for document in self._source.read(split)}

    def _is_document(self, text: str) -> bool:
        """Blank lines and cells are none; in a file that is one document, every newline counts."""
        whole = self.options.type == "text" and self.options.document == "file"
        return bool(text if whole else text.strip())

    def _why_empty(self, split: str, counts: SplitStatistics) -> str:
        if counts.also_in_evaluation:
            return f"corpus: {split} is empty: all of its documents are also in a given evaluation split"
        if split in self._source.given and self._ranges.get(split, (0.0, 1.0)) == (0.0, 1.0):
            return f"corpus: {split} is empty: {self._source.describe(split)} has no text"
        return (
            f"corpus: {split} is empty: no document of {self._source.describe('train')} fell into it; "
            "give more documents, other fractions, or files for this split"
        )


class Source(Protocol):
    """Raw documents; ``given`` names the splits that have a separate source.

    ``lacks_train`` is the message if there is no training text.
    """

    @property
    def given(self) -> tuple[str, ...]: ...

    @property
    def lacks_train(self) -> str: ...

    @property
    def source_files(self) -> list[Path]: ...

    def read(self, split: str) -> Iterator[Document]: ...

    def describe(self, split: str) -> str: ...


class FileSource:
    """Documents of files by split."""

    def __init__(self, options: CorpusOptions):
        patterns = {"train": options.train, "valid": options.valid, "test": options.test}
        self.lacks_train = f"corpus.train: give the files of the training text (type: {options.type})"
        if not any(patterns.values()):
            raise DataError(self.lacks_train)
        self.options = options
        self.files = {split: find_files(names, f"corpus.{split}") for split, names in patterns.items() if names}
        self.given = tuple(self.files)
        self.source_files = [path for paths in self.files.values() for path in paths]

    def read(self, split: str) -> Iterator[Document]:
        return read_documents(self.files[split], self.options)

    def describe(self, split: str) -> str:
        files = self.files[split]
        return str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"


class GrammarSource:
    """Sentences of the built-in Hindi grammar, made once and kept; its splits hold out combinations of words."""

    given = SPLITS
    lacks_train = ""
    source_files: list[Path] = []  # noqa: RUF012 - never changed

    def __init__(self, options: CorpusOptions, seed: int):
        self.counts = sentences_of_splits(options)
        self.seed = seed
        self._made: dict[str, list[Document]] = {}

    def read(self, split: str) -> Iterator[Document]:
        from vaak.text.grammar import sentences

        if split not in self._made:
            self._made[split] = [Document(text) for text in sentences(split, self.counts[split], self.seed)]
        return iter(self._made[split])

    def describe(self, split: str) -> str:
        return f"the grammar's {self.counts[split]} sentences"


def sentences_of_splits(options: GrammarOptions) -> dict[str, int]:
    """The number of sentences of a grammar in each split."""
    valid = round(options.num_sentences * options.valid_fraction)
    train = round(options.num_sentences * options.train_fraction)
    return {"train": train, "valid": valid, "test": max(options.num_sentences - train - valid, 0)}


def _open_source(options: CorpusOptions, seed: int) -> Source:
    if options.type == "grammar":
        return GrammarSource(options, seed)
    if options.type == "huggingface":
        return huggingface.HuggingFaceSource(options.name, options.subset, options.text_column)
    return FileSource(options)
