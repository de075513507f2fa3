"""Text from a decoder, token by token, with a cache of earlier tokens. Tokens are drawn by ``nn.decoding.sampling``.

Rotary positions say little beyond the lengths seen in training. So with a ``Reading`` of ``max_length`` the model reads
at most that many tokens: when a text outgrows it, all but its last ``max_length // 2`` tokens are forgotten, and those
are read again from position 0, after the token that begins a document where the model was taught so.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vaak.core.batch import send
from vaak.core.errors import UserError
from vaak.core.random_keys import Purpose, draw_key
from vaak.nn.decoding.ctc_words import END
from vaak.nn.decoding.sampling import SamplingSettings, next_tokens, require_tokens, uniform_numbers, without_dropout
from vaak.nn.decoding.static_cache import StaticStep, are_near, round_rows
from vaak.tasks.batches import IS_ALONE, Embedded, limit_batch
from vaak.tasks.lm.model import AnyLanguageModel, LanguageModel
from vaak.text.tokenizer import Tokenizer, normalise

log = logging.getLogger("vaak")
TOGETHER, MOST_KEPT = 64, 100_000
"""Texts that are scored at once, and scores that are kept from one search to the next."""


@dataclass(frozen=True)
class Reading:
    """How many tokens a model reads at once, and the token before those that are left of a text, if it needs one."""

    max_length: int | None = None
    begins_with: int | None = None

    def keep_recent(self, ids: Sequence[int]) -> list[int]:
        """Return the tokens of which the next one is predicted: all, or about the last half of ``max_length``."""
        if self.max_length is None or len(ids) <= self.max_length:
            return list(ids)
        return self.keep_last(ids, max(1, self.max_length // 2))

    def describe_cut(self, prompt: Sequence[int]) -> str:
        """Return a line about a prompt that is cut; an empty text if the whole is read."""
        kept = len(self.keep_recent(prompt))
        if kept == len(prompt):
            return ""
        return f"the prompt has {len(prompt)} tokens, more than {self.max_length}: the model reads the last {kept}"

    def keep_last(self, ids: Sequence[int], size: int) -> list[int]:
        """Return at most ``size`` tokens of a text, the last ones, the first of them what it begins with."""
        kept = list(ids[-size:])
        if len(kept) < len(ids) and self.begins_with is not None and size > 1:
            kept[0] = self.begins_with
        return kept


WITHOUT_END = Reading()


def generate(
    model: AnyLanguageModel, prompt_ids: Sequence[int], settings: SamplingSettings, reading: Reading = WITHOUT_END
) -> Iterator[int]:
    """Yield each token after the prompt when it is drawn, up to a stop token or ``max_new_tokens``.

    Greedy or not, the tokens depend on the model, the prompt and the settings alone. ``reading`` says
    what it forgets. Raises UserError at once for an empty or unknown prompt or an encoder.
    """
    steps = draw_rows(model, [prompt_ids], settings, reading)
    return (token for (token,) in steps if token is not None)


def generate_batch(
    model: AnyLanguageModel,
    prompts: Sequence[Sequence[int]],
    settings: SamplingSettings,
    reading: Reading = WITHOUT_END,
    seeds: Sequence[int] | None = None,
) -> list[list[int]]:
    """Return each prompt's continuation, in one batch; each has its own draws, the first those of ``generate``.

    With ``seeds``, one for each prompt, each is what ``generate`` gives with its seed.
    """
    texts: list[list[int]] = [[] for _ in prompts]
    for tokens in draw_rows(model, prompts, settings, reading, seeds) if prompts else ():
        for text, token in zip(texts, tokens, strict=True):
            text += [] if token is None else [token]
    return texts


def token_scores(
    model: AnyLanguageModel, rows: Sequence[Sequence[int]], counts: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """The log-probability of each of a row's last tokens, ``counts`` of them, and whether it is the most probable one.

    They are ``(token,)``, on the CPU; all rows are computed together.
    """
    inputs, targets = torch.zeros(2, len(rows), max(map(len, rows)) - 1, dtype=torch.long)
    is_scored = torch.zeros_like(inputs, dtype=torch.bool)
    for index, (row, count) in enumerate(zip(rows, counts, strict=True)):
        end = len(row) - 1
        inputs[index, :end], targets[index, :end] = torch.tensor(row[:-1]), torch.tensor(row[1:])
        is_scored[index, end - count : end] = True
    device = model.embedding.weight.device
    with torch.inference_mode(), without_dropout(model):
        # A decoder needs no mask to ignore padding on the right.
        logits = model(inputs.to(device), select=is_scored.to(device)).float()
    wanted = targets[is_scored].to(device)
    log_probabilities = -nn.functional.cross_entropy(logits, wanted, reduction="none").cpu().double()
    is_greedy = (logits.argmax(-1) == wanted).cpu()
    sizes = list(counts)
    yield from zip(log_probabilities.split(sizes), is_greedy.split(sizes), strict=True)


def embed_rows(model: LanguageModel, rows: Sequence[Sequence[int]], max_length: int) -> list[Embedded]:
    """Return the mean of an encoder's vectors of each row's first ``max_length`` tokens, all computed at once."""
    kept = [torch.tensor(row[:max_length]) for row in rows]
    device = model.embedding.weight.device
    inputs = nn.utils.rnn.pad_sequence(kept, batch_first=True).to(device)
    mask = (torch.arange(inputs.shape[1]) < torch.tensor([[len(row)] for row in kept])).to(device)
    with without_dropout(model), torch.inference_mode():
        hidden = model.hidden(inputs, mask=mask).float().masked_fill(~mask[..., None], 0.0)
        vectors = (hidden.sum(1) / mask.sum(1, keepdim=True)).cpu().tolist()
    both = zip(vectors, kept, rows, strict=True)
    return [Embedded(vector, len(read), len(row) > len(read)) for vector, read, row in both]


class WordScores:
    """A decoder as a language model of words: the log-probability that a word adds to the text before it.

    log p(w | text) = log p(text w) - log p(text), of the tokens of both texts: the sum over the words of a text, and
    its end, is the log-probability of all of its tokens. Scores are kept until there are too many.
    """

    def __init__(self, model: AnyLanguageModel, tokenizer: Tokenizer, end: int, reading: Reading) -> None:
        """``end`` is the token that ends a text; ``reading`` has the most tokens that are read at once, the last ones.

        Its length can't be None.
        """
        self.model, self.tokenizer, self.end, self.reading = model, tokenizer, end, reading
        self._known: dict[tuple[str, ...], tuple[list[int], list[float]]] = {(): ([], [])}
        self._texts: list[tuple[str, ...]] = [()]
        self._states: dict[tuple[str, ...], int] = {(): 0}
        self._is_alone = False

    highest = unknown = math.inf
    """A word may change the tokens before it, and so add more than 0."""

    def has_beginning(self, letters: str) -> bool:
        """Return True: tokens can write any word."""
        return True

    def begin(self) -> int:
        """Return the state before the first word."""
        # What was computed together with others isn't what it would be alone.
        if len(self._known) > MOST_KEPT or self._is_alone != IS_ALONE.get():
            self._known, self._texts, self._states = {(): ([], [])}, [()], {(): 0}
            self._is_alone = IS_ALONE.get()
        return 0

    def read(self, asked: Sequence[tuple[int, str]]) -> list[tuple[float, int]]:
        """Return the log-probability of each word, or of the end, after a state, and the state after it."""
        texts = [(self._texts[state], word) for state, word in asked]
        self._prepare(texts)
        return [(self.score(before, word), self._intern((*before, word))) for before, word in texts]

    def _intern(self, text: tuple[str, ...]) -> int:
        if text not in self._states:
            self._states[text] = len(self._texts)
            self._texts.append(text)
        return self._states[text]

    def score(self, before: tuple[str, ...], word: str) -> float:
        """Return the log-probability of a word, or of the end, after those before."""
        self._prepare([(before, word)])
        return sum(self._known[(*before, word)][1]) - sum(self._known[before][1])

    def _prepare(self, pairs: Iterable[tuple[tuple[str, ...], str]]) -> None:
        """Compute unknown scores in batches: the shorter texts first, as the others begin with them."""
        asked = {(*before, word) for before, word in pairs} - self._known.keys()
        asked |= {text[:size] for text in asked for size in range(1, len(text))} - self._known.keys()
        for size in sorted({len(text) for text in asked}):
            texts = sorted(text for text in asked if len(text) == size)
            size = limit_batch(TOGETHER)
            for first in range(0, len(texts), size):
                self._read(texts[first : first + size])

    def _read(self, texts: Sequence[tuple[str, ...]]) -> None:
        rows, counts, ids = list[list[int]](), list[int](), list[list[int]]()
        for *before, word in texts:
            known = self._known[tuple(before)][0]
            own = [*known, self.end] if word == END else self.tokenizer.encode(normalise(" ".join((*before, word))))
            # A further word may change the tokens before it, as merges go across them: whatever follows the first
            # difference is scored again.
            same = next((at for at, (one, other) in enumerate(zip(known, own, strict=False)) if one != other), None)
            same = min(len(known), len(own)) if same is None else same
            ids.append(own)
            counts.append(len(own) - same)
            # Cut on the left to what the model reads, though never so far that a token that counts is lost.
            longest = max(self.reading.max_length or 0, counts[-1]) + 1
            rows.append(self.reading.keep_last([self.tokenizer.bos_id, *own], longest))
        found = iter(token_scores(self.model, rows, counts)) if any(counts) else iter(())
        for text, own, count in zip(texts, ids, counts, strict=True):
            scores = next(found)[0].tolist() if any(counts) else []
            before_it = self._known[text[:-1]][1]
            self._known[text] = own, [*before_it[: len(own) - count], *scores]


STEPS_BEFORE_GRAPH, GRAPHED_DEVICES = 16, ("cuda",)
"""Steps with the same rows until one is captured, which costs as much as a few; and where."""
MOST_GRAPHS = 3
"""Graphs that are kept for a model, one for each number of rows; each has separate keys and values."""
_REFUSED: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Models whose step couldn't be captured."""
_TOLD: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Models of which a text was longer than they read."""


def _has_static_step(model: AnyLanguageModel) -> bool:
    if model.embedding.weight.device.type not in GRAPHED_DEVICES or model in _REFUSED:
        return False
    stack = model.stack if isinstance(model, LanguageModel) and model.ngram is None else None
    return bool(getattr(stack, "has_static_step", False))


def _refuse_graphs(model: AnyLanguageModel, reason: str) -> None:
    _REFUSED.add(model)
    log.warning("a token's step isn't a CUDA graph, but computed operator by operator: %s", reason)


SHOWN_TOKENS = 48
"""Tokens of a validation text that are shown, as a prompt and its continuation."""


def split_text(text: str) -> tuple[str, str]:
    """Return the first third of a text's words, and the rest; of one without spaces, of its characters.

    >>> split_text("one two three four five six"), split_text("今日は雨です")
    (('one two', 'three four five six'), ('今日', 'は雨です'))
    """
    words = text.split()
    parts, between = (words, " ") if len(words) > 1 else (list(text.strip()), "")
    size = max(1, len(parts) // 3)
    return between.join(parts[:size]), between.join(parts[size:])


class RowDecoder:
    """The state of a model that reads rows of tokens: its input so far, and the scores of the next token."""

    def __init__(self, model: AnyLanguageModel, prompts: Sequence[Sequence[int]], reading: Reading) -> None:
        self.model = model
        self.reading = reading
        self.contexts = [reading.keep_recent(prompt) for prompt in prompts]
        # The cache is of the model's own kind.
        self.cache: Any = None
        self._separate = len({len(context) for context in self.contexts}) > 1
        self._modules = list(model.modules())
        self._static: StaticStep | None = None
        self._steps: dict[int, StaticStep] = {}
        """Those made so far, by the rows of their buffers, the last one used last."""
        self._num_alike = 0
        """Steps since rows came or went that no static step had room for."""

    def append(self, tokens: Sequence[int]) -> None:
        """Add a token to each row; a row longer than the model reads forgets its older part."""
        for context, token in zip(self.contexts, tokens, strict=True):
            context.append(token)
        longest = self.reading.max_length
        if longest is not None and any(len(context) > longest for context in self.contexts):
            self._grow()
            self.contexts, self.cache = [self.reading.keep_recent(context) for context in self.contexts], None
            tell_forgotten(self.model, self.reading)

    @torch.inference_mode()
    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order."""
        # A step of which most rows are idle is given up, for one with fewer.
        if self._static is None or not self._static.cache.rows // 4 < len(rows) <= self._static.cache.rows:
            self._grow()
        self.contexts = [list(self.contexts[row]) for row in rows]
        if self.cache is not None:
            self.cache.select(send(torch.tensor(rows), self.model.embedding.weight.device))

    @property
    def can_join(self) -> bool:
        """Whether ``join`` can add rows now: before the first token, or where the cache can."""
        return self.cache is None or bool(getattr(self.cache, "can_join", False))

    @torch.inference_mode()
    def join(self, prompts: Sequence[Sequence[int]]) -> None:
        """Add rows with these prompts after the others; their tokens but the last are read now, by themselves."""
        new = RowDecoder(self.model, prompts, self.reading)
        if self.cache is None:
            self._separate = len({len(context) for context in (*self.contexts, *new.contexts)}) > 1
        else:
            self._separate = True
            # A row of one token has nothing before it: one of padding stands for that.
            read = RowDecoder(self.model, [context[:-1] for context in new.contexts], WITHOUT_END)
            read._separate = True
            read.next_logits(at_least=1)
            if self._static is None or not self._static.cache.has_room(read.cache):
                self._grow()
            self.cache.join(read.cache)
        self.contexts += new.contexts

    @torch.inference_mode()
    def next_logits(self, at_least: int = 0) -> Tensor:
        """Scores of the token after each row, ``(rows, vocab)``, on the model's device, in float32 at least.

        The prompts are padded to ``at_least`` tokens.
        """
        unread = self.contexts if self.cache is None else [context[-1:] for context in self.contexts]
        self.cache = self.cache or self.model.new_cache()
        time = max(at_least, *map(len, unread))
        device = self.model.embedding.weight.device
        input_ids, documents = send(torch.tensor([[0] * (time - len(row)) + row for row in unread]), device), None
        if self._separate:
            documents = send(torch.tensor([[-1] * (time - len(row)) + [0] * len(row) for row in unread]), device)
        with without_dropout(self._modules):
            logits = self._read(input_ids, documents)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _read(self, input_ids: Tensor, documents: Tensor | None) -> Tensor:
        if self._static is not None and self._static.is_full:
            self._grow()
        if self._static is not None:
            return self._static(input_ids)
        self._num_alike = self._num_alike + 1 if input_ids.shape[1] == 1 else 0
        static, found = self._begin_static(input_ids)
        logits = self.model.next_logits(input_ids, documents=documents, cache=self.cache)
        if static is not None and not are_near(found, logits):
            _refuse_graphs(self.model, "its scores aren't those of the same step without")
        elif static is not None:
            # The cache that grows isn't kept.
            self._static, self.cache = static, static.cache
        return logits

    def _begin_static(self, input_ids: Tensor) -> tuple[StaticStep | None, Tensor]:
        """Return a static step that has read a token of each row, and its logits, where it is time for one."""
        if self._num_alike > STEPS_BEFORE_GRAPH and _has_static_step(self.model):
            read: Callable[..., Tensor] = self.model.next_logits
            try:
                static = self._steps.pop(round_rows(len(input_ids)), None)
                if static is None or self.cache.length >= static.cache.capacity:
                    static = StaticStep(partial(read, documents=None), self.cache)
                else:
                    static.cache.load(self.cache)
                self._steps[static.cache.rows] = static
                if len(self._steps) > MOST_GRAPHS:
                    del self._steps[next(iter(self._steps))]
                return static, static(input_ids)
            except Exception as error:
                # A layer that waits for the device, say, or too little memory: then as ever, and not tried again.
                _refuse_graphs(self.model, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        return None, input_ids

    def _grow(self) -> None:
        """Continue with a cache that grows."""
        if self._static is not None:
            self.cache, self._static = self._static.cache.grow(), None
        self._num_alike = 0


def tell_forgotten(model: nn.Module, reading: Reading) -> None:
    """Log once for each model that texts have outgrown what it reads."""
    if model not in _TOLD:
        _TOLD.add(model)
        log.warning(
            "a text has grown beyond the %s tokens that the model reads: all but the last %s are forgotten",
            *(f"{reading.max_length:,}", f"{len(reading.keep_recent(range((reading.max_length or 0) + 1))):,}"),
        )


@dataclass
class TokenReader:
    """A reader of the tokens of rows, called after each is drawn.

    Rows whose numbers it puts into ``ended`` end there. ``observe`` is called in each step before the tokens are given:
    with the numbers of the unfinished rows, the scores ``(row, vocab)`` of their next tokens, and these tokens.

    ``take`` is called with the number of rows before each step that others may join; it returns further prompts, each
    with its seed, whose rows have the next numbers. Until then, the result doesn't have a row's tokens.
    """

    ended: set[int] = field(default_factory=set)
    observe: Callable[[list[int], Tensor, list[int]], None] | None = None
    take: Callable[[int], Sequence[tuple[Sequence[int], int]]] | None = None


def draw_rows(
    model: AnyLanguageModel,
    prompts: Sequence[Sequence[int]],
    settings: SamplingSettings,
    reading: Reading,
    seeds: Sequence[int] | None = None,
    reader: TokenReader | None = None,
) -> Iterator[list[int | None]]:
    """Check the request at once; then, step by step, the next token of each row, None if the row has ended.

    ``reader`` computes the logits.
    """
    if model.config.model_type != "decoder":
        raise UserError("Only a decoder generates text; this model is an encoder, trained on the masked objective.")
    if reading.max_length is not None and reading.max_length < 1:
        raise UserError(f"max_length is {reading.max_length}; it must be at least 1.")
    _require_readable(model, prompts)
    draws = [(settings.seed, row) for row in range(len(prompts))] if seeds is None else [(seed, 0) for seed in seeds]
    keys = np.array([draw_key(Purpose.GENERATE, *draw) for draw in draws], dtype=np.uint64)
    # This is not itself a generator, so that what is wrong is raised by the call and not by the first token.
    return _draw_steps(RowDecoder(model, prompts, reading), settings, keys, reader or TokenReader())


def _require_readable(model: AnyLanguageModel, prompts: Sequence[Sequence[int]]) -> None:
    """Raise UserError for a prompt without tokens, or with one that the model doesn't have."""
    for prompt in prompts:
        if not prompt:
            raise UserError("The prompt has no tokens; give some text, or the token that begins a document.")
        if not all(0 <= token < model.vocab_size for token in prompt):
            unknown = next(token for token in prompt if not 0 <= token < model.vocab_size)
            raise UserError(f"Token {unknown} of the prompt is not one of the model's {model.vocab_size} tokens.")


def _draw_steps(
    decoder: RowDecoder, settings: SamplingSettings, keys: np.ndarray, reader: TokenReader
) -> Iterator[list[int | None]]:
    """Yield the next token of each row, which draws by its key ``(row,)``; a row that ended leaves the batch.

    A row's tokens depend on its own key and place alone, so it may begin later than others.
    """
    writing, positions = np.arange(len(keys)), np.zeros(len(keys), np.int64)
    while len(writing):
        if reader.take is not None and decoder.can_join and (new := reader.take(len(writing))):
            prompts, seeds = zip(*new, strict=True)
            _require_readable(decoder.model, prompts)
            decoder.join(prompts)
            writing = np.concatenate((writing, len(keys) + np.arange(len(new))))
            keys = np.concatenate((keys, [draw_key(Purpose.GENERATE, seed, 0) for seed in seeds])).astype(np.uint64)
            positions = np.concatenate((positions, np.zeros(len(new), np.int64)))
        uniforms = uniform_numbers(keys[writing], positions[writing]) if settings.temperature else None
        logits = decoder.next_logits()
        drawn = require_tokens(next_tokens(logits, decoder.contexts, settings, uniforms))
        going_on = [
            place
            for place, (row, token) in enumerate(zip(writing.tolist(), drawn, strict=True))
            if token not in settings.stop_ids and row not in reader.ended
        ]
        if not going_on:
            return
        # A draw depends on the row's key and the position alone, so rows that leave change nothing for the others.
        if len(going_on) < len(drawn):
            decoder.select(going_on)
            writing, drawn = writing[going_on], [drawn[place] for place in going_on]
            logits = logits if reader.observe is None else logits[torch.tensor(going_on, device=logits.device)]
        if reader.observe is not None:
            reader.observe(writing.tolist(), logits, drawn)
        tokens: list[int | None] = [None] * len(keys)
        for row, token in zip(writing.tolist(), drawn, strict=True):
            tokens[row] = token
        yield tokens
        decoder.append(drawn)
        positions[writing] += 1
        # Those that have all of their tokens, or whose reader has enough, are left out before they cost another step.
        rest = [
            place
            for place, row in enumerate(writing.tolist())
            if positions[row] < settings.max_new_tokens and row not in reader.ended
        ]
        if rest and len(rest) < len(writing):
            decoder.select(rest)
        writing = writing[rest]
