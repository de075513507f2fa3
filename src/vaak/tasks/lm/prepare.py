"""Prepare the data of a language model, once: corpus to tokenizer to token stores.

FOLDER (RUN/prepared, or CACHE_DIR/FINGERPRINT, to which RUN/prepared then points)
  tokenizer/                   tokenizer.json, and the chat template, if any
  base/                        the pretrained model, if any
  train/  valid/  test/        token stores
  ngram.safetensors            with model.ngram: the n-grams of train (ngram.py)
  prepared.json                written last: it means "complete"

The end of a document counts as one byte, its newline. Where tokens don't reproduce the texts, no bytes are counted.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from vaak.config.base import FOLDS_FILE
from vaak.core.errors import DataError
from vaak.core.left_out import CONTENTS
from vaak.core.storage.files import compute_fingerprint, write_bytes
from vaak.report.tables import aligned
from vaak.runs.prepared import PreparedFolder, Recipe, fingerprint_with_files
from vaak.tasks.kept_base import NewTokens
from vaak.tasks.lm.config import LanguageModelDataConfig
from vaak.tasks.lm.ngram import NGRAM_FILE, count_ngrams, write_ngrams
from vaak.tasks.lm.pretrained import save_base
from vaak.tasks.pretrained import Base
from vaak.text.chat_template import ANSWERS_ALONE, CHAT_KEY, ChatTemplate, Learned, keep_template, template_in
from vaak.text.corpora.corpus import CorpusBuilder
from vaak.text.corpora.readers import TYPES_WITH_ROWS, Document
from vaak.text.corpora.statistics import Skipped, statistics_rows
from vaak.text.corpora.stores import EncodedPiece, TokenStore, write_encoded, write_tokens
from vaak.text.coverage import Coverage
from vaak.text.shipped_templates import given_template, template_for
from vaak.text.tokenizer import Tokenizer, round_trip_report
from vaak.text.tokenizer_training import TokenizerFactory

log = logging.getLogger("vaak")
ROUND_TRIP_DOCUMENTS = 2000
TEMPLATE_FILES = ("tokenizer_config.json", "chat_template.jinja")


@dataclass(frozen=True)
class PreparedText(PreparedFolder):
    """The tokenizer and the token stores in a prepared folder."""

    load_tokenizer: Callable[[Path], Tokenizer] = Tokenizer.load

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self.load_tokenizer(self.folder / "tokenizer")

    def store(self, split: str) -> TokenStore:
        """Open the tokens of a split. Raises UserError if the corpus has no such split."""
        return self.open_split(split, TokenStore)

    def sources(self) -> np.ndarray:
        """Read the source of each training document, ``(document,)``: the index of its pattern in ``corpus.train``."""
        return np.fromfile(self.folder / "train" / SOURCES_FILE, "<u4")


def fingerprint(data: LanguageModelDataConfig, code: Path = Path(), base: Base | None = None) -> str:
    """Hash everything that prepared data depend on: options, and the size and modification time of all source files."""
    tokenizer_file = [Path(data.tokenizer.path)] if data.tokenizer.path else []
    files = [*CorpusBuilder(data.corpus, data.corpus.seed).files, *tokenizer_file]
    may_skip = data.corpus.has_answers or data.corpus.type in TYPES_WITH_ROWS
    skips = {"skips": True} if may_skip and data.on_bad_example == "skip" else {}
    tokenizer = {**TokenizerFactory(data.tokenizer, code).data_options(), "path": data.tokenizer.path}
    further = {**_chat_options(data, code), **_mixture_options(data), **_new_token_options(data), **skips}
    options = {"corpus": data.corpus.model_dump(mode="json"), "tokenizer": tokenizer, **further}
    if base is None:
        return fingerprint_with_files(options, files)
    names = ("config.json", "tokenizer.json", *(TEMPLATE_FILES if data.corpus.has_answers else ()))
    base_files = [Path(base.source) / name for name in names]
    return fingerprint_with_files({**options, "pretrained": base.source}, [*files, *base_files])


def recipe(
    data: LanguageModelDataConfig,
    splits: tuple[str, ...] | None = None,
    code: Path = Path(),
    base: Base | None = None,
) -> Recipe:
    """Return the recipe of the tokenizer and the token stores of ``splits`` (default: all).

    Users' files are looked for in ``code``. With a ``base``, the tokenizer is that of the pretrained model.
    """
    tokenizer = TokenizerFactory(data.tokenizer, code)
    # Without paths, which may differ after a run was moved.
    corpus = data.corpus.model_dump(mode="json", exclude={"train", "valid", "test", "name", FOLDS_FILE})
    further = {**_chat_options(data, code), **_mixture_options(data), **_new_token_options(data)}
    options = {"corpus": corpus, "tokenizer": tokenizer.data_options() if base is None else "pretrained", **further}
    make = partial(_make, data, tokenizer if base is None else base, splits, code)
    return Recipe(make, partial(fingerprint, data, code, base), options)


def _chat_options(data: LanguageModelDataConfig, code: Path) -> dict[str, Any]:
    """Return the options that prepared conversations depend on; empty for other texts."""
    if not data.corpus.has_answers:
        return {}
    learned, default = choose_learned(data)._asdict(), ANSWERS_ALONE._asdict()
    # Only options that differ from the defaults: data prepared before these options existed keep their fingerprint.
    changed = {name: value for name, value in learned.items() if value != default[name]}
    options: dict[str, Any] = {"chat_template": given_template(data.chat_template, code)}
    options |= {"options": data.chat_template_kwargs} if data.chat_template_kwargs else {}
    return options | ({"learned": changed} if changed else {})


def choose_learned(data: LanguageModelDataConfig) -> Learned:
    """Return which parts of conversations the loss is computed on."""
    if data.corpus.type == "preferences":
        # The loss of a pair is always on the last answer.
        return Learned(reasoning=data.reasoning)
    return Learned(data.learned_roles, data.loss_on == "last", data.reasoning)


def _new_token_options(data: LanguageModelDataConfig) -> dict[str, Any]:
    """Return the tokens that are added to those of a base; empty without any, so that older fingerprints stay valid."""
    return {"new_tokens": [*data.new_tokens, data.new_tokens_like]} if data.new_tokens or data.new_tokens_like else {}


SOURCES_FILE = "sources.bin"


def _mixture_options(data: LanguageModelDataConfig) -> dict[str, Any]:
    """Return that the source of each document is kept, if it is; the weights of a mixture may change afterwards."""
    return {"sources": len(data.corpus.train)} if data.mixture else {}


def _make(
    data: LanguageModelDataConfig,
    factory: TokenizerFactory | Base,
    splits: tuple[str, ...] | None,
    code: Path,
    folder: Path,
) -> dict[str, Any]:
    """Fill ``folder`` with ``splits`` of ``data``; return the statistics and the tokenizer's round trip.

    ``factory`` makes the tokenizer, or is the base that has one; the file of a chat template is looked for in ``code``.
    """
    skip_bad = data.on_bad_example == "skip"
    corpus = CorpusBuilder(data.corpus, data.corpus.seed, skip_bad)
    # data.max_unknown is for new runs: unknown tokens in other data only cost a trained model its errors. It isn't for
    # tokenizers of whole words, to which every new text has unknown ones.
    is_new = splits is None
    splits = corpus.with_train_first() if splits is None else splits
    tokenizer = _make_tokenizer(data, factory, corpus, folder)
    limit = data.max_unknown if is_new and not tokenizer.has_whole_words else None
    template = _make_template(data, tokenizer, code, folder / "tokenizer") if data.corpus.has_answers else None
    unwritable = dict[str, dict[str, Any]]()
    for split in splits:
        coverage = Coverage(tokenizer)
        if template is None:
            with_sources = bool(data.mixture) and split == "train"
            store = _write_documents(corpus, folder / split, tokenizer, coverage, with_sources)
        else:
            store = _write_conversations(corpus, folder / split, template, coverage, skip_bad)
        log.info("%s: %s documents, %s tokens", split, f"{len(store):,}", f"{len(store.tokens):,}")
        unwritable[split] = coverage.report(split, limit)
    statistics = {split: corpus.statistics[split] for split in splits}
    log.info("%s", "\n".join(aligned(statistics_rows(statistics), left=1)))
    if not splits:
        # A pretrained model is used untrained.
        return {"statistics": {}}
    trip = round_trip_report(tokenizer, islice(corpus.documents(splits[-1]), ROUND_TRIP_DOCUMENTS))
    (log.info if trip.exact == trip.documents else log.warning)("tokenizer: %s", trip)
    about = {
        split: metrics.to_json() | {CONTENTS: metrics.contents().to_json()} for split, metrics in statistics.items()
    }
    return {"statistics": about, "round_trip": asdict(trip), "unwritable": unwritable}


def _make_tokenizer(
    data: LanguageModelDataConfig, factory: TokenizerFactory | Base, corpus: CorpusBuilder, folder: Path
) -> Tokenizer:
    """Return the tokenizer of a base, or one that is trained or loaded by ``factory``, and save it to ``folder``."""
    if isinstance(factory, Base):
        new = NewTokens(data.new_tokens, data.new_tokens_like)
        return save_base(factory.source, folder, data.max_length, new)
    # The corpus is read twice: tokens can only be written once the tokenizer is trained.
    texts: Iterator[str] = iter(()) if data.tokenizer.path else corpus.documents("train")
    tokenizer = factory.create_tokenizer(texts)
    tokenizer.save(folder / "tokenizer")
    return tokenizer


def _make_template(data: LanguageModelDataConfig, tokenizer: Tokenizer, code: Path, folder: Path) -> ChatTemplate:
    """Return the chat template of the options, or else of the tokenizer, and keep it in the tokenizer's ``folder``."""
    path = None if data.tokenizer.path is None else Path(data.tokenizer.path)
    source = folder if path is None else path if path.is_dir() else path.parent
    content = template_for(tokenizer, given_template(data.chat_template, code), template_in(source))
    template = ChatTemplate(content, tokenizer, choose_learned(data), data.chat_template_kwargs)
    keep_template(folder, content)
    return template


