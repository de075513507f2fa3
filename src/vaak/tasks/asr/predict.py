"""Transcripts of audio of any length, by a trained model.

audio ──cut at silences──▶ windows ──features──▶ encoder ──search──▶ transcripts, in order

How a recording becomes windows is in vaak.tasks.asr.long_form.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from torch import nn

from vaak.audio.audio_file import AudioFile, Channels
from vaak.core.errors import UserError
from vaak.core.names import list_names
from vaak.nn.decoding.hotword_list import read_hotwords, split_words
from vaak.nn.decoding.hotwords import Hotwords
from vaak.tasks.asr.config import HOTWORD_FILES, AsrDecodingConfig
from vaak.tasks.asr.features import AudioFeatures
from vaak.tasks.asr.long_form import Recording, Window, cut_windows, speech_seconds
from vaak.tasks.asr.transcripts import Segment, Transcript
from vaak.tasks.asr.vocabulary import Vocabulary
from vaak.tasks.batches import Batches, Done

log = logging.getLogger("vaak")


class TextStream(Protocol):
    """Reads one utterance while it comes."""

    def read(self, samples: np.ndarray, *, is_last: bool) -> str:
        """Return the text after further samples ``(time,)``, which only grows until they are the last."""
        ...

    def segment(self, window: Window) -> Segment:
        """Return the final text as a segment."""
        ...


@dataclass(frozen=True)
class Transcriber:
    """A model with its features and vocabulary, and the search for transcripts."""

    model: nn.Module
    vocabulary: Vocabulary
    features: AudioFeatures
    decoding: AsrDecodingConfig
    channels: Channels = "mix"

    pads_windows: ClassVar[bool] = False
    """Whether each window is padded to the same length; otherwise, to the longest of its batch."""

    def scoring_tokens(self) -> Self:
        """Return one whose segments have the log-probabilities of their tokens. Raises UserError if it has none."""
        raise UserError("it has no log-probabilities of tokens; only a Whisper has")

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
        """Yield the words of each audio file, or why it can't be read; windows of several are transcribed together.

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
    def hotwords(self) -> Hotwords | None:
        """The hotwords of the options; None without any. Raises UserError for those that can't be read."""
        options = self.decoding
        return make_hotwords(self.vocabulary, options.hotwords, options.hotword_weight) if options.hotwords else None

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
        """Return the segments of each window, all computed at once."""
        raise NotImplementedError

    def texts_of_windows(self, features: Sequence[np.ndarray]) -> list[str]:
        """Return the words of each window's features ``(bin, frame)``, all computed at once."""
        raise NotImplementedError

    def continue_text(self, features: np.ndarray, settled: str) -> str:
        """Return the words of features ``(bin, frame)`` of audio that isn't over; ``settled`` are its first words.

        A model that can continues after them; others, such as CTC models, hear all of it again.
        """
        [text] = self.texts_of_windows([features])
        return text

    def stream(self) -> TextStream | None:
        """Return a reader of an utterance as it arrives, which reads no part twice; None if there is none."""
        return None

    def texts(self, features: Sequence[np.ndarray]) -> list[str]:
        """Return the transcript of each of ``features`` ``(bin, frame)``, some of them computed at once."""
        size = self.decoding.batch_size
        return [
            text for at in range(0, len(features), size) for text in self.texts_of_windows(features[at : at + size])
        ]

    def decode_texts(self, encoded: Any) -> list[str]:
        """Return the transcript of each row of encoded audio."""
        raise NotImplementedError


@lru_cache(maxsize=1)
def make_hotwords(vocabulary: Vocabulary, entries: tuple[str, ...], weight: float) -> Hotwords | None:
    """Return the hotwords that a vocabulary can write, without those that it can't, which are reported; the last ones
    are kept.

    Raises UserError for those that can't be read.
    """
    weights = read_hotwords(entries, weight, HOTWORD_FILES)
    unwritable = [text for text in weights if not _is_writable(vocabulary, " ".join(split_words(text)))]
    if unwritable:
        about = f"{len(unwritable)} of {len(weights)} left out"
        log.warning(
            "data.decoding.hotwords: %s, which the model's tokens can't write: %s", about, list_names(unwritable)
        )
    weights = {text: own for text, own in weights.items() if text not in unwritable}
    return Hotwords(weights, vocabulary.token_bytes) if weights else None


def _is_writable(vocabulary: Vocabulary, text: str) -> bool:
    """Return whether a text can be written in any case."""
    return not all(vocabulary.find_unwritable([text, text.lower(), text.upper(), text.title()]))
