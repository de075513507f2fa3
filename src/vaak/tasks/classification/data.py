"""The data of a classifier: labelled corpus to classes, tokenizer and token stores, once; then token ids and classes.

FOLDER (RUN/prepared, or CACHE_DIR/FINGERPRINT, to which RUN/prepared then points)
  tokenizer/tokenizer.json     trained here, or the pretrained model's
  base/config.json             the pretrained model's sizes, if there is one
  vectors.npy                  (token, width): given word vectors, NaN where a word has none
  neighbours.npz               words of the pretrained model, and their embeddings, where synonyms are such neighbours
  classes.json                 the classes by label column, in the order of the model's outputs
  train/  valid/  test/        texts.jsonl, tokens/ and targets.npy: (text, column) numbers of classes or, with
  out_of_scope/                multi_label, (text, class) 0 or 1
  prepared.json                the fingerprint and statistics; written last: it means "complete"

A transformer reads [bos] t1 ... tn [eos] (a BERT: [CLS] t1 ... tn [SEP]), a TextCNN t1 ... tn; a longer text is cut at
``max_length``. Training texts are augmented as texts, and encoded again; one that would be longer than
its plan allows stays unchanged.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import category

import numpy as np
import torch

from vaak.config.base import FOLDS_FILE
from vaak.core.batch import Batch
from vaak.core.class_names import ClassNames, number_names
from vaak.core.errors import DataError, UserError
from vaak.core.left_out import CONTENTS, SplitContents
from vaak.core.storage.files import compute_fingerprint, read_json, write_json
from vaak.core.task import Dataset, Padding
from vaak.engine.checkpoint.names import list_checkpoints
from vaak.nn.cross_entropy import IGNORED
from vaak.runs.prepared import PreparedFolder, Recipe, fingerprint_with_files, is_prepared, prepared_folder
from vaak.tasks.base import pad_rows
from vaak.tasks.classification.config import ClassificationExperiment
from vaak.tasks.classification.pretrained import PRETRAINED_KEY, loaded_embeddings, save_base
from vaak.tasks.pretrained import resolve_source
from vaak.text.augmentation import OF_SYNONYMS
from vaak.text.corpora.labelled import LabelledCorpus, TextStore, in_order
from vaak.text.corpora.readers import find_files
from vaak.text.corpora.stores import TokenStore, write_tokens
from vaak.text.coverage import measure
from vaak.text.tokenizer import Tokenizer
from vaak.text.tokenizer_training import TokenizerFactory

log = logging.getLogger("vaak")
OUT_OF_SCOPE = "out_of_scope"
SECTIONS = "data.corpus, data.tokenizer or data.augmentation.synonyms"
Classes = dict[str, list[str]]
"""The classes of each label column."""


CLASSES_FILE = "classes.json"


@dataclass(frozen=True)
class LabelStores:
    """The texts, tokens and targets of a split."""

    texts: TextStore
    tokens: TokenStore
    targets: np.ndarray

    @classmethod
    def open(cls, folder: Path) -> LabelStores:
        return cls(TextStore(folder), TokenStore(folder / "tokens"), np.load(folder / "targets.npy"))


@dataclass(frozen=True)
class PreparedLabels(PreparedFolder):
    """Tokenizer, classes and the stores of each split."""

    load_tokenizer: Callable[[Path], Tokenizer] = Tokenizer.load

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self.load_tokenizer(self.folder / "tokenizer")

    @cached_property
    def classes(self) -> Classes:
        """The classes of each label column."""
        found: Classes = read_json(self.folder / CLASSES_FILE)
        return found

    def stores(self, split: str) -> LabelStores:
        """Return the stores of a split. Raises UserError if the corpus has no such split."""
        return self.open_split(split, LabelStores.open)


@dataclass(frozen=True)
class LabelSources:
    """The sources of prepared data: an experiment, and the classes of a run if others are evaluated with them."""

    experiment: ClassificationExperiment
    code: Path
    classes: Classes | None = None
    begun: Classes | None = None
    """The classes of a run that has begun and whose data are prepared again."""

    @property
    def base(self) -> str | None:
        """The folder or the name of the pretrained model."""
        name = self.experiment.model.pretrained_model
        return None if name is None or self.classes is not None else resolve_source(PRETRAINED_KEY, name, self.code)

    @property
    def factory(self) -> TokenizerFactory:
        return TokenizerFactory(self.experiment.data.tokenizer, self.code)

    @property
    def vectors(self) -> str | None:
        options = self.experiment.model.word_vectors
        return None if options is None or self.classes is not None else options.path

    @property
    def has_neighbours(self) -> bool:
        """Whether synonyms are neighbours among the embeddings of a pretrained model."""
        options = self.experiment.data.augmentation
        wanted = options.enabled and options.synonyms == "vectors" and bool({*OF_SYNONYMS} & {*options.techniques})
        return wanted and self.base is not None

    def fingerprint(self) -> str:
        """A hash of everything prepared data depend on: options, and size and time of change of every source file."""
        data = self.experiment.data
        base = Path(self.base) if self.base and Path(self.base).is_dir() else None
        given = [data.tokenizer.path, self.vectors, base and base / "config.json", base and base / "tokenizer.json"]
        files = [*LabelledCorpus(data.corpus).files, *find_files(data.corpus.out_of_scope, f"corpus.{OUT_OF_SCOPE}")]
        corpus = data.corpus.model_dump(mode="json")
        options: dict[str, Any] = {"corpus": corpus, "tokenizer": data.tokenizer.path, "base": self.base}
        if data.on_bad_example == "skip" and data.corpus.type == "files":
            options["skips"] = True
        if self.begun is not None and data.cache_dir is not None:
            # Other runs find the same data there.
            options["classes"] = self.begun
        return fingerprint_with_files(self.options | options, files + [Path(path) for path in given if path])

    @property
    def options(self) -> dict[str, Any]:
        """The options that determine the data, without their paths, which may differ after a run was moved."""
        data = self.experiment.data
        places = {"train", "valid", "test", OUT_OF_SCOPE, "name", FOLDS_FILE}
        corpus = data.corpus.model_dump(mode="json", exclude=places)
        own = self.experiment.model.pretrained_model is None
        return {
            "labels": corpus,
            "words": self.factory.data_options() if own else {},
            "vectors": bool(self.vectors) or self.has_neighbours,
        }


def read_classes_of_run(directory: Path) -> Classes | None:
    """Return the classes that the newest checkpoint of a run has, where its prepared data have gone; else None."""
    if is_prepared(directory):
        return None
    for checkpoint in reversed(list_checkpoints(directory / "checkpoints")):
        with contextlib.suppress(OSError, ValueError):
            found: Classes = read_json(prepared_folder(checkpoint) / CLASSES_FILE)
            return found
    return None


def recipe(sources: LabelSources, splits: tuple[str, ...] | None = None) -> Recipe:
    """Return how ``splits`` (default: all) are made. Without classes among the sources, train must be one of them."""
    return Recipe(partial(_make, sources, splits), sources.fingerprint, sources.options, SECTIONS)


def _make(sources: LabelSources, splits: tuple[str, ...] | None, folder: Path) -> dict[str, Any]:
    """Fill ``folder``, and return its statistics."""
    data, model = sources.experiment.data, sources.experiment.model
    corpus = LabelledCorpus(data.corpus, data.on_bad_example == "skip")
    outside = bool(data.corpus.out_of_scope)
    wanted = splits or (*corpus.with_train_first(), *((OUT_OF_SCOPE,) if outside else ()))
    if OUT_OF_SCOPE in wanted and not outside:
        raise UserError("data.corpus.out_of_scope: give the files of texts that belong to no class")
    known = [split for split in wanted if split != OUT_OF_SCOPE]
    stores = {split: TextStore.write(folder / split, corpus.read(split)) for split in known}
    statistics = {split: corpus.statistics[split].to_json() for split in known}
    classes = sources.classes or sources.begun
    classes = classes or _collect_classes(data.corpus.label_columns, stores["train"], model.num_labels)
    write_json(folder / CLASSES_FILE, classes)
    _report_overlap({split: stores[split] for split in known if split not in corpus.cut_splits})
    if OUT_OF_SCOPE in wanted:
        stores[OUT_OF_SCOPE] = TextStore.write(folder / OUT_OF_SCOPE, corpus.out_of_scope())
        statistics[OUT_OF_SCOPE] = {"texts": len(stores[OUT_OF_SCOPE])}
    for about in statistics.values():
        about[CONTENTS] = SplitContents("texts", about["texts"], about.get("dropped", {})).to_json()
    tokenizer = _tokenizer(sources, stores, folder)
    if sources.vectors is not None:
        np.save(folder / "vectors.npy", load_vectors(Path(sources.vectors), tokenizer))
    if sources.base is not None and sources.has_neighbours:
        words = whole_words(tokenizer)
        vectors = loaded_embeddings(sources.base)[[*words.values()]]
        np.savez(folder / "neighbours.npz", words=np.array([*words]), vectors=vectors)
        log.info("synonyms: neighbours among %s words of %s", f"{len(words):,}", sources.base)
    # A transformer's rows begin and end with special tokens.
    num_tokens = data.max_length - (2 if model.architecture == "transformer" else 0)
    for split, store in stores.items():
        names = corpus.class_names(split) if (sources.classes or sources.begun) and split in known else {}
        tokens = write_targets(store, classes, tokenizer, data.corpus.multi_label, names).tokens
        statistics[split] |= _report_tokens(split, statistics[split], tokens, tokenizer, num_tokens)
        # Of whole words, every new text has unknown ones; for a trained model, what it can't read counts as its errors.
        limit = None if tokenizer.has_whole_words or splits else data.max_unknown
        statistics[split]["unwritable"] = measure(tokenizer, (row.text for row in store)).report(split, limit)
    return {"statistics": statistics}


def write_targets(
    store: TextStore, classes: Classes, tokenizer: Tokenizer, multi_label: bool, names: ClassNames | None = None
) -> LabelStores:
    """Write the tokens of texts, and the classes to predict, next to them.

    Where a run's classes are the numbers of a set whose classes have ``names``, these are the numbers.
    Raises DataError for a label that training doesn't have.
    """
    numbers = [_number_labels(column, own, (names or {}).get(column, ())) for column, own in classes.items()]
    starts = np.cumsum([0, *map(len, classes.values())])
    shape = (len(store), int(starts[-1]) if multi_label else len(numbers))
    targets = np.full(shape, 0 if multi_label else IGNORED, dtype=np.int8 if multi_label else np.int64)
    for index, row in enumerate(store):
        for place, labels in enumerate(row.labels):
            for label in labels:
                if label not in numbers[place]:
                    raise DataError(f"{row.where}: the label {label!r} occurs in no training text; remove or map it")
                if multi_label:
                    targets[index, starts[place] + numbers[place][label]] = 1
                else:
                    targets[index, place] = numbers[place][label]
    np.save(store.folder / "targets.npy", targets)
    tokens = write_tokens(store.folder / "tokens", (row.text for row in store), tokenizer)
    return LabelStores(store, tokens, targets)


def _number_labels(column: str, classes: Sequence[str], names: Sequence[str]) -> dict[str, int]:
    """Return the number of each label; ``names`` are those of a set's classes."""
    named = number_names(classes, names)
    if named:
        some = ", ".join(f"{classes[number]} is {name}" for name, number in islice(named.items(), 10))
        more = ", …" if len(named) > 10 else ""
        log.warning("%s: the classes of this run are numbers, those of its data have names: %s", column, some + more)
    return named or {label: number for number, label in enumerate(classes)}


