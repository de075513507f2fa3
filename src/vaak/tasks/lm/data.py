"""The data of a language model: corpus to tokenizer to token stores, once; then examples of token ids.

FOLDER (RUN/prepared, or CACHE_DIR/FINGERPRINT, to which RUN/prepared then points)
  tokenizer/tokenizer.json   base/ of a pretrained model   train/ valid/ test/ token stores   prepared.json, made last
Token ids in, target ids out, -100 where nothing is to be predicted:
  document   [bos] t1 t2 ... tn [eos]      inputs are all but the last, targets all but the first
  stream     the concatenated documents, each after a [bos], cut into windows anywhere
The end of a document counts as one byte, its newline. No bytes are counted where tokens don't reproduce the texts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from vaak.config.base import FOLDS_FILE
from vaak.core.batch import Batch
from vaak.core.errors import UserError
from vaak.core.storage.files import fingerprint_of
from vaak.core.task import Dataset
from vaak.report.tables import aligned
from vaak.runs.prepared import PreparedFolder, Recipe, fingerprint_with_files
from vaak.tasks.lm.config import LanguageModelDataConfig
from vaak.tasks.lm.pretrained import save_base
from vaak.tasks.pretrained import Base
from vaak.text.chat_template import ChatTemplate, given_template, keep_template, template_for, template_in
from vaak.text.corpora.corpus import CorpusBuilder
from vaak.text.corpora.readers import Document
from vaak.text.corpora.statistics import statistics_rows
from vaak.text.corpora.stores import EncodedPiece, TokenStore, write_encoded, write_tokens
from vaak.text.difficulties import MEASURES, kept_difficulties
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


def fingerprint(data: LanguageModelDataConfig, code: Path = Path(), base: Base | None = None) -> str:
    """A hash of everything prepared data depend on: options, and size and time of change of every source file."""
    tokenizer_file = [Path(data.tokenizer.path)] if data.tokenizer.path else []
    files = [*CorpusBuilder(data.corpus, data.corpus.seed).files, *tokenizer_file]
    of_tokenizer = {**TokenizerFactory(data.tokenizer, code).data_options(), "path": data.tokenizer.path}
    options = {"corpus": data.corpus.model_dump(mode="json"), "tokenizer": of_tokenizer, **_of_chats(data, code)}
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
    of_chats = _of_chats(data, code)
    options = {"corpus": corpus, "tokenizer": tokenizer.data_options() if base is None else "pretrained", **of_chats}
    make = partial(_make, data, tokenizer if base is None else base, splits, code)
    return Recipe(make, partial(fingerprint, data, code, base), options)


def _of_chats(data: LanguageModelDataConfig, code: Path) -> dict[str, Any]:
    """Return the further options that prepared conversations depend on."""
    return {"chat_template": given_template(data.chat_template, code)} if data.corpus.has_answers else {}


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
    template = _template(data, code, folder, tokenizer) if data.corpus.has_answers else None
    for split in splits:
        if template is None:
            store = write_tokens(folder / split, corpus.documents(split), tokenizer)
        else:
            store = write_encoded(folder / split, _conversations(corpus.read(split), template), tokenizer)
        log.info("%s: %s documents, %s tokens", split, f"{len(store):,}", f"{len(store.tokens):,}")
    statistics = {split: corpus.statistics[split] for split in splits}
    log.info("%s", "\n".join(aligned(statistics_rows(statistics), left=1)))
    trip = round_trip_report(tokenizer, islice(corpus.documents(splits[-1]), ROUND_TRIP_DOCUMENTS))
    (log.info if trip.exact == trip.documents else log.warning)("tokenizer: %s", trip)
    about = {split: figures.to_json() for split, figures in statistics.items()}
    return {"statistics": about, "round_trip": asdict(trip)}


def _conversations(documents: Iterator[Document], template: ChatTemplate) -> Iterator[EncodedPiece]:
    """Conversations as a template writes them; of a pair of answers two, of which the last answer counts."""
    for one in documents:
        if not one.rejected:
            yield template.encoded(one.messages, one.where)
            continue
        earlier = sum(message["role"] == "assistant" for message in one.messages[: one.num_asked])
        for messages in (one.messages, one.rejected):
            piece = template.encoded(messages, one.where)
            assert piece.answers is not None
            begins = piece.answers & ~np.concatenate(([False], piece.answers[:-1]))
            yield piece._replace(answers=piece.answers & (np.cumsum(begins) > earlier))


def _template(data: LanguageModelDataConfig, code: Path, folder: Path, tokenizer: Tokenizer) -> ChatTemplate:
    """The chat template of the options, or of the tokenizer that they give; kept with the tokenizer in ``folder``."""
    kept = folder / "tokenizer"
    given = None if data.tokenizer.path is None else Path(data.tokenizer.path)
    source = kept if given is None else given if given.is_dir() else given.parent
    content = template_for(tokenizer, given_template(data.chat_template, code), template_in(source))
    template = ChatTemplate(content, tokenizer)
    keep_template(kept, content)
    return template


IGNORED = -100


@dataclass(frozen=True)
class SpecialTokens:
    """The ids that examples are made with. ``eos`` is None if documents have no end (a stream)."""

    pad: int
    bos: int
    mask: int
    eos: int | None
    vocab_size: int


@dataclass(frozen=True)
class Corruption:
    """How inputs are changed: not at all, ``dropout`` (causal), or ``masking`` (the masked objective)."""

    dropout: float = 0.0
    masking: float = 0.0

    @property
    def draws(self) -> bool:
        """Whether inputs are changed at random."""
        return bool(self.dropout or self.masking)


class TokenSequence(NamedTuple):
    """One example: ``inputs`` and ``targets`` ``(time,)``, and the number of bytes of its text."""

    inputs: np.ndarray
    targets: np.ndarray
    num_bytes: int


class WindowDataset(Dataset):
    """Examples that are windows of a store's tokens, whose ids ``ids(index)`` returns."""

    store: TokenStore

    def ids(self, index: int) -> np.ndarray:
        raise NotImplementedError

    def difficulty(self, measure: str) -> np.ndarray:
        """Return the difficulty ``(window,)`` by ``length``, ``lexical`` or ``morphology``, harder windows higher.

        Raises UserError for another measure, and if ``morphology`` finds no inflection.
        """
        if measure not in MEASURES:
            raise UserError(f"unknown difficulty {measure}; choose from {', '.join(MEASURES)}")
        if measure == "length":
            return self.lengths

        def texts() -> Iterator[str]:
            tokenizer = Tokenizer.load(self.store.folder.parent / "tokenizer")  # where ``prepare`` puts it
            for index in range(len(self.lengths)):
                yield tokenizer.decode(self.ids(index)[1:].tolist())

        key = fingerprint_of([self.fingerprint, self.store.tokenizer_fingerprint])
        return kept_difficulties(self.store.folder, key, measure, texts, len(self.lengths))


