"""Parallel corpus to tokenizers to token stores, once.

FOLDER (RUN/prepared, or CACHE_DIR/FINGERPRINT, to which RUN/prepared then points)
  dictionary.json              with data.gloss: target words for source words, made from the training pairs
  tokenizer/tokenizer.json     of both sides, or of the source if the target has its own
  target_tokenizer/            the target's own, if it has one
  train/  valid/  test/        pairs.jsonl and offsets.bin (vaak.text.corpora.pair_store), and token stores:
    source/  target/           of several references the first one's tokens
  prepared.json                the fingerprint, statistics and round trips; written last: it means "complete"
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

from vaak.config.folds import FOLDS_FILE
from vaak.core.errors import DataError
from vaak.core.progress import followed
from vaak.runs.prepared import PreparedFolder, Recipe, fingerprint_with_files
from vaak.tasks.pretrained import Base
from vaak.tasks.seq2seq import sentencepiece_pair
from vaak.tasks.seq2seq.config import Seq2SeqDataConfig
from vaak.tasks.seq2seq.examples.filters import Selection, SplitStores, used_pairs
from vaak.tasks.seq2seq.pretrained import save_base
from vaak.text.corpora.pair_store import PairStore, Texts, write_pairs
from vaak.text.corpora.parallel import ParallelCorpus
from vaak.text.corpora.scripts import script_of_language, script_of_texts
from vaak.text.corpora.token_store import write_tokens
from vaak.text.tokenizers.tokenizer import Tokenizer, round_trip_report
from vaak.text.tokenizers.training import TokenizerFactory
from vaak.text.word_dictionary import WordDictionary, translations_by_others

log = logging.getLogger("vaak")

ROUND_TRIP_PAIRS = 2000
SIDES = ("source", "target")
DICTIONARY = "dictionary.json"


@dataclass(frozen=True)
class Prepared(PreparedFolder):
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
    def dictionary(self) -> WordDictionary | None:
        """The dictionary that glosses sources, if they are glossed."""
        path = self.folder / DICTIONARY
        return WordDictionary.load(path) if path.exists() else None

    def stores(self, split: str) -> SplitStores:
        """The texts and tokens of a split. Raises UserError if the corpus has no such split."""
        return self.open_split(split, SplitStores.open)

    @property
    def cut_splits(self) -> tuple[str, ...]:
        """The evaluation splits that were cut from the training files."""
        return tuple(self.about["cut_splits"])


def fingerprint(data: Seq2SeqDataConfig, code: Path = Path(), base: Base | None = None) -> str:
    """A hash of everything prepared data depend on: options, and size and time of change of every source file."""
    if base is not None:
        of_base = [Path(base.source) / name for name in ("config.json", "tokenizer.json", *sentencepiece_pair.FILES)]
        options = {**_decides(data, {}), "tokenizer": "pretrained", "pretrained": base.source}
        return fingerprint_with_files(options, [*ParallelCorpus(data.corpus).files, *of_base])
    factories = tokenizer_factories(data, code)
    paths = {name: one.options.path for name, one in factories.items()}
    files = [*ParallelCorpus(data.corpus).files, *(Path(path) for path in paths.values() if path)]
    tokenizers = {name: {**one.decides(), "path": paths[name]} for name, one in factories.items()}
    return fingerprint_with_files(_decides(data, tokenizers), files)


_DECIDING = ("corpus", "tokenizer", "target_tokenizer", "gloss", "max_source_length", "max_target_length")
_PLACES = ("train", "valid", "test", "train_target", "valid_target", "test_target", "name", FOLDS_FILE)


def recipe(
    data: Seq2SeqDataConfig,
    splits: tuple[str, ...] | None = None,
    dictionary: WordDictionary | None = None,
    code: Path = Path(),
    base: Base | None = None,
) -> Recipe:
    """How tokenizers and token stores of ``splits`` (default: all) of ``data`` are made; files are seen from ``code``.

    With a ``base`` the tokenizer is that of a pretrained model.

    Without ``train`` among the splits, the paths of the tokenizers must be given, and of the dictionary that glosses
    sources, if there is one. Making them raises DataError for pairs that can't be used.
    """
    sections = "data.corpus, a tokenizer or a greatest length in data"
    factories = tokenizer_factories(data, code)
    decided = {name: factory.decides() for name, factory in factories.items()} if base is None else {}
    options = _decides(data, decided) | ({} if base is None else {"tokenizer": "pretrained"})
    for name in _PLACES:  # may differ after a run was moved
        options["corpus"].pop(name, None)
    make = partial(_make, data, factories if base is None else base, splits, dictionary)
    return Recipe(make, partial(fingerprint, data, code, base), options, sections)


def _decides(data: Seq2SeqDataConfig, tokenizers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The options that determine the data, with what decides its ``tokenizers``."""
    return data.model_dump(mode="json", include=set(_DECIDING)) | {"target_tokenizer": None} | tokenizers


