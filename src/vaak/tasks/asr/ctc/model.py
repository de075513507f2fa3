"""A CTC model: audio in, the logits of a token or of the blank at each of the encoder's frames out.

features ──mean and deviation of each bin──▶ Conformer ──linear──▶ logits (row, frame, vocab)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from vaak.nn.config import ConformerConfig
from vaak.nn.conformer import Conformer
from vaak.nn.initialisation import initialise
from vaak.nn.speech.masks import exact, length_mask

LEAST_DEVIATION = 1e-3
"""The lowest standard deviation of a bin, in nats: digital silence has none."""


class CtcOutputs(NamedTuple):
    """Logits ``(row, frame, vocab)`` and the numbers of real frames ``(row,)``."""

    logits: Tensor
    lengths: Tensor

    def rows(self, rows: Tensor) -> CtcOutputs:
        """These rows, in this order."""
        return CtcOutputs(self.logits[rows], self.lengths[rows])

    def log_probs(self) -> Tensor:
        """Log-probabilities ``(row, frame, vocab)``, in 32 bits at least."""
        return exact(self.logits).log_softmax(-1)


class CtcModel(nn.Module):
    """A Conformer, with a linear layer to the tokens of a vocabulary."""

    def __init__(self, config: ConformerConfig, num_bins: int, vocab_size: int) -> None:
        """Weights are drawn from torch's default generator."""
        super().__init__()
        self.encoder = Conformer(config, num_bins)
        self.head = nn.Linear(config.d_model, vocab_size)
        initialise(self)

    def forward(self, features: Tensor, lengths: Tensor) -> CtcOutputs:
        """Return the logits of features ``(row, bin, frame)``, of which ``lengths`` ``(row,)`` frames are real."""
        x = normalised(features.transpose(1, 2), lengths).to(self.head.bias.dtype)
        encoded, lengths = self.encoder(x, lengths)
        return CtcOutputs(self.head(encoded), lengths)


def normalised(features: Tensor, lengths: Tensor) -> Tensor:
    """Features ``(row, frame, bin)`` with mean 0 and deviation 1 of each bin over a row's real frames; 0 in padding.

    A channel and a level are constants in the logarithmic spectrum, so this removes them.
    """
    with torch.autocast(features.device.type, enabled=False):
        real = length_mask(lengths, features.shape[1])[..., None]
        features = exact(features).masked_fill(~real, 0.0)
        number = lengths[:, None, None]
        # padding is zeroed again: minus the mean, it wouldn't be
        centred = (features - features.sum(1, keepdim=True) / number).masked_fill(~real, 0.0)
        deviation = (centred.square().sum(1, keepdim=True) / number).sqrt()
        return centred / deviation.clamp(min=LEAST_DEVIATION)