def _collect_classes(columns: Iterable[str], store: TextStore, number: int | None) -> Classes:
    """The classes of the training texts. Raises DataError for fewer than two, or another number than is expected."""
    classes = {}
    for index, column in enumerate(columns):
        found = in_order({label for row in store for label in row.labels[index]})
        classes[column] = found
        if len(found) < 2:
            only = f"has one label only ({found[0]})" if found else "has no label"
            raise DataError(f"corpus: {column} {only} in train: there is nothing to tell apart; check label_columns")
        if number is not None and number != len(found):
            some = ", ".join(found[:10]) + (", …" if len(found) > 10 else "")
            raise DataError(f"model.num_labels is {number}, but {column} has {len(found)} labels in train ({some})")
    return classes


def _tokenizer(sources: LabelSources, stores: dict[str, TextStore], folder: Path) -> Tokenizer:
    """Return the tokenizer, trained on the training texts or taken from the pretrained model, and saved."""
    if sources.base is not None:
        experiment = sources.experiment
        return save_base(sources.base, folder, experiment.data.max_length, experiment.model.pooling)
    texts = () if sources.factory.options.path else [row.text for row in stores["train"]]
    tokenizer = sources.factory.create_tokenizer(texts)
    tokenizer.save(folder / "tokenizer")
    return tokenizer