Factories = dict[str, TokenizerFactory]


def tokenizer_factories(data: Seq2SeqDataConfig, code: Path) -> Factories:
    """What makes each tokenizer there is, by its folder."""
    own = {}
    if data.target_tokenizer:
        own["target_tokenizer"] = TokenizerFactory(data.target_tokenizer, code, "data.target_tokenizer")
    return {"tokenizer": TokenizerFactory(data.tokenizer, code), **own}


def _make(
    data: Seq2SeqDataConfig,
    factories: Factories | Base,
    splits: tuple[str, ...] | None,
    dictionary: WordDictionary | None,
    folder: Path,
) -> dict[str, Any]:
    """Fill ``folder``, and return its statistics.

    ``splits`` of what ``data`` describes (None: all) are tokenised by what ``factories`` make, or a base has;
    ``dictionary`` glosses the sources, if one is given.
    """
    corpus = ParallelCorpus(data.corpus)
    splits = corpus.with_train_first() if splits is None else splits
    stores = {split: write_pairs(folder / split, corpus.pairs(split)) for split in splits}
    _compare_scripts(data, stores[splits[0]])
    if isinstance(factories, Base):
        save_base(factories.source, folder)
        tokenizers = _tokenizers_in(Prepared(folder))
    else:
        tokenizers = _tokenizers_of_sides(factories, stores, folder)
    if data.gloss:
        dictionary = dictionary or WordDictionary.drawn_from(_both(stores["train"]))
        dictionary.save(folder / DICTIONARY)
    statistics = {}
    for split, store in stores.items():
        tokenised = write_split_tokens(split, store, tokenizers, dictionary)
        selection = used_pairs(split, tokenised, data, cut=split in corpus.cut_splits)
        counts = corpus.statistics[split].to_json()
        counts["dropped"] |= selection.dropped
        statistics[split] = counts | _figures(split, tokenised, selection, data)
        _tell(split, statistics[split], data)
    trips = {side: round_trip_report(tokenizers[side], _some_texts(stores[splits[-1]], side)) for side in SIDES}
    for side, trip in trips.items():
        (log.info if trip.exact == trip.documents else log.warning)("tokenizer of the %s: %s", side, trip)
    about = {"statistics": statistics, "round_trip": {side: asdict(trip) for side, trip in trips.items()}}
    return about | {"cut_splits": list(corpus.cut_splits)}


def write_split_tokens(
    split: str, store: PairStore, tokenizers: Mapping[str, Tokenizer], dictionary: WordDictionary | None
) -> SplitStores:
    """Tokenise both sides of a store's pairs, next to them."""
    sources = _glossed(split, store, dictionary) if dictionary else Texts(store, "source")
    for side, texts in {"source": sources, "target": Texts(store, "target")}.items():
        texts = followed(texts, f"tokens of {split}, {side}", len(store))
        write_tokens(store.folder / side, texts, tokenizers[side])
    return SplitStores.open(store.folder)


def glossed(source: str, gloss: str) -> str:
    """A source with its translation word by word, as the model reads them."""
    return f"{source} = {gloss}"


