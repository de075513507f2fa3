"""The Conformer: a stack whose blocks convolve between attention and feed-forward, over features at a lower rate.

    features ──convolutions of stride 2──▶ frames ──▶ x + ½ · feed-forward
                                                      x + attention
                                                      x + convolution            each of a separate norm of x
                                                      x + ½ · feed-forward, and a norm of all

    convolution    output(SiLU(norm(over_time(value · sigmoid(gate)))))           over_time is depthwise

Source: Gulati et al. 2020, "Conformer: Convolution-augmented Transformer for Speech Recognition", sections 2 and 2.2.
Differs: a norm over channels replaces batch normalisation, so that a row's result doesn't depend on the others.
Positions are rotary, unless the options set others. The first convolutions are over time only, with all bins as
channels (Radford et al. 2022, "Whisper", section 2.2): those over time and bins took most of the time.
"""

from __future__ import annotations

import itertools
from typing import Annotated as Bool
from typing import Annotated as Float
from typing import Annotated as Int

from torch import Tensor, nn
from torch.nn import functional as F

from vaak.nn.config import ConformerConfig, StackConfig
from vaak.nn.decoding.cache import LayerCache
from vaak.nn.feed_forward import TimeConvolution, inner_width, make_feed_forward
from vaak.nn.own_network import OwnNetwork
from vaak.nn.speech.masks import length_mask, masked
from vaak.nn.stack import AttentionInputs, Block, TransformerStack


class Conformer(nn.Module):
    """Features as the frames of an encoder."""

    def __init__(self, config: ConformerConfig, num_bins: int) -> None:
        """Weights are as torch draws them; ``vaak.nn.initialisation`` draws those of a stack."""
        super().__init__()
        self.subsampling = Subsampling(num_bins, config.d_model, config.subsampling)
        self.dropout = nn.Dropout(config.dropout)
        self.stack: nn.Module
        if config.is_own:
            self.stack = OwnNetwork(config, causal=False, section="model.conformer")
        else:
            self.stack = ConformerStack(config, causal=False)

    def forward(
        self, features: Float[Tensor, "batch time bin"], lengths: Int[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "batch frame d_model"], Int[Tensor, " batch"]]:
        """Return the encoder's frames and their numbers; input beyond ``lengths`` doesn't affect real frames."""
        x, lengths = self.subsampling(features, lengths)
        encoded: Tensor = self.stack(self.dropout(x), mask=length_mask(lengths, x.shape[1]))
        return encoded, lengths


class Subsampling(nn.Module):
    """Convolutions over three frames, each of which halves their number, rounded up."""

    layer_number = -1
    """For rates by layer (``layer_decay``): its own layers are below the stack's."""

    def __init__(self, num_bins: int, width: int, factor: int) -> None:
        super().__init__()
        self.factor = factor
        sizes = [num_bins] + [width] * (factor.bit_length() - 1)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(before, after, 3, stride=2, padding=1) for before, after in itertools.pairwise(sizes)
        )
        self.output = nn.Linear(sizes[-1], width)

    def forward(
        self, features: Float[Tensor, "batch time bin"], lengths: Int[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "batch frame width"], Int[Tensor, " batch"]]:
        """Return the frames, and how many of them are real."""
        x = masked(features, length_mask(lengths, features.shape[1]))
        for convolution in self.convolutions:
            lengths = (lengths + 1) // 2
            x = F.gelu(convolution(x.transpose(1, 2))).transpose(1, 2)
            x = masked(x, length_mask(lengths, x.shape[1]))
        return self.output(x), lengths


def count_frames(num_features: int, factor: int) -> int:
    """Return the number of the encoder's frames of this many frames of features.

    >>> count_frames(9, 4), count_frames(8, 4)
    (3, 2)
    """
    return -(-num_features // factor)


class ConformerStack(TransformerStack):
    """Conformer blocks, one on another; each ends with a norm, so the stack needs none."""

    def __init__(self, config: ConformerConfig, *, causal: bool) -> None:
        super().__init__(config, causal=causal)
        self.norm = nn.Identity()

    def make_block(self, config: StackConfig, memory_width: int | None) -> nn.Module:
        assert isinstance(config, ConformerConfig)
        return ConformerBlock(config)


class ConformerBlock(Block):
    """One block."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__(config)
        width = inner_width(config.d_model, config.d_ff, config.feed_forward_type)
        self.first_feed_forward_norm = self.make_norm(config)
        self.first_feed_forward = make_feed_forward(config.feed_forward_type, config.d_model, width, config.bias)
        self.convolution_norm = self.make_norm(config)
        self.convolution = GatedConvolution(config)
        self.output_norm = self.make_norm(config)

    def forward(
        self,
        x: Float[Tensor, "batch time d_model"],
        around: AttentionInputs,
        cache: LayerCache | None = None,
        cross_cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch time d_model"]:
        """Return ``x`` with what its four layers add to it, normalised."""
        visibility, rotation, mask = around.visibility, around.rotation, around.mask
        x = self.add("first_feed_forward", x, lambda y: 0.5 * self.first_feed_forward(y))
        x = self.add("attention", x, lambda y: self.attention(y, visibility, rotation=rotation))
        x = self.add("convolution", x, lambda y: self.convolution(y, mask))
        x = self.add("feed_forward", x, lambda y: 0.5 * self.feed_forward(y))
        normed: Tensor = self.output_norm(x)
        return normed


class GatedConvolution(nn.Module):
    """Each frame's channels, gated, mixed with those of its neighbours, then with each other."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        width = config.d_model
        self.gated = nn.Linear(width, 2 * width, bias=config.bias)
        self.over_time = TimeConvolution(width, width, config.kernel_size, groups=width, bias=config.bias)
        self.norm = Block.make_norm(config)
        self.output = nn.Linear(width, width, bias=config.bias)

    def forward(
        self, x: Float[Tensor, "batch time width"], mask: Bool[Tensor, "batch time"] | None = None
    ) -> Float[Tensor, "batch time width"]:
        """Return the mixture; neighbours are read where ``mask`` is True."""
        mixed: Tensor = self.output(F.silu(self.norm(self.over_time(F.glu(self.gated(x), -1), mask))))
        return mixed