def load_vectors(path: Path, tokenizer: Tokenizer) -> np.ndarray:
    """Return the vectors ``(token, width)`` of a file for the words of a tokenizer; NaN where the file has none.

    Raises UserError if the file can't be read, or its lines differ in length.
    """
    ids = {tokenizer.readable(token): token for token in range(tokenizer.vocab_size)}
    found: dict[int, np.ndarray] = {}
    width = None
    try:
        # Only \n ends a line and only a space separates numbers: words of such files contain other line ends and
        # spaces.
        with open(path, encoding="utf-8", errors="replace", newline="\n") as lines:
            for number, line in enumerate(lines, 1):
                word, *numbers = line.rstrip(" \r\n").split(" ")
                if number == 1 and len(numbers) == 1:
                    # word2vec writes how many there are.
                    continue
                width = width or len(numbers)
                if len(numbers) != width:
                    raise DataError(f"{path}:{number}: {len(numbers)} numbers, but {width} in the lines before")
                if word in ids:
                    found[ids[word]] = np.array(numbers, dtype=np.float32)
    except (OSError, ValueError) as error:
        raise UserError(f"model.word_vectors.path: {path} can't be read: {error}") from error
    if not found:
        raise DataError(
            f"model.word_vectors.path: {path} has none of the {tokenizer.vocab_size} words of the tokenizer"
        )
    vectors = np.full((tokenizer.vocab_size, width or 0), np.nan, dtype=np.float32)
    for token, vector in found.items():
        vectors[token] = vector
    log.info("word vectors: %s of %s words have one", f"{len(found):,}", f"{tokenizer.vocab_size:,}")
    return vectors


