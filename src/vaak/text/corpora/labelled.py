"""A corpus of labelled texts: cleaned, split by classes, and counted.

files     tables, spreadsheets, Parquet, JSON   columns or keys of the text and its labels
folders   a file is a text                      its label is the name of its folder
lines     a line is a text                      its label is the name of its file, up to the first dot
fasttext  a line is a text                      its labels are the words of the line that begin with __label__

Evaluation must be honest, so splits are made as follows:

- A split that is given is kept unchanged: every text of it counts, duplicates too.
- A split that is not given is cut from the training files. With ``stratify`` each class (each combination of labels) is
  cut by the same fractions, its texts in the order of their hashes; else the hash of a text decides alone.
- A training text that is in an evaluation split is dropped from *training*; so are duplicates (``deduplicate``). A text
  that occurs again with another label is dropped, too, and counted apart: such data contradict themselves.
- A row without a label is an error in any split. A blank text is dropped from what comes from the training files, and
  an error in a given evaluation split.

Everything streams but for 16 bytes of digest (about 200 in a Python dictionary) for each training text.
"""

from __future__ import annotations

import functools
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from vaak.core.class_names import ClassNames
from vaak.core.corpus import SplitCorpus
from vaak.core.errors import DataError
from vaak.core.splits import OTHER_SHARES, SPLITS, CountedSplits, hash_text
from vaak.text.corpora.readers import (
    BytesOptions,
    OnBad,
    Record,
    decoded,
    file_lines,
    find_files,
    missing_column,
    read_records,
    whole_file,
)
from vaak.text.corpora.sources import FileSource, HuggingFaceSource, SourceOptions, TextSource, list_split_files
from vaak.text.corpora.statistics import PairFilter, Skipped, SplitStatistics
from vaak.text.corpora.stores import RowStore
from vaak.text.tokenizer import normalise

UNREADABLE = "a row can't be read"
NAMED = ("folders", "lines", "fasttext")
"""Types whose labels are names of folders or files, or in the lines."""
FASTTEXT_PREFIX = "__label__"
"""Prefix of fastText's labels."""
SEPARATOR = "|"
"""Between several labels in one cell."""
DROPPED = {
    "empty": "empty",
    "also_in_evaluation": "also in an evaluation split",
    "duplicates": "duplicate",
    "contradiction": "duplicate with another label",
}


class LabelOptions(BytesOptions, SourceOptions, Protocol):
    """The source of labelled texts and their splits; a ``corpus:`` section is one."""

    @property
    def text_column(self) -> str: ...
    @property
    def label_columns(self) -> tuple[str, ...]: ...
    @property
    def multi_label(self) -> bool: ...
    @property
    def out_of_scope(self) -> tuple[str, ...]: ...
    @property
    def stratify(self) -> bool: ...
    @property
    def seed(self) -> int: ...


class LabelledText(NamedTuple):
    """A text, its labels for each column, and its place."""

    text: str
    labels: tuple[tuple[str, ...], ...]
    where: str


class TextStore(RowStore[LabelledText]):
    """The labelled texts of a split on disk."""

    kind, name = LabelledText, "text"


@dataclass
class LabelStatistics:
    """The contents of a split, the texts of each label by column, and what was dropped, by reason."""

    num_columns: int
    text: SplitStatistics = field(default_factory=SplitStatistics)
    labels: list[Counter[str]] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.labels = [Counter() for _ in range(self.num_columns)]

    def __len__(self) -> int:
        return self.text.documents

    def add(self, item: LabelledText) -> None:
        self.text.add(item.text)
        for counts, labels in zip(self.labels, item.labels, strict=True):
            counts.update(labels)

    def to_json(self) -> dict[str, Any]:
        """Return the values for a JSON file."""
        counts = self.text.to_json()
        metrics = {name: counts[name] for name in ("words", "characters", "bytes", "longest_document")}
        labels = [dict(counts.most_common()) for counts in self.labels]
        return {"texts": len(self), **metrics, "labels": labels, "dropped": dict(self.dropped)}


