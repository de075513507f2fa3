"""Pitch and energy of symbols, between encoder and length regulator: predicted, and embedded for the decoder.

    encoded ──▶ pitch predictor ──▶ pitch, voicing
       + ◀───── pitch embedding ◀── those of the recording (training), or the predicted ones (speaking)
    encoded ──▶ energy predictor ──▶ energy
       + ◀───── energy embedding ◀── in the same way

Both are base-2 logarithms, normalised over the training data: an octave, or twice the amplitude, is 1 before that.

Source: Ren et al. 2021, "FastSpeech 2", section 2.3. Differs: values are those of symbols, not of frames, and not cut
in steps (Łańcucki 2021, "FastPitch"); whether a symbol has a pitch is predicted, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vaak.core.batch import Term
from vaak.nn.speech.durations import symbol_of_frame
from vaak.nn.speech.masks import exact
from vaak.nn.speech.predictors import (
    SymbolPredictor,
    ValueEmbedding,
    energy_loss,
    pitch_loss,
    pitch_values,
    voicing_loss,
)

LEAST_ENERGY = 1e-3
"""Less counts as this."""


class Prosody(NamedTuple):
    """Of each symbol, ``(batch, symbol)``: its normalised pitch, whether it is voiced, its normalised energy."""

    pitch: Tensor
    voiced: Tensor
    energy: Tensor


def symbol_means(values: Tensor, durations: Tensor, counted: Tensor) -> Tensor:
    """The mean over each symbol's frames of ``values`` ``(batch, frame)``, ``(batch, symbol)``; 0 where none counts.

    ``durations`` ``(batch, symbol)`` are in frames; only frames that are ``counted`` ``(batch, frame)`` do.

    >>> values = torch.tensor([[4.0, 2.0, 0.0, 5.0]])
    >>> symbol_means(values, torch.tensor([[2, 0, 2]]), values > 0)
    tensor([[3., 0., 5.]])
    """
    belongs = nn.functional.one_hot(symbol_of_frame(durations, values.shape[1]), durations.shape[1])
    weights = (belongs * counted[..., None]).to(values.dtype)
    totals = (weights * values.masked_fill(~counted, 0.0)[..., None]).sum(1)
    return totals / weights.sum(1).clamp(min=1)


class Variance(nn.Module):
    """The predictor and the embedding of a value of symbols, with its mean and deviation in training."""

    scale: Tensor

    def __init__(self, width: int, num_values: int, scale: Sequence[float], predictor: Mapping[str, Any]) -> None:
        super().__init__()
        self.predictor = SymbolPredictor(width, num_values, **predictor)
        self.embedding = ValueEmbedding(num_values, width)
        self.register_buffer("scale", torch.tensor(scale))

    def normalised(self, values: Tensor) -> Tensor:
        """Of values above 0."""
        return (values.log2() - self.scale[0]) / self.scale[1]

    def shifted(self, normalised: Tensor, by: float | Tensor) -> Tensor:
        """Raised by this number of octaves, or doublings."""
        return normalised + by / self.scale[1]


class VarianceAdaptor(nn.Module):
    """Adds what is known of pitch and energy to encoded symbols."""

    def __init__(
        self,
        width: int,
        pitch: Sequence[float] | None,
        energy: Sequence[float] | None,
        predictor: Mapping[str, Any],
    ) -> None:
        """For symbols of ``width``; of ``pitch`` and ``energy`` mean and deviation in training, None: left out.

        ``predictor`` has the options of ``SymbolPredictor``.
        """
        super().__init__()
        self.pitch = None if pitch is None else Variance(width, 2, pitch, predictor)
        self.energy = None if energy is None else Variance(width, 1, energy, predictor)

    def targets(self, frames: Tensor, durations: Tensor, frame_mask: Tensor) -> Prosody:
        """Of recordings: ``frames`` ``(batch, frame, 2)`` have energy and F0 in Hz, 0 where they are unvoiced.

        A symbol without frames has no pitch, and a mean energy. ``durations`` are ``(batch, symbol)``; frames are real
        where ``frame_mask`` is True.
        """
        energy, f0 = exact(frames).unbind(-1)
        f0 = symbol_means(f0, durations, frame_mask & (f0 > 0))
        energy = symbol_means(energy, durations, frame_mask)
        pitch = f0 if self.pitch is None else self.pitch.normalised(f0.clamp(min=1.0))
        energy = energy if self.energy is None else self.energy.normalised(energy.clamp(min=LEAST_ENERGY))
        return Prosody(pitch, f0 > 0, energy.masked_fill(durations == 0, 0.0))

    def forward(
        self,
        encoded: Tensor,
        mask: Tensor,
        targets: Prosody | None = None,
        octaves: float | Tensor = 0.0,
        doublings: float | Tensor = 0.0,
    ) -> tuple[Tensor, Prosody, dict[str, Term]]:
        """``encoded`` ``(batch, symbol, width)`` with pitch and energy embedded; these; and losses of their prediction.

        They are the ``targets``, or, without any, what is predicted, the pitch raised by ``octaves`` and the energy by
        ``doublings``. Symbols are real where ``mask`` ``(batch, symbol)`` is True.
        """
        terms: dict[str, Term] = {}
        pitch = energy = encoded.new_zeros(encoded.shape[:2])
        voiced = torch.zeros_like(mask)
        if self.pitch is not None:
            found, voicing = self.pitch.predictor(encoded, mask).unbind(-1)
            if targets is None:
                pitch, voiced = self.pitch.shifted(found, octaves), (voicing > 0) & mask
            else:
                pitch, voiced = targets.pitch, targets.voiced & mask
                terms |= {"pitch": pitch_loss(found, pitch, voiced), "voicing": voicing_loss(voicing, voiced, mask)}
            encoded = encoded + self.pitch.embedding(pitch_values(pitch, voiced).to(encoded.dtype), mask)
        if self.energy is not None:
            found = self.energy.predictor(encoded, mask)[..., 0]
            if targets is None:
                energy = self.energy.shifted(found, doublings)
            else:
                energy = targets.energy
                terms["energy"] = energy_loss(found, energy, mask)
            encoded = encoded + self.energy.embedding(energy[..., None].to(encoded.dtype), mask)
        return encoded, Prosody(pitch, voiced, energy), terms

    def hertz(self, prosody: Prosody) -> Tensor:
        """The F0 of each symbol, ``(batch, symbol)``, 0 where it is unvoiced."""
        if self.pitch is None:
            return torch.zeros_like(prosody.pitch)
        return (prosody.pitch * self.pitch.scale[1] + self.pitch.scale[0]).exp2().masked_fill(~prosody.voiced, 0.0)
