"""Prepared data of a language model, made once: corpus to tokenizer to token stores.

FOLDER (RUN/prepared, or CACHE_DIR/FINGERPRINT, to which RUN/prepared then points)
  tokenizer/tokenizer.json   base/ of a pretrained model   train/ valid/ test/ token stores   prepared.json, made last
  ngram.safetensors, with model.ngram: the n-grams of train (ngram.py)
The end of a document counts as one byte, its newline. No bytes are counted where tokens don't reproduce the texts.
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
from vaak.tasks.lm.config import LanguageModelDataConfig
from vaak.tasks.lm.ngram import NGRAM_FILE, count_ngrams, write_ngrams
from vaak.tasks.lm.pretrained import save_base
from vaak.tasks.pretrained import Base, NewTokens
from vaak.text.chat_template import (
    ANSWERS_ALONE,
    CHAT_KEY,
    ChatTemplate,
    Learned,
    keep_template,
    template_in,
)
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
    """Tokenizer and token stores."""

    load_tokenizer: Callable[[Path], Tokenizer] = Tokenizer.load

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self.load_tokenizer(self.folder / "tokenizer")

    def store(self, split: str) -> TokenStore:
        """The tokens of a split. Raises UserError if the corpus has no such split."""
        return self.open_split(split, TokenStore)

    def sources(self) -> np.ndarray:
        """The source of each training document, ``(document,)``: the number of its pattern."""
        return np.fromfile(self.folder / "train" / SOURCES_FILE, "<u4")


def fingerprint(data: LanguageModelDataConfig, code: Path = Path(), base: Base | None = None) -> str:
    """A hash of everything prepared data depend on: options, and size and time of change of every source file."""
    tokenizer_file = [Path(data.tokenizer.path)] if data.tokenizer.path else []
    files = [*CorpusBuilder(data.corpus, data.corpus.seed).files, *tokenizer_file]
    may_skip = data.corpus.has_answers or data.corpus.type in TYPES_WITH_ROWS
    skips = {"skips": True} if may_skip and data.on_bad_example == "skip" else {}
    of_tokenizer = {**TokenizerFactory(data.tokenizer, code).data_options(), "path": data.tokenizer.path}
    further = {**_of_chats(data, code), **_of_mixture(data), **_of_new_tokens(data), **skips}
    options = {"corpus": data.corpus.model_dump(mode="json"), "tokenizer": of_tokenizer, **further}
    if base is None:
        return fingerprint_with_files(options, files)
    names = ("config.json", "tokenizer.json", *(TEMPLATE_FILES if data.corpus.has_answers else ()))
    of_base = [Path(base.source) / name for name in names]
    return fingerprint_with_files({**options, "pretrained": base.source}, [*files, *of_base])


def recipe(
    data: LanguageModelDataConfig,
    splits: tuple[str, ...] | None = None,
    code: Path = Path(),
    base: Base | None = None,
) -> Recipe:
    """Return how tokenizer and token stores of ``splits`` (default: all) are made; users' files are seen from ``code``.

    With a ``base`` the tokenizer is that of a pretrained model.
    """
    tokenizer = TokenizerFactory(data.tokenizer, code)
    # Without its path, which may differ after a run was moved.
    corpus = data.corpus.model_dump(mode="json", exclude={"train", "valid", "test", "name", FOLDS_FILE})
    further = {**_of_chats(data, code), **_of_mixture(data), **_of_new_tokens(data)}
    options = {"corpus": corpus, "tokenizer": tokenizer.data_options() if base is None else "pretrained", **further}
    make = partial(_make, data, tokenizer if base is None else base, splits, code)
    return Recipe(make, partial(fingerprint, data, code, base), options)


def _of_chats(data: LanguageModelDataConfig, code: Path) -> dict[str, Any]:
    """Return the further options that prepared conversations depend on."""
    if not data.corpus.has_answers:
        return {}
    learned, usual = what_is_learned(data)._asdict(), ANSWERS_ALONE._asdict()
    # Only options that differ from the defaults: data prepared before these options existed keep their fingerprint.
    asked = {name: value for name, value in learned.items() if value != usual[name]}
    given: dict[str, Any] = {"chat_template": given_template(data.chat_template, code)}
    given |= {"options": data.chat_template_kwargs} if data.chat_template_kwargs else {}
    return given | ({"learned": asked} if asked else {})


def what_is_learned(data: LanguageModelDataConfig) -> Learned:
    """Return which parts of conversations are learned, by the options."""
    if data.corpus.type == "preferences":
        # In a pair, the last answer counts.
        return Learned(reasoning=data.reasoning)
    return Learned(data.learned_roles, data.loss_on == "last", data.reasoning)


def _of_new_tokens(data: LanguageModelDataConfig) -> dict[str, Any]:
    """Return the tokens that are added to a base's; without any, nothing, as before there could be some."""
    return {"new_tokens": [*data.new_tokens, data.new_tokens_like]} if data.new_tokens or data.new_tokens_like else {}


