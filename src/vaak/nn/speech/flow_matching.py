"""Conditional flow matching: noise becomes a spectrogram along a learned field of velocities.

    x(t) = (1 - (1 - sigma_min) t) · noise + t · target         a straight line, from noise at t = 0
    velocity = target - (1 - sigma_min) · noise                 what the field learns to predict from x(t) and t

To generate, noise follows the field from t = 0 to 1 in a few steps. Noise and times are functions of the row's key
alone, so that neither padding nor the rest of the batch changes them.

Sources: Lipman et al. 2023, "Flow Matching for Generative Modeling", section 4.1 (optimal transport path); Mehta et al.
2024, "Matcha-TTS: A Fast TTS Architecture with Conditional Flow Matching".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vaak.core.batch import Term
from vaak.nn.speech.masks import exact, masked_sum

Field = Callable[[Tensor, Tensor], Tensor]
"""The velocities ``(batch, frame, bin)`` at ``x`` of that shape and at ``times`` ``(batch,)``."""

SIGMA_MIN = 1e-4
"""The deviation around the target that remains at the end of a path."""


class Draws(NamedTuple):
    """``noise`` ``(batch, frame, bin)`` is normal, 0 in padding; ``times`` ``(batch,)`` are from 0 to 1."""

    noise: Tensor
    times: Tensor


def row_draws(keys: Sequence[int], lengths: Sequence[int], num_bins: int) -> Draws:
    """The draws of rows of ``lengths`` frames, each from its own key (``vaak.core.random_keys``); on the CPU."""
    noise, times = [], []
    for key, length in zip(keys, lengths, strict=True):
        generator = torch.Generator().manual_seed(key)
        times.append(torch.rand((), generator=generator))
        noise.append(torch.randn(length, num_bins, generator=generator))
    return Draws(pad_sequence(noise, batch_first=True), torch.stack(times))


def path(target: Tensor, draws: Draws, sigma_min: float = SIGMA_MIN) -> tuple[Tensor, Tensor]:
    """Where each row is at its time, and its velocity there, both ``(batch, frame, bin)``."""
    noise, times = draws.noise, draws.times[:, None, None]
    return (1 - (1 - sigma_min) * times) * noise + times * target, target - (1 - sigma_min) * noise


def flow_matching_loss(field: Field, target: Tensor, draws: Draws, mask: Tensor, sigma_min: float = SIGMA_MIN) -> Term:
    """Squared error of the field's velocities, summed over the bins of the frames in ``mask`` ``(batch, frame)``.

    ``field`` is evaluated where the ``draws`` are at their times on the way to ``target`` ``(batch, frame, bin)``, at
    which the deviation is ``sigma_min``.
    """
    x, velocity = path(exact(target), draws, sigma_min)
    return Term(masked_sum((exact(field(x, draws.times)) - velocity).square(), mask), per="mel_bin")


def integrate(
    field: Field,
    noise: Tensor,
    num_steps: int = 10,
    method: Literal["euler", "midpoint"] = "euler",
    temperature: float | Tensor = 1.0,
) -> Tensor:
    """Where ``noise`` ``(batch, frame, bin)``, multiplied by ``temperature``, comes to along ``field``.

    There are ``num_steps`` of one length. In each, the ``method`` euler evaluates the field once, midpoint twice: its
    error is of second order.
    """
    x, step = temperature * noise, 1 / num_steps
    for number in range(num_steps):
        times = x.new_full((x.shape[0],), number * step)
        velocity = field(x, times)
        if method == "midpoint":
            velocity = field(x + step / 2 * velocity, times + step / 2)
        x = x + step * velocity
    return x
