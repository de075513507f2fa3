"""Transcripts by a CTC model: the best class of each frame, collapsed, or a beam search, with an n-gram model of words.

audio ──cut at silences──▶ windows ──features──▶ encoder ──▶ log-probabilities ──search──▶ transcripts, in order
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from vaak.core.batch import read_together, send
from vaak.nn.ctc import collapse
from vaak.nn.decoding.ctc_search import CtcBeam, ctc_beam_search
from vaak.nn.decoding.sampling import without_dropout
from vaak.tasks.asr.ctc.data import padded_features
from vaak.tasks.asr.ctc.model import CtcModel, CtcOutputs
from vaak.tasks.asr.predict import Transcriber
from vaak.tasks.asr.whisper import Vocabulary
from vaak.text.ngram import Ngram


@dataclass(frozen=True)
class CtcTranscriber(Transcriber):
    """A CTC model with what it reads and says, and how transcripts are searched for."""

    def texts_of_windows(self, features: Sequence[np.ndarray]) -> list[str]:
        model = cast("CtcModel", self.model)
        device = next(model.parameters()).device
        rows, lengths = (send(one, device) for one in padded_features(features))
        with without_dropout(model), torch.inference_mode():
            return self.texts_of(model(rows, lengths))

    def texts_of(self, encoded: Any) -> list[str]:
        """The transcript of each row of a model's outputs."""
        with torch.inference_mode():
            return [self.vocabulary.decode(ids) for ids in self.search(encoded)]

    def search(self, outputs: CtcOutputs) -> list[list[int]]:
        """The tokens of each row."""
        if self.decoding.method == "beam":
            return self._searched(outputs)
        best, lengths = read_together(self.sayable(outputs.logits).argmax(-1), outputs.lengths)
        return [
            collapse(classes[:length], self.vocabulary.ids.pad)
            for classes, length in zip(best.tolist(), lengths.tolist(), strict=True)
        ]

    def _searched(self, outputs: CtcOutputs) -> list[list[int]]:
        log_probs = self.sayable(outputs.log_probs())
        rows, lengths = read_together(log_probs, outputs.lengths)
        parts = zip(rows, lengths.tolist(), strict=True)
        return [list(ctc_beam_search(row[:length].numpy(), self.beam)[0][1]) for row, length in parts]

    @property
    def beam(self) -> CtcBeam:
        """How a beam search is made. Raises DataError for an n-gram model that can't be read."""
        options, ids = self.decoding, self.vocabulary.ids
        words = None if options.ngram is None else read_ngram(options.ngram)
        return CtcBeam(pieces_of(self.vocabulary), ids.pad, options.beam_size, words, options.alpha, options.beta)

    def sayable(self, scores: Tensor) -> Tensor:
        """Return scores ``(..., vocab)`` with -inf for what is never said."""
        never = send(torch.tensor(self.vocabulary.ids.never, dtype=torch.long), scores.device)
        return scores.index_fill(-1, never, -torch.inf)


read_ngram = lru_cache(maxsize=1)(Ngram)
"""The n-gram model of a file; the last one is kept."""


@lru_cache(maxsize=1)
def pieces_of(vocabulary: Vocabulary) -> list[str]:
    """Return the text of each token as it is written after others, with the space before a word."""
    backend, silent = vocabulary.backend, {vocabulary.ids.pad, *vocabulary.ids.never}
    found = []
    for token in range(vocabulary.ids.size):
        alone = "" if token in silent else backend.decode([token])
        found.append("" if token in silent else backend.decode([token, token])[len(alone) :])
    return found
