"""Translations from a trained model: texts in, texts out, in the order they came in.

Texts of similar length are translated together, as many at a time as ``batch_size`` and ``max_tokens`` allow. The
translation of a text depends on the model, the text and the settings, and on other texts only by rounding: what is
drawn for it is decided by its own tokens. Settings are the run's ``data.decoding``, with what a user asks for over it.

Minimum Bayes risk: the translation most similar to all of several drawn for a text, by sacrebleu's chrF. The most
probable text may be a poor one that ends too soon or repeats itself; the one most similar to the others seldom is.
Sources: Kumar and Byrne 2004, "Minimum Bayes-Risk Decoding for Statistical Machine Translation"; Eikema and Aziz 2022,
"Sampling-Based Approximations to Minimum Bayes Risk Decoding for Neural Machine Translation"; Popović 2015, "chrF".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vaak.core.batch import send
from vaak.core.errors import UserError
from vaak.core.random_keys import Purpose, draw_key
from vaak.nn.decoding.beam_search import BeamSettings, beam_search
from vaak.nn.decoding.sampling import (
    Hypothesis,
    SamplingSettings,
    WithoutRepeats,
    Writer,
    without_dropout,
    write,
)
from vaak.nn.models import EncoderDecoderModel
from vaak.report.attention import Sentence, draw_attention
from vaak.tasks.batches import Batches
from vaak.tasks.seq2seq.config import METHOD_OPTIONS, METHODS_OF, DecodingConfig
from vaak.tasks.seq2seq.data import add_gloss
from vaak.tasks.seq2seq.model import cross_attention
from vaak.text.corpora.parallel import cleaned
from vaak.text.tokenizer import Tokenizer
from vaak.text.word_dictionary import Dictionary

SORTED_TOGETHER = 1024
"""The number of texts that are sorted by length; the first ones are returned when all these are translated."""


@dataclass(frozen=True)
class Candidate:
    """One translation of a text."""

    text: str
    score: float
    """Its log-probability, divided by ``length_penalty``'s power of its length in tokens."""
    ended: bool
    """False if it was truncated at the maximum length."""
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Translation:
    """The translations of a text, the best first; a blank text has none."""

    source: str
    candidates: tuple[Candidate, ...]

    @property
    def text(self) -> str:
        """The best one; empty for a blank text."""
        return self.candidates[0].text if self.candidates else ""