class LabelledCorpus(SplitCorpus[LabelledText, LabelledText, LabelStatistics]):
    """The labelled texts that the options describe, by split."""

    def __init__(self, options: LabelOptions, skip_bad: bool = False) -> None:
        """Look up the sources without reading them; with ``skip_bad``, rows that can't be used are left out.

        Raises UserError for those that don't exist.
        """
        self.options, self.skipped = options, Skipped()
        source = _open_source(options, (lambda error: self.skipped.add(str(error))) if skip_bad else None)
        self._described = source.describe
        super().__init__(source, options, "corpus")

    def new_statistics(self) -> LabelStatistics:
        return LabelStatistics(len(self.options.label_columns))

    def cleaned(self, entry: LabelledText) -> LabelledText:
        return entry._replace(text=normalise(entry.text).strip())

    def choose_split(self, entry: LabelledText, split: str, counts: LabelStatistics) -> str | None:
        if self.options.stratify and len(self.division.ranges) > 1:
            return self._stratified[hash_text(entry.text)]
        return self.division.of(entry.text)

    def name_entry(self, entry: LabelledText) -> tuple[str | None, str]:
        return entry.text or None, entry.where

    def get_stratum(self, entry: LabelledText) -> str:
        is_single = self.options.stratify and not self.options.multi_label
        return ", ".join(one for labels in entry.labels for one in labels) if is_single else ""

    @functools.cached_property
    def _stratified(self) -> dict[int, str]:
        """The split of each training text, by its digest; a text that occurs again stays where it is.

        Classes too small for the fractions, or splits of given numbers, are cut together: the first text of each class
        is the last to leave train, so that nothing is evaluated that train doesn't know, if there are enough others.
        """
        classes: dict[int, str] = {}
        for entry in map(self.cleaned, self.source.read("train")):
            classes.setdefault(hash_text(entry.text), repr(entry.labels))
        members: dict[str, list[int]] = {}
        # In order of hashes, which is random but fixed: within each class, every split gets its fraction.
        for digest in sorted(classes):
            members.setdefault(classes[digest], []).append(digest)
        places = {digest: (n + 0.5) / len(own) for own in members.values() for n, digest in enumerate(own)}
        blank = hash_text("")
        if not isinstance(self.division, CountedSplits):
            found = {digest: self.division.at(place) for digest, place in places.items()}
            if {found[digest] for digest in places if digest != blank} == set(self.division.ranges):
                return found
        firsts = {own[0] for own in members.values()}
        order = sorted(places.keys() - {blank}, key=lambda one: (one not in firsts, places[one], one))
        ranked = {digest: self.division.of_rank(rank, len(order)) for rank, digest in enumerate(order)}
        # A blank text is dropped, so it mustn't be all that a split has.
        return {blank: "train", **ranked}

    def items(self, split: str, entries: Iterator[LabelledText], counts: LabelStatistics) -> Iterator[LabelledText]:
        is_cut = split in self.division.ranges
        others = [one for one in self.division.given if one != "train"]
        evaluated = (((self.cleaned(one).text,),) for other in others for one in self.source.read(other))
        kept = PairFilter(evaluated, deduplicate=self.options.deduplicate) if is_cut else None
        read_labels: dict[int, int] = {}
        for entry in entries:
            if not entry.text and kept is None:
                raise DataError(f"{entry.where}: the text is empty; {split} is kept complete: fix or remove this row")
            reason: str | None = "empty" if not entry.text else kept.why_dropped(((entry.text,),)) if kept else None
            # A text with two different labels is counted separately: one of its labels is wrong.
            if is_cut and reason != "also_in_evaluation":
                labels = hash_text(repr(entry.labels))
                if read_labels.setdefault(hash_text(entry.text), labels) != labels and reason == "duplicates":
                    reason = "contradiction"
            if reason:
                counts.dropped[DROPPED[reason]] += 1
            else:
                yield entry
        if number := self.skipped.count_in(list_split_files(self.options, split)):
            counts.dropped[UNREADABLE] += number

    def class_names(self, split: str) -> ClassNames:
        """Return the names of classes that a split's source has, by column."""
        # The grammar has none.
        find = getattr(self.source, "class_names", None)
        names: ClassNames = {} if find is None else find(self.division.find_source(split))
        return names

    def out_of_scope(self) -> Iterator[LabelledText]:
        """Yield the texts that belong to no class."""
        files = find_files(self.options.out_of_scope, "corpus.out_of_scope")
        for record in read_records(files, {self.options.text_column: "text_column"}, self.options):
            yield self.cleaned(LabelledText(_text(record, self.options), (), record.where))

    def why_empty(self, split: str, counts: LabelStatistics) -> str:
        source = self._described(self.division.find_source(split))
        if counts.dropped:
            reasons = ", ".join(f"{number} because {reason}" for reason, number in counts.dropped.items())
            return f"all its texts in {source} were dropped ({reasons})"
        if self.division.is_all_of_its_source(split):
            return f"{source} has no text"
        return f"no text of {source} fell into it; give more texts, {OTHER_SHARES}"


