"""Examples of token ids, of the token stores that vaak.tasks.lm.prepare makes.

Token ids in, target ids out, -100 where nothing is to be predicted:
  document   [bos] t1 t2 ... tn [eos]      inputs are all but the last, targets all but the first
  stream     the concatenated documents, each after a [bos], cut into windows anywhere

Where a base was taught that every text begins with [bos], so does each window: in place of the token before the first
that is predicted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import numpy as np
import torch

from vaak.core.batch import Batch
from vaak.core.errors import UserError
from vaak.core.storage.files import compute_fingerprint
from vaak.core.task import Dataset, Padding
from vaak.data.mixing import StepWeights
from vaak.data.pieces import count_parts
from vaak.data.plan import smallest_integers
from vaak.nn.cross_entropy import IGNORED
from vaak.text.corpora.stores import TokenStore
from vaak.text.difficulties import MEASURES, kept_difficulties
from vaak.text.tokenizer import Tokenizer

log = logging.getLogger("vaak")


@dataclass(frozen=True)
class SpecialTokens:
    """The ids that examples are made with. ``eos`` is None if documents have no end (a stream).

    ``begins_windows`` says whether ``bos`` begins every window, or documents alone.
    """

    pad: int
    bos: int
    mask: int
    eos: int | None
    vocab_size: int
    begins_windows: bool = False


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
    special: SpecialTokens

    def ids(self, index: int) -> np.ndarray:
        raise NotImplementedError

    def begin(self, ids: np.ndarray) -> np.ndarray:
        """Put [bos] at the first place of a window's ``ids``, where windows begin with it; return them."""
        if self.special.begins_windows:
            ids[0] = self.special.bos
        return ids

    def documents(self) -> np.ndarray:
        """Return the document in which each window begins, ``(window,)``."""
        raise NotImplementedError

    def collate(self, rows: list[list[TokenSequence]]) -> Batch:
        return collate(rows, self.special.pad)

    def padding(self, batch: Batch) -> Mapping[str, Padding]:
        return token_padding(self.special.pad, longest=self.row_capacity or int(self.longest))

    def mix(self, sources: np.ndarray, weights: StepWeights, names: Sequence[str]) -> Self:
        """Read sources by ``weights`` at each step; a window is of the source in which it begins.

        ``sources`` ``(document,)`` are their numbers, and ``names`` what they are called. Returns itself. Raises
        UserError for a source without a window.
        """
        self.parts, self.shares = smallest_integers(sources[self.documents()]), weights
        found = count_parts(self.parts, len(names))
        for name, number in zip(names, found.tolist(), strict=True):
            if not number:
                raise UserError(f"data.mixture: {name} has no training example; leave this source and its weights out")
        log.info("%s", ", ".join(f"{name}: {number:,} windows" for name, number in zip(names, found, strict=True)))
        return self

    def difficulty(self, measure: str) -> np.ndarray:
        """Return the difficulty ``(window,)`` by ``length``, ``lexical`` or ``morphology``, harder windows higher.

        Raises UserError for another measure, and if ``morphology`` finds no inflection.
        """
        if measure not in MEASURES:
            raise UserError(f"unknown difficulty {measure}; choose from {', '.join(MEASURES)}")
        if measure == "length":
            return self.lengths

        def texts() -> Iterator[str]:
            # ``prepare`` puts the tokenizer there.
            tokenizer = Tokenizer.load(self.store.folder.parent / "tokenizer")
            for index in range(len(self.lengths)):
                yield tokenizer.decode(self.ids(index)[1:].tolist())

        key = compute_fingerprint([self.fingerprint, self.store.tokenizer_fingerprint])
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

    def documents(self) -> np.ndarray:
        return self.windows.documents

    def ids(self, index: int) -> np.ndarray:
        """Return the ids of an example: one more than it has targets."""
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
        return self.begin(ids)

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
        documents = narrowed(np.flatnonzero(kept))
        zeros = np.zeros_like(documents)
        self.windows = Windows(documents, zeros, narrowed(sizes[documents]), zeros)
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
    """Return three arrays ``(document,)``: each one's size up to ``max_length``, if it is longer, has an answer within.

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

    draws_globally, has_one_shape = False, True

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
        self.lengths = np.full(num_windows, max_length, np.int32)
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

    def documents(self) -> np.ndarray:
        firsts = np.arange(len(self.lengths)) * self.max_length
        found: np.ndarray = self.starts.searchsorted(firsts, side="right") - 1
        return found

    def ids(self, index: int) -> np.ndarray:
        """Return the ids of an example that is not shifted: one more than it has targets."""
        length = int(self.lengths[index])
        return self._read(min(index * self.max_length, self.num_targets - length), length + 1)

    def _read(self, start: int, size: int) -> np.ndarray:
        """``size`` ids of the stream from ``start`` on."""
        ids = np.empty(size, dtype=np.int64)
        document = int(self.starts.searchsorted(start, side="right")) - 1
        filled = 0
        while filled < size:
            # An empty document is a [bos] alone, so every pass through the loop fills at least one place or reaches the
            # next document.
            within = start + filled - int(self.starts[document])
            if within == 0:
                ids[filled] = self.special.bos
                filled, within = filled + 1, 1
            first = int(self.store.offsets[document]) + within - 1
            tokens = self.store.tokens[first : min(first + size - filled, int(self.store.offsets[document + 1]))]
            ids[filled : filled + len(tokens)] = tokens
            filled += len(tokens)
            document += 1
        return self.begin(ids)

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
    """Return the example that an objective makes of ``ids`` ``(time + 1,)`` and the ``targets`` after them ``(time,)``.

    ``num_bytes`` is the size of their text; ``corruption`` says how many inputs are masked or dropped, ``special``
    which ids stand for them, and ``rng`` draws which. Among the tokens that are predicted from both sides, 80 % are
    masked, 10 % replaced, 10 % left.

    Source: Devlin et al. 2019, "BERT", section 3.1. Differs: at least one token of a sequence is chosen.
    """
    if corruption.masking:
        # A masked token is predicted at its own place, so inputs and targets are the same tokens; a causal model,
        # below, predicts the next one.
        inputs = ids[1:]
        chosen = rng.random(len(inputs)) < corruption.masking
        chosen[rng.integers(len(inputs))] |= not chosen.any()
        fate = rng.random(len(inputs))
        replaced = chosen & (fate >= 0.9)
        inputs = np.where(chosen & (fate < 0.8), special.mask, inputs)
        inputs[replaced] = rng.integers(special.vocab_size, size=int(replaced.sum()))
        return TokenSequence(inputs, np.where(chosen, targets, IGNORED), num_bytes)
    inputs = ids[:-1]
    if corruption.dropout:
        dropped = rng.random(len(inputs)) < corruption.dropout
        # [bos] stays: it says where a document begins.
        inputs = np.where(dropped & (inputs != special.bos), special.mask, inputs)
    return TokenSequence(inputs, targets, num_bytes)


def token_padding(pad: int, longest: int, axis: int = 1) -> Mapping[str, Padding]:
    """Return how batches of ``collate`` are made longer: with ``pad``, up to ``longest`` tokens along ``axis``."""
    fills = {"inputs": pad, "targets": IGNORED, "documents": -1}
    return {name: Padding(fill, axis, longest=longest) for name, fill in fills.items()}


def collate(rows: list[list[TokenSequence]], pad: int) -> Batch:
    """Rows padded on the right to the longest. ``documents`` numbers the examples of each row, -1 where padding is."""
    lengths = [sum(len(example.inputs) for example in row) for row in rows]
    packed = any(len(row) > 1 for row in rows)
    if not packed and min(lengths) == max(lengths):
        # in a fifth of the time of np.stack
        inputs, targets = np.array([row[0].inputs for row in rows]), np.array([row[0].targets for row in rows])
        documents = np.zeros_like(inputs)
    else:
        shape = len(rows), max(lengths)
        inputs, targets = np.full(shape, pad, dtype=np.int64), np.full(shape, IGNORED, dtype=np.int64)
        documents = np.full(shape, -1, dtype=np.int64)
        for number, row in enumerate(rows):
            start = 0
            for document, example in enumerate(row):
                end = start + len(example.inputs)
                inputs[number, start:end], targets[number, start:end] = example.inputs, example.targets
                documents[number, start:end] = document
                start = end
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


@dataclass(frozen=True)
class Windows:
    """Windows of all documents, in order: arrays of ``(window,)``, of 32 bits where numbers are small enough."""

    documents: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    scored_from: np.ndarray


def cut_windows(num_targets: np.ndarray, size: int, stride: int) -> Windows:
    """Return the windows of documents with these numbers of targets; a document without targets has none.

    >>> windows = cut_windows(np.array([12, 3]), size=8, stride=4)
    >>> windows.documents.tolist(), windows.starts.tolist(), windows.sizes.tolist(), windows.scored_from.tolist()
    ([0, 0, 1], [0, 4, 0], [8, 8, 3], [0, 4, 0])
    """
    num_targets = np.asarray(num_targets, dtype=np.int64)
    counts = np.where(num_targets > 0, 1 + -(-np.maximum(num_targets - size, 0) // stride), 0)
    documents = narrowed(np.repeat(np.arange(len(num_targets)), counts))
    within = np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)
    scored_from = narrowed(np.where(within > 0, size - stride, 0))
    starts = within * stride
    sizes = narrowed(np.minimum(num_targets[documents] - starts, size))
    return Windows(documents, narrowed(starts), sizes, scored_from)


def narrowed(numbers: np.ndarray) -> np.ndarray:
    """Non-negative integers in 32 bits, if they are small enough."""
    return numbers.astype(np.int32) if numbers.max(initial=0) < 2**31 else numbers
