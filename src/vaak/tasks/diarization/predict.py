"""Who spoke when, by a trained model: in recordings of any length, window by window; tuned; or as an ONNX file.

audio ──windows──▶ features ──model──▶ probabilities and embeddings of each window
      ──stitching──▶ probabilities of the recording ──postprocessing──▶ segments

Tuning reads each development recording once. The clustering threshold and the smallest share of a speaker are searched
by stitching recordings of several windows again; then threshold, median filter and minimum durations on recordings that
were stitched once. The errors reported are of recordings stitched again, as the threshold also affects stitching.

The ONNX file has features (row, frame, bin) and mask (row, frame) in, probabilities (row, output frame, speaker) and,
where speakers have no names and the model has them, embeddings (row, speaker, dim) out. A window has a multiple of the
encoder's subsampling of frames; ``mask`` is False where it is filled up. Its metadata say how features are made, how
many seconds an output frame takes, the names of speakers, and the options of inference (docs/diarization.md).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vaak.audio.audio_file import AudioFile
from vaak.audio.config import AudioConfig, to_samples
from vaak.audio.features.extractors import Features
from vaak.audio.segments import Segment, cropped
from vaak.core.errors import UserError
from vaak.core.metrics import percent
from vaak.core.progress import track
from vaak.core.storage.files import whole_folder
from vaak.core.task import TunedOptions, TunedScore
from vaak.nn.decoding.sampling import without_dropout
from vaak.nn.onnx_file import ExportWrapper, OnnxModule, write_onnx
from vaak.scoring.diarization_errors import ErrorSeconds, diarization_error
from vaak.tasks.batches import Batches, Done
from vaak.tasks.diarization.config import InferenceConfig, ScoringConfig
from vaak.tasks.diarization.labels import DiarizationCollator, DiarizationExample
from vaak.tasks.diarization.model import DiarizationModel
from vaak.tasks.diarization.pyannote import SampleFrames
from vaak.tasks.diarization.segments import make_segments, tune_segments
from vaak.tasks.diarization.speaker_encoder import SpeakerEncoder
from vaak.tasks.diarization.stitching import WindowOutput, blend_windows, stitch_windows

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


@dataclass(eq=False)
class _File:
    """A file in work; ``num_frames`` are of features, ``duration`` is in seconds, once it is open."""

    path: Path
    name: str
    num_frames: int = 0
    duration: float = 0.0


class Window(NamedTuple):
    """A window by its first frame of features: features ``(time, bins)``, and samples if a speaker encoder hears it."""

    first: int
    features: np.ndarray
    samples: np.ndarray | None = None


@dataclass(frozen=True)
class Diarizer:
    """A model with the options that make segments of its scores; ``frame_shift`` is the seconds between features."""

    model: DiarizationModel
    inference: InferenceConfig
    frame_shift: float
    encoder: SpeakerEncoder | None = None
    """Makes the embeddings of a window's speakers, in place of the model."""
    make_frames: Callable[[AudioConfig], Features | SampleFrames] = Features
    """Makes what the model reads of samples."""

    @property
    def collator(self) -> DiarizationCollator:
        return self.model.collator

    @property
    def frame_seconds(self) -> float:
        """Seconds from one output frame to the next."""
        return self.frame_shift * self.model.config.output_subsampling

    @property
    def settled(self) -> InferenceConfig:
        """The options, with the encoder's clustering threshold where none is given."""
        threshold = self.inference.get_clustering_threshold(None if self.encoder is None else self.encoder.same_below)
        return self.inference.model_copy(update={"clustering_threshold": threshold})

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
        """Return who speaks in each output frame of features ``(time, bins)``, ``(frames, speakers)``."""
        return self.of_windows(lambda first, last: features[first:last], len(features))

    def of_windows(self, read: Callable[[int, int], np.ndarray], num_frames: int) -> np.ndarray:
        """Return the outputs for features that are read window by window, ``read(first, last) -> (time, bins)``."""
        return self.joined(self.outputs(read, num_frames), num_frames)

    def outputs(self, read: Callable[[int, int], np.ndarray], num_frames: int) -> list[WindowOutput]:
        """The model's output on each window of features that are read window by window."""
        return list(self.compute_outputs(Window(first, read(first, last)) for first, last in self.windows(num_frames)))

    def of_example(self, example: DiarizationExample) -> list[WindowOutput]:
        """The model's output on each window of a recording."""
        features = example.features
        outputs = self.outputs(lambda first, last: features[first:last], len(features))
        return self.with_embeddings(outputs, example.audio)

    def with_embeddings(
        self, outputs: list[WindowOutput], audio: Callable[[], np.ndarray] | None
    ) -> list[WindowOutput]:
        """The outputs, with embeddings of the speaker encoder if there is one, and several windows.

        ``audio`` reads the samples of the recording.
        """
        if self.encoder is None or audio is None or len(outputs) < 2:
            return outputs
        samples = audio()
        per_frame = self.frame_seconds * self.encoder.sampling_rate
        found = []
        for one in outputs:
            first, last = (round(frame * per_frame) for frame in (one.first, one.first + len(one.probabilities)))
            found.append(self._embed_speakers(one, samples[first:last]))
        return found

    def _embed_speakers(self, output: WindowOutput, samples: np.ndarray) -> WindowOutput:
        """The output on a window with the embeddings of the speaker encoder."""
        assert self.encoder is not None
        found, alone = self.encoder.of_window(output.probabilities, samples)
        return output._replace(embeddings=found, alone=alone)

    def joined(self, outputs: Sequence[WindowOutput], num_frames: int) -> np.ndarray:
        """The recording ``(frames, speakers)`` of its windows; ``num_frames`` is of features."""
        num_outputs, names = -(-num_frames // self.model.config.output_subsampling), self.collator.names
        if not outputs:
            return np.zeros((num_outputs, len(names or ())), dtype=np.float32)
        if names is None:
            return stitch_windows(outputs, num_outputs, self.settled)
        return blend_windows(outputs, [np.arange(len(names))] * len(outputs), num_outputs)

    def segments(self, probabilities: np.ndarray) -> list[Segment]:
        """The segments of speech of a recording's ``probabilities (frames, speakers)``."""
        names = self.collator.names
        return make_segments(probabilities, self.inference, self.frame_seconds, names)

    def diarize_file(self, path: Path, audio: AudioConfig) -> Diarized:
        """Return who speaks when in an audio file; only a few windows of it are in memory at once.

        Raises DataError, naming the file, if it can't be read.
        """
        [(_, found)] = self.diarize_files([(path, path.stem)], audio)
        if isinstance(found, UserError):
            raise found
        return found

    def diarize_files(
        self, files: Iterable[tuple[Path, str]], audio: AudioConfig, batch_size: int | None = None
    ) -> Iterator[tuple[Path, Diarized | UserError]]:
        """Who speaks when in each file, under the name given, or why it can't be read; windows of several are batched.

        There are ``batch_size`` windows in a batch; with None, as many as memory allows.
        """
        batches = Batches(next(self.model.parameters()).device, batch_size, WINDOWS_AT_ONCE)
        outputs: list[WindowOutput] = []
        read = partial(self._read, self.make_frames(audio), audio)
        for one in batches.of_sources((_File(*file) for file in files), read, _count_frames, self._together):
            if not isinstance(one, Done):
                outputs.append(one[1])
                continue
            file, begun = one.source, time.perf_counter()
            if one.error is not None:
                yield file.path, one.error
            else:
                segments = self.segments(self.joined(outputs, file.num_frames))
                # The last frame may end after the recording.
                segments = cropped(segments, 0.0, file.duration)
                seconds = one.seconds + time.perf_counter() - begun
                yield file.path, Diarized(file.name, segments, file.duration, seconds, self.at_ceiling(outputs))
            outputs = []

    def _read(self, features: Features | SampleFrames, audio: AudioConfig, file: _File) -> Iterator[Window]:
        """The windows of a file."""
        shift = self.frame_shift
        # More is read on both sides, so that features at a window's edges are those of the whole recording.
        margin = math.ceil(audio.frame_length / shift)
        with AudioFile(file.path, audio.sampling_rate, audio.channels) as opened:
            file.num_frames, file.duration = features.num_frames(opened.num_samples), opened.duration
            windows, most = self.windows(file.num_frames), self.model.config.max_speakers
            joins = bool(self.model.config.embedding_dim) or self.encoder is not None
            wanted = self.inference.num_speakers or self.inference.min_speakers
            # a window holds a limited number of speakers
            if self.collator.names is None and wanted > most and not (joins and len(windows) > 1):
                where = "a recording of one window" if joins else "a recording"
                raise UserError(
                    f"{file.path}: {wanted} speakers were asked for, but this model tells at most {most} apart in "
                    f"{where} (model.max_speakers); ask for fewer, or train a model for more"
                )
            # In a single window there is nobody to find again, so the encoder has nothing to do.
            needs_audio = self.encoder is not None and len(windows) > 1
            for first, last in windows:
                before = min(first, margin)
                samples = opened.read((first - before) * shift, (last + margin) * shift)
                inside = slice(
                    *(to_samples(frame * shift, audio.sampling_rate) for frame in (before, before + last - first))
                )
                own = samples[inside] if needs_audio else None
                yield Window(first, features(samples)[before : before + last - first], own)

    def at_ceiling(self, outputs: Sequence[WindowOutput]) -> bool:
        """Whether some window has as many speakers as the model can tell apart, and their number isn't given."""
        if self.collator.names is not None or self.inference.num_speakers is not None:
            return False
        most, threshold = self.model.config.max_speakers, self.inference.threshold
        return any(int((one.probabilities >= threshold).any(0).sum()) >= most for one in outputs)

    def compute_outputs(self, windows: Iterable[Window]) -> Iterator[WindowOutput]:
        """The model's output on windows of features, several at a time."""
        batches = Batches(next(self.model.parameters()).device, WINDOWS_AT_ONCE, ahead=WINDOWS_AT_ONCE)
        return batches.results(windows, _count_frames, self._together)

    def _together(self, windows: list[Window]) -> list[WindowOutput]:
        """The model's output on each window, all computed at once."""
        model, step = self.model, self.model.config.output_subsampling
        device = next(model.parameters()).device
        times = [len(window.features) for window in windows]
        batch = np.zeros((len(windows), max(times), windows[0].features.shape[1]), dtype=np.float32)
        for row, window in enumerate(windows):
            batch[row, : times[row]] = window.features
        mask = torch.arange(max(times))[None] < torch.tensor(times)[:, None]
        with without_dropout(model), torch.inference_mode():
            inferred = model.infer(torch.from_numpy(batch).to(device), mask.to(device))
        probabilities = inferred.probabilities.float().cpu().numpy()
        embeddings = None if inferred.embeddings is None else inferred.embeddings.float().cpu().numpy()
        outputs = [
            WindowOutput(
                window.first // step,
                # Padding has outputs, too.
                probabilities[row, : -(-times[row] // step)],
                None if embeddings is None else embeddings[row],
            )
            for row, window in enumerate(windows)
        ]
        return [
            output if window.samples is None else self._embed_speakers(output, window.samples)
            for window, output in zip(windows, outputs, strict=True)
        ]


def _count_frames(window: Window) -> int:
    return len(window.features)


@dataclass(frozen=True)
class Tuning:
    """The settings found, and the errors of the recordings before and after."""

    inference: InferenceConfig
    recordings: int
    before: ErrorSeconds
    after: ErrorSeconds

    def to_options(self) -> TunedOptions:
        """Return the settings as options to keep with the run."""
        options = self.inference.model_dump(mode="json")
        scores = _to_score(self.before), _to_score(self.after)
        return TunedOptions("data.inference", options, self.recordings, "recordings", *scores)


def _to_score(error: ErrorSeconds) -> TunedScore:
    if error.rate is None:
        short, line = "DER -", "DER -: no speech to score"
    else:
        names = {"miss": error.miss, "false alarm": error.false_alarm, "confusion": error.confusion}
        short = f"DER {100 * error.rate:.2f} %"
        line = f"{short}: " + ", ".join(f"{name} {100 * part / error.scored:.2f}" for name, part in names.items())
    values = {
        "der": error.rate,
        "der_percent": percent(error.rate),
        "scored_seconds": error.scored,
        "miss_seconds": error.miss,
        "false_alarm_seconds": error.false_alarm,
        "confusion_seconds": error.confusion,
    }
    return TunedScore(short, line, values)


class _Recording(NamedTuple):
    """The model's output on a recording with this number of feature frames, and the reference."""

    outputs: list[WindowOutput]
    num_frames: int
    reference: Sequence[Segment]
    uem: Sequence[tuple[float, float]] | None


def tune(
    diarizer: Diarizer, examples: Iterable[DiarizationExample], scoring: ScoringConfig, number: int | None = None
) -> Tuning:
    """The diarizer's settings with the best ones on ``examples``; never worse than the current ones.

    ``number`` is that of the examples, if it is known, for the progress bar.
    """
    recordings = [
        _Recording(diarizer.of_example(one), len(one.features), diarizer.collator.reference(one), one.uem)
        for one in track(examples, "recordings", number)
    ]
    clustered = _tune_clustering(diarizer, recordings, scoring)
    joined = [
        (clustered.joined(one.outputs, one.num_frames), one.reference, one.uem)
        for one in track(recordings, "joining windows", len(recordings))
    ]
    found = replace(clustered, inference=tune_segments(joined, clustered.inference, clustered.frame_seconds, scoring))
    if found.inference.threshold != clustered.inference.threshold:
        # Others speak now.
        found = _tune_clustering(found, recordings, scoring)
    # stitched again, the last may be worse than those that it began with
    candidates = [diarizer, *([] if clustered.inference == diarizer.inference else [clustered]), found]
    errors = [_errors(one, recordings, scoring) for one in candidates]
    best = min(range(len(candidates)), key=lambda number: errors[number].errors)
    return Tuning(candidates[best].inference, len(recordings), errors[0], errors[best])


CLUSTERING_THRESHOLDS: tuple[float, ...] = tuple(round(0.05 * step, 2) for step in range(2, 25))
MIN_SHARES = 0.0, 0.01, 0.03


def _tune_clustering(diarizer: Diarizer, recordings: Sequence[_Recording], scoring: ScoringConfig) -> Diarizer:
    """The diarizer with the clustering threshold and smallest share with the fewest errors; of equals, the middle one.

    Only recordings of several windows with embeddings tell; without any, and where the number of speakers is given,
    it stays.
    """
    long = [one for one in recordings if len(one.outputs) > 1 and one.outputs[0].embeddings is not None]
    if not long or diarizer.collator.names is not None or diarizer.inference.num_speakers is not None:
        return diarizer
    # the first clustering of "centred" only says whether there are several
    name = "centred_threshold" if diarizer.inference.clustering == "centred" else "clustering_threshold"
    settings = [{"min_share": share, name: value} for share in MIN_SHARES for value in CLUSTERING_THRESHOLDS]
    # The network isn't run again: its outputs are in the recordings, and these settings come after it.
    candidates = [replace(diarizer, inference=diarizer.inference.model_copy(update=one)) for one in settings]

    def seconds(one: Diarizer) -> float:
        return sum(_error(one, recording, scoring).errors for recording in long)

    errors = [seconds(one) for one in track(candidates, "trying clustering thresholds", len(candidates))]
    # Errors are sums of seconds: those that differ by rounding are equal.
    if seconds(diarizer) <= min(errors) + 1e-9:
        return diarizer
    best = [one for one, error in zip(candidates, errors, strict=True) if error <= min(errors) + 1e-9]
    # Candidates are in the order of shares, then of thresholds: the middle one below is one of a single share's
    # thresholds.
    best = [one for one in best if one.inference.min_share == best[0].inference.min_share]
    # Far from where speakers would be merged or split.
    return best[len(best) // 2]


def _errors(diarizer: Diarizer, recordings: Sequence[_Recording], scoring: ScoringConfig) -> ErrorSeconds:
    scored = track(recordings, "scoring", len(recordings))
    return sum((_error(diarizer, one, scoring) for one in scored), ErrorSeconds())


def _error(diarizer: Diarizer, recording: _Recording, scoring: ScoringConfig) -> ErrorSeconds:
    hypothesis = diarizer.segments(diarizer.joined(recording.outputs, recording.num_frames))
    how: dict[str, Any] = {"uem": recording.uem, "collar": scoring.collar, "skip_overlap": scoring.skip_overlap}
    return diarization_error(recording.reference, hypothesis, **how)


MODEL_FILE = "model.onnx"


def _infer(model: DiarizationModel, features: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    found = model.infer(features, mask)
    return (found.probabilities,) if found.embeddings is None else (found.probabilities, found.embeddings)


def export_onnx(diarizer: Diarizer, num_bins: int, about_features: str, folder: Path) -> None:
    """Write ``folder``, completely or not at all. Raises UserError where it can't be, or outputs differ from PyTorch's.

    Features have ``num_bins`` numbers a frame; ``about_features`` are the options that they are made with, as JSON.
    """
    model = diarizer.model.float().eval()
    step = model.config.subsampling
    generator = torch.Generator().manual_seed(0)

    def example(*lengths: int) -> dict[str, Tensor]:
        time = -(-max(lengths) // step) * step
        features = torch.randn(len(lengths), time, num_bins, generator=generator)
        return {"features": features, "mask": torch.arange(time) < torch.tensor(lengths)[:, None]}

    # The file is made with the first and checked with all: a size that was fixed by mistake fails with the others.
    first, *others = example(6 * step, 4 * step), example(1), example(20 * step, 7 * step + 1, 3 * step)
    with torch.no_grad():
        outputs = ("probabilities", "embeddings")[: len(_infer(model, *first.values()))]
    metadata = {
        "features": about_features,
        "frame_seconds": str(diarizer.frame_seconds),
        "names": json.dumps(model.collator.names, ensure_ascii=False),
        "inference": diarizer.settled.model_dump_json(),
    }
    axes = {name: {0: "row", 1: "frame"} for name in ("features", "mask")}
    exported = OnnxModule(ExportWrapper(model, _infer), first, axes, outputs, others, metadata, {"frame": step})
    with whole_folder(folder) as made:
        write_onnx(made / MODEL_FILE, exported)
