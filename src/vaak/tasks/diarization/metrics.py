"""Metrics of a diarizer: sums over the whole set, divided once; and diarizers without a network, which it has to beat.

loss               the label type's loss, per frame; of recordings longer than ``data.inference.window``, of windows
frame_accuracy     frames of which every label is right, in the best order of speakers
der                seconds of missed speech, false alarms and confused speakers / seconds of speech of the reference
miss, false_alarm, confusion    its three parts
jer                the mean over the reference's speakers of the part of the time in which they or their match speak,
                   and not both
speaker_error      the mean over recordings of the difference in the number of speakers; speaker_error/N: with N
speaker_ceiling    the fraction of recordings in which, in some window, as many speakers were found as the model can
                   tell apart

Baselines: one speaker from beginning to end; speech where it is loud, then windows of 1.5 s every 0.25 s, each the
means of its cepstral coefficients without the first, in as many spectral clusters as the reference has speakers; and
the reference without overlap, the best of systems that give each moment one speaker.
Sources: NIST 2009, "The 2009 (RT-09) Rich Transcription Meeting Recognition Evaluation Plan" (DER); Ryant et al. 2019,
"The Second DIHARD Diarization Challenge" (JER); Ng, Jordan and Weiss 2001, "On Spectral Clustering: Analysis and an
Algorithm".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor, nn

from vaak.audio.config import AudioConfig
from vaak.audio.features.extractors import Features
from vaak.audio.segments import Segment, cropped, shifted
from vaak.audio.speech_regions import find_runs, frame_levels, joined_over_gaps
from vaak.core.batch import Batch, Term, read_together
from vaak.core.errors import optional_import
from vaak.core.summaries import ExampleLog, make_summary
from vaak.core.task import Meters
from vaak.report.audio import timelines_png
from vaak.scoring.diarization_errors import score_segments
from vaak.tasks.diarization.config import DiarizationDataConfig, ScoringConfig
from vaak.tasks.diarization.labels import DiarizationExample
from vaak.tasks.diarization.model import DiarizationModel, DiarizationOutputs
from vaak.tasks.diarization.predict import Diarizer
from vaak.tasks.diarization.stitching import WindowOutput

SHOWN_RECORDINGS, RECORDINGS_WITH_AUDIO, MOST_SEGMENTS = 4, 2, 400


class ScoredBatch(NamedTuple):
    """A batch with the model's outputs: the main loss, and the labels in the model's order of speakers."""

    outputs: DiarizationOutputs
    terms: dict[str, Term]
    main: str
    labels: Tensor


class ShownRecording(NamedTuple):
    """A diarized recording, kept for a picture."""

    name: str
    hypothesis: list[Segment]
    reference: list[Segment]
    duration: float


SUMS = (
    "loss",
    "right",
    "frame",
    "scored",
    "miss",
    "false_alarm",
    "confusion",
    "jaccard",
    "speakers",
    "miscounted",
    "at_ceiling",
)
MOST_COUNTED = 8
"""Recordings with more speakers are in speaker_error alone."""
SPEAKER_COUNTS = range(1, MOST_COUNTED + 1)
BY_COUNT = tuple(f"{name}_{count}" for count in SPEAKER_COUNTS for name in ("recordings", "miscounted"))


class DiarizationMeters(Meters):
    """Loss and accuracy of frames; DER, JER and the number of speakers of whole recordings."""

    def __init__(
        self,
        data: DiarizationDataConfig,
        split: str,
        diarizer: Callable[[nn.Module], Diarizer],
        score: Callable[[nn.Module, Batch], ScoredBatch],
        read_audio: Callable[[int], bytes] | None = None,
    ) -> None:
        """``read_audio`` gives the audio of an example, as WAV."""
        self._log, self._read_audio = ExampleLog("der"), read_audio
        self.data, self.diarizer, self.score = data, diarizer, score
        self.protocol = scoring_protocol(data, split)
        self.totals = dict.fromkeys((*SUMS, "recordings", *BY_COUNT), 0.0)
        self.shown: dict[int, ShownRecording] = {}

    def update(self, model: nn.Module, batch: Batch) -> None:
        diarizer = self.diarizer(model)
        found = dict.fromkeys(self.totals, 0.0)
        examples: list[DiarizationExample] = batch.extra["examples"]
        windows = [
            (row, first, cut_window(example, first, last, diarizer.frame_shift))
            for row, example in enumerate(examples)
            for first, last in diarizer.windows(len(example.features))
        ]
        outputs: list[list[WindowOutput]] = [[] for _ in examples]
        device = batch["feature_mask"].device
        # As many windows at once as the batch has recordings: where whole recordings fit in memory, this does, too.
        for index in range(0, len(windows), len(examples)):
            group = windows[index : index + len(examples)]
            pieces = diarizer.collator.batch([piece for _, _, piece in group]).to(device)
            frames = self._frames(diarizer.model, pieces, found)
            for (row, first, _), output in zip(group, frames, strict=True):
                step = diarizer.model.config.output_subsampling
                outputs[row].append(output._replace(first=first // step))
        indices = [row[0] for row in batch.indices] or [*range(len(examples))]
        pairs = zip(outputs, examples, strict=True)
        embedded = (diarizer.with_embeddings(of_row, example.audio) for of_row, example in pairs)
        rows = zip(indices, examples, embedded, strict=True)
        shown = [self._recording(diarizer, *row, found) for row in rows]
        for name, value in found.items():
            self.totals[name] += value
        # the first recordings of the split, in whichever order they come
        numbered = dict(zip(indices, shown, strict=True))
        self.shown = dict(sorted({**self.shown, **numbered}.items())[:SHOWN_RECORDINGS])

    def _frames(self, model: DiarizationModel, batch: Batch, found: dict[str, float]) -> Iterator[WindowOutput]:
        """Add the sums over frames; the model's output on each window."""
        outputs, terms, main, labels = self.score(model, batch)
        inferred = model.inferred(outputs, batch["feature_mask"])
        if labels.ndim == 2:
            right = outputs.logits.argmax(-1) == labels
        else:
            right = ((inferred.probabilities >= self.data.inference.threshold) == (labels > 0.5)).all(-1)
        embeddings = [] if inferred.embeddings is None else [inferred.embeddings.float()]
        # All at once, so that a GPU is waited for once.
        loss, right, mask, probabilities, *vectors = read_together(
            terms[main].total, right & batch["mask"], batch["mask"], inferred.probabilities.float(), *embeddings
        )
        found["loss"] += float(loss)
        found["right"] += float(right.sum())
        found["frame"] += float(batch.counts["frame"].sum())
        for row, frames in enumerate(mask.sum(1).tolist()):
            of_row = vectors[0][row].numpy() if vectors else None
            yield WindowOutput(0, probabilities[row, :frames].numpy(), of_row)

    def _recording(
        self,
        diarizer: Diarizer,
        index: int,
        example: DiarizationExample,
        outputs: Sequence[WindowOutput],
        found: dict[str, float],
    ) -> ShownRecording:
        """Add the sums of a recording; keep it as an example: its errors, and of the first ones who speaks when."""
        hypothesis = diarizer.segments(diarizer.joined(list(outputs), len(example.features)))
        reference = list(diarizer.collator.reference(example))
        own: dict[str, float] = {}
        add_score(own, reference, hypothesis, example.uem, self.data.scoring)
        for name, value in own.items():
            found[name] += value
        counts = [len({segment.speaker for segment in segments}) for segments in (reference, hypothesis)]
        found["miscounted"] += abs(counts[0] - counts[1])
        found["at_ceiling"] += diarizer.at_ceiling(outputs)
        if counts[0] in SPEAKER_COUNTS:
            found[f"miscounted_{counts[0]}"] += abs(counts[0] - counts[1])
            found[f"recordings_{counts[0]}"] += 1
        found["recordings"] += 1
        sides = [
            [[round(start, 2), round(end, 2), who] for start, end, who in side] for side in (reference, hypothesis)
        ]
        about: dict[str, Any] = {"name": example.name, "seconds": round(example.duration, 2)}
        about |= {"speakers": counts[0], "found": counts[1]}
        if index < SHOWN_RECORDINGS:
            about |= {"reference": sides[0][:MOST_SEGMENTS], "hypothesis": sides[1][:MOST_SEGMENTS]}
        if index < RECORDINGS_WITH_AUDIO and self._read_audio is not None:
            about["audio"] = f"recording-{index + 1}"
        about |= {name: round(own[name], 2) for name in ("miss", "false_alarm", "confusion", "scored")}
        wrong = own["miss"] + own["false_alarm"] + own["confusion"]
        rate = wrong / own["scored"] if own["scored"] else 0.0
        self._log.add(index, rate, (wrong, own["scored"]), str(sides[0]), about, str(counts[0]))
        return ShownRecording(example.name, hypothesis, reference, example.duration)

    def seen(self) -> dict[str, list[Any]]:
        return self._log.seen()

    def summary(self, sums: dict[str, float], seen: dict[str, list[Any]]) -> dict[str, Any]:
        return make_summary("der", seen)

    def audio(self) -> dict[str, bytes]:
        """The first recordings."""
        read_audio, number = self._read_audio, min(RECORDINGS_WITH_AUDIO, len(self.shown))
        return {} if read_audio is None else {f"recording-{index + 1}": read_audio(index) for index in range(number)}

    def pictures(self) -> dict[str, bytes]:
        """The timelines of the first recordings."""
        return {"timelines": timelines_png(list(self.shown.values()))} if self.shown else {}

    def sums(self) -> dict[str, float]:
        return self.totals

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        results: dict[str, float] = {}
        if sums["frame"]:
            results |= {"loss": sums["loss"] / sums["frame"], "frame_accuracy": sums["right"] / sums["frame"]}
        results |= compute_rates(sums)
        if sums["recordings"]:
            results["speaker_error"] = sums["miscounted"] / sums["recordings"]
            results["speaker_ceiling"] = sums["at_ceiling"] / sums["recordings"]
        for count in SPEAKER_COUNTS:
            if sums[f"recordings_{count}"]:
                results[f"speaker_error/{count}"] = sums[f"miscounted_{count}"] / sums[f"recordings_{count}"]
        return results


