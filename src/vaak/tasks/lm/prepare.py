"""Corpus to tokenizer to token stores, once.

FOLDER (RUN/prepared, or CACHE_DIR/FINGERPRINT, to which RUN/prepared then points)
  tokenizer/tokenizer.json
  train/  valid/  test/        token stores
  prepared.json                the fingerprint, statistics and round trip; written last: it means "complete"
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import vaak
from vaak.core.errors import DataError, UserError
from vaak.core.files import fingerprint_of, read_json, write_json
from vaak.core.lock import locked
from vaak.runs.directory import holds_a_run
from vaak.tasks.lm.config import LanguageModelDataConfig
from vaak.text.corpus import CorpusBuilder
from vaak.text.statistics import format_statistics
from vaak.text.token_store import TokenStore, write_tokens
from vaak.text.tokenizer_factory import TokenizerFactory
from vaak.text.tokenizers import Tokenizer, round_trip_report

log = logging.getLogger("vaak")

DONE = "prepared.json"
LOCK = ".lock"
ROUND_TRIP_DOCUMENTS = 2000


@dataclass(frozen=True)
class Prepared:
    """What ``prepare`` left in a folder."""

    folder: Path

    @classmethod
    def open(cls, folder: Path) -> Prepared:
        """Raises DataError where nothing was prepared."""
        if not (folder / DONE).exists():
            raise DataError(f"{folder}: no prepared data; train makes them")
        return cls(folder)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.folder / "tokenizer")

    def store(self, split: str) -> TokenStore:
        """The tokens of a split. Raises UserError where the corpus has no such split."""
        if not (self.folder / split).is_dir():
            raise UserError(f"there is no split {split}; there are {', '.join(sorted(self.about['statistics']))}")
        return TokenStore(self.folder / split)

    @property
    def about(self) -> dict[str, Any]:
        return read_json(self.folder / DONE)


def prepared_folder(directory: Path) -> Path:
    """Where a run's prepared data are found, whether they lie there or in a cache."""
    return directory / "prepared"


def prepare_run(data: LanguageModelDataConfig, directory: Path) -> None:
    """Prepare a run's data; with ``data.cache_dir`` they lie there and RUN/prepared points to them.

    So a run finds what it was trained with even when its corpus has changed or gone; and one that has begun keeps it.

    Raises UserError where a run that has begun is to go on with other options.
    """
    folder = prepared_folder(directory)
    if holds_a_run(directory) and (folder / DONE).exists():
        _keep(data, Prepared(folder))
        return
    if data.cache_dir is None:
        if folder.is_symlink():
            folder.unlink()
        prepare(data, folder)
        return
    shared = Path(data.cache_dir) / fingerprint(data)
    prepare(data, shared)
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():  # made before there was a cache
        shutil.rmtree(folder)
    folder.symlink_to(shared.resolve(), target_is_directory=True)


def _keep(data: LanguageModelDataConfig, prepared: Prepared) -> None:
    """Go on with the data that a run was begun with; say so where their sources are no longer what they were."""
    if prepared.about["options"] != _options(data):
        raise UserError(
            "data.corpus or data.tokenizer has other options than this run was begun with: put them back, or give "
            "another name= to begin a new run"
        )
    try:
        unchanged = prepared.about["fingerprint"] == fingerprint(data)
    except UserError:  # a source has gone
        unchanged = False
    if not unchanged:
        log.warning("the corpus is not what it was when this run began; it goes on with %s", prepared.folder)


def fingerprint(data: LanguageModelDataConfig) -> str:
    """A hash of everything prepared data depend on: options, and size and time of change of every source file."""
    tokenizer_file = [Path(data.tokenizer.path)] if data.tokenizer.path else []
    files = [*CorpusBuilder(data.corpus, data.corpus.seed).files, *tokenizer_file]
    sources = {"corpus": data.corpus.model_dump(mode="json"), "tokenizer": data.tokenizer.model_dump(mode="json")}
    return fingerprint_of({**sources, "files": [_stamp(path) for path in files], "vaak": vaak.__version__})


def _options(data: LanguageModelDataConfig) -> dict[str, Any]:
    """What decides over the data besides where they lie: a run may find them elsewhere after it has moved."""
    corpus = data.corpus.model_dump(mode="json", exclude={"train", "valid", "test", "name"})
    return {"corpus": corpus, "tokenizer": data.tokenizer.model_dump(mode="json", exclude={"path"})}


def _stamp(path: Path) -> list[Any]:
    """What changes with a file's content; nothing for one that isn't there, which its reader will name."""
    return [str(path), *((path.stat().st_size, path.stat().st_mtime_ns) if path.exists() else ())]


def prepare(data: LanguageModelDataConfig, folder: Path, splits: tuple[str, ...] | None = None) -> Prepared:
    """Make tokenizer and token stores of ``splits`` (all there are) unless they are there, from the same sources.

    Processes that prepare the same folder wait for one another.

    Raises UserError where the folder can't be written.
    """
    mark = fingerprint(data)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / LOCK):
            if _is_done(folder, mark):
                log.info("prepared data in %s are up to date", folder)
            else:
                _remove_leftovers(folder)
                _make(data, folder, mark, splits)
    except OSError as error:
        raise UserError(f"prepared data can't be written to {folder}: {error.strerror or error}") from error
    return Prepared(folder)


def _is_done(folder: Path, mark: str) -> bool:
    try:
        return bool(read_json(folder / DONE)["fingerprint"] == mark)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _remove_leftovers(folder: Path) -> None:
    """Delete what says "complete", and what killed processes left half-written; no other process writes here now."""
    (folder / DONE).unlink(missing_ok=True)
    for path in [*folder.rglob(".*.tmp"), *folder.glob(".*.old")]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _make(data: LanguageModelDataConfig, folder: Path, mark: str, splits: tuple[str, ...] | None) -> None:
    corpus = CorpusBuilder(data.corpus, data.corpus.seed)
    splits = ("train", *(split for split in corpus.splits if split != "train")) if splits is None else splits
    texts: Iterator[str] = iter(()) if data.tokenizer.path else corpus.documents("train")
    tokenizer = TokenizerFactory(data.tokenizer).create_tokenizer(texts)
    tokenizer.save(folder / "tokenizer")
    for split in splits:
        store = write_tokens(folder / split, corpus.documents(split), tokenizer)
        log.info("%s: %s documents, %s tokens", split, f"{len(store):,}", f"{len(store.tokens):,}")
    statistics = corpus.statistics(splits)
    log.info("%s", format_statistics(statistics))
    trip = round_trip_report(tokenizer, islice(corpus.documents(splits[-1]), ROUND_TRIP_DOCUMENTS))
    (log.info if trip.exact == trip.documents else log.warning)("tokenizer: %s", trip)
    about = {split: figures.to_json() for split, figures in statistics.items()}
    write_json(
        folder / DONE, {"fingerprint": mark, "options": _options(data), "statistics": about, "round_trip": asdict(trip)}
    )
