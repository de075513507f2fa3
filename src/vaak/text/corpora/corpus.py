"""A corpus: documents from files, a Hugging Face dataset or the built-in grammar, cleaned, split and counted.

Evaluation must be honest, so splits are made as follows:

- A split that is given is kept unchanged: every document and every byte of it counts, duplicates too.
- A training document that equals one of a given evaluation split is dropped from *training*, and counted.
- A split that is not given is cut from the training files by a hash of the content. A document's split never depends
  on the other documents, so none is in two, and none moves when documents are added. Equal documents fall together.
- Exact duplicates are dropped from what comes from the training files (``deduplicate``).

Documents are compared after normalisation (``vaak.text.tokenizer``). Everything streams: only the current
document is in memory and, while training documents are read, 8 bytes of digest (about 80 in a Python set) for each.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from vaak.core.corpus import SplitCorpus
from vaak.core.errors import DataError
from vaak.core.progress import track
from vaak.core.splits import OTHER_SHARES, SPLITS
from vaak.text.corpora.conversation_files import read_chats, read_preferences
from vaak.text.corpora.readers import (
    TYPES_WITH_ROWS,
    Document,
    ReadingOptions,
    find_files,
    missing_column,
    read_documents,
    read_records,
    read_with_problems,
)
from vaak.text.corpora.sources import (
    FileSource,
    GrammarSource,
    HuggingFaceSource,
    SourceOptions,
    TextSource,
    count_sentences,
)
from vaak.text.corpora.statistics import PairFilter, Skipped, SplitStatistics
from vaak.text.tokenizer import normalise


class CorpusOptions(ReadingOptions, SourceOptions, Protocol):
    """The source of the text and its splits; the language model's ``corpus:`` section is one."""


LABEL_COLUMNS = ("label", "labels", "class", "category", "intent", "sentiment")
"""Names that a column or key of labels has."""


def unread_labels(options: CorpusOptions) -> str | None:
    """The column or key of labels next to the texts of training files, which no corpus of documents reads, if any."""
    if options.type not in ("json", "csv", "parquet") or not options.train:
        return None
    first = find_files(options.train, "data.corpus.train")[:1]
    for name in LABEL_COLUMNS:
        if name == options.text_column:
            continue
        with contextlib.suppress(DataError):
            # A file may lack it; reading reports what can't be read.
            for _ in read_records(first, {name: "data.corpus.label_columns"}, options):
                return name
    return None


class DocumentStatistics(SplitStatistics):
    """Counts of documents and of their texts."""

    def add(self, text: str | Document) -> None:
        super().add(text if isinstance(text, str) else text.text)


class DocumentsBySplit(dict[str, list[str]]):
    """Documents by split; ``val`` and ``validation`` are other names of ``valid``."""

    def __missing__(self, split: str) -> list[str]:
        if split in ("val", "validation") and "valid" in self:
            return self["valid"]
        raise KeyError(split)