def add_score(
    sums: dict[str, float],
    reference: Sequence[Segment],
    hypothesis: Sequence[Segment],
    uem: Sequence[tuple[float, float]] | None,
    scoring: ScoringConfig,
) -> None:
    """Add the seconds of a recording's errors, and the terms of its Jaccard error rate, to ``sums``.

    ``hypothesis`` and ``reference`` say who speaks when; scored are the regions of ``uem`` (None: all), by the options
    ``scoring``.
    """
    score = score_segments(reference, hypothesis, uem=uem, **scoring.model_dump())
    error = score.error
    found = {"scored": error.scored, "miss": error.miss, "false_alarm": error.false_alarm, "confusion": error.confusion}
    for name, value in {**found, "jaccard": score.jaccard_sum, "speakers": score.num_speakers}.items():
        sums[name] = sums.get(name, 0.0) + value


def compute_rates(sums: Mapping[str, float]) -> dict[str, float]:
    """DER with its parts, and JER; without speech, neither."""
    results: dict[str, float] = {}
    if sums.get("scored"):
        parts = {name: sums[name] / sums["scored"] for name in ("miss", "false_alarm", "confusion")}
        results |= {"der": sum(parts.values()), **parts}
    if sums.get("speakers"):
        results["jer"] = sums["jaccard"] / sums["speakers"]
    return results


