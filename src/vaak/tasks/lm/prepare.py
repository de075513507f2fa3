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
from vaak.tasks.lm.pretrained import save_base
from vaak.tasks.pretrained import Base
from vaak.text.chat_template import ChatTemplate, given_template, keep_template, template_for, template_in
from vaak.text.corpora.corpus import CorpusBuilder
from vaak.text.corpora.statistics import format_statistics
from vaak.text.corpora.token_store import TokenStore, write_encoded, write_tokens
from vaak.text.tokenizers.tokenizer import Tokenizer, round_trip_report
from vaak.text.tokenizers.training import TokenizerFactory

log = logging.getLogger("vaak")

ROUND_TRIP_DOCUMENTS = 2000
TEMPLATE_FILES = ("tokenizer_config.json", "chat_template.jinja")


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
    options = {"corpus": data.corpus.model_dump(mode="json"), "tokenizer": of_tokenizer, **_of_chats(data, code)}
    if base is None:
        return fingerprint_with_files(options, files)
    names = ("config.json", "tokenizer.json", *(TEMPLATE_FILES if data.corpus.type == "chat" else ()))
    of_base = [Path(base.source) / name for name in names]
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
    of_chats = _of_chats(data, code)
    options = {"corpus": corpus, "tokenizer": tokenizer.decides() if base is None else "pretrained", **of_chats}
    make = partial(_make, data, tokenizer if base is None else base, splits, code)
    return Recipe(make, partial(fingerprint, data, code, base), options)


def _of_chats(data: LanguageModelDataConfig, code: Path) -> dict[str, Any]:
    """What conversations depend on besides."""
    return {"chat_template": given_template(data.chat_template, code)} if data.corpus.type == "chat" else {}


def _make(
    data: LanguageModelDataConfig,
    factory: TokenizerFactory | Base,
    splits: tuple[str, ...] | None,
    code: Path,
    folder: Path,
) -> dict[str, Any]:
    """Fill ``folder`` with ``splits`` of what ``data`` describes; return the statistics and the round trip.

    The tokenizer is what ``factory`` has or makes; a file of a chat template is looked for in ``code``.
    """
    corpus = CorpusBuilder(data.corpus, data.corpus.seed)
    splits = corpus.with_train_first() if splits is None else splits
    if isinstance(factory, Base):
        tokenizer = save_base(factory.source, folder, data.max_length)
    else:
        texts: Iterator[str] = iter(()) if data.tokenizer.path else corpus.documents("train")
        tokenizer = factory.create_tokenizer(texts)
        tokenizer.save(folder / "tokenizer")
    template = _template(data, code, folder, tokenizer) if data.corpus.type == "chat" else None
    for split in splits:
        if template is None:
            store = write_tokens(folder / split, corpus.documents(split), tokenizer)
        else:
            chats = (template.encoded(chat.messages, chat.where) for chat in corpus.read(split))
            store = write_encoded(folder / split, chats, tokenizer)
        log.info("%s: %s documents, %s tokens", split, f"{len(store):,}", f"{len(store.tokens):,}")
    statistics = {split: corpus.statistics[split] for split in splits}
    log.info("%s", format_statistics(statistics))
    trip = round_trip_report(tokenizer, islice(corpus.documents(splits[-1]), ROUND_TRIP_DOCUMENTS))
    (log.info if trip.exact == trip.documents else log.warning)("tokenizer: %s", trip)
    about = {split: figures.to_json() for split, figures in statistics.items()}
    return {"statistics": about, "round_trip": asdict(trip)}


def _template(data: LanguageModelDataConfig, code: Path, folder: Path, tokenizer: Tokenizer) -> ChatTemplate:
    """The chat template of the options, or of the tokenizer that they give; kept with the tokenizer in ``folder``."""
    kept = folder / "tokenizer"
    given = None if data.tokenizer.path is None else Path(data.tokenizer.path)
    source = kept if given is None else given if given.is_dir() else given.parent
    content = template_for(tokenizer, given_template(data.chat_template, code), template_in(source))
    template = ChatTemplate(content, tokenizer)
    keep_template(kept, content)
    return template