def _open_source(options: LabelOptions, on_bad: OnBad | None = None) -> TextSource[LabelledText]:
    columns = {options.text_column: "text_column", **dict.fromkeys(options.label_columns, "label_columns")}
    if options.type == "grammar":
        return _Grammar(options)
    if options.type in NAMED:
        return _open_named(options, on_bad)
    if options.type == "huggingface":
        return HuggingFaceSource(
            options.name,
            options.subset,
            functools.partial(_list_dataset_columns, columns),
            lambda row, where: labelled_text(Record(row, where), options),
        )
    files = {split: [(path,) for path in find_files(getattr(options, split), f"corpus.{split}")] for split in SPLITS}
    lacks_train = "corpus.train: give the files of the training texts and their labels"

    # Bad labels are found only here, after a row was read: they go to ``on_bad`` like unreadable rows.
    def read(together: Any) -> Iterator[LabelledText]:
        for record in read_records((path for (path,) in together), columns, options, on_bad):
            try:
                one = labelled_text(record, options)
            except DataError as error:
                if on_bad is None:
                    raise
                on_bad(error)
                continue
            yield one

    return FileSource(files, read, lacks_train)


def _open_named(options: LabelOptions, on_bad: OnBad | None) -> FileSource[LabelledText]:
    """Yield the texts whose label is the name of their folder, or of their file, or in their line."""
    if options.label_columns != ("label",) or (options.multi_label and options.type != "fasttext"):
        raise DataError(f"corpus.label_columns: texts of the type {options.type} have one label, in the column label")
    files = {split: [(path,) for path in find_files(getattr(options, split), f"corpus.{split}")] for split in SPLITS}

    def read(together: Sequence[tuple[Path, ...]]) -> Iterator[LabelledText]:
        for (path,) in together:
            yield from read_named(path, options.type, options, on_bad, multi_label=options.multi_label)

    return FileSource(files, read, "corpus.train: give the files of the training texts")


def read_named(
    path: Path, kind: str, options: BytesOptions, on_bad: OnBad | None = None, *, multi_label: bool = True
) -> Iterator[LabelledText]:
    """The texts of a file: one, labelled by its folder (``folders``), or one a line, labelled by the file (``lines``).

    Of ``fasttext``, a line has its labels, several only where ``multi_label`` allows them.

    Raises DataError naming file and line for what can't be read; with ``on_bad``, that is told of such texts.
    """
    # Absolute, since the parent of a bare file name has no name.
    name = path.absolute().parent.name if kind == "folders" else path.name.partition(".")[0]
    # MacOS writes names in NFD.
    labels = ((unicodedata.normalize("NFC", name).strip(),),)
    try:
        for piece in whole_file(path) if kind == "folders" else file_lines(path):
            where = str(path) if kind == "folders" else f"{path}:{piece.line}"
            try:
                text = decoded(piece, path, options).text
                if kind != "fasttext":
                    yield LabelledText(text, labels, where)
                elif text.strip():
                    yield _split_labels(text, where, multi_label)
            except DataError as error:
                if on_bad is None:
                    raise
                on_bad(error)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error


