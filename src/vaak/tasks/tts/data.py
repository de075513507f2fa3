"""Examples of text-to-speech: the symbols of an utterance and its mel spectrogram."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vaak.core.batch import Batch
from vaak.core.errors import DataError
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.task import Dataset
from vaak.nn.speech.flow_matching import row_draws
from vaak.tasks.tts.utterances.store import UtteranceStore

BATCH_SECONDS = 600.0
"""Of an evaluation: rows times the longest of them."""


@dataclass(frozen=True)
class TtsExample:
    """An utterance. ``ids`` and ``durations`` (in frames, or None) are ``(symbol,)``, ``mel`` is ``(frame, bin)``.

    ``prosody`` ``(frame, 2)`` is energy and F0 in Hz (0: unvoiced), of which ``(frame, 0)`` has none. ``noise_key`` is
    what flow matching draws from, None without it.
    """

    name: str
    text: str
    ids: np.ndarray
    mel: np.ndarray
    durations: np.ndarray | None
    speaker: int
    prosody: np.ndarray
    noise_key: int | None = None


class TtsDataset(Dataset):
    """A split's utterances; an example's length is its seconds."""

    draws_globally = False
    evaluation_budget = BATCH_SECONDS

    def __init__(self, store: UtteranceStore, speakers: Sequence[str], pad_id: int, *, draws_noise: bool) -> None:
        """``speakers`` are those of training; an utterance of another is an error when it is read.

        With ``draws_noise``, each has the draws of flow matching.
        """
        self.store, self.pad_id, self.draws_noise = store, pad_id, draws_noise
        self.speakers = {name: number for number, name in enumerate(speakers)}
        self.lengths, self.fingerprint = store.durations, store.fingerprint

    def example(self, index: int, rng: np.random.Generator) -> TtsExample:
        """Utterance ``index``. Raises DataError for a speaker that training doesn't have."""
        line = self.store.line(index)
        if line.speaker not in self.speakers and len(self.speakers) > 1:
            raise DataError(
                f"{self.describe(index)}: {line.speaker} is not a speaker of training; leave the utterance out, or "
                "split by recording (split_by)"
            )
        durations = None if line.durations is None else np.array(line.durations)
        speaker = self.speakers.get(line.speaker, 0)
        mel, prosody = self.store.frames(index)
        noise_key = draw_key(Purpose.NOISE, int(rng.integers(1 << 32))) if self.draws_noise else None
        return TtsExample(line.name, line.text, np.array(line.ids), mel, durations, speaker, prosody, noise_key)

    def collate(self, rows: list[list[TtsExample]]) -> Batch:
        """A batch; each row is one utterance."""
        return collate([row[0] for row in rows], self.pad_id)

    def describe(self, index: int) -> str:
        return self.store.describe(index)


def collate(examples: Sequence[TtsExample], pad_id: int) -> Batch:
    """A batch of utterances, padded on the right.

    Its tensors: ``mel`` and ``noise`` ``(row, frame, bin)``, ``prosody`` ``(row, frame, 2)``, ``symbols`` and
    ``durations`` ``(row, symbol)``, and ``(row,)`` ``frame_lengths``, ``symbol_lengths``, ``speakers`` and ``times``;
    those that examples don't have are left out.
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
    if examples[0].prosody.shape[1]:
        tensors["prosody"] = padded([one.prosody for one in examples])
    keys = [one.noise_key for one in examples if one.noise_key is not None]
    if keys:
        draws = row_draws(keys, frame_lengths.tolist(), tensors["mel"].shape[2])
        tensors |= {"noise": draws.noise, "times": draws.times}
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
