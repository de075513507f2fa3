"""How long, how high and how loud each symbol is spoken: predicted, fed back, and symbols repeated by their frames.

    symbols     h    ə    l    oʊ
    durations   2    3    1    1       whole_durations makes them of predictions, with a speed
    frames      h h  ə ə ə  l  oʊ      regulate

    encoded ──▶ pitch predictor ──▶ pitch, voicing
       + ◀───── pitch embedding ◀── those of the recording (training), or the predicted ones (speaking)
    encoded ──▶ energy predictor ──▶ energy
       + ◀───── energy embedding ◀── in the same way

Pitch and energy are base-2 logarithms, means over a symbol's frames, normalised over the training data: an octave, or
twice the amplitude, is 1 before that.

Sources: Ren et al. 2019, "FastSpeech", section 3.2 (length regulator); Ren et al. 2021, "FastSpeech 2", sections 2.3
and 3.1; Łańcucki 2021, "FastPitch", section 2.1 (one value per symbol, embedded by a convolution). Differs: values are
not quantised. Whether a symbol has a pitch (pauses and voiceless consonants have none) is predicted as well, and only
the pitch of voiced ones is trained. Rounding of durations carries its error along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.core.batch import Term, running_sum
from vaak.nn.feed_forward import TimeConvolution
from vaak.nn.norms import LayerNorm, cast_weights
from vaak.nn.speech.masks import as_float64, exact, length_mask, masked, masked_sum

LEAST_ENERGY = 1e-3
"""Less counts as this."""


class Prosody(NamedTuple):
    """Per symbol, ``(batch, symbol)``: its normalised pitch, whether it is voiced, its normalised energy."""

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
    return _means(values, F.one_hot(number_symbols(durations, values.shape[1]), durations.shape[1]), counted)


def _means(values: Tensor, belongs: Tensor, counted: Tensor) -> Tensor:
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
        """Return the normalised logarithms of values above 0."""
        return (values.log2() - self.scale[0]) / self.scale[1]

    def shifted(self, normalised: Tensor, by: float | Tensor) -> Tensor:
        """Return values raised by this number of octaves, or doublings."""
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

    def targets(self, frames: Tensor, durations: Tensor, frame_mask: Tensor, symbols: Tensor | None = None) -> Prosody:
        """Return the prosody of recordings.

        ``frames`` ``(batch, frame, 2)`` have energy and F0 in Hz, 0 where they are unvoiced; they
        are real where ``frame_mask`` is True. ``durations`` are ``(batch, symbol)``. A symbol without frames has no
        pitch, and a mean energy. Values that aren't predicted are 0. ``symbols`` are those of frames
        (``number_symbols``), where they are known.
        """
        energy, f0 = exact(frames).unbind(-1)
        symbols = number_symbols(durations, frames.shape[1]) if symbols is None else symbols
        belongs, nothing = F.one_hot(symbols, durations.shape[1]), energy.new_zeros(durations.shape)
        if self.pitch is None:
            pitch, voiced = nothing, nothing > 0
        else:
            f0 = _means(f0, belongs, frame_mask & (f0 > 0))
            pitch, voiced = self.pitch.normalised(f0.clamp(min=1.0)), f0 > 0
        if self.energy is None:
            return Prosody(pitch, voiced, nothing)
        energy = self.energy.normalised(_means(energy, belongs, frame_mask).clamp(min=LEAST_ENERGY))
        return Prosody(pitch, voiced, energy.masked_fill(durations == 0, 0.0))

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
        if targets is None:
            pitch = energy = encoded.new_zeros(encoded.shape[:2])
            voiced = torch.zeros_like(mask)
        else:
            # of what isn't predicted they are 0
            pitch, voiced, energy = targets
        if self.pitch is not None:
            found, voicing = self.pitch.predictor(encoded, mask).unbind(-1)
            if targets is None:
                pitch, voiced = self.pitch.shifted(found, octaves), (voicing > 0) & mask
            else:
                pitch, voiced = targets.pitch, targets.voiced & mask
                terms |= {"pitch": pitch_loss(found, pitch, voiced), "voicing": voicing_loss(voicing, voiced, mask)}
            # before the energy is predicted, which so depends on the pitch
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
        """Return the F0 of each symbol, ``(batch, symbol)``, 0 where it is unvoiced."""
        if self.pitch is None:
            return torch.zeros_like(prosody.pitch)
        return (prosody.pitch * self.pitch.scale[1] + self.pitch.scale[0]).exp2().masked_fill(~prosody.voiced, 0.0)


def number_symbols(durations: Tensor, num_frames: int) -> Tensor:
    """Which symbol each frame belongs to, ``(batch, num_frames)``, from ``durations`` ``(batch, symbol)``.

    Frames after the last get the last symbol.

    >>> number_symbols(torch.tensor([[2, 0, 1]]), 4)
    tensor([[0, 0, 2, 2]])
    """
    ends = durations.cumsum(1)
    frames = torch.arange(num_frames, device=durations.device)
    return (frames[None, :, None] >= ends[:, None, :]).sum(-1).clamp(max=durations.shape[1] - 1)


def regulate(
    x: Tensor,
    durations: Tensor,
    num_frames: int | None = None,
    symbols: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Return each symbol's vector repeated by its duration, ``(batch, frame, width)``, then 0.

    ``x`` is ``(batch, symbol, width)``, ``durations`` ``(batch, symbol)`` in frames, 0 at padded symbols. There are
    ``num_frames``, or as many as the longest row has. ``symbols`` are those of frames, and ``mask`` ``(batch, frame)``
    is True where a row has one, where they are known.
    """
    if num_frames is None:
        num_frames = int(durations.sum(1).max())
    symbols = number_symbols(durations, num_frames) if symbols is None else symbols
    mask = length_mask(durations.sum(1), num_frames) if mask is None else mask
    return masked(x.gather(1, symbols[..., None].expand(-1, -1, x.shape[2])), mask)


