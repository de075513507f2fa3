"""The data of a translator: parallel corpus to tokenizers to token stores, once; then pairs of token ids.

FOLDER (RUN/prepared, or CACHE_DIR/FINGERPRINT, to which RUN/prepared then points)
  dictionary.json              with data.gloss: translations of words or phrases, made from the training pairs
  tokenizer/tokenizer.json     of both sides, or of the source; target_tokenizer/ is the target's, if it has one
  train/  valid/  test/        pairs.jsonl and offsets.bin (vaak.text.corpora.stores), and token stores:
    source/  target/           of several references the first one's tokens
  prepared.json                the fingerprint, statistics and round trips; written last: it means "complete"

Source ids to read, target ids to write, -100 where there is none; the first of several references is the target:
  source s1 ... sm [eos]       inputs [bos] t1 ... tn       targets t1 ... tn [eos]

Training skips pairs that are too long or too uneven. An evaluation split that is given is used completely: a source
that can't be read is an error; a target that is too long is truncated, without the [eos].
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from vaak.config.base import FOLDS_FILE
from vaak.core.batch import Batch
from vaak.core.errors import DataError, UserError
from vaak.core.left_out import CONTENTS, SplitContents
from vaak.core.progress import track
from vaak.core.storage.files import compute_fingerprint
from vaak.core.task import Dataset, Padding
from vaak.nn.cross_entropy import IGNORED
from vaak.runs.prepared import PreparedFolder, Recipe, fingerprint_with_files
from vaak.tasks.base import pad_rows
from vaak.tasks.pretrained import Base
from vaak.tasks.seq2seq import sentencepiece_pair
from vaak.tasks.seq2seq.config import Seq2SeqDataConfig
from vaak.tasks.seq2seq.pretrained import save_base
from vaak.text.corpora.parallel import EVALUATED, Pair, ParallelCorpus, detect_script, get_script
from vaak.text.corpora.statistics import Overlap
from vaak.text.corpora.stores import PairStore, Texts, TokenStore, write_tokens
from vaak.text.coverage import measure
from vaak.text.difficulties import MEASURES, kept_difficulties
from vaak.text.phrase_dictionary import AlignedPairs, PhraseDictionary, load_dictionary
from vaak.text.tokenizer import Tokenizer, round_trip_report
from vaak.text.tokenizer_training import TokenizerFactory
from vaak.text.word_dictionary import ROUNDS, Dictionary, Links, translations_by_others

log = logging.getLogger("vaak")
ROUND_TRIP_PAIRS = 2000
SIDES = ("source", "target")
MANY_DROPPED = 0.1
"""Fraction of the training pairs from which on those dropped for an evaluation's sake are a warning."""
DICTIONARY = "dictionary.json"
OVERLAP = "evaluation_overlap"


@dataclass(frozen=True)
class PreparedPairs(PreparedFolder):
    """Tokenizers, token stores and, with ``data.gloss``, the dictionary."""

    load_tokenizer: Callable[[Path], Tokenizer] = Tokenizer.load
    load_target_tokenizer: Callable[[Path], Tokenizer] = Tokenizer.load

    @cached_property
    def source_tokenizer(self) -> Tokenizer:
        return self.load_tokenizer(self.folder / "tokenizer")

    @cached_property
    def target_tokenizer(self) -> Tokenizer:
        """The target's own, or the one of both sides."""
        own = self.folder / "target_tokenizer"
        return self.load_target_tokenizer(own) if own.is_dir() else self.source_tokenizer

    @cached_property
    def dictionary(self) -> Dictionary | None:
        """The dictionary that glosses sources, if they are glossed."""
        path = self.folder / DICTIONARY
        return load_dictionary(path) if path.exists() else None

    def stores(self, split: str) -> SplitStores:
        """Return the texts and tokens of a split. Raises UserError if the corpus has no such split."""
        return self.open_split(split, SplitStores.open)

    @property
    def cut_splits(self) -> tuple[str, ...]:
        """The evaluation splits that were cut from the training files."""
        return tuple(self.about["cut_splits"])


