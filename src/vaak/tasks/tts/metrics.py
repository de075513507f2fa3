"""Metrics of text-to-speech: sums over the whole set, divided once.

loss                 the weighted sum of all losses
mel                  the main loss, per frame and bin of the normalised spectrogram, with the true durations
duration             squared error of log(1 + frames), per symbol
stop                 cross-entropy of the end of speech, per frame
alignment            learned durations: negative log-likelihood of all alignments, per frame; it may be negative
flow                 flow matching: squared error of the velocities, per frame and bin; mel is then that of the means
pitch, energy        squared error of the normalised logarithms, per symbol; voicing: cross-entropy, per symbol
duration_error_ms    absolute error of predicted durations, per symbol, in milliseconds

With data.evaluation, also the figures of scoring/speech_scores.py.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from vaak.core.batch import Batch, Term
from vaak.core.task import Meters
from vaak.nn.speech.masks import length_mask, masked_sum
from vaak.nn.speech.predictors import frames_of
from vaak.tasks.meters import LossMeters
from vaak.tasks.tts.model import Outputs

Scored = tuple[dict[str, Term], Outputs]


class TtsMeters(Meters):
    """The mean of each loss, and the error of durations."""

    def __init__(
        self,
        split: str,
        score: Callable[[nn.Module, Batch], Scored],
        weights: dict[str, float],
        frame_shift: float,
        durations: str,
        spoken: Meters | None = None,
    ) -> None:
        """``score`` gives the losses of a batch and what they were made of; their ``weights`` are those of training.

        ``split`` and where ``durations`` come from are conditions of the figures; ``frame_shift`` is in seconds.
        ``spoken`` measures speech.
        """
        self._spoken = spoken
        self.protocol = {"split": split, "durations": durations, **(spoken.protocol if spoken else {})}
        self._score, self._milliseconds = score, 1000 * frame_shift
        self._losses = LossMeters(lambda model, batch: self._kept(model, batch), split, weights)
        self._outputs: Outputs | None = None
        self._error = 0.0

    def _kept(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
        terms, self._outputs = self._score(model, batch)
        return terms

    def update(self, model: nn.Module, batch: Batch) -> None:
        self._losses.update(model, batch)
        assert self._outputs is not None
        outputs, self._outputs = self._outputs, None
        mask = length_mask(batch["symbol_lengths"], batch["symbols"].shape[1])
        difference = (frames_of(outputs.log_durations) - outputs.durations).abs()
        self._error += float(masked_sum(difference, mask))
        if self._spoken is not None:
            self._spoken.update(model, batch)

    def sums(self) -> dict[str, float]:
        spoken = self._spoken.sums() if self._spoken is not None else {}
        return {**self._losses.sums(), "duration_error": self._error, **spoken}

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        spoken = self._spoken.sums() if self._spoken is not None else {}
        others = {"duration_error", *spoken}
        found = self._losses.results({name: value for name, value in sums.items() if name not in others})
        found["duration_error_ms"] = self._milliseconds * sums["duration_error"] / sums["duration count"]
        return found if self._spoken is None else {**found, **self._spoken.results(sums)}