@dataclass(frozen=True)
class Translator:
    """A model with the tokenizers of its two sides, and the maximum source length, including [eos] and gloss.

    If the model was trained on glossed sources, ``dictionary`` glosses them.
    """

    model: EncoderDecoderModel
    source: Tokenizer
    target: Tokenizer
    max_source_length: int
    dictionary: Dictionary | None = None

    def translate(
        self,
        texts: Sequence[str],
        settings: DecodingSettings,
        where: Callable[[int], str] = lambda index: f"text {index + 1}",
    ) -> Iterator[Translation]:
        """Yield the translations of the texts in order, each when it is ready.

        Raises UserError at once for a text that is longer than the model can read, naming it by ``where(index)``.
        """
        sources = [self.source_ids(text) for text in texts]
        for index, source in enumerate(sources):
            if len(source) > self.max_source_length:
                raise UserError(
                    f"{where(index)} has {len(source)} tokens, including [eos], but the model reads at most "
                    f"{self.max_source_length} (data.max_source_length); translate it in parts"
                )

        def translated(some: list[tuple[str, list[int]]]) -> list[Translation]:
            # An empty text has an empty translation: the model isn't asked.
            filled = [source for _, source in some if source]
            written = iter(self._written_together(filled, settings) if filled else ())
            found = ((text, next(written) if source else []) for text, source in some)
            return [Translation(text, tuple(self.candidate(one, settings) for one in best)) for text, best in found]

        batches = self._batches(settings, ahead=SORTED_TOGETHER)
        return batches.results(
            zip(texts, sources, strict=True), lambda pair: settings.count_places(pair[1]), translated
        )

    def source_ids(self, text: str) -> list[int]:
        """Return the tokens of a text as the model reads it; empty for a blank text."""
        text = cleaned(text)
        if self.dictionary is not None and text:
            text = add_gloss(text, self.dictionary.translate(text))
        ids = self.source.encode(text)
        return [*ids, self.source.eos_id] if ids else []

    def written(self, sources: Sequence[Sequence[int]], settings: DecodingSettings) -> list[list[Hypothesis]]:
        """The hypotheses for each source of tokens, which ends with [eos]; the best first. No source may be empty."""
        batches = self._batches(settings, ahead=max(len(sources), 1), recovers=False)
        return list(
            batches.results(sources, settings.count_places, lambda some: self._written_together(some, settings))
        )

    def candidate(self, hypothesis: Hypothesis, settings: DecodingSettings) -> Candidate:
        """Return the text of a hypothesis."""
        score = hypothesis.score(settings.length_penalty)
        return Candidate(self.target.decode(hypothesis.tokens), score, hypothesis.ended, hypothesis.tokens)

    def _batches(self, settings: DecodingSettings, **how: Any) -> Batches:
        device = self.model.target_embedding.weight.device
        return Batches(device, settings.batch_size, max_padded_size=settings.max_tokens, **how)

    def _best_first(self, hypotheses: list[Hypothesis], settings: DecodingSettings) -> list[Hypothesis]:
        if settings.method != "mbr":
            return sorted(hypotheses, key=lambda one: -one.score(settings.length_penalty))
        texts = [self.target.decode(one.tokens) for one in hypotheses]
        expected = expected_chrf(texts)
        # A text that was drawn several times counts once.
        alike = dict(zip(texts, zip(expected.tolist(), hypotheses, strict=True), strict=True))
        best = sorted(alike.values(), key=lambda found: -found[0])
        return [hypothesis for _, hypothesis in best[: settings.n_best]]

    def _written_together(self, sources: Sequence[Sequence[int]], settings: DecodingSettings) -> list[list[Hypothesis]]:
        """Return the hypotheses for each source, the best first, all computed at once."""
        end, copies = self.target.eos_id, settings.width
        with without_dropout(self.model), torch.inference_mode():
            writer: Writer = TargetWriter(self.model, sources, self.impossible())
            if settings.no_repeat_ngram_size:
                writer = WithoutRepeats(writer, settings.no_repeat_ngram_size)
            device = self.model.target_embedding.weight.device
            begin = torch.full((len(sources),), self.target.bos_id, device=device)
            if settings.method == "beam":
                found = beam_search(writer, begin, settings.beam(end))
            elif settings.method == "greedy":
                found = [[one] for one in write(writer, begin, settings.sampling(end))]
            else:
                draws = range(copies)
                # By the text's tokens and not by its place: its samples are the same in every batch and file.
                keys = [draw_key(Purpose.TRANSLATE, settings.seed, copy, *ids) for ids in sources for copy in draws]
                writer.select(torch.arange(len(sources)).repeat_interleave(copies))
                drawn = write(writer, begin.repeat_interleave(copies), settings.sampling(end), keys)
                found = [drawn[index : index + copies] for index in range(0, len(drawn), copies)]
        return [self._best_first(hypotheses, settings) for hypotheses in found]

    def impossible(self) -> list[int]:
        """Tokens that no target contains."""
        target = self.target
        return sorted({target.pad_id, target.bos_id, target.mask_id} - {target.eos_id})


class TargetWriter:
    """A model that is decoding the targets of some sources (``vaak.nn.decoding.sampling.Writer``)."""

    def __init__(self, model: EncoderDecoderModel, sources: Sequence[Sequence[int]], impossible: list[int]) -> None:
        self.model = model
        self.device = model.target_embedding.weight.device
        self.impossible = send(torch.tensor(impossible, dtype=torch.long), self.device)
        time = max(map(len, sources))
        padded = [[*source, *[0] * (time - len(source))] for source in sources]
        real = [[index < len(source) for index in range(time)] for source in sources]
        # Each row has the number of its source.
        self.sources = torch.arange(len(sources))
        self.source_mask = send(torch.tensor(real), self.device)
        self.source = send(torch.tensor(padded), self.device)
        self.memory = model.encode(self.source, self.source_mask)
        self.cache = model.new_cache()

    def next_logits(self, tokens: Tensor) -> Tensor:
        hidden = self.model.decode(tokens[:, None], self.memory, self.source_mask, cache=self.cache)
        logits = self.model.logits(hidden[:, -1:], self.source, self.memory, self.source_mask)[:, -1]
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).index_fill(1, self.impossible, -torch.inf)

    def select(self, rows: Tensor) -> None:
        sources = self.sources[rows]
        # In a beam search, rows are exchanged within their source, whose states stay.
        moved = not torch.equal(sources, self.sources)
        rows = send(rows, self.device)
        if moved:
            self.source, self.memory, self.source_mask = self.source[rows], self.memory[rows], self.source_mask[rows]
        self.sources = sources
        self.cache.select(rows, memory=moved)