def _leaves_out(data: Seq2SeqDataConfig) -> dict[str, Any]:
    """Return the part of the fingerprint that stands for rows that are left out."""
    skips = {"skips": True} if data.on_bad_example == "skip" and data.corpus.type in ("tsv", "json") else {}
    return skips | {OVERLAP: data.corpus.evaluation_overlap}


def fingerprint(data: Seq2SeqDataConfig, code: Path = Path(), base: Base | None = None) -> str:
    """A hash of everything prepared data depend on: options, and size and time of change of every source file."""
    if base is not None:
        of_base = [
            Path(base.source) / name for name in ("config.json", "tokenizer.json", *sentencepiece_pair.PAIR_FILES)
        ]
        options = {**_decides(data, {}), "tokenizer": "pretrained", "pretrained": base.source}
        return fingerprint_with_files({**options, **_leaves_out(data)}, [*ParallelCorpus(data.corpus).files, *of_base])
    factories = tokenizer_factories(data, code)
    paths = {name: one.options.path for name, one in factories.items()}
    files = [*ParallelCorpus(data.corpus).files, *(Path(path) for path in paths.values() if path)]
    tokenizers = {name: {**one.data_options(), "path": paths[name]} for name, one in factories.items()}
    return fingerprint_with_files({**_decides(data, tokenizers), **_leaves_out(data)}, files)


_DECIDING = ("corpus", "tokenizer", "target_tokenizer", "gloss", "max_source_length", "max_target_length")
_PLACES = ("train", "valid", "test", "train_target", "valid_target", "test_target", "name", FOLDS_FILE)


def recipe(
    data: Seq2SeqDataConfig,
    splits: tuple[str, ...] | None = None,
    dictionary: Dictionary | None = None,
    code: Path = Path(),
    base: Base | None = None,
) -> Recipe:
    """Return how tokenizers and stores of ``splits`` (default: all) are made; users' files are seen from ``code``.

    With a ``base`` the tokenizer is that of a pretrained model.

    Without ``train`` among the splits, the paths of the tokenizers must be given, and of the dictionary that glosses
    sources, if there is one. Making them raises DataError for pairs that can't be used.
    """
    sections = "data.corpus, a tokenizer or a greatest length in data"
    factories = tokenizer_factories(data, code)
    decided = {name: factory.data_options() for name, factory in factories.items()} if base is None else {}
    options = _decides(data, decided) | ({} if base is None else {"tokenizer": "pretrained"})
    for name in _PLACES:
        # May differ after a run was moved.
        options["corpus"].pop(name, None)
    make = partial(_make, data, factories if base is None else base, splits, dictionary)
    return Recipe(make, partial(fingerprint, data, code, base), options, sections)