def _write_documents(
    corpus: CorpusBuilder, folder: Path, tokenizer: Tokenizer, coverage: Coverage, with_sources: bool
) -> TokenStore:
    """Write the texts of the split that ``folder`` is named after, and the source of each (``with_sources``)."""
    sources, split = array("I"), folder.name
    texts = _collect_sources(corpus.read(split), sources) if with_sources else corpus.documents(split)
    store = write_tokens(folder, coverage.watch(texts), tokenizer)
    if with_sources:
        write_bytes(folder / SOURCES_FILE, np.array(sources, "<u4").tobytes())
    return store


def _write_conversations(
    corpus: CorpusBuilder, folder: Path, template: ChatTemplate, coverage: Coverage, skip_bad: bool
) -> TokenStore:
    """Write the conversations of the split that ``folder`` is named after, and log what the template left out.

    Raises DataError where none is left, and, unless ``skip_bad``, for one that the template can't write.
    """
    split, skipped, swapped = folder.name, Skipped(), SwappedPairs()
    documents = swapped.watch(_count_coverage(corpus.read(split), coverage))
    pieces = _encode_all(documents, template, skipped if skip_bad else None)
    store = write_encoded(folder, pieces, template.tokenizer)
    if skipped:
        log.warning("%s: %s conversations skipped: %s can't write them", split, f"{len(skipped):,}", CHAT_KEY)
    _warn_of_unwritten(split, template)
    if swapped.number:
        log.warning(
            "%s: %s pairs have the answers of another pair in the opposite order; both are kept",
            split,
            f"{swapped.number:,}",
        )
    if not len(store):
        raise DataError(f"{split} is empty: {CHAT_KEY} can't write any of its conversations")
    return store