class CorpusBuilder(SplitCorpus[Document, Document, DocumentStatistics]):
    """The documents that the options describe, by split."""

    def __init__(self, options: CorpusOptions, seed: int = 0, skip_bad: bool = False):
        """Look up the sources without reading them; ``seed`` is the grammar's.

        With ``skip_bad``, conversations and rows that can't be used are left out and counted. Raises
        DataError for files, patterns and datasets that don't exist.
        """
        self.options = options
        source = _open_source(options, seed, skip_bad)
        self._described, self.skipped = source.describe, Skipped()
        super().__init__(source, options, "corpus")

    def documents(self, split: str) -> Iterator[str]:
        """The normalised texts of the documents of ``split``, without the empty ones; ``read`` has conversations whole.

        Raises DataError for what can't be read, and at the end when no document was found.
        """
        return (document.text for document in self.read(split))

    def load_splits(self) -> DocumentsBySplit:
        """Return all documents in memory, for corpora that fit."""
        return DocumentsBySplit({split: list(self.documents(split)) for split in self.splits})

    def new_statistics(self) -> DocumentStatistics:
        return DocumentStatistics()

    def cleaned(self, entry: Document) -> Document:
        return entry._replace(text=normalise(entry.text))

    def choose_split(self, entry: Document, split: str, counts: DocumentStatistics) -> str | None:
        # A row that can't be read has no text to hash: count it with train.
        return "train" if entry.problem else self.division.of(entry.text)

    def name_entry(self, entry: Document) -> tuple[str | None, str]:
        return entry.text if self._is_document(entry.text) else None, entry.text.strip()[:60]

    def items(self, split: str, entries: Iterator[Document], counts: DocumentStatistics) -> Iterator[Document]:
        # Texts of given evaluation splits are dropped from what is cut from train: no model is tested on what it
        # learned.
        others = [one for one in self.division.given if one != "train"]
        evaluated = (((self.cleaned(one).identity,),) for other in others for one in self.source.read(other))
        is_cut = split in self.division.ranges
        kept = PairFilter(evaluated, deduplicate=self.options.deduplicate) if is_cut else None
        for document in entries:
            counts.replaced_bytes += document.replaced_bytes
            if document.problem:
                counts.unusable += 1
                self.skipped.add(document.problem)
            elif not self._is_document(document.text):
                counts.drop("empty")
            elif kept is not None and (reason := kept.why_dropped(((document.identity,),))):
                counts.drop(reason)
            else:
                yield document

    def _is_document(self, text: str) -> bool:
        """Whether a text is a document: blank lines and cells aren't, but a file that is one document may be blank."""
        whole = self.options.type == "text" and self.options.document == "file"
        return bool(text if whole else text.strip())

    def why_empty(self, split: str, counts: DocumentStatistics) -> str:
        source = self._described(self.division.find_source(split))
        if counts.also_in_evaluation:
            return "all of its documents are also in a given evaluation split"
        if self.division.is_all_of_its_source(split):
            return f"{source} has no text"
        return f"no document of {source} fell into it; give more documents, {OTHER_SHARES}"


def _open_source(options: CorpusOptions, seed: int, skip_bad: bool) -> TextSource[Document]:
    if options.type == "grammar":
        return _open_grammar(options, seed)
    if options.type == "huggingface":
        columns, document = functools.partial(_text_column, options), functools.partial(_document, options)
        return HuggingFaceSource(options.name, options.subset, columns, document)
    files = {split: [(path,) for path in find_files(getattr(options, split), f"corpus.{split}")] for split in SPLITS}
    lacks_train = f"corpus.train: give the files of the training text (type: {options.type})"
    read_rows = {"chat": read_chats, "preferences": read_preferences}.get(options.type)
    read: Callable[[Path, ReadingOptions], Iterator[Document]] | None = None
    if read_rows is not None:
        read = functools.partial(read_rows, skip_bad=skip_bad)
    if options.type in TYPES_WITH_ROWS and skip_bad:
        read = read_with_problems
    named: dict[Path, int] = {}
    for number, pattern in enumerate(options.train):
        named |= {path: number for path in find_files([pattern], "corpus.train") if path not in named}

    def documents(together: Sequence[tuple[Path, ...]]) -> Iterator[Document]:
        # Files of the same pattern together: each document remembers which entry of ``train`` it came from.
        for source, some in itertools.groupby((path for path, *_ in together), lambda path: named.get(path, 0)):
            found = read_documents(some, options, read)
            yield from found if source == 0 else (one._replace(source=source) for one in found)

    return FileSource(files, documents, lacks_train)


def _open_grammar(options: CorpusOptions, seed: int) -> GrammarSource[Document]:
    """Return the grammar's sentences, made once and kept."""

    @functools.cache
    def made(split: str, number: int) -> list[Document]:
        from vaak.text.grammar import sentences

        texts = track(sentences(split, number, seed), f"composing {split}", number)
        return [Document(text) for text in texts]

    return GrammarSource(count_sentences(options), lambda split, number: iter(made(split, number)), "sentences")


def _text_column(options: CorpusOptions, where: str, columns: list[str]) -> list[str]:
    if options.text_column not in columns:
        raise missing_column(where, options.text_column, columns)
    return [options.text_column]


def _document(options: CorpusOptions, row: dict[str, Any], where: str) -> Document:
    text = row[options.text_column]
    if not isinstance(text, str | None):
        kind = type(text).__name__
        raise DataError(f"dataset {options.name}: {options.text_column} is a {kind}, not a string")
    return Document(text or "")
