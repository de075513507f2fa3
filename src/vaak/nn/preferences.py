"""Losses of pairs of answers, of which one is preferred: one value for each pair.

    DPO    −log σ(β · ((log π(w) − log ρ(w)) − (log π(l) − log ρ(l))))        ρ is the model that training began with
    ORPO   λ · −log σ(log odds(w) − log odds(l)), odds(y) = P(y) / (1 − P(y)), P(y) = the mean probability of a token

w is the chosen answer, l the rejected one, π the model. ORPO has no ρ; the cross-entropy of w is added to it.

Sources: Rafailov et al. 2023, "Direct Preference Optimization", equation 7; Mitchell 2023, "A note on DPO with noisy
preferences and relationship to IPO", equation 3 (label smoothing); Hong, Lee and Thorne 2024, "ORPO: Monolithic
Preference Optimization without Reference Model", equations 4 to 7 (P is the geometric mean over tokens).
"""

from __future__ import annotations

from typing import Annotated as Float

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class DirectPreference(nn.Module):
    """DPO: the chosen answer becomes more probable than the rejected one, compared with the reference.

    ``label_smoothing`` is the probability that a pair is the wrong way round.
    """

    per = "pair"

    def __init__(self, beta: float = 0.1, label_smoothing: float = 0.0) -> None:
        """Raises ValueError if ``beta`` isn't above 0, or ``label_smoothing`` isn't from 0 to below 0.5."""
        super().__init__()
        if not beta > 0:
            raise ValueError(f"beta is {beta}; it must be above 0")
        if not 0 <= label_smoothing < 0.5:
            raise ValueError(f"label_smoothing is {label_smoothing}; it must be from 0 to below 0.5")
        self.beta, self.label_smoothing = beta, label_smoothing

    def rewards(self, outputs: Float[Tensor, "pair 2"], targets: Float[Tensor, "pair 2"]) -> Float[Tensor, "pair 2"]:
        """How much more probable each answer is than for the reference, times beta."""
        return self.beta * (outputs - targets)

    def forward(self, outputs: Float[Tensor, "pair 2"], targets: Float[Tensor, "pair 2"]) -> Float[Tensor, "pair"]:
        """Return the loss of log-probabilities of a chosen and a rejected answer, by model and reference."""
        chosen, rejected = self.rewards(outputs, targets).unbind(-1)
        margin = chosen - rejected
        right, wrong = F.logsigmoid(margin), F.logsigmoid(-margin)
        return -(1 - self.label_smoothing) * right - self.label_smoothing * wrong


class OddsRatio(nn.Module):
    """ORPO's ratio of odds, times ``weight`` (the paper's λ)."""

    per = "pair"

    def __init__(self, weight: float = 0.1) -> None:
        """Raises ValueError if ``weight`` isn't above 0."""
        super().__init__()
        if not weight > 0:
            raise ValueError(f"weight is {weight}; it must be above 0")
        self.weight = weight

    def rewards(self, outputs: Float[Tensor, "pair 2"], targets: Float[Tensor, "pair 2"]) -> Float[Tensor, "pair 2"]:
        """Return the logarithm of each answer's odds; ``targets`` aren't read."""
        # Log p - log(1 - p), to full precision.
        return outputs - torch.log(-torch.expm1(outputs.clamp(max=-LEAST_DISTANCE)))

    def forward(self, outputs: Float[Tensor, "pair 2"], targets: Float[Tensor, "pair 2"]) -> Float[Tensor, "pair"]:
        """Return the loss of both answers' mean log-probabilities of a token; ``targets`` aren't read."""
        chosen, rejected = self.rewards(outputs, targets).unbind(-1)
        return -self.weight * F.logsigmoid(chosen - rejected)


LEAST_DISTANCE = 1e-6
"""The least distance of a log-probability from 0, where its odds are infinite."""