def _decides(data: Seq2SeqDataConfig, tokenizers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the options that determine the data, with what decides its ``tokenizers``."""
    decides = data.model_dump(mode="json", include=set(_DECIDING)) | {"target_tokenizer": None} | tokenizers
    # A run of before this option continues with its own data: its options don't have it.
    decides["corpus"].pop(OVERLAP)
    return decides


Factories = dict[str, TokenizerFactory]


def tokenizer_factories(data: Seq2SeqDataConfig, code: Path) -> Factories:
    """Return the maker of each tokenizer, by its folder."""
    own = {}
    if data.target_tokenizer:
        own["target_tokenizer"] = TokenizerFactory(data.target_tokenizer, code, "data.target_tokenizer")
    return {"tokenizer": TokenizerFactory(data.tokenizer, code), **own}


def _make(
    data: Seq2SeqDataConfig,
    factories: Factories | Base,
    splits: tuple[str, ...] | None,
    dictionary: Dictionary | None,
    folder: Path,
) -> dict[str, Any]:
    """Fill ``folder``, and return its statistics.

    ``splits`` of what ``data`` describes (None: all) are tokenised by what ``factories`` make, or a base has;
    ``dictionary`` glosses the sources, if one is given.
    """
    corpus = ParallelCorpus(data.corpus, data.on_bad_example == "skip")
    # What a trained model can't write costs what it costs.
    is_new = splits is None
    splits = corpus.with_train_first() if splits is None else splits
    stores = {split: PairStore.write(folder / split, corpus.read(split)) for split in splits}
    if splits:
        _compare_scripts(data, stores[splits[0]])
    if isinstance(factories, Base):
        save_base(factories.source, folder)
        if not splits:
            # It is used untrained.
            return {"statistics": {}, "cut_splits": []}
        tokenizers = _tokenizers_in(PreparedPairs(folder))
    else:
        tokenizers = _make_tokenizers(factories, stores, folder)
    if data.gloss:
        if dictionary is None:
            pairs = (AlignedPairs if data.gloss == "phrases" else Links)(_text_pairs(stores["train"]))
            dictionary = pairs.dictionary(ROUNDS)
        dictionary.save(folder / DICTIONARY)
    limits = {side: data.max_unknown if is_new and not tokenizers[side].has_whole_words else None for side in SIDES}
    statistics = {}
    for split, store in stores.items():
        tokenised = write_split_tokens(split, store, tokenizers, dictionary)
        written = {
            side: measure(tokenizers[side], Texts(store, side)).report(f"{split}, {side}", limits[side])
            for side in SIDES
        }
        selection = used_pairs(split, tokenised, data, cut=split in corpus.cut_splits)
        counts = corpus.statistics[split].to_json()
        counts["dropped"] |= selection.dropped
        figures = _figures(split, tokenised, selection, data)
        contents = SplitContents("pairs", len(selection.indices), counts["dropped"])
        statistics[split] = counts | figures | {"unwritable": written, CONTENTS: contents.to_json()}
        _tell(split, statistics[split], data)
    trips = {side: round_trip_report(tokenizers[side], _some_texts(stores[splits[-1]], side)) for side in SIDES}
    for side, trip in trips.items():
        (log.info if trip.exact == trip.documents else log.warning)("tokenizer of the %s: %s", side, trip)
    about = {"statistics": statistics, "round_trip": {side: asdict(trip) for side, trip in trips.items()}}
    return about | {"cut_splits": list(corpus.cut_splits)}


def write_split_tokens(
    split: str, store: PairStore, tokenizers: Mapping[str, Tokenizer], dictionary: Dictionary | None
) -> SplitStores:
    """Tokenise both sides of a store's pairs, next to them."""
    sources: Iterable[str] = Texts(store, "source")
    # Training sources are glossed by dictionaries made without them, as those of an evaluation are.
    if dictionary:
        if split == "train":
            counted = AlignedPairs if isinstance(dictionary, PhraseDictionary) else Links
            glosses = translations_by_others(counted(_text_pairs(store)))
        else:
            glosses = map(dictionary.translate, sources)
        sources = map(add_gloss, sources, glosses)
    for side, texts in {"source": sources, "target": Texts(store, "target")}.items():
        texts = track(texts, f"tokens of {split}, {side}", len(store))
        write_tokens(store.folder / side, texts, tokenizers[side])
    return SplitStores.open(store.folder)


def add_gloss(source: str, gloss: str) -> str:
    """Return a source with its translation by a dictionary, as the model reads them."""
    return f"{source} = {gloss}"


def _text_pairs(store: PairStore) -> Iterator[tuple[str, str]]:
    return ((pair.source, pair.targets[0]) for pair in store)


def _compare_scripts(data: Seq2SeqDataConfig, store: PairStore) -> None:
    """Compare the letters of each side with its column's name, if that is the code of a language.

    Logs what doesn't fit. Raises DataError if each side has the other's script: the columns are swapped.
    """
    columns = {"source": data.corpus.source_column, "target": data.corpus.target_column}
    expected = {side: get_script(column.rpartition(".")[2]) for side, column in columns.items()}
    found = {side: detect_script(_some_texts(store, side)) for side in SIDES}
    if None in expected.values() or expected == found:
        return
    said = " and ".join(f"{columns[side]} has {found[side]} letters" for side in SIDES)
    if found["source"] == expected["target"] and found["target"] == expected["source"]:
        raise DataError(f"corpus: {said}: the columns are swapped; swap source_column and target_column, or their data")
    log.warning("corpus: %s; expected %s and %s", said, expected["source"], expected["target"])


def _make_tokenizers(factories: Factories, stores: dict[str, PairStore], folder: Path) -> dict[str, Tokenizer]:
    """Train the tokenizers, or use existing ones, and put them in the folder."""
    shutil.rmtree(folder / "target_tokenizer", ignore_errors=True)
    for name, factory in factories.items():
        sides = SIDES if len(factories) == 1 else ("source",) if name == "tokenizer" else ("target",)
        texts = () if factory.options.path else Texts(stores["train"], *sides)
        factory.create_tokenizer(texts).save(folder / name)
    return _tokenizers_in(PreparedPairs(folder, *(factory.load for factory in factories.values())))


def _tokenizers_in(prepared: PreparedPairs) -> dict[str, Tokenizer]:
    return {"source": prepared.source_tokenizer, "target": prepared.target_tokenizer}


def _some_texts(store: PairStore, side: str) -> islice[str]:
    return islice(Texts(store, side), ROUND_TRIP_PAIRS)


def _figures(split: str, stores: SplitStores, selection: Selection, data: Seq2SeqDataConfig) -> dict[str, int]:
    """Return the numbers of pairs and tokens of a split that are used. Raises DataError if there are none."""
    source, target = stores.source.lengths[selection.indices], stores.target.lengths[selection.indices]
    if not len(selection.indices):
        raise DataError(
            f"corpus: {split} is empty: all its pairs were dropped ({_dropped_in_words(selection.dropped)})"
        )
    return {
        "pairs": len(selection.indices),
        "source_tokens": int(source.sum()),
        "target_tokens": int(target.sum()),
        "longest_source": int(source.max()) + 1,
        "longest_target": int(target.max()) + 1,
        "shortened_targets": int((target >= data.max_target_length).sum()),
    }


def _tell(split: str, about: dict[str, Any], data: Seq2SeqDataConfig) -> None:
    """Log how many pairs and tokens a split has, what was dropped, and what it shares with evaluation splits."""
    pairs, source, target = (about[name] for name in ("pairs", "source_tokens", "target_tokens"))
    log.info("%s: %s pairs, %s source tokens, %s target tokens", split, f"{pairs:,}", f"{source:,}", f"{target:,}")
    if about["dropped"]:
        say = log.info if split == "train" else log.warning
        say("%s: dropped %s", split, _dropped_in_words(about["dropped"]))
    _tell_overlap(split, about, data.corpus.evaluation_overlap)
    if about["shortened_targets"]:
        log.warning(
            "%s: %s targets are longer than data.max_target_length (%s): the loss uses their beginning, "
            "translations are compared with all of it",
            split,
            f"{about['shortened_targets']:,}",
            data.max_target_length,
        )


def _tell_overlap(split: str, about: dict[str, Any], overlap: Overlap) -> None:
    """Log what a split shares with evaluation splits: many dropped pairs, and targets that are kept."""
    dropped, pairs = about["dropped"].get(EVALUATED[overlap], 0), about["pairs"]
    option = f"data.corpus.{OVERLAP}"
    if dropped > MANY_DROPPED * (pairs + dropped):
        message = f"{split}: {dropped:,} of {pairs + dropped:,} pairs were dropped: {EVALUATED[overlap]}"
        fewer = {"target": "source", "source": "pair"}.get(overlap)
        log.warning("%s", f"{message}; {option}: {fewer} drops fewer" if fewer else message)
    if number := about["shared_targets"]:
        log.info(
            "%s: %s pairs are kept whose target an evaluation split has with another source (%s: target drops them)",
            split,
            f"{number:,}",
            option,
        )


def _dropped_in_words(dropped: dict[str, int]) -> str:
    return "; ".join(f"{number:,}: {reason}" for reason, number in dropped.items())


class SplitStores(NamedTuple):
    """A prepared split: its texts, and the tokens of both sides."""

    pairs: PairStore
    source: TokenStore
    target: TokenStore

    @classmethod
    def open(cls, folder: Path) -> SplitStores:
        return cls(PairStore(folder), TokenStore(folder / "source"), TokenStore(folder / "target"))


class Selection(NamedTuple):
    """The indices of the pairs that are used, ``(pair,)``, and the numbers of those that were dropped, by reason."""

    indices: np.ndarray
    dropped: dict[str, int]


def used_pairs(split: str, stores: SplitStores, data: Seq2SeqDataConfig, *, cut: bool) -> Selection:
    """Return the pairs of a split that are used; ``cut``: it was split off from the training files.

    Raises DataError for a pair of a given evaluation split whose source is too long.
    """
    source, target, ratio = stores.source.lengths, stores.target.lengths, data.corpus.max_length_ratio
    # One token is the end's.
    too_long = source >= data.max_source_length
    reasons = {f"source longer than max_source_length ({data.max_source_length})": too_long}
    if split == "train":
        reasons[f"target longer than max_target_length ({data.max_target_length})"] = target >= data.max_target_length
        if ratio is not None:
            uneven = np.maximum(source, target) > ratio * np.maximum(np.minimum(source, target), 1)
            reasons[f"one side longer than {ratio:g} times the other (max_length_ratio)"] = uneven
    # A score over fewer sources couldn't be compared with others, so a given evaluation split drops none; one that was
    # cut off from the training files is filtered as these are.
    elif too_long.any() and not cut:
        index = int(np.argmax(source))
        most = int(source[index]) + 1
        raise DataError(
            f"{stores.pairs[index].where}: the source has {most} tokens, more than data.max_source_length "
            f"({data.max_source_length}), the longest of {too_long.sum()} such in {split}; evaluation skips none: "
            f"raise data.max_source_length to {most}, or shorten them"
        )
    kept = np.ones(len(too_long), dtype=bool)
    dropped = {}
    for reason, holds in reasons.items():
        if (kept & holds).any():
            dropped[reason] = int((kept & holds).sum())
        # A pair with several reasons is counted under the first.
        kept &= ~holds
    return Selection(np.flatnonzero(kept), dropped)


@dataclass(frozen=True)
class PairTokens:
    """The ids that examples are made with, of the source's tokenizer and of the target's."""

    source_pad: int
    source_eos: int
    source_mask: int
    target_pad: int
    target_bos: int
    target_eos: int
    target_mask: int

    @classmethod
    def of(cls, prepared: PreparedPairs) -> PairTokens:
        source, target = prepared.source_tokenizer, prepared.target_tokenizer
        of_target = target.pad_id, target.bos_id, target.eos_id, target.mask_id
        return cls(source.pad_id, source.eos_id, source.mask_id, *of_target)


class PairExample(NamedTuple):
    """Ids of one pair; in evaluation also the texts that a translation is compared with, if it is to be translated."""

    source: np.ndarray
    inputs: np.ndarray
    targets: np.ndarray
    text: str | None = None
    references: list[str] | None = None


class PairDataset(Dataset):
    """The pairs of a split that are used.

    An example's length is twice its longer side. The longest of a batch then bounds the padded places of both sides
    together, whatever pairs share the batch, which the sum of both sides doesn't: 1 + 9 and 9 + 1 are padded to 18.
    """

    draws_globally = False

    def __init__(
        self, prepared: PreparedPairs, split: str, data: Seq2SeqDataConfig, stores: SplitStores | None = None
    ) -> None:
        """``stores`` are those of pairs that were not prepared with the others.

        Raises UserError for a split that doesn't exist, DataError for an evaluation source that is too long.
        """
        self.special = PairTokens.of(prepared)
        stores = prepared.stores(split) if stores is None else stores
        self.pairs, self.source, self.target = stores
        self.indices = used_pairs(split, stores, data, cut=split in prepared.cut_splits).indices
        self.max_target_length = data.max_target_length
        self.token_dropout = data.token_dropout
        self.is_evaluation = split != "train"
        self.is_constant = self.is_evaluation or not self.token_dropout
        limit = data.decoding.valid_examples if split == "valid" else None
        self.num_translated = len(self.indices) if limit is None else limit
        source_lengths = self.source.lengths[self.indices] + 1
        target_lengths = np.minimum(self.target.lengths[self.indices] + 1, self.max_target_length)
        # As if both sides had the length of the longer one: a row takes no more when its batch is padded.
        self.lengths: np.ndarray = 2 * np.maximum(source_lengths, target_lengths)
        limits = [data.max_source_length, data.max_target_length, data.corpus.max_length_ratio]
        self.fingerprint = compute_fingerprint([self.source.fingerprint, self.target.fingerprint, limits])

    def example(self, index: int, rng: np.random.Generator) -> PairExample:
        place = int(self.indices[index])
        source = np.append(self.source.document(place), self.special.source_eos).astype(np.int64)
        target = np.append(self.target.document(place), self.special.target_eos).astype(np.int64)
        targets = target[: self.max_target_length]
        inputs = np.concatenate(([self.special.target_bos], targets[:-1]))
        if self.is_evaluation:
            pair = self.pairs[place]
            references = list(pair.targets) if index < self.num_translated else None
            return PairExample(source, inputs, targets, pair.source, references)
        # Any token that the model reads may be masked, but for [bos] and the source's [eos].
        if self.token_dropout:
            special = self.special
            drop_source = (rng.random(len(source)) < self.token_dropout) & (source != special.source_eos)
            drop_inputs = (rng.random(len(inputs)) < self.token_dropout) & (inputs != special.target_bos)
            source = np.where(drop_source, special.source_mask, source)
            inputs = np.where(drop_inputs, special.target_mask, inputs)
        return PairExample(source, inputs, targets)

    def collate(self, rows: list[list[PairExample]]) -> Batch:
        return collate([row[0] for row in rows], self.special, with_texts=self.is_evaluation)

    def padding(self, batch: Batch) -> Mapping[str, Padding]:
        fills = {
            "source": self.special.source_pad,
            "source_mask": False,
            "inputs": self.special.target_pad,
            "targets": IGNORED,
        }
        return {name: Padding(fill, longest=int(self.longest) // 2) for name, fill in fills.items()}

    def difficulty(self, measure: str) -> np.ndarray:
        """Return the difficulty of each pair: its length, or that of the words of both its sides."""
        if measure not in MEASURES:
            raise UserError(f"unknown difficulty {measure}; choose from {', '.join(MEASURES)}")
        if measure == "length":
            return self.lengths
        return kept_difficulties(self.pairs.folder, self.fingerprint, measure, self._texts, len(self.indices))

    def _texts(self) -> Iterator[str]:
        for place in self.indices.tolist():
            pair = self.pairs[place]
            yield f"{pair.source}\n{pair.targets[0]}"

    def describe(self, index: int) -> str:
        return self.pairs[int(self.indices[index])].where

    def first_pairs(self, number: int) -> list[Pair]:
        """This number of pairs, or all."""
        return self.get_pairs(range(min(number, len(self.indices))))

    def get_pairs(self, examples: Iterable[int]) -> list[Pair]:
        """Return the pairs of these examples."""
        return [self.pairs[int(self.indices[index])] for index in examples]

    def num_references(self) -> list[int]:
        """Return the number of references of each example that is translated."""
        return [len(pair.targets) for pair in self.first_pairs(self.num_translated)]


def collate(examples: list[PairExample], special: PairTokens, *, with_texts: bool) -> Batch:
    """Rows padded on the right to the longest of each side; ``source_mask`` is True where the source is real."""
    source = pad_rows([example.source for example in examples], special.source_pad, dtype=np.int64)
    targets = pad_rows([example.targets for example in examples], IGNORED, dtype=np.int64)
    source_tokens = np.array([len(example.source) for example in examples])
    tokens = np.array([len(example.targets) for example in examples])
    tensors = {
        "source": source,
        "source_mask": np.arange(source.shape[1]) < source_tokens[:, None],
        "inputs": pad_rows([example.inputs for example in examples], special.target_pad, dtype=np.int64),
        "targets": targets,
    }
    counts = {
        "token": tokens,
        "source_token": source_tokens,
        "position": source_tokens + tokens,
        "example": np.ones(len(examples), dtype=np.int64),
    }
    texts = {
        "sources": [example.text for example in examples],
        "references": [example.references for example in examples],
    }
    return Batch(
        {name: torch.from_numpy(array) for name, array in tensors.items()},
        {unit: torch.from_numpy(count) for unit, count in counts.items()},
        extra=dict(texts) if with_texts else {},
    )
