"""Examples of text-to-speech: the symbols of an utterance and its mel spectrogram."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vaak.core.batch import Batch
from vaak.core.errors import DataError, UserError
from vaak.core.task import Dataset
from vaak.tasks.tts.utterances.store import UtteranceStore

BATCH_SECONDS = 600.0
"""Of an evaluation: rows times the longest of them."""


@dataclass(frozen=True)
class TtsExample:
    """An utterance. ``ids`` and ``durations`` (in frames, or None) are ``(symbol,)``, ``mel`` is ``(frame, bin)``."""

    name: str
    text: str
    ids: np.ndarray
    mel: np.ndarray
    durations: np.ndarray | None
    speaker: int


class TtsDataset(Dataset):
    """A split's utterances; an example's length is its seconds."""

    draws_globally = False
    evaluation_budget = BATCH_SECONDS

    def __init__(self, store: UtteranceStore, speakers: Sequence[str], pad_id: int) -> None:
        """``speakers`` are those of training; an utterance of another is an error when it is read."""
        self.store, self.pad_id = store, pad_id
        self.speakers = {name: number for number, name in enumerate(speakers)}
        self.lengths, self.fingerprint = store.durations, store.fingerprint

    def example(self, index: int, rng: np.random.Generator) -> TtsExample:
        """Utterance ``index``; nothing is drawn. Raises DataError for a speaker that training doesn't have."""
        line = self.store.line(index)
        if line.speaker not in self.speakers and len(self.speakers) > 1:
            raise DataError(
                f"{self.describe(index)}: {line.speaker} is not a speaker of training; leave the utterance out, or "
                "split by recording (split_by)"
            )
        durations = None if line.durations is None else np.array(line.durations)
        speaker = self.speakers.get(line.speaker, 0)
        return TtsExample(line.name, line.text, np.array(line.ids), self.store.mel(index), durations, speaker)

    def collate(self, rows: list[list[TtsExample]]) -> Batch:
        """A batch; each row is one utterance."""
        return collate([row[0] for row in rows], self.pad_id)

    def difficulty(self, measure: str) -> np.ndarray:
        raise UserError(f"unknown difficulty {measure}; choose length")

    def describe(self, index: int) -> str:
        return self.store.describe(index)


def collate(examples: Sequence[TtsExample], pad_id: int) -> Batch:
    """A batch of utterances, padded on the right.

    Its tensors: ``mel`` ``(row, frame, bin)``, ``symbols`` and ``durations`` ``(row, symbol)``, and ``(row,)``
    ``frame_lengths``, ``symbol_lengths`` and ``speakers``.
    """
    symbol_lengths = torch.tensor([len(one.ids) for one in examples])
    frame_lengths = torch.tensor([len(one.mel) for one in examples])
    tensors = {
        "mel": padded([one.mel for one in examples]),
        "symbols": padded([one.ids for one in examples], pad_id),
        "frame_lengths": frame_lengths,
        "symbol_lengths": symbol_lengths,
        "speakers": torch.tensor([one.speaker for one in examples]),
    }
    durations = [one.durations for one in examples if one.durations is not None]
    if durations:
        tensors["durations"] = padded(durations)
    counts = {
        "frame": frame_lengths,
        "mel_bin": frame_lengths * tensors["mel"].shape[2],
        "phoneme": symbol_lengths,
        "position": frame_lengths + symbol_lengths,
        "example": torch.ones(len(examples)),
    }
    names = {"names": [one.name for one in examples], "texts": [one.text for one in examples]}
    return Batch(tensors, counts, extra=names)


def padded(rows: Sequence[np.ndarray], value: int = 0) -> Tensor:
    """Arrays ``(time, ...)`` as one tensor ``(row, time, ...)``, filled up with ``value``."""
    longest = max(map(len, rows))
    found = np.full((len(rows), longest, *rows[0].shape[1:]), value, rows[0].dtype)
    for place, row in enumerate(rows):
        found[place, : len(row)] = row
    return torch.from_numpy(found)
