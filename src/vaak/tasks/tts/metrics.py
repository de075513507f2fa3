"""Metrics of text-to-speech: sums over the whole set, divided once; and what evaluations show of the model.

loss                 the weighted sum of all losses
mel                  the main loss, per frame and bin of the normalised spectrogram, with the true durations
duration             squared error of log(1 + frames), per symbol
stop                 cross-entropy of the end of speech, per frame
alignment            learned durations: negative log-likelihood of all alignments, per frame; it may be negative
flow                 flow matching: squared error of the velocities, per frame and bin; mel is then that of the means
pitch, energy        squared error of the normalised logarithms, per symbol; voicing: cross-entropy, per symbol
duration_error_ms    absolute error of predicted durations, per symbol, in milliseconds
real_time_factor     with data.evaluation: seconds taken for a second of audio; and the metrics of speech_scores.py

val_speech           picture: spectrograms with symbols and pitch, the recording's above that of the same symbols spoken
val_alignment        picture: how recordings are aligned, where durations are learned
val_sample-1 …       audio: each of ``data.samples`` spoken
val_recorded-1 …     audio: a recording; val_spoken-1: the same text spoken
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from vaak.audio.audio_file import MAX_AUDIO_SECONDS, encode_wav
from vaak.audio.config import AudioConfig
from vaak.audio.cuts.reading import read_samples
from vaak.core.batch import Batch, Term
from vaak.core.summaries import LONGEST_TEXT
from vaak.core.task import Meters
from vaak.nn.decoding.sampling import without_dropout
from vaak.nn.speech.masks import length_mask, masked_sum
from vaak.nn.speech.variance_adaptor import to_frames
from vaak.report.audio import Alignment, Spectrogram, speech_png
from vaak.scoring.recogniser import Recogniser
from vaak.scoring.speech_scores import SpeechScores, compute_metrics
from vaak.tasks.base import LossMeters
from vaak.tasks.tts.config import EvaluationConfig
from vaak.tasks.tts.data import TtsDataset
from vaak.tasks.tts.model import TtsOutputs
from vaak.tasks.tts.predict import Sentence, Speaker
from vaak.tasks.tts.spec import DURATION

ERROR = "duration_error"
ScoredBatch = tuple[dict[str, Term], TtsOutputs]


class TtsMeters(Meters):
    """The mean of each loss, and the error of durations."""

    def __init__(
        self,
        split: str,
        score: Callable[[nn.Module, Batch], ScoredBatch],
        weights: dict[str, float],
        frame_shift: float,
        durations: str,
        spoken: Meters | None = None,
    ) -> None:
        """``score`` gives the losses of a batch and what they were made of; their ``weights`` are those of training.

        ``split`` and where ``durations`` come from are conditions of the metrics; ``frame_shift`` is in seconds.
        ``spoken`` measures speech.
        """
        self._spoken = spoken
        self.protocol = {"split": split, "durations": durations, **(spoken.protocol if spoken else {})}
        self._score, self._milliseconds = score, 1000 * frame_shift
        self._losses = LossMeters(self._measure_batch, split, weights)

    def _measure_batch(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        """Return the losses, and by how many frames durations are wrong."""
        terms, outputs = self._score(model, batch)
        mask = length_mask(batch["symbol_lengths"], batch["symbols"].shape[1])
        difference = (to_frames(outputs.log_durations) - outputs.durations).abs()
        return {**terms, ERROR: Term(masked_sum(difference, mask), per=terms[DURATION].per)}

    def update(self, model: nn.Module, batch: Batch) -> None:
        self._losses.update(model, batch)
        if self._spoken is not None:
            self._spoken.update(model, batch)

    def sums(self) -> dict[str, float]:
        spoken = self._spoken.sums() if self._spoken is not None else {}
        return {**self._losses.sums(), **spoken}

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        spoken = self._spoken.sums() if self._spoken is not None else {}
        others = {f"{ERROR} sum", f"{ERROR} count", *spoken}
        found = self._losses.results({name: value for name, value in sums.items() if name not in others})
        found["duration_error_ms"] = self._milliseconds * sums[f"{ERROR} sum"] / sums[f"{ERROR} count"]
        return found if self._spoken is None else {**found, **self._spoken.results(sums)}


SHOWN_UTTERANCES = 2


class ShownMeters(Meters):
    """Other meters, with pictures and audio of the model that they measured."""

    def __init__(
        self,
        meters: Meters,
        dataset: TtsDataset,
        score: Callable[[nn.Module, Batch], ScoredBatch],
        speaker: Callable[[nn.Module], Speaker],
        samples: tuple[str, ...],
        audio: AudioConfig,
    ) -> None:
        """``samples`` are spoken by what ``speaker`` makes of the model; ``dataset`` is the split that is measured.

        ``score`` gives the outputs of a batch; ``audio`` is how recordings were read.
        """
        self._audio = audio
        self.protocol = meters.protocol
        self._meters, self._dataset, self._score = meters, dataset, score
        self._speaker, self._samples = speaker, samples
        self._model: nn.Module | None = None

    def expect_rehearsal(self) -> None:
        self._meters.expect_rehearsal()

    def update(self, model: nn.Module, batch: Batch) -> None:
        # A compiled model has the module itself there.
        self._model = getattr(model, "_orig_mod", model)
        self._meters.update(model, batch)

    def sums(self) -> dict[str, float]:
        return self._meters.sums()

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        return self._meters.results(sums)

    def pictures(self) -> dict[str, bytes]:
        if self._model is None:
            # This process had no batch.
            return {}
        speaker = self._speaker(self._model)
        numbers = range(min(SHOWN_UTTERANCES, len(self._dataset.lengths)))
        shown = [self._make_spectrograms(self._model, speaker, number) for number in numbers]
        shift = speaker.mel.frame_shift
        found = {"speech": speech_png([row for _, *rows in shown for row in rows], shift)}
        alignments = [alignment for alignment, *_ in shown if alignment is not None]
        return found | ({"alignment": speech_png(alignments, shift)} if alignments else {})

    def audio(self) -> dict[str, bytes]:
        if self._model is None:
            return {}
        speaker, store, found = self._speaker(self._model), self._dataset.store, dict[str, np.ndarray]()
        for number, text in enumerate(self._samples, start=1):
            found[f"sample-{number}"] = speaker.speech(text).samples
        for index in range(min(SHOWN_UTTERANCES, len(store))):
            line = store.line(index)
            spoken = speaker.sentence(line.text, speaker.processor.process(line.text).ids, line.speaker)
            found[f"recorded-{index + 1}"] = read_samples(store.cuts[int(store.used[index])], self._audio)
            found[f"spoken-{index + 1}"] = spoken.samples
        rate = speaker.sampling_rate
        return {name: encode_wav(samples[: MAX_AUDIO_SECONDS * rate], rate) for name, samples in found.items()}

    def seen(self) -> dict[str, list[Any]]:
        return self._meters.seen()

    def summary(self, sums: dict[str, float], seen: dict[str, list[Any]]) -> dict[str, Any]:
        """Return the texts of the utterances that are logged as recorded and as synthesized."""
        store = self._dataset.store
        lines = [store.line(index) for index in range(min(SHOWN_UTTERANCES, len(store)))]
        texts = [{"index": index, "error": 0.0, "text": one.text[:LONGEST_TEXT]} for index, one in enumerate(lines)]
        return {**self._meters.summary(sums, seen), "examples": texts, "spoken": [*self._samples]}

    def _make_spectrograms(
        self, model: nn.Module, speaker: Speaker, number: int
    ) -> tuple[Alignment | None, Spectrogram, Spectrogram]:
        """Return an utterance of the split: its learned alignment, its spectrogram, and that of its text spoken."""
        # The same draws in every evaluation, so that pictures can be compared.
        example = self._dataset.example(number, np.random.default_rng(number))
        batch = self._dataset.collate([[example]]).to(next(model.parameters()).device)
        with torch.no_grad(), without_dropout(model):
            _, outputs = self._score(model, batch)
        symbols, durations = speaker.processor.decode(example.ids.tolist()), outputs.durations[0].cpu().numpy()
        alignment = None
        if outputs.alignment is not None:
            probabilities = outputs.alignment[0].float().softmax(-1).cpu().numpy()
            alignment = Alignment(example.name, probabilities, symbols, durations)
        pitch = example.prosody[:, 1] if example.prosody.shape[1] else np.zeros(len(example.mel))
        recorded = Spectrogram(f"{example.name}: recorded", example.mel, symbols, durations, pitch)
        name = speaker.speakers[example.speaker]
        spoken = speaker.sentence(example.text, speaker.processor.process(example.text).ids, name)
        return alignment, recorded, make_spectrogram(spoken, f"{example.name}: spoken")


def make_spectrogram(sentence: Sentence, title: str) -> Spectrogram:
    """Return the spectrogram to draw of a spoken sentence."""
    pitch = np.repeat(sentence.pitch, sentence.durations)
    return Spectrogram(title, sentence.mel, sentence.symbols, sentence.durations, pitch)


class SpokenMeters(Meters):
    """Speaks the texts of a split's first utterances, and compares them with the recordings."""

    def __init__(
        self,
        dataset: TtsDataset,
        audio: AudioConfig,
        options: EvaluationConfig,
        speaker: Callable[[nn.Module], Speaker],
    ) -> None:
        """``speaker`` makes what speaks of the model; ``audio`` is how recordings were read.

        ``dataset`` has the utterances, ``options`` say how many of them, and whether words are scored.
        """
        self._store, self._audio, self._speaker = dataset.store, audio, speaker
        number = len(dataset.store) if options.speak is None else min(options.speak, len(dataset.store))
        self._places = {dataset.store.line(index).name: index for index in range(number)}
        self._scores = SpeechScores(Recogniser() if options.recogniser else None)
        self._seconds = {"spoken seconds": 0.0, "seconds taken": 0.0}
        self.protocol = {"spoken": f"{number} utterances", **self._scores.protocol}

    def update(self, model: nn.Module, batch: Batch) -> None:
        # A compiled model has the module itself there.
        speaker = self._speaker(getattr(model, "_orig_mod", model))
        for index in sorted(self._places[name] for name in batch.extra["names"] if name in self._places):
            line = self._store.line(index)
            recorded = read_samples(self._store.cuts[int(self._store.used[index])], self._audio)
            # Not the ids of the line, which have the recording's pauses.
            ids = speaker.processor.process(line.text).ids
            begun = time.perf_counter()
            spoken = speaker.sentence(line.text, ids, line.speaker).samples
            self._seconds["seconds taken"] += time.perf_counter() - begun
            self._seconds["spoken seconds"] += len(spoken) / speaker.sampling_rate
            self._scores.add(recorded, spoken, speaker.sampling_rate, speaker.processor.normalise(line.text))

    def sums(self) -> dict[str, float]:
        return {**self._scores.sums, **self._seconds}

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        found = compute_metrics(sums)
        if sums["spoken seconds"]:
            found["real_time_factor"] = sums["seconds taken"] / sums["spoken seconds"]
        return found
