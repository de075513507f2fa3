"""Conditional flow matching: noise becomes a spectrogram along a learned field of velocities.

    x(t) = (1 - (1 - sigma_min) t) · noise + t · target         a straight line, from noise at t = 0
    velocity = target - (1 - sigma_min) · noise                 what the field learns to predict from x(t) and t

To generate, noise follows the field from t = 0 to 1 in a few steps. Noise and times are functions of the row's key
alone, so that neither padding nor the rest of the batch changes them. The field is a stack of the model factory
(``TransformerField``), or has ConvNeXt blocks at full and lower frame rates (``UNetField``):

    x, condition ─▶ blocks ───────────────────────────────────▶ merge ─▶ blocks ─▶ velocities
                      └─▶ pairs of frames ─▶ blocks ─▶ each twice ──┘

Sources: Lipman et al. 2023, "Flow Matching for Generative Modeling", section 4.1 (optimal transport path); Mehta et al.
2024, "Matcha-TTS: A Fast TTS Architecture with Conditional Flow Matching" (U-Net); Le et al. 2023, "Voicebox"
(transformer). Differs: norms are of each frame alone, so that padding changes nothing; ConvNeXt blocks take the place
of residual and attention blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from vaak.core.batch import Term
from vaak.nn.config import StackConfig
from vaak.nn.feed_forward import ConvNeXtBlock
from vaak.nn.kernels.random_features import SquaredNorms
from vaak.nn.norms import LayerNorm
from vaak.nn.own_network import make_stack
from vaak.nn.positional_encodings import sinusoidal_encoding
from vaak.nn.speech.masks import exact, masked, masked_sum

Field = Callable[[Tensor, Tensor], Tensor]
"""The velocities ``(batch, frame, bin)`` at ``x`` of that shape and at ``times`` ``(batch,)``."""
SIGMA_MIN = 1e-4
"""The deviation around the target that remains at the end of a path."""


class Draws(NamedTuple):
    """``noise`` ``(batch, frame, bin)`` is normal, 0 in padding; ``times`` ``(batch,)`` are from 0 to 1."""

    noise: Tensor
    times: Tensor


def row_draws(keys: Sequence[int], lengths: Sequence[int], num_bins: int) -> Draws:
    """Return the draws of rows of ``lengths`` frames, each from its own key (``vaak.core.random_keys``); on the CPU."""
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


TIME_SCALE = 1000.0
"""Times from 0 to 1 are encoded like positions from 0 to this."""


class TimeEmbedding(nn.Module):
    """A vector ``(batch, width)`` for each time ``(batch,)``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)

    def forward(self, times: Tensor) -> Tensor:
        encoded = sinusoidal_encoding(TIME_SCALE * exact(times), self.first.in_features, self.first.bias.dtype)
        vectors: Tensor = self.second(F.silu(self.first(encoded)))
        return vectors


class TransformerField(nn.Module):
    """A stack that sees all frames; the time is added to each of them."""

    def __init__(self, config: StackConfig, num_bins: int, condition_width: int) -> None:
        super().__init__()
        self.input = nn.Linear(num_bins + condition_width, config.d_model)
        self.time = TimeEmbedding(config.d_model)
        self.stack = make_stack(config, causal=False, section="model.decoder")
        self.output = nn.Linear(config.d_model, num_bins)

    def forward(
        self, x: Tensor, times: Tensor, condition: Tensor, mask: Tensor, norms: SquaredNorms | None = None
    ) -> Tensor:
        """Velocities ``(batch, frame, num_bins)``, 0 in padding.

        ``x`` has that shape, ``times`` is ``(batch,)``, ``condition`` ``(batch, frame, condition_width)``; frames are
        real where ``mask`` is True. ``norms`` tally what enters feature maps.
        """
        entering = self.input(masked(torch.cat((x, condition), -1), mask)) + self.time(times)[:, None]
        return masked(self.output(self.stack(entering, mask=mask, norms=norms and (norms, norms))), mask)


class UNetField(nn.Module):
    """Blocks at each frame rate, down and up again; the time scales and shifts what they read."""

    def __init__(
        self,
        num_bins: int,
        condition_width: int,
        width: int = 256,
        num_levels: int = 2,
        blocks_per_level: int = 2,
        kernel_size: int = 7,
    ) -> None:
        """``num_levels`` rates, each half of the one above, with ``blocks_per_level`` on the way down and up.

        ``num_bins`` are those of the spectrogram, ``condition_width`` the width of the encoded text per frame;
        blocks have ``width`` and kernels of ``kernel_size`` frames, which is odd.
        """
        super().__init__()

        def blocks() -> nn.ModuleList:
            # one over about the number of blocks, so that the sum of all starts near the size of one
            scale, several = 1 / (2 * num_levels * blocks_per_level), range(blocks_per_level)
            return nn.ModuleList(
                ConvNeXtBlock(width, 4 * width, kernel_size, layer_scale=scale, condition_width=width) for _ in several
            )

        lower = range(num_levels - 1)
        self.input = nn.Linear(num_bins + condition_width, width)
        self.time = TimeEmbedding(width)
        self.down = nn.ModuleList(blocks() for _ in lower)
        self.to_half_rate = nn.ModuleList(nn.Linear(2 * width, width) for _ in lower)
        self.lowest = blocks()
        self.merge = nn.ModuleList(nn.Linear(2 * width, width) for _ in lower)
        self.up = nn.ModuleList(blocks() for _ in lower)
        self.norm = LayerNorm(width)
        self.output = nn.Linear(width, num_bins)

    def forward(
        self, x: Tensor, times: Tensor, condition: Tensor, mask: Tensor, norms: SquaredNorms | None = None
    ) -> Tensor:
        """Velocities ``(batch, frame, num_bins)``, 0 in padding.

        ``x`` has that shape, ``times`` is ``(batch,)``, ``condition`` ``(batch, frame, condition_width)``; frames are
        real where ``mask`` is True. Without feature maps, ``norms`` stay empty.
        """
        time = self.time(times)
        hidden = self._level(self.input(masked(torch.cat((x, condition), -1), mask)), mask, time, 0)
        return masked(self.output(self.norm(hidden)), mask)

    def _level(self, x: Tensor, mask: Tensor, time: Tensor, level: int) -> Tensor:
        """``x`` ``(batch, frame, width)`` after the blocks of a level and of all below it."""
        if level == len(self.down):
            return _through(self.lowest, x, mask, time)
        x = _through(self.down[level], x, mask, time)
        read = F.pad(masked(x, mask), (0, 0, 0, 1))
        pairs = torch.cat((read[:, :-1:2], read[:, 1::2]), -1)
        below = self._level(self.to_half_rate[level](pairs), mask[:, ::2], time, level + 1)
        repeated = below.index_select(1, torch.arange(x.shape[1], device=x.device) // 2)
        return _through(self.up[level], self.merge[level](torch.cat((x, repeated), -1)), mask, time)


def _through(blocks: nn.Module, x: Tensor, mask: Tensor, time: Tensor) -> Tensor:
    for block in blocks.children():
        x = block(x, mask, time)
    return x