def whole_durations(durations: Tensor, mask: Tensor, speed: float | Tensor = 1.0) -> Tensor:
    """Durations in whole frames, ``(batch, symbol)``; a row's total is that of its real symbols, rounded.

    ``durations`` ``(batch, symbol)`` are in frames, real where ``mask`` is True. They are divided by
    ``speed``; none is below 0. It is the symbols' ends that are rounded, so errors don't add up.

    >>> whole_durations(torch.tensor([[1.4, 1.4, 1.4, 1.4, 1.4]]), torch.ones(1, 5, dtype=torch.bool))
    tensor([[1, 2, 1, 2, 1]])
    """
    lengths = masked((as_float64(durations) / speed).clamp(min=0.0), mask)
    ends = (running_sum(lengths) + 0.5).floor().long()
    return ends.diff(dim=1, prepend=torch.zeros_like(ends[:, :1]))


class SymbolPredictor(nn.Module):
    """A few numbers for each symbol: convolutions with ReLU, norm and dropout, and a linear layer."""

    def __init__(
        self,
        input_width: int,
        num_outputs: int = 1,
        width: int = 256,
        kernel_size: int = 3,
        num_layers: int = 2,
        dropout: float = 0.1,
    ) -> None:
        """``num_outputs`` numbers from vectors of ``input_width``, by ``num_layers`` convolutions.

        ``width`` is that of the convolutions, ``kernel_size`` their odd reach in symbols; ``dropout`` comes after each.
        """
        super().__init__()
        widths = (input_width, *(width,) * num_layers)
        self.convolutions = nn.ModuleList(
            TimeConvolution(entering, width, kernel_size) for entering in widths[:num_layers]
        )
        self.norms = nn.ModuleList(LayerNorm(width) for _ in range(num_layers))
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(widths[-1], num_outputs)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """``(batch, symbol, num_outputs)``, 0 in padding.

        ``x`` ``(batch, symbol, input_width)`` is real where ``mask`` ``(batch, symbol)`` is True.
        """
        padding = ~mask[..., None]
        with cast_weights(self):
            for convolution, norm in zip(self.convolutions, self.norms, strict=True):
                x = self.dropout(norm(convolution(x.masked_fill(padding, 0.0)).relu()))
            return exact(self.output(x)).masked_fill(padding, 0.0)


class ValueEmbedding(nn.Module):
    """Vectors of a few numbers per symbol and of those of its neighbours."""

    def __init__(self, num_values: int, width: int, kernel_size: int = 3) -> None:
        super().__init__()
        self.convolution = TimeConvolution(num_values, width, kernel_size)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """``(batch, symbol, width)`` of ``values`` ``(batch, symbol, num_values)``."""
        embedded: Tensor = self.convolution(values, mask)
        return embedded


def pitch_values(pitch: Tensor, voiced: Tensor) -> Tensor:
    """Return a pitch embedding's input ``(batch, symbol, 2)``: ``pitch``, 0 if not ``voiced``, and ``voiced``."""
    return torch.stack((pitch.masked_fill(~voiced, 0.0), voiced.to(pitch.dtype)), -1)


def to_frames(log_durations: Tensor) -> Tensor:
    """The durations, in frames and fractions of one, that a predictor's ``log(1 + frames)`` means; at least 0."""
    return exact(log_durations).expm1().clamp(min=0)


def duration_loss(log_durations: Tensor, durations: Tensor, mask: Tensor) -> Term:
    """Squared error of ``log(1 + frames)``, summed over phonemes; all ``(batch, symbol)``."""
    return Term(masked_sum(_squared_error(log_durations, durations.log1p()), mask), per="phoneme")


def pitch_loss(pitch: Tensor, targets: Tensor, voiced: Tensor) -> Term:
    """Squared error, summed over the phonemes that ``voiced`` marks as having a pitch; all ``(batch, symbol)``.

    It counts all phonemes: how many are voiced isn't known before they are aligned.
    """
    return Term(masked_sum(_squared_error(pitch, targets), voiced), per="phoneme")


def voicing_loss(logits: Tensor, voiced: Tensor, mask: Tensor) -> Term:
    """Cross-entropy of having a pitch or not, summed over phonemes; all ``(batch, symbol)``."""
    logits = exact(logits)
    losses = F.binary_cross_entropy_with_logits(logits, voiced.to(logits.dtype), reduction="none")
    return Term(masked_sum(losses, mask), per="phoneme")


def energy_loss(energy: Tensor, targets: Tensor, mask: Tensor) -> Term:
    """Squared error, summed over phonemes; all ``(batch, symbol)``."""
    return Term(masked_sum(_squared_error(energy, targets), mask), per="phoneme")


def _squared_error(predicted: Tensor, targets: Tensor) -> Tensor:
    # one kernel forward and one backward, with the bits of a difference and its square
    return F.mse_loss(exact(predicted), targets, reduction="none")