SOURCES_FILE = "sources.bin"


def _of_mixture(data: LanguageModelDataConfig) -> dict[str, Any]:
    """Return whether the source of each document is kept; its weights may change without preparing again."""
    return {"sources": len(data.corpus.train)} if data.mixture else {}


def _make(
    data: LanguageModelDataConfig,
    factory: TokenizerFactory | Base,
    splits: tuple[str, ...] | None,
    code: Path,
    folder: Path,
) -> dict[str, Any]:
    """Fill ``folder`` with ``splits`` of ``data``; return the statistics and the tokenizer's round trip.

    The tokenizer is what ``factory`` has or makes; a file of a chat template is looked for in ``code``.
    """
    skip_bad = data.on_bad_example == "skip"
    corpus = CorpusBuilder(data.corpus, data.corpus.seed, skip_bad)
    # What a trained model can't write costs what it costs.
    is_new = splits is None
    splits = corpus.with_train_first() if splits is None else splits
    if isinstance(factory, Base):
        new = NewTokens(data.new_tokens, data.new_tokens_like)
        tokenizer = save_base(factory.source, folder, data.max_length, new)
    else:
        # The corpus is read twice, as tokens can only be written once the tokenizer is trained.
        texts: Iterator[str] = iter(()) if data.tokenizer.path else corpus.documents("train")
        tokenizer = factory.create_tokenizer(texts)
        tokenizer.save(folder / "tokenizer")
    template = None
    if data.corpus.has_answers:
        # The template of the options, or of the tokenizer that they give.
        kept = folder / "tokenizer"
        given = None if data.tokenizer.path is None else Path(data.tokenizer.path)
        source = kept if given is None else given if given.is_dir() else given.parent
        content = template_for(tokenizer, given_template(data.chat_template, code), template_in(source))
        template = ChatTemplate(content, tokenizer, what_is_learned(data), data.chat_template_kwargs)
        keep_template(kept, content)
    # Of whole words, every new text has unknown ones.
    limit = data.max_unknown if is_new and not tokenizer.has_whole_words else None
    written = dict[str, dict[str, Any]]()
    for split in splits:
        coverage = Coverage(tokenizer)
        if template is None:
            is_mixed, sources = bool(data.mixture) and split == "train", array("I")
            texts = _texts(corpus.read(split), sources) if is_mixed else corpus.documents(split)
            store = write_tokens(folder / split, coverage.watch(texts), tokenizer)
            if is_mixed:
                write_bytes(folder / split / SOURCES_FILE, np.array(sources, "<u4").tobytes())
        else:
            skipped, swapped = Skipped(), SwappedPairs()
            documents = swapped.watch(_watched(corpus.read(split), coverage))
            pieces = _conversations(documents, template, skipped if skip_bad else None)
            store = write_encoded(folder / split, pieces, tokenizer)
            if skipped:
                log.warning("%s: %s conversations skipped: %s can't write them", split, f"{len(skipped):,}", CHAT_KEY)
            _tell_unwritten(split, template)
            if swapped.number:
                log.warning(
                    "%s: %s pairs have the answers of another one, the other way round; both are kept",
                    split,
                    f"{swapped.number:,}",
                )
            if not len(store):
                raise DataError(f"{split} is empty: {CHAT_KEY} can't write any of its conversations")
        log.info("%s: %s documents, %s tokens", split, f"{len(store):,}", f"{len(store.tokens):,}")
        written[split] = coverage.report(split, limit)
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
    return {"statistics": about, "round_trip": asdict(trip), "unwritable": written}