def whole_words(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the words in small letters that are one token within a text, with its number.

    Raises DataError if there are none: a tokenizer of bytes or characters.
    """
    before, found = tokenizer.encode("a"), {}
    for token in range(tokenizer.vocab_size):
        word = tokenizer.decode([token]).strip()
        is_word = len(word) > 1 and word == word.lower() and all(category(letter)[0] in "LM" for letter in word)
        if is_word and tokenizer.encode(f"a {word}") == [*before, token]:
            found[word] = token
    if not found:
        raise DataError("data.augmentation.synonyms: the tokenizer of model.pretrained_model has no whole words")
    return found


def _report_overlap(given: dict[str, TextStore]) -> None:
    """Warn of texts of given evaluation splits that are in two."""
    seen: dict[str, str] = {}
    twice: Counter[tuple[str, str]] = Counter()
    for split, store in given.items():
        for text in {row.text for row in store} if split != "train" else ():
            if seen.setdefault(text, split) != split:
                twice[split, seen[text]] += 1
    for (split, other), number in twice.items():
        log.warning("%s: %s of its texts are also in %s; both are kept as given", split, f"{number:,}", other)


def _report_tokens(
    split: str, about: dict[str, Any], tokens: TokenStore, tokenizer: Tokenizer, longest: int
) -> dict[str, int]:
    """Figures of a split's tokens, reported.

    ``about`` are its statistics, ``tokens`` those of the ``tokenizer``; more than ``longest`` of a text aren't read.
    """
    unknown, cut = int((tokens.tokens == tokenizer.unk_id).sum()), int((tokens.lengths > longest).sum())
    share = 100 * unknown / max(len(tokens.tokens), 1)
    log.info("%s: %s texts, %s tokens, %.1f%% unknown", split, f"{len(tokens):,}", f"{len(tokens.tokens):,}", share)
    for reason, number in about.get("dropped", {}).items():
        log.warning("%s: %s texts dropped: %s", split, f"{number:,}", reason)
    if cut:
        log.warning("%s: %s texts are longer than data.max_length allows: their rest isn't read", split, cut)
    return {"tokens": len(tokens.tokens), "unknown_tokens": unknown, "cut": cut}


Change = Callable[[str, np.random.Generator], str]


@dataclass(frozen=True)
class RowFormat:
    """How tokens become a row: ``ends`` encloses them in [bos] and [eos], of a row of at most ``max_length``."""

    tokenizer: Tokenizer
    ends: bool
    max_length: int

    @property
    def num_kept(self) -> int:
        """The number of a text's own tokens that a row has at most."""
        return self.max_length - 2 * self.ends

    def row(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the row of a text's tokens; of one without any, an unknown token."""
        kept = np.asarray(ids[: self.num_kept], dtype=np.int64)
        kept = kept if len(kept) else np.array([self.tokenizer.unk_id])
        row: np.ndarray = (
            np.concatenate(([self.tokenizer.bos_id], kept, [self.tokenizer.eos_id])) if self.ends else kept
        )
        return row

    def lengths(self, num_tokens: np.ndarray) -> np.ndarray:
        """Return the lengths of rows, of the numbers of their tokens."""
        return np.asarray(np.minimum(np.maximum(num_tokens, 1) + 2 * self.ends, self.max_length))


class TextExample(NamedTuple):
    """The row of a text, and its targets: a class for each label column or, with several labels, a 0 or 1 for each."""

    inputs: np.ndarray
    targets: np.ndarray


class TextDataset(Dataset):
    """The labelled texts of one split, or of several together, in ``stores``; ``rows`` makes rows of their tokens.

    ``change`` augments each text, which may then have ``growth`` times as many more tokens. ``class_weights`` are
    counted in each batch (``vaak.tasks.classification.data``).
    """

    draws_globally = False

    def __init__(
        self,
        stores: Sequence[LabelStores],
        rows: RowFormat,
        change: Change | None = None,
        growth: float = 0.0,
        class_weights: ClassWeights | None = None,
    ) -> None:
        self.stores, self.rows, self.change, self.class_weights = stores, rows, change, class_weights or {}
        self.is_constant = change is None
        self.targets = np.concatenate([one.targets for one in stores])
        self.strata = None if self.targets.dtype == np.int8 else self.targets[:, 0]
        self._starts = np.cumsum([0, *(len(one.tokens) for one in stores)])
        num_tokens = np.concatenate([one.tokens.lengths for one in stores])
        self.lengths = rows.lengths(np.ceil(num_tokens * (1 + growth)).astype(np.int64) if change else num_tokens)
        self.fingerprint = compute_fingerprint([[one.tokens.fingerprint for one in stores], rows.max_length, rows.ends])

    def example(self, index: int, rng: np.random.Generator) -> TextExample:
        part, place = self._place(index)
        if self.change is None:
            inputs = self.rows.row(part.tokens.document(place)[: self.rows.max_length])
        else:
            ids: Sequence[int] | np.ndarray = self.rows.tokenizer.encode(self.change(part.texts[place].text, rng))
            own = part.tokens.document(place)
            if len(ids) > max(int(self.lengths[index]) - 2 * self.rows.ends, len(own)):
                # What would be cut off may be its "not".
                ids = own
            inputs = self.rows.row(ids)
        return TextExample(inputs, self.targets[index])

    def _place(self, index: int) -> tuple[LabelStores, int]:
        number = int(self._starts.searchsorted(index, side="right")) - 1
        return self.stores[number], index - int(self._starts[number])

    def collate(self, rows: list[list[TextExample]]) -> Batch:
        return collate([row[0] for row in rows], self.rows.tokenizer.pad_id, self.class_weights)

    def padding(self, batch: Batch) -> Mapping[str, Padding]:
        longest = int(self.longest)
        return {
            "inputs": Padding(self.rows.tokenizer.pad_id, longest=longest),
            "mask": Padding(False, longest=longest),
        }

    def describe(self, index: int) -> str:
        part, place = self._place(index)
        return part.texts[place].where

    def get_text(self, index: int) -> str:
        part, place = self._place(index)
        return part.texts[place].text

    def get_content(self, index: int) -> str:
        part, place = self._place(index)
        return compute_fingerprint([part.texts[place].text, part.texts[place].labels])


def collate(examples: Sequence[TextExample], pad: int, class_weights: ClassWeights | None = None) -> Batch:
    """Rows padded on the right to the longest; ``mask`` is True where they are real."""
    lengths = np.array([len(example.inputs) for example in examples])
    inputs = pad_rows([example.inputs for example in examples], pad, dtype=np.int64)
    targets = torch.from_numpy(np.stack([example.targets for example in examples]))
    tensors = {
        "inputs": torch.from_numpy(inputs),
        "mask": torch.from_numpy(np.arange(inputs.shape[1]) < lengths[:, None]),
        # int8 is how targets of several labels are stored; their binary loss reads floats.
        "targets": targets.float() if targets.dtype == torch.int8 else targets,
    }
    counts = {"example": torch.ones(len(examples), dtype=torch.int64), "position": torch.from_numpy(lengths)}
    labels = targets.numpy()
    # A row without a class has no weight.
    for index, (column, weight) in enumerate((class_weights or {}).items()):
        counts[name_unit(column)] = torch.from_numpy(np.where(labels[:, index] < 0, 0.0, weight[labels[:, index]]))
    return Batch(tensors, counts)


WEIGHT_KEY = "training.loss.main.weight"
ClassWeights = Mapping[str, np.ndarray]
"""The weight of each class, by label column."""


def class_weights(given: str | Sequence[float], targets: np.ndarray, classes: Classes) -> ClassWeights:
    """Return the weights of the classes of each column, for ``targets`` ``(text, column)`` of the training split.

    Raises UserError if a list has not one for each class.
    """
    if isinstance(given, str):
        return {
            column: balanced(np.bincount(targets[:, index], minlength=len(names)))
            for index, (column, names) in enumerate(classes.items())
        }
    for column, names in classes.items():
        if len(given) != len(names):
            some = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
            raise UserError(
                f"{WEIGHT_KEY} has {len(given)} numbers; {column} has {len(names)} classes, in this order: {some}"
            )
    return {column: np.array(given, dtype=np.float64) for column in classes}


def balanced(counts: np.ndarray) -> np.ndarray:
    """Weights by which each class has the same share of the loss, of how many texts it has.

    >>> balanced(np.array([6, 2])).tolist()
    [0.6666666666666666, 2.0]
    """
    found: np.ndarray = counts.sum() / (len(counts) * counts)
    return found


def name_unit(column: str) -> str:
    """Return the unit that a weighted loss of a column is a sum of."""
    return f"class weight of {column}"