class TextDataset(WindowDataset):
    """Windows of single documents; ``stride`` below ``max_length`` gives scored tokens more context.

    ``store`` has the documents' tokens, ``special`` the ids of [bos] and the like; ``corruption`` is what an objective
    does to the inputs.
    """

    draws_globally = False

    def __init__(
        self,
        store: TokenStore,
        special: SpecialTokens,
        corruption: Corruption,
        *,
        max_length: int,
        stride: int,
    ) -> None:
        self.store, self.special, self.corruption = store, special, corruption
        self.is_constant = not corruption.draws
        self.row_capacity = max_length
        self.windows = cut_windows(store.lengths + (special.eos is not None), max_length, stride)
        self.lengths = self.windows.sizes
        self.fingerprint = f"{store.fingerprint}-{max_length}-{stride}"

    def example(self, index: int, rng: np.random.Generator) -> TokenSequence:
        document, start = int(self.windows.documents[index]), int(self.windows.starts[index])
        ids = self.ids(index)
        targets = ids[1:].copy()
        targets[: self.windows.scored_from[index]] = IGNORED
        counted = start == 0 and self.store.is_exact
        num_bytes = int(self.store.num_bytes[document]) + (self.special.eos is not None) if counted else 0
        return corrupt(ids, targets, num_bytes, self.corruption, self.special, rng)

    def ids(self, index: int) -> np.ndarray:
        """The ids of an example: one more than it has targets."""
        document, start = int(self.windows.documents[index]), int(self.windows.starts[index])
        return self._read(document, start, int(self.windows.sizes[index]) + 1)

    def _read(self, document: int, start: int, size: int) -> np.ndarray:
        """``size`` ids of [bos] document [eos], from ``start`` on."""
        ids = np.empty(size, dtype=np.int64)
        filled = 0
        if start == 0:
            ids[0], filled = self.special.bos, 1
        first = int(self.store.offsets[document]) + max(start - 1, 0)
        tokens = self.store.tokens[first : min(first + size - filled, int(self.store.offsets[document + 1]))]
        ids[filled : filled + len(tokens)] = tokens
        if self.special.eos is not None and filled + len(tokens) < size:
            ids[size - 1] = self.special.eos
        return ids

    def collate(self, rows: list[list[TokenSequence]]) -> Batch:
        return collate(rows, self.special.pad)

    def describe(self, index: int) -> str:
        return f"document {self.windows.documents[index]} of {self.store.folder}, token {self.windows.starts[index]}"


