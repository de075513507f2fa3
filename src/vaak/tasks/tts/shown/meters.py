"""Meters that also show speech: of the first utterances recorded and spoken, of fixed sentences the audio.

val_speech       spectrograms with symbols and pitch, the recording's above that of the same symbols spoken
val_alignment    durations that are learned: how the recordings are aligned
val_sample-1     and so on: each of ``data.samples`` spoken
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO

import numpy as np
import torch
from torch import nn

from vaak.core.batch import Batch
from vaak.core.errors import UserError
from vaak.core.task import Meters
from vaak.nn.decoding.rows import without_dropout
from vaak.tasks.tts.data import TtsDataset
from vaak.tasks.tts.metrics import Scored
from vaak.tasks.tts.predict import Sentence, Speaker
from vaak.tasks.tts.shown.pictures import Alignment, Spectrogram, speech_png

SHOWN_UTTERANCES = 2


class ShownMeters(Meters):
    """Other meters, with pictures and audio of the model that they measured."""

    def __init__(
        self,
        meters: Meters,
        dataset: TtsDataset,
        score: Callable[[nn.Module, Batch], Scored],
        speaker: Callable[[nn.Module], Speaker],
        samples: tuple[str, ...],
    ) -> None:
        """``samples`` are spoken by what ``speaker`` makes of the model; ``dataset`` is the split that is measured.

        ``score`` gives the outputs of a batch.
        """
        self.protocol = meters.protocol
        self._meters, self._dataset, self._score = meters, dataset, score
        self._speaker, self._samples = speaker, samples
        self._model: nn.Module | None = None

    def update(self, model: nn.Module, batch: Batch) -> None:
        self._model = getattr(model, "_orig_mod", model)  # of a compiled one, it itself
        self._meters.update(model, batch)

    def sums(self) -> dict[str, float]:
        return self._meters.sums()

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        return self._meters.results(sums)

    def pictures(self) -> dict[str, bytes]:
        if self._model is None:  # this process had no batch
            return {}
        speaker = self._speaker(self._model)
        numbers = range(min(SHOWN_UTTERANCES, len(self._dataset.lengths)))
        shown = [self._recorded(self._model, speaker, number) for number in numbers]
        shift = speaker.mel.frame_shift
        found = {"speech": speech_png([row for _, *rows in shown for row in rows], shift)}
        alignments = [alignment for alignment, *_ in shown if alignment is not None]
        return found | ({"alignment": speech_png(alignments, shift)} if alignments else {})

    def audio(self) -> dict[str, bytes]:
        if self._model is None:
            return {}
        speaker = self._speaker(self._model)
        return {
            f"sample-{number}": wav_of(speaker.speech(text).samples, speaker.sampling_rate)
            for number, text in enumerate(self._samples, start=1)
        }

    def _recorded(
        self, model: nn.Module, speaker: Speaker, number: int
    ) -> tuple[Alignment | None, Spectrogram, Spectrogram]:
        """An utterance of the split: its learned alignment, its spectrogram, and that of its text spoken."""
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
        return alignment, recorded, spectrogram_of(spoken, f"{example.name}: spoken")


def spectrogram_of(sentence: Sentence, title: str) -> Spectrogram:
    """What is drawn of a spoken sentence."""
    pitch = np.repeat(sentence.pitch, sentence.durations)
    return Spectrogram(title, sentence.mel, sentence.symbols, sentence.durations, pitch)


def wav_of(samples: np.ndarray, sampling_rate: int) -> bytes:
    """A WAV file of 16 bits with ``samples`` ``(time,)`` within ±1. Raises UserError without soundfile."""
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise UserError(f"audio files require soundfile ({error}); pip install 'vaak[audio]'") from error
    content = BytesIO()
    soundfile.write(content, samples, sampling_rate, "PCM_16", format="WAV")
    return content.getvalue()
