"""Translations from a trained model: texts in, texts out, in the order they came in.

Texts of similar length are translated together, as many at a time as ``batch_size`` and ``max_tokens`` allow. The
translation of a text depends on the model, the text and the settings, and on other texts only by rounding: what is
drawn for it is decided by its own tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vaak.core.errors import UserError
from vaak.core.random_keys import Purpose, draw_key
from vaak.nn.decoding.beam_search import beam_search
from vaak.nn.decoding.rows import Hypothesis, without_dropout, write
from vaak.nn.models import EncoderDecoderModel
from vaak.tasks.seq2seq.decoding.mbr import expected_chrf
from vaak.tasks.seq2seq.decoding.settings import DecodingSettings
from vaak.tasks.seq2seq.prepare import glossed
from vaak.text.corpora.parallel import cleaned
from vaak.text.tokenizers.tokenizer import Tokenizer
from vaak.text.word_dictionary import WordDictionary

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
    dictionary: WordDictionary | None = None

    def translate(
        self,
        texts: Sequence[str],
        settings: DecodingSettings,
        where: Callable[[int], str] = lambda index: f"text {index + 1}",
    ) -> Iterator[Translation]:
        """The translations of the texts, in their order, each as soon as it is ready.

        Raises UserError at once for a text that is longer than the model can read, naming it by ``where(index)``.
        """
        sources = [self.source_ids(text) for text in texts]
        for index, source in enumerate(sources):
            if len(source) > self.max_source_length:
                raise UserError(
                    f"{where(index)} has {len(source)} tokens, including [eos], but the model reads at most "
                    f"{self.max_source_length} (data.max_source_length); translate it in parts"
                )
        return self._translations(texts, sources, settings)

    def source_ids(self, text: str) -> list[int]:
        """The tokens of a text as the model reads it; empty for a blank text."""
        text = cleaned(text)
        if self.dictionary is not None and text:
            text = glossed(text, self.dictionary.translate(text))
        ids = self.source.encode(text)
        return [*ids, self.source.eos_id] if ids else []

    def written(self, sources: Sequence[Sequence[int]], settings: DecodingSettings) -> list[list[Hypothesis]]:
        """The hypotheses for each source of tokens, which ends with [eos]; the best first. No source may be empty."""
        found: list[list[Hypothesis]] = [[] for _ in sources]
        for group in groups(list(map(len, sources)), settings):
            together = self._written_together([sources[index] for index in group], settings)
            for index, hypotheses in zip(group, together, strict=True):
                found[index] = self._best_first(hypotheses, settings)
        return found

    def candidate(self, hypothesis: Hypothesis, settings: DecodingSettings) -> Candidate:
        """The text of a hypothesis."""
        score = hypothesis.score(settings.length_penalty)
        return Candidate(self.target.decode(hypothesis.tokens), score, hypothesis.ended, hypothesis.tokens)

    def _translations(
        self, texts: Sequence[str], sources: list[list[int]], settings: DecodingSettings
    ) -> Iterator[Translation]:
        for first in range(0, len(texts), SORTED_TOGETHER):
            window = range(first, min(first + SORTED_TOGETHER, len(texts)))
            filled = [index for index in window if sources[index]]
            written = dict(zip(filled, self.written([sources[index] for index in filled], settings), strict=True))
            for index in window:
                candidates = (self.candidate(one, settings) for one in written.get(index, ()))
                yield Translation(texts[index], tuple(candidates))

    def _best_first(self, hypotheses: list[Hypothesis], settings: DecodingSettings) -> list[Hypothesis]:
        if settings.method != "mbr":
            return sorted(hypotheses, key=lambda one: -one.score(settings.length_penalty))
        texts = [self.target.decode(one.tokens) for one in hypotheses]
        expected = expected_chrf(texts)
        alike = dict(zip(texts, zip(expected.tolist(), hypotheses, strict=True), strict=True))  # a text counts once
        best = sorted(alike.values(), key=lambda found: -found[0])
        return [hypothesis for _, hypothesis in best[: settings.n_best]]

    def _written_together(self, sources: Sequence[Sequence[int]], settings: DecodingSettings) -> list[list[Hypothesis]]:
        end = self.target.eos_id
        with without_dropout(self.model), torch.inference_mode():
            writer = TargetWriter(self.model, sources, self.impossible())
            begin = torch.full((len(sources),), self.target.bos_id, device=writer.device)
            if settings.method == "beam":
                return beam_search(writer, begin, settings.beam(end))
            if settings.method == "greedy":
                return [[one] for one in write(writer, begin, settings.sampling(end))]
            copies = settings.width
            keys = [draw_key(Purpose.TRANSLATE, settings.seed, copy, *ids) for ids in sources for copy in range(copies)]
            rows = torch.arange(len(sources), device=writer.device).repeat_interleave(copies)
            writer.select(rows)
            drawn = write(writer, begin[rows], settings.sampling(end), keys)
        return [drawn[place : place + copies] for place in range(0, len(drawn), copies)]

    def impossible(self) -> list[int]:
        """Tokens that no target contains."""
        target = self.target
        return sorted({target.pad_id, target.bos_id, target.mask_id} - {target.eos_id})


class TargetWriter:
    """A model that is decoding the targets of some sources (``vaak.nn.decoding.rows.Writer``)."""

    def __init__(self, model: EncoderDecoderModel, sources: Sequence[Sequence[int]], impossible: list[int]) -> None:
        self.model = model
        self.device = model.target_embedding.weight.device
        self.impossible = torch.tensor(impossible, dtype=torch.long, device=self.device)
        time = max(map(len, sources))
        padded = [[*source, *[0] * (time - len(source))] for source in sources]
        real = [[place < len(source) for place in range(time)] for source in sources]
        self.sources = torch.arange(len(sources), device=self.device)  # of each row
        self.source_mask = torch.tensor(real, device=self.device)
        self.source = torch.tensor(padded, device=self.device)
        self.memory = model.encode(self.source, self.source_mask)
        self.cache = model.new_cache()

    def next_logits(self, tokens: Tensor) -> Tensor:
        hidden = self.model.decode(tokens[:, None], self.memory, self.source_mask, cache=self.cache)
        logits = self.model.logits(hidden[:, -1:], self.source, self.memory, self.source_mask)[:, -1]
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).index_fill(1, self.impossible, -torch.inf)

    def select(self, rows: Tensor) -> None:
        sources = self.sources[rows]
        moved = not torch.equal(sources, self.sources)  # in a beam rows are exchanged within their source
        if moved:
            self.source, self.memory, self.source_mask = self.source[rows], self.memory[rows], self.source_mask[rows]
        self.sources = sources
        self.cache.select(rows, memory=moved)


def groups(lengths: list[int], settings: DecodingSettings) -> Iterator[list[int]]:
    """The indices of sources that are translated together: similar lengths, the longest first."""
    group: list[int] = []
    allowed = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if group and len(group) == allowed:
            yield group
            group = []
        if not group:
            places = settings.width * (lengths[index] + settings.max_new_tokens)
            allowed = max(1, min(settings.batch_size, settings.max_tokens // places))
        group.append(index)
    if group:
        yield group