class ChatDataset(TextDataset):
    """Conversations, each an example as its template wrote it, of which answers are predicted, or ``all``.

    One that is longer than ``max_length`` is cut, or dropped; so is one that has then nothing to predict. ``num_cut``
    and ``num_dropped`` count them.
    """

    def __init__(
        self,
        store: TokenStore,
        special: SpecialTokens,
        corruption: Corruption,
        *,
        max_length: int,
        predicted: Literal["answers", "all"],
        longer: Literal["cut", "drop"],
    ) -> None:
        """``store`` has them, with their answers; ``special`` and ``corruption`` are those of the task.

        ``predicted`` says what is, and ``longer`` what becomes of one longer than ``max_length``.
        """
        super().__init__(store, special, corruption, max_length=max_length, stride=max_length)
        assert store.answers is not None
        self.predicted = predicted
        sizes, is_long, has_answer = answers_within(store, max_length)
        kept = has_answer & ~is_long if longer == "drop" else has_answer
        self.num_cut, self.num_dropped = int((is_long & kept).sum()), int((~kept).sum())
        documents = np.flatnonzero(kept)
        zeros = np.zeros_like(documents)
        self.windows = Windows(documents, zeros, sizes[documents], zeros)
        self.lengths = self.windows.sizes
        self.fingerprint = f"{store.fingerprint}-{max_length}-{longer}"

    def example(self, index: int, rng: np.random.Generator) -> TokenSequence:
        document, ids = int(self.windows.documents[index]), self.ids(index)
        first = int(self.store.offsets[document]) + 1
        targets = ids[1:].copy()
        if self.predicted == "answers":
            assert self.store.answers is not None
            targets[~self.store.answers[first : first + len(targets)]] = IGNORED
        has_bytes = self.predicted == "answers" and self.store.is_exact and not self.num_cut
        num_bytes = int(self.store.num_bytes[document]) if has_bytes else 0
        return corrupt(ids, targets, num_bytes, self.corruption, self.special, rng)

    def _read(self, document: int, start: int, size: int) -> np.ndarray:
        return self.store.document(document)[start : start + size].astype(np.int64)