def with_ngrams(own: Recipe, order: int, ends_with_bos: bool) -> Recipe:
    """Return a recipe that also counts the n-grams of the training texts, up to ``order`` tokens.

    A text begins with [bos], and ends with [eos], or with the [bos] of the next text (``ends_with_bos``).
    """
    about = {"ngram": order}

    def make(folder: Path) -> dict[str, Any]:
        found = own.make(folder)
        if (folder / "train").is_dir():
            tokenizer, store = Tokenizer.load(folder / "tokenizer"), TokenStore(folder / "train")
            bos, end = ([tokenizer.bos_id], [tokenizer.bos_id if ends_with_bos else tokenizer.eos_id])
            texts = [np.concatenate((bos, store.document(index), end)) for index in range(len(store))]
            arrays = count_ngrams(texts, order, tokenizer.vocab_size, tokenizer.bos_id)
            write_ngrams(folder / NGRAM_FILE, arrays)
            number = sum(len(array) for name, array in arrays.items() if name.startswith("keys"))
            log.info("model.ngram: %s different n-grams of 2 to %d tokens", f"{number:,}", order)
        return found

    def fingerprint() -> str:
        return compute_fingerprint([own.fingerprint(), about])

    return Recipe(make, fingerprint, {**own.options, **about}, f"{own.sections} or model.ngram")