def cut_window(example: DiarizationExample, first: int, last: int, frame_shift: float) -> DiarizationExample:
    """Frames ``first`` to ``last`` of an example, with their segments."""
    if (first, last) == (0, len(example.features)):
        return example
    start, end = first * frame_shift, last * frame_shift
    inside = shifted(cropped(example.segments, start, end), -start)
    return DiarizationExample(
        example.name,
        example.features[first:last],
        tuple(inside),
        end - start,
        audio=None if example.audio is None else partial(_cut_audio, example, start, end),
        frame_shift=frame_shift,
        sampling_rate=example.sampling_rate,
    )


def _cut_audio(example: DiarizationExample, start: float, end: float) -> np.ndarray:
    assert example.audio is not None
    first, last = (round(time * example.sampling_rate) for time in (start, end))
    return example.audio()[first:last]


def scoring_protocol(data: DiarizationDataConfig, split: str) -> dict[str, str]:
    """Return the conditions that the metrics depend on, besides the recordings."""
    inference = {name: str(value) for name, value in data.inference.model_dump().items()}
    scoring, overlap = data.scoring, "skipped" if data.scoring.skip_overlap else "scored"
    return {
        "split": split,
        "collar": str(scoring.collar),
        "overlap": overlap,
        "uem": "as annotated, else the whole recording",
        **inference,
    }


FRAME, WINDOW, HOP = 0.01, 1.5, 0.25  # seconds
SHORTEST_PAUSE, SHORTEST_SPEECH = 0.3, 0.2  # seconds
SPEECH_SHARE = 0.2  # where speech begins, between the quietest frames (0) and the loudest (1), in decibels
AUDIO = AudioConfig(feature_type="mfcc", num_ceps=24, num_mel_bins=40, frame_shift=FRAME)