def with_ngrams(own: Recipe, order: int, ends_with_bos: bool) -> Recipe:
    """A recipe that also counts the n-grams of the training texts, up to ``order`` tokens.

    A text begins with [bos], and ends with [eos] or, in a stream, with the [bos] of the next one.
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
    """Counts pairs of which another one has the same question, and the same answers the other way round."""

    def __init__(self) -> None:
        self.number = 0
        self._seen = set[int]()

    def watch(self, documents: Iterable[Document]) -> Iterator[Document]:
        """The documents, each counted as it passes."""
        for one in documents:
            if one.rejected:
                first, second = repr(one.messages), repr(one.rejected)
                self.number += hash((second, first)) in self._seen
                self._seen.add(hash((first, second)))
            yield one


def _tell_unwritten(split: str, template: ChatTemplate) -> None:
    """Warn of texts and options that the template left out of a split's conversations, and reset the counts."""
    if number := template.num_unwritten_thoughts:
        log.warning("%s: thoughts of %s answers aren't written by %s", split, f"{number:,}", CHAT_KEY)
    if number := template.num_unwritten_words:
        log.warning("%s: %s answers say something, and call: %s writes the call alone", split, f"{number:,}", CHAT_KEY)
    for name, number in template.unused_options.items():
        log.warning("%s: %s conversations give %s, which %s doesn't name", split, f"{number:,}", name, CHAT_KEY)
    template.num_unwritten_thoughts = template.num_unwritten_words = 0
    template.unused_options.clear()


def _watched(documents: Iterable[Document], coverage: Coverage) -> Iterator[Document]:
    for one in documents:
        coverage.count(one.text)
        yield one


def _texts(documents: Iterable[Document], sources: array[int]) -> Iterator[str]:
    """The text of each document; its source is appended to ``sources``."""
    for one in documents:
        sources.append(one.source)
        yield one.text


def _conversations(
    documents: Iterator[Document], template: ChatTemplate, skipped: Skipped | None
) -> Iterator[EncodedPiece]:
    """Conversations as a template writes them; a pair of answers gives two, in which the last answer counts.

    One that it can't write is ``skipped``, or an error where None may be.
    """
    for one in documents:
        try:
            pieces = _encoded(one, template)
        except DataError as error:
            if skipped is None:
                raise DataError(f"{error} (data.on_bad_example: skip leaves such rows out)") from error
            skipped.add(str(error))
            continue
        yield from pieces


def _encoded(one: Document, template: ChatTemplate) -> list[EncodedPiece]:
    roles = template.learned.roles
    for place in sorted(one.asked):
        # To ask and not to get would pass unnoticed.
        if (role := one.messages[place]["role"]) not in roles:
            raise DataError(
                f"{one.where}: message {place + 1} asks to be learned, but is the {role}'s; only turns of the "
                f"{' and '.join(roles)} are learned (data.learned_roles)"
            )
    if not one.rejected:
        return [template.encoded(one.messages, one.where, one.unlearned, tools=one.tools, options=one.options)]
    earlier = sum(message["role"] == "assistant" for message in one.messages[: one.num_asked])
    chosen, rejected = (
        template.encoded(messages, one.where, tools=one.tools, num_earlier=earlier, options=one.options)
        for messages in (one.messages, one.rejected)
    )
    if chosen.ids == rejected.ids:
        raise DataError(f"{one.where}: {CHAT_KEY} writes chosen and rejected alike; leave the pair out")
    return [chosen, rejected]


def loss_of_text(store: TokenStore) -> str:
    """Return how much of its texts a store's tokens don't reproduce, in words; empty if they reproduce everything."""
    lost = store.num_documents - store.num_reproduced
    return f"the tokenizer loses text in {lost:,} of {store.num_documents:,} documents" if lost else ""
