"""Who said what: a diarizer's turns, transcribed by a recogniser.

    recording ──diarizer──▶ segments ──pauses of a speaker joined──▶ turns ──cut to the recogniser's windows──▶ texts

What a speaker says while others speak is transcribed from the same audio for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vaak.audio.audio_file import AudioFile
from vaak.audio.segments import Segment, join_texts
from vaak.core.errors import UserError
from vaak.scoring.speaker_errors import Turn
from vaak.tasks.asr.long_form import cut_windows
from vaak.tasks.asr.predict import Transcriber
from vaak.tasks.asr.transcripts import SpeakerTranscript
from vaak.tasks.batches import Batches, Done

PAUSE_SECONDS = 1.0
"""Seconds; after a shorter pause a speaker's turn continues."""
TURN_MARGIN_SECONDS = 0.1
"""Seconds before and after a turn that are heard, too: a diarizer's boundaries may cut a sound."""
SHORTEST = 0.1
"""Seconds; no word is shorter."""


@dataclass(eq=False)
class DiarizedRecording:
    """A file in work; its turns are known once it is diarized."""

    path: Path
    name: str
    duration: float = 0.0
    turns: list[Segment] = field(default_factory=list)

    def transcript(self, said: Iterable[tuple[int, str]], seconds_taken: float) -> SpeakerTranscript:
        """Return who says what, from the texts of its pieces, each with the number of its turn."""
        texts: dict[int, list[str]] = {}
        for number, text in said:
            # A long turn was read in several pieces.
            if text := " ".join(text.split()):
                texts.setdefault(number, []).append(text)
        turns = tuple(
            Turn(round(start, 3), round(end, 3), speaker, join_texts(texts[number]))
            for number, (start, end, speaker) in enumerate(self.turns)
            if texts.get(number)
        )
        return SpeakerTranscript(self.name, turns, self.duration, seconds_taken)


class TurnPiece(NamedTuple):
    """A part of turn ``number`` that the recogniser reads at once, as its features."""

    number: int
    seconds: float
    features: np.ndarray


@dataclass(frozen=True)
class SpeakerTranscriber:
    """A recogniser, with what finds the segments of a file, and its duration in seconds."""

    recogniser: Transcriber
    diarize: Callable[[Path], tuple[list[Segment], float]]

    def transcribe_files(
        self, files: Iterable[tuple[Path, str]], batch_size: int | None = None
    ) -> Iterator[SpeakerTranscript | UserError]:
        """Who says what in each file, under the name given, or why it can't be read; turns of several are batched.

        There are ``batch_size`` pieces in a batch; with None, as many as memory allows.
        """
        device = next(self.recogniser.model.parameters()).device
        batches = Batches(device, batch_size, self.recogniser.decoding.batch_size)
        said: list[tuple[int, str]] = []
        sources = (DiarizedRecording(*file) for file in files)
        for one in batches.of_sources(sources, self.pieces, lambda piece: piece.seconds, self.texts):
            if not isinstance(one, Done):
                said.append(one[1])
                continue
            yield one.error or one.source.transcript(said, one.seconds)
            said = []

    def pieces(self, recording: DiarizedRecording) -> Iterator[TurnPiece]:
        """Diarize a recording and yield what the recogniser reads of each turn."""
        segments, recording.duration = self.diarize(recording.path)
        recording.turns = join_turns(segments)
        features = self.recogniser.features
        with AudioFile(recording.path, features.sampling_rate, self.recogniser.channels) as file:
            for number, turn in enumerate(recording.turns):
                start, end = (
                    max(turn.start - TURN_MARGIN_SECONDS, 0.0),
                    min(turn.end + TURN_MARGIN_SECONDS, recording.duration),
                )

                def read(first: float, last: float, start: float = start) -> np.ndarray:
                    return file.read(start + first, start + last)

                for *_, samples in cut_windows(read, end - start, features.seconds, features.sampling_rate):
                    yield TurnPiece(number, len(samples) / features.sampling_rate, features(samples))

    def texts(self, pieces: list[TurnPiece]) -> list[tuple[int, str]]:
        """Return the number of the turn and the text of each piece, all computed at once."""
        texts = self.recogniser.texts_of_windows([piece.features for piece in pieces])
        return [(piece.number, text) for piece, text in zip(pieces, texts, strict=True)]


def join_turns(segments: Iterable[Segment]) -> list[Segment]:
    """The turns of speakers, by start: segments with a short pause between them are one, unless another speaks there.

    >>> join_turns([Segment(0, 1, "A"), Segment(1.5, 3, "A"), Segment(3.2, 4, "B"), Segment(4.1, 5, "A")])[1:]
    [Segment(start=3.2, end=4, speaker='B'), Segment(start=4.1, end=5, speaker='A')]
    """
    found: list[Segment] = []
    last: dict[str, int] = {}
    ordered = sorted(segments)
    for segment in ordered:
        place = last.get(segment.speaker)
        before = None if place is None else found[place]
        # unless another begins to speak in the pause
        if (
            before is not None
            and segment.start - before.end < PAUSE_SECONDS
            and not any(before.end <= one.start < segment.start and one.speaker != segment.speaker for one in ordered)
        ):
            found[last[segment.speaker]] = before._replace(end=max(before.end, segment.end))
        else:
            last[segment.speaker] = len(found)
            found.append(segment)
    return [turn for turn in found if turn.end - turn.start >= SHORTEST]
