"""Who spoke when, by a trained model: in recordings of any length, window by window.

audio ──windows──▶ features ──model──▶ probabilities and embeddings of each window
      ──stitching──▶ probabilities of the recording ──postprocessing──▶ segments
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from vaak.audio.config import AudioConfig
from vaak.audio.features.extractors import Features
from vaak.audio.labelled import Segment
from vaak.audio.segments import cropped
from vaak.audio.waveforms.audio_file import AudioFile
from vaak.core.errors import UserError
from vaak.tasks.diarization.config import InferenceConfig
from vaak.tasks.diarization.examples.labels import DiarizationCollator
from vaak.tasks.diarization.model import DiarizationModel
from vaak.tasks.diarization.postprocessing.segments import segments_of
from vaak.tasks.diarization.postprocessing.stitching import WindowOutput, blended, stitched

WINDOWS_AT_ONCE = 8


@dataclass(frozen=True)
class Diarized:
    """A recording with who speaks when; times in seconds."""

    name: str
    segments: list[Segment]
    duration: float
    seconds_taken: float = field(compare=False)
    at_ceiling: bool = False
    """Whether in some window as many were found as the model can tell apart: there may be more."""

    @property
    def real_time_factor(self) -> float:
        """Seconds taken for each second of audio."""
        return self.seconds_taken / self.duration if self.duration else 0.0


@dataclass(frozen=True)
class Diarizer:
    """A model with what turns its scores into segments; ``frame_shift`` is that of the features, in seconds."""

    model: DiarizationModel
    inference: InferenceConfig
    frame_shift: float

    @property
    def collator(self) -> DiarizationCollator:
        return self.model.collator

    @property
    def frame_seconds(self) -> float:
        """Seconds from one output frame to the next."""
        return self.frame_shift * self.model.config.output_subsampling

    def windows(self, num_frames: int) -> list[tuple[int, int]]:
        """First and last + 1 frame of features of each window; they begin at frames of the encoder."""
        step = self.model.config.subsampling
        if self.inference.window is None:
            return [(0, num_frames)] if num_frames else []
        length = max(1, round(self.inference.window / self.frame_shift / step)) * step
        if num_frames <= length:
            return [(0, num_frames)] if num_frames else []
        hop = max(1, round(length * (1 - self.inference.window_overlap) / step)) * step
        last = -(-(num_frames - length) // step) * step
        firsts = [*range(0, last, hop), last]
        return [(first, min(first + length, num_frames)) for first in firsts]

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Who speaks in each output frame of a recording, ``(frames, speakers)``; ``features`` are ``(time, bins)``."""
        return self.of_windows(lambda first, last: features[first:last], len(features))

    def of_windows(self, read: Callable[[int, int], np.ndarray], num_frames: int) -> np.ndarray:
        """The same of features that are read window by window, ``read(first, last) -> (time, bins)``."""
        return self.joined(self.outputs(read, num_frames), num_frames)

    def outputs(self, read: Callable[[int, int], np.ndarray], num_frames: int) -> list[WindowOutput]:
        """The model's output on each window of features that are read window by window."""
        return list(self.outputs_of((first, read(first, last)) for first, last in self.windows(num_frames)))

    def joined(self, outputs: Sequence[WindowOutput], num_frames: int) -> np.ndarray:
        """The recording ``(frames, speakers)`` of its windows; ``num_frames`` is of features."""
        num_outputs, names = -(-num_frames // self.model.config.output_subsampling), self.collator.names
        if not outputs:
            return np.zeros((num_outputs, len(names or ())), dtype=np.float32)
        if names is None:
            return stitched(outputs, num_outputs, self.inference)
        return blended(outputs, [np.arange(len(names))] * len(outputs), num_outputs)

    def segments(self, probabilities: np.ndarray) -> list[Segment]:
        """The segments of speech of a recording's ``probabilities (frames, speakers)``."""
        names = self.collator.names
        return segments_of(probabilities, self.inference, self.frame_seconds, names)

    def diarize_file(self, path: Path, audio: AudioConfig) -> Diarized:
        """Who speaks when in an audio file; only a few windows of it are in memory at once.

        Raises DataError, naming the file, if it can't be read.
        """
        begun = time.perf_counter()
        features, shift = Features(audio), self.frame_shift
        margin = math.ceil(audio.frame_length / shift)  # so that features at a window's edges are those of the whole
        with AudioFile(path, audio.sampling_rate, audio.channels) as file:

            def read(first: int, last: int) -> np.ndarray:
                before = min(first, margin)
                samples = file.read((first - before) * shift, (last + margin) * shift)
                return features(samples)[before : before + last - first]

            num_frames = features.num_frames(file.num_samples)
            self._demand_outputs_for_speakers(path, num_frames)
            outputs = self.outputs(read, num_frames)
            segments = self.segments(self.joined(outputs, num_frames))
        segments = cropped(segments, 0.0, file.duration)  # the last frame may go beyond it
        taken = time.perf_counter() - begun
        return Diarized(path.stem, segments, file.duration, taken, self.at_ceiling(outputs))

    def at_ceiling(self, outputs: Sequence[WindowOutput]) -> bool:
        """Whether in some window as many speak as the model can tell apart, and nobody said how many there are."""
        if self.collator.names is not None or self.inference.num_speakers is not None:
            return False
        most, threshold = self.model.config.max_speakers, self.inference.threshold
        return any(int((one.probabilities >= threshold).any(0).sum()) >= most for one in outputs)

    def _demand_outputs_for_speakers(self, path: Path, num_frames: int) -> None:
        """Raises UserError where more speakers are asked for than can be found: a window holds a limited number."""
        most, joins = self.model.config.max_speakers, bool(self.model.config.embedding_dim)
        wanted = self.inference.num_speakers or self.inference.min_speakers
        if self.collator.names is None and wanted > most and not (joins and len(self.windows(num_frames)) > 1):
            where = "a recording of one window" if joins else "a recording"
            raise UserError(
                f"{path}: {wanted} speakers were asked for, but this model tells at most {most} apart in {where} "
                "(model.max_speakers); ask for fewer, or train a model for more"
            )

    def outputs_of(self, windows: Iterable[tuple[int, np.ndarray]]) -> Iterator[WindowOutput]:
        """The model's output on windows of features, several at a time."""
        waiting: list[tuple[int, np.ndarray]] = []
        for window in windows:
            waiting.append(window)
            if len(waiting) == WINDOWS_AT_ONCE:
                yield from self._together(waiting)
                waiting = []
        if waiting:
            yield from self._together(waiting)

    def _together(self, windows: list[tuple[int, np.ndarray]]) -> Iterator[WindowOutput]:
        model, step = self.model, self.model.config.output_subsampling
        device = next(model.parameters()).device
        times = [len(features) for _, features in windows]
        batch = np.zeros((len(windows), max(times), windows[0][1].shape[1]), dtype=np.float32)
        for row, (_, features) in enumerate(windows):
            batch[row, : times[row]] = features
        mask = torch.arange(max(times))[None] < torch.tensor(times)[:, None]
        was_training = model.training
        model.eval()
        with torch.inference_mode():
            inferred = model.infer(torch.from_numpy(batch).to(device), mask.to(device))
        model.train(was_training)
        embeddings = inferred.embeddings
        for row, (first, _) in enumerate(windows):
            frames = -(-times[row] // step)
            vectors = None if embeddings is None else embeddings[row].cpu().numpy()
            yield WindowOutput(first // step, inferred.probabilities[row, :frames].cpu().numpy(), vectors)