class Conversation(Protocol):
    """A recording, as samples at the rate of ``AUDIO``, how many seconds it has, and who speaks when in it."""

    @property
    def samples(self) -> np.ndarray: ...
    @property
    def duration(self) -> float: ...
    @property
    def reference(self) -> list[Segment]: ...


class ScoredRecording(NamedTuple):
    """A conversation in memory."""

    samples: np.ndarray
    duration: float
    reference: list[Segment]


def one_speaker(conversation: Conversation) -> list[Segment]:
    """One speaker from beginning to end."""
    return [Segment(0.0, conversation.duration, "speaker")]


def perfect_without_overlap(conversation: Conversation) -> list[Segment]:
    """The reference with one speaker at a time: who began first continues."""
    times = sorted({time for segment in conversation.reference for time in segment[:2]})
    found = []
    for start, end in pairwise(times):
        speaking = [segment for segment in conversation.reference if segment.start <= start and segment.end >= end]
        if speaking:
            found.append(Segment(start, end, min(speaking).speaker))
    return found


def loud_regions(samples: np.ndarray) -> list[tuple[int, int]]:
    """First and last + 1 frame of each stretch of speech, by energy."""
    levels = frame_levels(samples, AUDIO.sampling_rate)
    if not len(levels):
        return []
    quiet, loud = np.percentile(levels, (5, 95))
    regions = joined_over_gaps(find_runs(levels > quiet + SPEECH_SHARE * (loud - quiet)), round(SHORTEST_PAUSE / FRAME))
    return [region for region in regions if region[1] - region[0] >= round(SHORTEST_SPEECH / FRAME)]


def window_means(features: np.ndarray, is_speech: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Middles ``(window,)``, in frames, of windows with speech, and their mean features ``(window, dims - 1)``."""
    half, hop = round(WINDOW / FRAME / 2), round(HOP / FRAME)
    middles = np.array([frame for frame in range(0, len(features), hop) if is_speech[frame]], np.int64)
    if not len(middles):
        return middles, np.zeros((0, features.shape[1] - 1))
    around = [slice(max(0, middle - half), middle + half) for middle in middles]
    # The first coefficient is loudness, which tells distance from the microphone rather than voices.
    means = np.stack([features[part][is_speech[part]].mean(0) for part in around])[:, 1:]
    return middles, (means - means.mean(0)) / (means.std(0) + 1e-6)


def cluster_windows(means: np.ndarray, number: int) -> np.ndarray:
    """A cluster for each window; the similarity of two falls with their distance relative to the median of all."""
    with optional_import("the baseline of a diarizer requires scikit-learn", "audio"):
        from sklearn.cluster import SpectralClustering

    if len(means) <= number:
        return np.arange(len(means))
    distances = np.linalg.norm(means[:, None] - means[None], axis=-1)
    likeness = np.exp(-0.5 * (distances / np.median(distances)) ** 2)
    clustering = SpectralClustering(number, affinity="precomputed", assign_labels="cluster_qr", random_state=0)
    numbers: np.ndarray = clustering.fit_predict(likeness)
    return numbers


def energy_and_clustering(conversation: Conversation) -> list[Segment]:
    """Loud parts, each moment given to the cluster of the nearest window."""
    samples = conversation.samples
    features = Features(AUDIO)(samples)
    is_speech = np.zeros(len(features), bool)
    for first, last in loud_regions(samples):
        is_speech[first:last] = True
    middles, means = window_means(features, is_speech)
    if not len(middles):
        return []
    # It is told the true number of speakers: the baseline is then as good as its clusters can be.
    labels = cluster_windows(means, len({segment.speaker for segment in conversation.reference}) or 1)
    nearest = np.abs(np.arange(len(features))[:, None] - middles).argmin(1)
    spoken = np.where(is_speech, labels[nearest], -1)
    return [
        Segment(first * FRAME, last * FRAME, f"speaker_{label}")
        for label in np.unique(labels)
        for first, last in find_runs(spoken == label)
    ]


ENERGY = "energy and spectral clustering"
BASELINES: dict[str, Callable[[Conversation], list[Segment]]] = {
    "one speaker": one_speaker,
    ENERGY: energy_and_clustering,
    "perfect without overlap": perfect_without_overlap,
}
