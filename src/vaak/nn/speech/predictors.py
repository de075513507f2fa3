"""How long, how high and how loud each symbol is spoken: predicted from its vector, and fed back into it.

    vectors ──predictor──▶ log(1 + frames)
    vectors ──predictor──▶ pitch, voicing ──embedding──▶ + vectors
    vectors ──predictor──▶ energy ──embedding──▶ + vectors

Pitch and energy are means over a symbol's frames, normalised over the training data. Sources: Ren et al. 2021,
"FastSpeech 2", sections 2.3 and 3.1 (the predictor); Łańcucki 2021, "FastPitch", section 2.1 (one value per symbol,
embedded by a convolution). Differs: whether a symbol has a pitch (pauses and voiceless consonants have none) is
predicted as well, and only the pitch of those that do is trained.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.core.batch import Term
from vaak.nn.convolution import TimeConvolution
from vaak.nn.norms import LayerNorm
from vaak.nn.speech.masks import exact, masked, masked_sum


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
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = self.dropout(norm(convolution(x, mask).relu()))
        return masked(exact(self.output(x)), mask)


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
    """What a pitch embedding reads, ``(batch, symbol, 2)``: ``pitch`` where ``voiced`` is True, else 0; and that."""
    return torch.stack((pitch.masked_fill(~voiced, 0.0), voiced.to(pitch.dtype)), -1)


def frames_of(log_durations: Tensor) -> Tensor:
    """The durations, in frames and fractions of one, that a predictor's ``log(1 + frames)`` means; at least 0."""
    return exact(log_durations).expm1().clamp(min=0)


def duration_loss(log_durations: Tensor, durations: Tensor, mask: Tensor) -> Term:
    """Squared error of ``log(1 + frames)``, summed over phonemes; all ``(batch, symbol)``."""
    return Term(masked_sum((exact(log_durations) - exact(durations).log1p()).square(), mask), per="phoneme")


def pitch_loss(pitch: Tensor, targets: Tensor, voiced: Tensor) -> Term:
    """Squared error, summed over the phonemes that ``voiced`` marks as having a pitch; all ``(batch, symbol)``.

    It counts all phonemes: how many are voiced isn't known before they are aligned.
    """
    return Term(masked_sum((exact(pitch) - targets).square(), voiced), per="phoneme")


def voicing_loss(logits: Tensor, voiced: Tensor, mask: Tensor) -> Term:
    """Cross-entropy of having a pitch or not, summed over phonemes; all ``(batch, symbol)``."""
    logits = exact(logits)
    losses = F.binary_cross_entropy_with_logits(logits, voiced.to(logits.dtype), reduction="none")
    return Term(masked_sum(losses, mask), per="phoneme")


def energy_loss(energy: Tensor, targets: Tensor, mask: Tensor) -> Term:
    """Squared error, summed over phonemes; all ``(batch, symbol)``."""
    return Term(masked_sum((exact(energy) - targets).square(), mask), per="phoneme")