def answers_within(store: TokenStore, max_length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each conversation ``(document,)``: its size up to ``max_length``, whether it is longer, has an answer within.

    A size is the number of targets: of all tokens but the first.
    """
    assert store.answers is not None
    sizes = np.minimum(store.lengths - 1, max_length)
    sums = np.concatenate(([0], np.cumsum(store.answers)))
    first = np.asarray(store.offsets[:-1])
    has_answer = sums[first + sizes + 1] > sums[np.minimum(first + 1, first + sizes + 1)]
    return sizes, store.lengths - 1 > max_length, has_answer


class StreamDataset(WindowDataset):
    """Windows of ``max_length`` targets over all documents in a row.

    Without ``shift`` each target is in one window, and the last window may be shorter. With it, all windows are
    complete, and each begins at a random place within its range, different in every epoch.

    ``store``, ``special`` and ``corruption`` are those of ``TextDataset``.
    """

    draws_globally = False

    def __init__(
        self, store: TokenStore, special: SpecialTokens, corruption: Corruption, *, max_length: int, shift: bool
    ) -> None:
        self.store, self.special, self.corruption = store, special, corruption
        self.is_constant = not corruption.draws and not shift
        self.max_length, self.shift = max_length, shift
        self.row_capacity = max_length
        # Of documents in the stream: there is a [bos] before each.
        self.starts = np.asarray(store.offsets) + np.arange(len(store) + 1)
        self.num_targets = max(int(self.starts[-1]) - 1, 0)
        whole, rest = divmod(self.num_targets, max_length)
        num_windows = whole if shift and whole else whole + (rest > 0)
        self.lengths = np.full(num_windows, max_length)
        self.lengths[whole:] = rest
        self.fingerprint = f"{store.fingerprint}-stream-{max_length}-{shift}"

    def example(self, index: int, rng: np.random.Generator) -> TokenSequence:
        length = int(self.lengths[index])
        start = index * self.max_length
        if self.shift:
            start += int(rng.integers(self.max_length))
        start = min(start, self.num_targets - length)
        ids = self._read(start, length + 1)
        return corrupt(ids, ids[1:], 0, self.corruption, self.special, rng)

    def ids(self, index: int) -> np.ndarray:
        """The ids of an example that is not shifted: one more than it has targets."""
        length = int(self.lengths[index])
        return self._read(min(index * self.max_length, self.num_targets - length), length + 1)

    def _read(self, start: int, size: int) -> np.ndarray:
        """``size`` ids of the stream from ``start`` on."""
        ids = np.empty(size, dtype=np.int64)
        document = int(self.starts.searchsorted(start, side="right")) - 1
        filled = 0
        while filled < size:
            within = start + filled - int(self.starts[document])
            if within == 0:
                ids[filled] = self.special.bos
                filled, within = filled + 1, 1
            first = int(self.store.offsets[document]) + within - 1
            tokens = self.store.tokens[first : min(first + size - filled, int(self.store.offsets[document + 1]))]
            ids[filled : filled + len(tokens)] = tokens
            filled += len(tokens)
            document += 1
        return ids

    def collate(self, rows: list[list[TokenSequence]]) -> Batch:
        return collate(rows, self.special.pad)

    def describe(self, index: int) -> str:
        return f"token {index * self.max_length} of the stream {self.store.folder}"


def corrupt(
    ids: np.ndarray,
    targets: np.ndarray,
    num_bytes: int,
    corruption: Corruption,
    special: SpecialTokens,
    rng: np.random.Generator,
) -> TokenSequence:
    """The example that an objective makes of ``ids`` ``(time + 1,)`` and the ``targets`` after them ``(time,)``.

    ``num_bytes`` is the size of their text; ``corruption`` says how many inputs are masked or dropped, ``special``
    which ids stand for them, and ``rng`` draws which.
    """
    if corruption.masking:
        return _masked(ids[1:], targets, num_bytes, corruption.masking, special, rng)
    inputs = ids[:-1]
    if corruption.dropout:
        dropped = rng.random(len(inputs)) < corruption.dropout
        inputs = np.where(dropped & (inputs != special.bos), special.mask, inputs)
    return TokenSequence(inputs, targets, num_bytes)


def _masked(
    ids: np.ndarray,
    targets: np.ndarray,
    num_bytes: int,
    probability: float,
    special: SpecialTokens,
    rng: np.random.Generator,
) -> TokenSequence:
    """Some tokens to predict from both sides; of these 80 % are masked, 10 % replaced, 10 % left.

    ``ids`` and ``targets`` are ``(time,)``, ``num_bytes`` is the size of their text; each is chosen with
    ``probability``, by ``rng``. ``special`` has the mask's id.

    Source: Devlin et al. 2019, "BERT", section 3.1. Differs: at least one token of a sequence is chosen.
    """
    chosen = rng.random(len(ids)) < probability
    chosen[rng.integers(len(ids))] |= not chosen.any()
    fate = rng.random(len(ids))
    inputs = np.where(chosen & (fate < 0.8), special.mask, ids)
    replaced = chosen & (fate >= 0.9)
    inputs[replaced] = rng.integers(special.vocab_size, size=int(replaced.sum()))
    return TokenSequence(inputs, np.where(chosen, targets, IGNORED), num_bytes)


def collate(rows: list[list[TokenSequence]], pad: int) -> Batch:
    """Rows padded on the right to the longest. ``documents`` numbers the examples of each row, -1 where padding is."""
    lengths = [sum(len(example.inputs) for example in row) for row in rows]
    packed = any(len(row) > 1 for row in rows)
    if not packed and min(lengths) == max(lengths):
        inputs, targets = np.stack([row[0].inputs for row in rows]), np.stack([row[0].targets for row in rows])
        documents = np.zeros_like(inputs)
    else:
        inputs, targets, documents = _padded(rows, (len(rows), max(lengths)), pad)
    tensors = {"inputs": inputs, "targets": targets, "documents": documents}
    counts = {
        "token": (targets != IGNORED).sum(axis=1),
        "example": np.array([len(row) for row in rows]),
        "position": np.array(lengths),
        "byte": np.array([sum(example.num_bytes for example in row) for row in rows]),
    }
    return Batch(
        {name: torch.from_numpy(array) for name, array in tensors.items()},
        {unit: torch.from_numpy(count) for unit, count in counts.items()},
        extra={"packed": packed},
    )


def _padded(
    rows: list[list[TokenSequence]], shape: tuple[int, int], pad: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets and documents (row, time)."""
    inputs, targets = np.full(shape, pad, dtype=np.int64), np.full(shape, IGNORED, dtype=np.int64)
    documents = np.full(shape, -1, dtype=np.int64)
    for number, row in enumerate(rows):
        start = 0
        for document, example in enumerate(row):
            end = start + len(example.inputs)
            inputs[number, start:end], targets[number, start:end] = example.inputs, example.targets
            documents[number, start:end] = document
            start = end
    return inputs, targets, documents


@dataclass(frozen=True)
class Windows:
    """Windows of all documents, in order: arrays of ``(window,)``."""

    documents: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    scored_from: np.ndarray


def cut_windows(num_targets: np.ndarray, size: int, stride: int) -> Windows:
    """The windows of documents with these numbers of targets; a document without targets has none.

    >>> windows = cut_windows(np.array([12, 3]), size=8, stride=4)
    >>> windows.documents.tolist(), windows.starts.tolist(), windows.sizes.tolist(), windows.scored_from.tolist()
    ([0, 0, 1], [0, 4, 0], [8, 8, 3], [0, 4, 0])
    """
    num_targets = np.asarray(num_targets, dtype=np.int64)
    counts = np.where(num_targets > 0, 1 + -(-np.maximum(num_targets - size, 0) // stride), 0)
    documents = np.repeat(np.arange(len(num_targets)), counts)
    within = np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = within * stride
    sizes = np.minimum(num_targets[documents] - starts, size)
    scored_from = np.where(within > 0, size - stride, 0)
    return Windows(documents, starts, sizes, scored_from)
