"""Simulated conversations in one call, of utterances that are in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from vaak.audio.config import ConversationsConfig
from vaak.audio.labelled import LabelledAudio
from vaak.audio.simulation.conversations import Piece, SimulatedConversations
from vaak.audio.simulation.folder import write_conversations
from vaak.audio.simulation.utterances import at_level, pieces_of
from vaak.audio.waveforms.speech_regions import find_speech
from vaak.config.base import from_options
from vaak.core.errors import UserError
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.storage.files import fingerprint_of


class SpokenArrays:
    """Utterances of single speakers in memory, at one level (``vaak.audio.simulation.conversations.Utterances``)."""

    def __init__(self, spoken: Mapping[str, Sequence[np.ndarray]], sampling_rate: int) -> None:
        """``spoken`` has each speaker's utterances, each ``(time,)``. Raises UserError for samples of another shape."""
        self.sampling_rate = sampling_rate
        self.speaker_names = tuple(sorted(spoken))
        self._speakers = [number for number, name in enumerate(self.speaker_names) for _ in spoken[name]]
        self._pieces = [self._levelled(samples, name) for name in self.speaker_names for samples in spoken[name]]
        content = [hashlib.sha256(piece.samples.tobytes()).hexdigest() for pieces in self._pieces for piece in pieces]
        self.fingerprint = fingerprint_of([self.speaker_names, self._speakers, content, sampling_rate])

    def __len__(self) -> int:
        return len(self._pieces)

    def speaker_of(self, index: int) -> int:
        return self._speakers[index]

    def pieces(self, index: int) -> list[Piece]:
        return self._pieces[index]

    def _levelled(self, samples: np.ndarray, speaker: str) -> list[Piece]:
        """The stretches of speech of an utterance."""
        found = np.asarray(samples, np.float32)
        if found.ndim != 1:
            raise UserError(f"an utterance of {speaker} has the shape {found.shape}; expected (time,)")
        times = find_speech(found, self.sampling_rate)
        regions = [(round(start * self.sampling_rate), round(end * self.sampling_rate)) for start, end in times]
        return pieces_of(at_level(found, regions), regions, self.sampling_rate)


def simulate(
    spoken: Mapping[str, Sequence[np.ndarray]],
    sampling_rate: int,
    number: int,
    *,
    seed: int = 0,
    folder: str | PathLike[str] | None = None,
    **options: Any,
) -> Iterator[LabelledAudio]:
    """``number`` conversations of these speakers, each with who speaks when; the same seed gives the same ones.

    ``spoken`` has each speaker's utterances, samples ``(time,)`` within 1 and -1. ``options`` are those of
    ``datasets.conversations`` (``num_speakers``, ``beta``, ``duration``, ``noise``, ...). With a ``folder`` they are
    written there first, with RTTM, a manifest and Lhotse's cuts.

    ``sampling_rate`` in Hz is that of what is spoken and of the conversations.

    Raises UserError for options that aren't right, DataError where there are too few speakers.
    """
    config = from_options(ConversationsConfig, {**options, "train": number}, "conversations")
    source = SimulatedConversations(SpokenArrays(spoken, sampling_rate), config, "train")
    if folder is not None:
        write_conversations(source, Path(folder), seed=seed)
    return (
        source.load(index, np.random.default_rng(draw_key(Purpose.DATA, seed, 0, index, 0))) for index in range(number)
    )