def _glossed(split: str, store: PairStore, dictionary: WordDictionary) -> Iterator[str]:
    """The glossed sources; those of training by dictionaries made without them, as in evaluation."""
    if split == "train":
        glosses = translations_by_others(_both(store))
    else:
        glosses = map(dictionary.translate, Texts(store, "source"))
    return map(glossed, Texts(store, "source"), glosses)


def _both(store: PairStore) -> Iterator[tuple[str, str]]:
    return ((pair.source, pair.targets[0]) for pair in store)


def _compare_scripts(data: Seq2SeqDataConfig, store: PairStore) -> None:
    """Compare the letters of each side with its column's name, if that is the code of a language.

    Logs what doesn't fit. Raises DataError if each side has the other's script: the columns are swapped.
    """
    columns = {"source": data.corpus.source_column, "target": data.corpus.target_column}
    expected = {side: script_of_language(column.rpartition(".")[2]) for side, column in columns.items()}
    found = {side: script_of_texts(_some_texts(store, side)) for side in SIDES}
    if None in expected.values() or expected == found:
        return
    said = " and ".join(f"{columns[side]} has {found[side]} letters" for side in SIDES)
    if found["source"] == expected["target"] and found["target"] == expected["source"]:
        raise DataError(f"corpus: {said}: the columns are swapped; swap source_column and target_column, or their data")
    log.warning("corpus: %s; expected %s and %s", said, expected["source"], expected["target"])


def _tokenizers_of_sides(factories: Factories, stores: dict[str, PairStore], folder: Path) -> dict[str, Tokenizer]:
    """Train the tokenizers, or use existing ones, and put them in the folder."""
    shutil.rmtree(folder / "target_tokenizer", ignore_errors=True)
    for name, factory in factories.items():
        sides = SIDES if len(factories) == 1 else ("source",) if name == "tokenizer" else ("target",)
        texts = () if factory.options.path else Texts(stores["train"], *sides)
        factory.create_tokenizer(texts).save(folder / name)
    return _tokenizers_in(Prepared(folder, *(factory.load for factory in factories.values())))


def _tokenizers_in(prepared: Prepared) -> dict[str, Tokenizer]:
    return {"source": prepared.source_tokenizer, "target": prepared.target_tokenizer}


def _some_texts(store: PairStore, side: str) -> islice[str]:
    return islice(Texts(store, side), ROUND_TRIP_PAIRS)


def _figures(split: str, stores: SplitStores, selection: Selection, data: Seq2SeqDataConfig) -> dict[str, int]:
    """The numbers of pairs and tokens of a split that are used. Raises DataError if there are none."""
    source, target = stores.source.lengths[selection.indices], stores.target.lengths[selection.indices]
    if not len(selection.indices):
        raise DataError(f"corpus: {split} is empty: all its pairs were dropped ({_in_words(selection.dropped)})")
    return {
        "pairs": len(selection.indices),
        "source_tokens": int(source.sum()),
        "target_tokens": int(target.sum()),
        "longest_source": int(source.max()) + 1,
        "longest_target": int(target.max()) + 1,
        "shortened_targets": int((target >= data.max_target_length).sum()),
    }


def _tell(split: str, about: dict[str, Any], data: Seq2SeqDataConfig) -> None:
    pairs, source, target = (about[name] for name in ("pairs", "source_tokens", "target_tokens"))
    log.info("%s: %s pairs, %s source tokens, %s target tokens", split, f"{pairs:,}", f"{source:,}", f"{target:,}")
    if about["dropped"]:
        say = log.info if split == "train" else log.warning
        say("%s: dropped %s", split, _in_words(about["dropped"]))
    if about["shortened_targets"]:
        log.warning(
            "%s: %s targets are longer than data.max_target_length (%s): the loss uses their beginning, "
            "translations are compared with all of it",
            split,
            f"{about['shortened_targets']:,}",
            data.max_target_length,
        )


def _in_words(dropped: dict[str, int]) -> str:
    return "; ".join(f"{number:,}: {reason}" for reason, number in dropped.items())
