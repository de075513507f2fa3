"""Corpus to tokenizer to token stores, once.

FOLDER (RUN/prepared, or CACHE_DIR/FINGERPRINT, to which RUN/prepared then points)
  tokenizer/tokenizer.json
  base/                        of a pretrained model (pretrained.py)
  train/  valid/  test/        token stores
  prepared.json                the fingerprint, statistics and round trip; written last: it means "complete"
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

from vaak.config.folds import FOLDS_FILE
from vaak.runs.prepared import PreparedFolder, Recipe, fingerprint_with_files
from vaak.tasks.lm.config import LanguageModelDataConfig
from vaak.tasks.lm.pretrained import Base, save_base
from vaak.text.corpora.corpus import CorpusBuilder
from vaak.text.corpora.statistics import format_statistics
from vaak.text.corpora.token_store import TokenStore, write_tokens
from vaak.text.tokenizers.tokenizer import Tokenizer, round_trip_report
from vaak.text.tokenizers.training import TokenizerFactory

log = logging.getLogger("vaak")

ROUND_TRIP_DOCUMENTS = 2000


@dataclass(frozen=True)
class Prepared(PreparedFolder):
    """Tokenizer and token stores."""

    load_tokenizer: Callable[[Path], Tokenizer] = Tokenizer.load

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self.load_tokenizer(self.folder / "tokenizer")

    def store(self, split: str) -> TokenStore:
        """The tokens of a split. Raises UserError if the corpus has no such split."""
        return self.open_split(split, TokenStore)


def fingerprint(data: LanguageModelDataConfig, code: Path = Path(), base: Base | None = None) -> str:
    """A hash of everything prepared data depend on: options, and size and time of change of every source file."""
    tokenizer_file = [Path(data.tokenizer.path)] if data.tokenizer.path else []
    files = [*CorpusBuilder(data.corpus, data.corpus.seed).files, *tokenizer_file]
    of_tokenizer = {**TokenizerFactory(data.tokenizer, code).decides(), "path": data.tokenizer.path}
    options = {"corpus": data.corpus.model_dump(mode="json"), "tokenizer": of_tokenizer}
    if base is None:
        return fingerprint_with_files(options, files)
    of_base = [Path(base.source) / name for name in ("config.json", "tokenizer.json")]
    return fingerprint_with_files({**options, "pretrained": base.source}, [*files, *of_base])


def recipe(
    data: LanguageModelDataConfig,
    splits: tuple[str, ...] | None = None,
    code: Path = Path(),
    base: Base | None = None,
) -> Recipe:
    """How tokenizer and token stores of ``splits`` (all there are) are made; a user's files are seen from ``code``.

    With a ``base`` the tokenizer is that of a pretrained model.
    """
    tokenizer = TokenizerFactory(data.tokenizer, code)
    # Without its path, which may differ after a run was moved.
    corpus = data.corpus.model_dump(mode="json", exclude={"train", "valid", "test", "name", FOLDS_FILE})
    options = {"corpus": corpus, "tokenizer": tokenizer.decides() if base is None else "pretrained"}
    make = partial(_make, data, tokenizer if base is None else base, splits)
    return Recipe(make, partial(fingerprint, data, code, base), options)


def _make(
    data: LanguageModelDataConfig, factory: TokenizerFactory | Base, splits: tuple[str, ...] | None, folder: Path
) -> dict[str, Any]:
    """Fill ``folder``, and return the statistics and the round trip."""
    corpus = CorpusBuilder(data.corpus, data.corpus.seed)
    splits = corpus.with_train_first() if splits is None else splits
    if isinstance(factory, Base):
        tokenizer = save_base(factory.source, folder, data.max_length)
    else:
        texts: Iterator[str] = iter(()) if data.tokenizer.path else corpus.documents("train")
        tokenizer = factory.create_tokenizer(texts)
        tokenizer.save(folder / "tokenizer")
    for split in splits:
        store = write_tokens(folder / split, corpus.documents(split), tokenizer)
        log.info("%s: %s documents, %s tokens", split, f"{len(store):,}", f"{len(store.tokens):,}")
    statistics = {split: corpus.statistics[split] for split in splits}
    log.info("%s", format_statistics(statistics))
    trip = round_trip_report(tokenizer, islice(corpus.documents(splits[-1]), ROUND_TRIP_DOCUMENTS))
    (log.info if trip.exact == trip.documents else log.warning)("tokenizer: %s", trip)
    about = {split: figures.to_json() for split, figures in statistics.items()}
    return {"statistics": about, "round_trip": asdict(trip)}