METHODS = tuple(METHOD_OPTIONS)
READ_BY = {**METHODS_OF, "seed": METHODS_OF["temperature"]}
"""The options that only some methods read."""


@dataclass(frozen=True)
class DecodingSettings:
    """``method`` and its options, and how many texts are translated together.

    Raises UserError if a value makes no sense.
    """

    method: str = "greedy"
    max_new_tokens: int = 100
    """Tokens written at most, the one that ends a text among them."""
    beam_size: int = 4
    length_penalty: float = 1.0
    """Scores are log-probabilities divided by this power of the length, whatever the method."""
    early_stopping: bool = True
    no_repeat_ngram_size: int = 0
    """No sequence of this many tokens is written twice; 0 allows any."""
    n_best: int = 1
    """The number of translations of each text: from the beam, or samples, or the best of mbr's samples."""
    num_samples: int = 16
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    batch_size: int = 64
    """Texts translated together, at most."""
    max_tokens: int = 32768
    """At most this many tokens of all hypotheses together: those of the source, and of the longest possible target."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UserError(f"method is {self.method}; it must be one of {', '.join(METHODS)}.")
        for name in ("n_best", "num_samples", "batch_size", "max_tokens"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.no_repeat_ngram_size < 0:
            raise UserError(f"no_repeat_ngram_size is {self.no_repeat_ngram_size}; it must be 0 (off) or more.")
        if self.method == "greedy" and self.n_best > 1:
            raise UserError(f"n_best is {self.n_best}, and a greedy search finds one; use method beam or sampling.")
        if self.method == "mbr" and self.n_best > self.num_samples:
            raise UserError(f"n_best is {self.n_best} of {self.num_samples} draws (num_samples); draw more.")
        # They look at the rest.
        _ = self.beam(end_id=0), self.sampling(end_id=0)

    def count_places(self, source: Sequence[int]) -> int:
        """Places of all hypotheses of a source of tokens, at most."""
        return self.width * (len(source) + self.max_new_tokens)

    @property
    def width(self) -> int:
        """Hypotheses of each text that are alive at a time."""
        widths = {"greedy": 1, "beam": self.beam_size, "sampling": self.n_best, "mbr": self.num_samples}
        return widths[self.method]

    def beam(self, end_id: int) -> BeamSettings:
        n_best = self.n_best if self.method == "beam" else 1
        return BeamSettings(
            end_id, self.max_new_tokens, self.beam_size, self.length_penalty, self.early_stopping, n_best
        )

    def sampling(self, end_id: int) -> SamplingSettings:
        temperature = self.temperature if self.method in ("sampling", "mbr") else 0.0
        return SamplingSettings(
            self.max_new_tokens, temperature, self.top_k, self.top_p, stop_ids=(end_id,), seed=self.seed
        )


def decoding_settings(decoding: DecodingConfig, max_target_length: int, **asked: Any) -> DecodingSettings:
    """Return the run's settings, overridden by those in ``asked``; None overrides nothing.

    An option of only one method selects that method too; an option of several selects the first of
    them, if the run's isn't among them. Raises UserError if a method was requested that doesn't have the option.
    """
    given = {name: value for name, value in asked.items() if value is not None}
    read_by = {name: READ_BY[name] for name in given if name in READ_BY}
    method = given.get("method")
    if not method:
        # That has all of these options: the run's if possible, otherwise the first.
        able = [one for one in (decoding.method, *METHODS) if all(one in methods for methods in read_by.values())]
        method = able[0] if able else next(iter(read_by.values()))[0]
    if method == "greedy" and "method" not in given and given.get("n_best", 1) > 1:
        method = "beam"
    for name, methods in read_by.items():
        if method not in methods:
            others = " and ".join(methods)
            raise UserError(
                f"{name} is an option of method {others}, but the method is {method}; leave one of them out."
            )
    options = decoding.model_dump(exclude={"valid_examples", "max_new_tokens"}) | given | {"method": method}
    longest = given.get("max_new_tokens", decoding.max_new_tokens or max_target_length)
    return DecodingSettings(**(options | {"max_new_tokens": min(longest, max_target_length)}))


NGRAM_LENGTHS = range(1, 7)
"""Lengths of the runs of characters that chrF counts."""
RECALL_WEIGHT = 2.0
"""chrF's beta: recall counts so much more than precision."""


