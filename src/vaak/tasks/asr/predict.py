"""Transcripts of audio of any length, by a trained model.

audio ──cut at silences──▶ windows ──features──▶ encoder ──search──▶ transcripts, in order

How a recording becomes windows is in vaak.tasks.asr.long_form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from vaak.audio.audio_file import AudioFile, Channels
from vaak.core.errors import UserError
from vaak.tasks.asr.config import AsrDecodingConfig
from vaak.tasks.asr.features import AudioFeatures
from vaak.tasks.asr.long_form import Recording, Window, cut_windows, speech_seconds
from vaak.tasks.asr.transcripts import Segment, Transcript
from vaak.tasks.asr.vocabulary import Vocabulary
from vaak.tasks.batches import Batches, Done


@dataclass(frozen=True)
class Transcriber:
    """A model with its features and vocabulary, and the search for transcripts."""

    model: nn.Module
    vocabulary: Vocabulary
    features: AudioFeatures
    decoding: AsrDecodingConfig
    channels: Channels = "mix"

    def transcribe(self, path: Path) -> Transcript:
        """Return the words of an audio file; only a few windows of it are in memory at once.

        Raises DataError, naming the file, if it can't be read.
        """
        [found] = self.transcribe_files([path], self.decoding.batch_size)
        if isinstance(found, UserError):
            raise found
        return found

    def transcribe_files(
        self, paths: Iterable[Path], batch_size: int | None = None
    ) -> Iterator[Transcript | UserError]:
        """The words of each audio file, or why it can't be read; windows of several are transcribed together.

        There are ``batch_size`` windows in a batch; with None, as many as memory allows.
        """
        batches = Batches(self.device, batch_size, self.decoding.batch_size)
        segments: list[Segment] = []
        for one in batches.of_sources(map(Recording, paths), self.windows, speech_seconds, self.segments_of_windows):
            if not isinstance(one, Done):
                segments += one[1]
                continue
            file = one.source
            yield one.error or Transcript(file.path.stem, tuple(segments), file.duration, one.seconds)
            segments = []

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def windows(self, recording: Recording) -> Iterator[Window]:
        rate = self.features.sampling_rate
        with AudioFile(recording.path, rate, self.channels) as file:
            recording.duration = file.duration
            for begin, start, end, samples in cut_windows(file.read, file.duration, self.features.seconds, rate):
                yield Window(begin, start, end, self.features(samples), len(samples))

    def segments_of_windows(self, windows: list[Window]) -> list[list[Segment]]:
        """The segments of each window, all computed at once."""
        raise NotImplementedError

    def texts_of_windows(self, features: Sequence[np.ndarray]) -> list[str]:
        """The words of each window's features ``(bin, frame)``, all computed at once."""
        raise NotImplementedError

    def continue_text(self, features: np.ndarray, settled: str) -> str:
        """The words of features ``(bin, frame)`` of audio that still goes on; ``settled`` are its first words.

        A model that can goes on after them; others, such as one by CTC, hear all of it anew.
        """
        [text] = self.texts_of_windows([features])
        return text

    def texts(self, features: Sequence[np.ndarray]) -> list[str]:
        """The transcript of each of ``features`` ``(bin, frame)``, some of them computed at once."""
        size = self.decoding.batch_size
        return [
            text for at in range(0, len(features), size) for text in self.texts_of_windows(features[at : at + size])
        ]

    def decode_texts(self, encoded: Any) -> list[str]:
        """The transcript of each row of encoded audio."""
        raise NotImplementedError