class SwappedPairs:
    """Counts preference pairs that contradict an earlier one: the same two conversations, in the opposite order."""

    def __init__(self) -> None:
        self.number = 0
        self._seen = set[int]()

    def watch(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Yield the documents, and count the contradictions among them."""
        for one in documents:
            if one.rejected:
                first, second = repr(one.messages), repr(one.rejected)
                self.number += hash((second, first)) in self._seen
                self._seen.add(hash((first, second)))
            yield one


def _warn_of_unwritten(split: str, template: ChatTemplate) -> None:
    """Warn of texts and options that the template left out of a split's conversations, and reset its counts."""
    if number := template.num_unwritten_thoughts:
        log.warning("%s: %s leaves out the reasoning of %s answers", split, CHAT_KEY, f"{number:,}")
    if number := template.num_unwritten_words:
        log.warning("%s: %s leaves out the text of %s answers with tool calls", split, CHAT_KEY, f"{number:,}")
    for name, number in template.unused_options.items():
        log.warning("%s: %s conversations give %s, which %s doesn't use", split, f"{number:,}", name, CHAT_KEY)
    template.num_unwritten_thoughts = template.num_unwritten_words = 0
    template.unused_options.clear()


def _count_coverage(documents: Iterable[Document], coverage: Coverage) -> Iterator[Document]:
    for one in documents:
        coverage.count(one.text)
        yield one


def _collect_sources(documents: Iterable[Document], sources: array[int]) -> Iterator[str]:
    """Yield the text of each document; its source is appended to ``sources``."""
    for one in documents:
        sources.append(one.source)
        yield one.text


def _encode_all(
    documents: Iterator[Document], template: ChatTemplate, skipped: Skipped | None
) -> Iterator[EncodedPiece]:
    """Yield conversations as the template writes them; a pair of answers gives two.

    A conversation that it can't write is added to ``skipped``; if that is None, it raises DataError.
    """
    for one in documents:
        try:
            pieces = _encode(one, template)
        except DataError as error:
            if skipped is None:
                raise DataError(f"{error}; to leave such rows out, set data.on_bad_example: skip") from error
            skipped.add(str(error))
            continue
        yield from pieces


def _encode(one: Document, template: ChatTemplate) -> list[EncodedPiece]:
    roles = template.learned.roles
    for place in sorted(one.asked):
        # A message that asks to be learned, but isn't, would pass unnoticed.
        if (role := one.messages[place]["role"]) not in roles:
            raise DataError(
                f"{one.where}: message {place + 1} asks to be learned, but its role is {role}; only "
                f"{' and '.join(roles)} is learned (data.learned_roles)"
            )
    if not one.rejected:
        return [template.encoded(one.messages, one.where, one.unlearned, tools=one.tools, options=one.options)]
    earlier = sum(message["role"] == "assistant" for message in one.messages[: one.num_asked])
    chosen, rejected = (
        template.encoded(messages, one.where, tools=one.tools, num_earlier=earlier, options=one.options)
        for messages in (one.messages, one.rejected)
    )
    if chosen.ids == rejected.ids:
        raise DataError(f"{one.where}: {CHAT_KEY} gives chosen and rejected the same text; leave the pair out")
    return [chosen, rejected]


def describe_lost_text(store: TokenStore) -> str:
    """Describe how many documents the tokens of a store don't reproduce; empty if they reproduce all."""
    lost = store.num_documents - store.num_reproduced
    return f"the tokenizer loses text in {lost:,} of {store.num_documents:,} documents" if lost else ""
