"""When each word of a known text is spoken: forced alignment by a CTC model, of recordings of any length.

audio ──cut at silences──▶ windows ──encoder──▶ log-probabilities of all frames ──best path of the text──▶ words, times

Windows without speech have no frames, so no word is in them. The words are those of the text as written; the
model reads them in the case that it writes itself, without punctuation marks that it doesn't write. Each line of the
text is one utterance.

A word lasts from before the first frame of its tokens to the last: a CTC model gives a token one or two frames, in the
midst of its sound or at its end. Its confidence is the geometric mean of the probabilities of its
tokens; that of a line is the least of its words' over ``SPAN`` words in a row, so that one wrong word in a long line
shows. Source: Kürzinger et al. 2020, "CTC-Segmentation", section 2.3. Differs: words in place of frames.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from vaak.core.errors import DataError, UserError
from vaak.nn.ctc import best_path, collapse, frames_needed
from vaak.tasks.asr.ctc.data import FrameFeatures
from vaak.tasks.asr.ctc.predict import CtcTranscriber
from vaak.tasks.asr.ctc.word_times import Frames, Spelling, time_words
from vaak.tasks.asr.long_form import Recording, Window, speech_seconds
from vaak.tasks.asr.vocabulary import Vocabulary
from vaak.tasks.batches import Batches, Done

SPAN = 3
"""Words over which the confidence of a line is a mean."""


class AlignedWord(NamedTuple):
    """A word of the text, its times in seconds, and how sure the model is of it, 0 to 1."""

    start: float
    end: float
    text: str
    confidence: float


@dataclass(frozen=True)
class AlignedLine:
    """A line of the text: its words. It lasts from the first to the last word that is spoken."""

    text: str
    words: tuple[AlignedWord, ...]

    @property
    def start(self) -> float:
        return self._spoken_words[0].start

    @property
    def end(self) -> float:
        return self._spoken_words[-1].end

    @property
    def _spoken_words(self) -> list[AlignedWord]:
        return [word for word in self.words if word.end > word.start] or list(self.words)

    @property
    def confidence(self) -> float:
        """The least mean confidence of some words in a row; a dash that stands alone is none."""
        each = np.array([word.confidence for word in self.words if any(map(str.isalnum, word.text))] or [0.0])
        size = min(SPAN, len(each))
        return float(np.convolve(each, np.full(size, 1 / size), "valid").min())


class AlignedRecording(NamedTuple):
    """The lines of a recording's text, and its duration in seconds."""

    lines: list[AlignedLine]
    duration: float


@dataclass(frozen=True)
class Aligner:
    """A CTC model as it aligns. ``within``: recordings may have more than what the text says, before and after it."""

    transcriber: CtcTranscriber
    within: bool = False

    @property
    def features(self) -> FrameFeatures:
        return cast("FrameFeatures", self.transcriber.features)

    def align_files(
        self, paths: Iterable[Path], texts: Sequence[Sequence[str]], batch_size: int | None = None
    ) -> Iterator[AlignedRecording | UserError]:
        """Yield the aligned lines of each recording, whose texts are ``texts``, or why it can't be aligned."""
        for recording, lines in zip(self._frames(paths, batch_size), texts, strict=True):
            path, frames = recording
            if isinstance(frames, UserError):
                yield frames
                continue
            try:
                yield AlignedRecording(self._align_lines(frames, lines), frames.duration)
            except DataError as error:
                yield DataError(f"{path}: {error}")

    def _frames(self, paths: Iterable[Path], batch_size: int | None) -> Iterator[tuple[Path, Frames | UserError]]:
        transcriber = self.transcriber
        batches = Batches(next(transcriber.model.parameters()).device, batch_size, transcriber.decoding.batch_size)
        nothing = np.zeros((0, transcriber.vocabulary.ids.size), np.float32)
        # A recording without speech has no windows, and concatenate requires at least one array.
        rows: list[np.ndarray] = [nothing]
        starts: list[np.ndarray] = [np.zeros(0)]
        for one in batches.of_sources(map(Recording, paths), transcriber.windows, speech_seconds, self._log_probs):
            # The windows of a recording come in their order and its Done after them, so rows and starts are those of
            # one recording.
            if not isinstance(one, Done):
                begin, own = one[1]
                rows.append(own)
                starts.append(begin + self.features.encoded_shift * np.arange(len(own)))
                continue
            recording = one.source
            found = Frames(np.concatenate(rows), np.concatenate(starts), recording.duration)
            yield recording.path, one.error or found
            rows, starts = [nothing], [np.zeros(0)]

    def _log_probs(self, windows: list[Window]) -> list[tuple[float, np.ndarray]]:
        """Return each window's beginning and log-probabilities ``(frame, vocab)``."""
        found = self.transcriber.log_probs([window.features for window in windows])
        return [(window.begin, rows) for window, rows in zip(windows, found, strict=True)]

    def _align_lines(self, frames: Frames, lines: Sequence[str]) -> list[AlignedLine]:
        """Raises DataError if the text doesn't fit into the frames."""
        words = [(number, word) for number, line in enumerate(lines) for word in line.split()]
        vocabulary = self.transcriber.vocabulary
        said = vocabulary.decode(collapse(frames.log_probs.argmax(1).tolist(), vocabulary.ids.pad))
        spelling = spelled([word for _, word in words], vocabulary, said)
        if not spelling.ids:
            raise DataError("the text has no word that the model can write")
        path = best_path(frames.log_probs, spelling.ids, vocabulary.ids.pad, within=self.within)
        if path is None:
            needed, there = frames_needed(spelling.ids), len(frames.log_probs)
            if needed > there:
                number = f"{len(spelling.ids)} tokens, which need {needed} frames of the encoder"
                raise DataError(f"the text has {number}, but there are {there} in the windows with speech")
            raise DataError("the text is too far from the speech; is it that of another recording?")
        times = time_words(frames, spelling, path, len(words), self.features.encoded_shift)
        found: dict[int, list[AlignedWord]] = {}
        for (line, word), (start, end, confidence) in zip(words, times, strict=True):
            found.setdefault(line, []).append(AlignedWord(start, end, word, confidence))
        return [AlignedLine(" ".join(lines[line].split()), tuple(own)) for line, own in found.items()]


def spelled(words: Sequence[str], vocabulary: Vocabulary, said: str) -> Spelling:
    """Return the tokens of words, written as the model writes, which ``said`` this: in its case, with its marks."""
    change = str.lower if said.islower() else str.upper if said.isupper() else str
    characters, owners = list[str](), list[int]()
    for number, word in enumerate(words):
        characters += [" "] * bool(number)
        # A space belongs to no word. A token may hold a space and letters: max(owners[...]) below gives it to the word.
        owners += [-1] * bool(number)
        # Marks that the model doesn't write would be unknown tokens; an apostrophe that it writes stays.
        kept = [one for one in change(word) if unicodedata.category(one)[0] not in "PS" or one in said]
        characters += kept
        owners += [number] * len(kept)
    encoding = vocabulary.backend.encode("".join(characters), add_special_tokens=False)
    never, found = {*vocabulary.ids.never}, Spelling([], [])
    for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        if token not in never:
            found.ids.append(token)
            found.words.append(max(owners[start:end], default=-1))
    return found