def expected_chrf(texts: Sequence[str]) -> np.ndarray:
    """The mean chrF, 0 to 1, of each text where any of the texts, itself among them, may be the reference: ``(text,)``.

    >>> expected_chrf(["a cat sat", "a cat sat", "one dog"]).argmax()
    np.int64(0)
    """
    precision, recall, orders = (np.zeros((len(texts), len(texts))) for _ in range(3))
    for order in NGRAM_LENGTHS:
        counts = _counts(texts, order)
        matches = np.stack([np.minimum(own, counts).sum(1) for own in counts])
        lengths = counts.sum(1)
        filled = lengths > 0
        counted = filled[:, None] & filled[None]
        precision += np.where(counted, matches / np.maximum(lengths, 1)[:, None], 0)
        recall += np.where(counted, matches / np.maximum(lengths, 1)[None], 0)
        # As in sacrebleu, n-grams of an order that one of the texts is too short for don't count.
        orders += counted
    precision, recall = (total / np.maximum(orders, 1) for total in (precision, recall))
    weight = RECALL_WEIGHT**2
    below = weight * precision + recall
    return np.asarray(((1 + weight) * precision * recall / np.where(below > 0, below, 1)).mean(1))


def _counts(texts: Sequence[str], order: int) -> np.ndarray:
    """Counts of character n-grams of this order in each text, without spaces: ``(text, run)``."""
    written = ("".join(text.split()) for text in texts)
    found = [Counter(text[start : start + order] for start in range(len(text) - order + 1)) for text in written]
    columns = {run: column for column, run in enumerate(dict.fromkeys(run for runs in found for run in runs))}
    counts = np.zeros((len(texts), len(columns)), dtype=np.int64)
    for row, runs in zip(counts, found, strict=True):
        row[[columns[run] for run in runs]] = list(runs.values())
    return counts


def draw_translation(translator: Translator, translation: Translation, path: Path) -> None:
    """Write the picture of the cross-attention in the best translation of a text.

    Raises UserError for a blank one, which has none."""
    if not translation.candidates:
        raise UserError("a blank text has no attention to draw")
    draw_attention(*_attention(translator, translation), path)


def _attention(translator: Translator, translation: Translation) -> tuple[np.ndarray, Sentence, Sentence]:
    """The cross-attention ``(layer, head, target token, source token)`` in the best translation, and both texts."""
    source_ids = translator.source_ids(translation.source)
    best, target = translation.candidates[0], translator.target
    written = [*best.tokens, target.eos_id] if best.ended else list(best.tokens)
    return (
        cross_attention(translator.model, source_ids, [target.bos_id, *written[:-1]]).numpy(),
        Sentence(translation.source, token_texts(translator.source, source_ids)),
        Sentence(best.text, token_texts(target, written)),
    )


MOST_TOKENS = 40


def compute_mean_attention(translator: Translator, translation: Translation) -> dict[str, Any]:
    """Return the mean cross-attention in the best translation, of its first tokens, as a summary keeps it."""
    weights, source, target = _attention(translator, translation)
    mean = weights.mean((0, 1))[:MOST_TOKENS, :MOST_TOKENS]
    sides = {"source": source.tokens[:MOST_TOKENS], "target": target.tokens[:MOST_TOKENS]}
    return {**sides, "weights": [[round(float(weight), 3) for weight in row] for row in mean]}


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the text of each token; a part of a character is U+FFFD, a special token its name."""
    return [tokenizer.decode([token], skip_special_tokens=False) for token in ids]