def _split_labels(line: str, where: str, multi_label: bool) -> LabelledText:
    """The text of a line without its labels, each after ``FASTTEXT_PREFIX``. Raises DataError for unusable ones."""
    words = line.split()
    labels = sorted({word.removeprefix(FASTTEXT_PREFIX) for word in words if word.startswith(FASTTEXT_PREFIX)})
    if not all(labels) or not (labels or multi_label):
        raise DataError(
            f"{where}: no word is a label, such as {FASTTEXT_PREFIX}good: every text needs one; label or remove it"
        )
    if len(labels) > 1 and not multi_label:
        raise DataError(f"{where}: {len(labels)} labels; set multi_label: true, or give one label")
    text = " ".join(word for word in words if not word.startswith(FASTTEXT_PREFIX))
    return LabelledText(text, (tuple(unicodedata.normalize("NFC", one) for one in labels),), where)


def _list_dataset_columns(columns: dict[str, str], where: str, there: list[str]) -> list[str]:
    for column, option in columns.items():
        if column not in there:
            raise missing_column(where, column, there, option)
    return list(columns)


class _Grammar:
    """Sentences of the built-in Hindi grammar, each labelled by the rule that it shows.

    Of twins, which differ in a word or two, there is one.
    """

    given, lacks_train = ("train",), ""

    def __init__(self, options: LabelOptions) -> None:
        self.files: list[Any] = []
        self._number, self._seed = options.num_sentences, options.seed
        if options.label_columns != ("label",) or options.multi_label:
            raise DataError("corpus.label_columns: the sentences of the grammar have one label, in the column label")

    def read(self, split: str) -> Iterator[LabelledText]:
        return iter(self._texts)

    @functools.cached_property
    def _texts(self) -> list[LabelledText]:
        """The texts of all splits, composed once, as that takes longer than anything else."""
        from vaak.text.grammar import PHENOMENA, minimal_pairs

        each = -(-self._number // len(PHENOMENA))
        # Twins follow each other: take every second sentence, one of each pair of twins.
        pairs = islice(minimal_pairs(2 * each, self._seed), 0, None, 2)
        return [
            LabelledText(pair.sentence_good, ((pair.phenomenon,),), f"the grammar: sentence {number}")
            for number, pair in enumerate(pairs, 1)
        ]

    def describe(self, split: str) -> str:
        return f"the grammar's {self._number} sentences"


def labelled_text(record: Record, options: LabelOptions) -> LabelledText:
    """The text and the labels of a row. Raises DataError, naming the row, where a label is missing or isn't one."""
    labels = (_labels(record, column, options.multi_label) for column in options.label_columns)
    return LabelledText(_text(record, options), tuple(labels), record.where)


def _text(record: Record, options: LabelOptions) -> str:
    text = record.values[options.text_column]
    if not isinstance(text, str | None):
        kind = type(text).__name__
        raise DataError(f"{record.where}: {options.text_column} is a {kind}, not a string (text_column)")
    return text or ""


def _labels(record: Record, column: str, multi_label: bool) -> tuple[str, ...]:
    value = record.values[column]
    if value is None or (value == "" and not multi_label):
        raise DataError(f"{record.where}: {column} is empty: every row needs a label; label or remove this row")
    if isinstance(value, list):
        if not multi_label:
            raise DataError(f"{record.where}: {column} is a list of labels; set multi_label: true, or give one label")
        return tuple(sorted({_label(one, record, column) for one in value}))
    if multi_label and isinstance(value, str):
        return tuple(sorted({part.strip() for part in value.split(SEPARATOR) if part.strip()}))
    return (_label(value, record, column),)


def _label(value: Any, record: Record, column: str) -> str:
    # Spreadsheets and pandas write whole numbers as floats.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, str | int) or value == "":
        raise DataError(f"{record.where}: {column} is {value!r}; a label is a text or a whole number")
    return str(value).strip()


def in_order(labels: set[str]) -> list[str]:
    """Labels in their order: numbers by value, texts by letters.

    >>> in_order({"10", "9", "0"}), in_order({"b", "10", "a"})
    (['0', '9', '10'], ['10', 'a', 'b'])
    """
    return sorted(labels, key=int) if all(map(str.isdecimal, labels)) else sorted(labels)
