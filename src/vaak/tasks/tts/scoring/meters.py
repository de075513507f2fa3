"""Meters that speak: the figures of speech_scores.py, and real_time_factor, seconds taken for a second of audio."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import nn

from vaak.audio.config import AudioConfig
from vaak.audio.scoring.recogniser import Recogniser
from vaak.audio.waveforms.reading import read_samples
from vaak.core.batch import Batch
from vaak.core.task import Meters
from vaak.tasks.tts.config import EvaluationConfig
from vaak.tasks.tts.data import TtsDataset
from vaak.tasks.tts.predict import Speaker
from vaak.tasks.tts.scoring.speech_scores import SpeechScores, figures_of


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
        speaker = self._speaker(getattr(model, "_orig_mod", model))  # of a compiled one, it itself
        for index in sorted(self._places[name] for name in batch.extra["names"] if name in self._places):
            line = self._store.line(index)
            recorded = read_samples(self._store.cuts[int(self._store.used[index])], self._audio)
            ids = speaker.processor.process(line.text).ids  # not the line's, which have the recording's pauses
            begun = time.perf_counter()
            spoken = speaker.sentence(line.text, ids, line.speaker).samples
            self._seconds["seconds taken"] += time.perf_counter() - begun
            self._seconds["spoken seconds"] += len(spoken) / speaker.sampling_rate
            self._scores.add(recorded, spoken, speaker.sampling_rate, speaker.processor.normalise(line.text))

    def sums(self) -> dict[str, float]:
        return {**self._scores.sums, **self._seconds}

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        found = figures_of(sums)
        if sums["spoken seconds"]:
            found["real_time_factor"] = sums["seconds taken"] / sums["spoken seconds"]
        return found
