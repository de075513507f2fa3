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

With ``streaming``, audio may be read in chunks of any number of frames. A frame sees those of its chunk and
``left_frames`` before it; convolutions read earlier frames only, but for the first ones, which read on by
2 · (subsampling − 1) frames of features:

    features   0 1 2 3 4 5 6 7 8 9 …          subsampling 4: frame 0 reads features 0 to 6, frame 1 those from 4 to 10
    frames     0       1       2              a chunk of C frames needs 4 C + 6 features; the last 6 are read again

Source: Zhang et al. 2020, "Unified Streaming and Non-streaming Two-pass End-to-end Model for Speech Recognition"
(dynamic chunks: in half of the batches all frames are seen). Differs: how far back is seen is a number of frames,
whatever the chunk.
"""

from __future__ import annotations

import itertools
from typing import Annotated as Bool
from typing import Annotated as Float
from typing import Annotated as Int

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.nn.config import ConformerConfig, StackConfig
from vaak.nn.decoding.cache import LayerCache, RecentCache, StackCache
from vaak.nn.feed_forward import TimeConvolution, inner_width, make_feed_forward
from vaak.nn.kernels.visibility import Visibility
from vaak.nn.own_network import OwnNetwork
from vaak.nn.speech.masks import length_mask, masked
from vaak.nn.stack import AttentionInputs, Block, TransformerStack


class Conformer(nn.Module):
    """Features as the frames of an encoder."""

    def __init__(self, config: ConformerConfig, num_bins: int) -> None:
        """Weights are as torch draws them; ``vaak.nn.initialisation`` draws those of a stack."""
        super().__init__()
        self.subsampling = Subsampling(num_bins, config.d_model, config.subsampling, streaming=config.streaming)
        self.dropout = nn.Dropout(config.dropout)
        self.stack: nn.Module
        if config.is_own:
            self.stack = OwnNetwork(config, causal=False, section="model.conformer")
        else:
            self.stack = ConformerStack(config, causal=False)

    def forward(
        self, features: Float[Tensor, "batch time bin"], lengths: Int[Tensor, " batch"], chunk: int | None = None
    ) -> tuple[Float[Tensor, "batch frame d_model"], Int[Tensor, " batch"]]:
        """Return the encoder's frames and their numbers; input beyond ``lengths`` doesn't affect real frames.

        With ``chunk``, the frames are those of audio read in chunks of that many frames.
        """
        x, lengths = self.subsampling(features, lengths)
        x, mask = self.dropout(x), length_mask(lengths, x.shape[1])
        if chunk is not None:
            assert isinstance(self.stack, ConformerStack)
            return self.stack.in_chunks(x, mask, chunk), lengths
        encoded: Tensor = self.stack(x, mask=mask)
        return encoded, lengths


class Subsampling(nn.Module):
    """Convolutions over three frames, each of which halves their number, rounded up."""

    layer_number = -1
    """For rates by layer (``layer_decay``): its own layers are below the stack's."""

    def __init__(self, num_bins: int, width: int, factor: int, *, streaming: bool = False) -> None:
        """Where it is ``streaming``, a frame reads only later ones than its first."""
        super().__init__()
        self.factor = factor
        sizes = [num_bins] + [width] * (factor.bit_length() - 1)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(before, after, 3, stride=2, padding=0 if streaming else 1)
            for before, after in itertools.pairwise(sizes)
        )
        self.streaming = streaming
        self.output = nn.Linear(sizes[-1], width)

    def forward(
        self, features: Float[Tensor, "batch time bin"], lengths: Int[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "batch frame width"], Int[Tensor, " batch"]]:
        """Return the frames, and how many of them are real."""
        x = masked(features, length_mask(lengths, features.shape[1]))
        for convolution in self.convolutions:
            lengths = (lengths + 1) // 2
            x = F.pad(x, (0, 0, 0, 2)) if self.streaming else x
            x = F.gelu(convolution(x.transpose(1, 2))).transpose(1, 2)
            x = masked(x, length_mask(lengths, x.shape[1]))
        return self.output(x), lengths

    @property
    def read_on(self) -> int:
        """Where it is streaming, the frames of features that are read beyond those of a frame."""
        return 2 * (self.factor - 1)

    def whole_frames(self, features: Float[Tensor, "batch time bin"]) -> Float[Tensor, "batch frame width"]:
        """Return the frames for which all features are there, of a streaming one."""
        x = features.transpose(1, 2)
        for convolution in self.convolutions:
            x = F.gelu(convolution(x))
        found: Tensor = self.output(x.transpose(1, 2))
        return found


def chunk_mask(num_frames: int, chunk: int, left: int, device: torch.device) -> Bool[Tensor, "query key"]:
    """True where a frame sees another, which is in its chunk, or among the ``left`` before that.

    >>> chunk_mask(5, 2, 1, torch.device("cpu")).int()
    tensor([[1, 1, 0, 0, 0],
            [1, 1, 0, 0, 0],
            [0, 1, 1, 1, 0],
            [0, 1, 1, 1, 0],
            [0, 0, 0, 1, 1]], dtype=torch.int32)
    """
    frames = torch.arange(num_frames, device=device)
    first = (frames // chunk * chunk)[:, None]
    return (frames < first + chunk) & (frames >= first - left)


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

    def in_chunks(
        self, x: Float[Tensor, "batch time d_model"], mask: Bool[Tensor, "batch time"], chunk: int
    ) -> Float[Tensor, "batch time d_model"]:
        """Return the blocks' output for ``x``, real where ``mask`` is True, as if it came in chunks."""
        config = self.config
        assert isinstance(config, ConformerConfig)
        seen = chunk_mask(x.shape[1], chunk, config.left_frames, x.device) & mask[:, None]
        # Padding sees itself, or nothing would be left of its weights.
        seen = seen | torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        positions = torch.arange(x.shape[1], device=x.device)[None]
        visibility = Visibility(causal=False, pairs=seen[:, None])
        return self.through_blocks(x, AttentionInputs(visibility, self.positions.rotation(positions), mask=mask))

    def next_chunk(
        self,
        x: Float[Tensor, "batch time d_model"],
        cache: StackCache,
        begin: int | Int[Tensor, ""],
        seen: Bool[Tensor, " key"] | None = None,
    ) -> Float[Tensor, "batch time d_model"]:
        """Return the blocks' output for the next chunk, which begins at frame ``begin``; the cache is continued.

        ``seen`` is True where a key of the cache, or of the chunk, is real; None: all are.
        """
        positions = (torch.arange(x.shape[1], device=x.device) + begin)[None]
        visibility = Visibility(causal=False, pairs=None if seen is None else seen[None, None, None])
        return self.through_blocks(x, AttentionInputs(visibility, self.positions.rotation(positions)), cache)

    def new_cache(self) -> StackCache:
        """Return an empty cache, for reading chunk by chunk."""
        assert isinstance(self.config, ConformerConfig)
        cache, most = super().new_cache(), self.config.left_frames
        cache.self_attention = [RecentCache(most) for _ in self.blocks]
        return cache


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
        x = self.add(
            "attention",
            x,
            lambda y: self.attention(y, visibility, rotation=rotation, cache=cache),
            recompute=around.recompute_attention,
        )
        x = self.add("convolution", x, lambda y: self.convolution(y, mask, cache))
        x = self.add("feed_forward", x, lambda y: 0.5 * self.feed_forward(y))
        normed: Tensor = self.output_norm(x)
        return normed


class GatedConvolution(nn.Module):
    """Each frame's channels, gated, mixed with those of its neighbours, then with each other."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        width = config.d_model
        self.gated = nn.Linear(width, 2 * width, bias=config.bias)
        self.over_time = TimeConvolution(
            width, width, config.kernel_size, groups=width, bias=config.bias, causal=config.streaming
        )
        self.norm = Block.make_norm(config)
        self.output = nn.Linear(width, width, bias=config.bias)

    def forward(
        self,
        x: Float[Tensor, "batch time width"],
        mask: Bool[Tensor, "batch time"] | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch time width"]:
        """Return the mixture; neighbours are read where ``mask`` is True, or, of those before, from the ``cache``."""
        gated = F.glu(self.gated(x), -1)
        neighbours = self.over_time(gated, mask) if cache is None else self._continued(gated, cache)
        mixed: Tensor = self.output(F.silu(self.norm(neighbours)))
        return mixed

    def _continued(self, x: Tensor, cache: LayerCache) -> Tensor:
        """Convolve the next frames; the cache keeps the last that those after them read."""
        number = self.over_time.past_frames
        before = cache.tensors.get("convolution")
        x = F.pad(x, (0, 0, number, 0)) if before is None else torch.cat((before, x), 1)
        cache.tensors["convolution"] = x[:, x.shape[1] - number :]
        return self.over_time.continued(x)


class ConformerStream:
    """Reads one utterance chunk by chunk: give it ``read`` features as they come."""

    def __init__(self, encoder: Conformer, chunk: int) -> None:
        assert isinstance(encoder.stack, ConformerStack)
        self.encoder, self.stack, self.chunk = encoder, encoder.stack, chunk
        self.cache, self.num_frames = encoder.stack.new_cache(), 0
        self.rest: Tensor | None = None

    def read(self, features: Float[Tensor, "1 time bin"], *, is_last: bool) -> Float[Tensor, "1 frame d_model"]:
        """Return the encoder's frames that further features complete; all that are left where they are the last."""
        self.rest = features if self.rest is None else torch.cat((self.rest, features), 1)
        subsampling, chunk, encoded = self.encoder.subsampling, self.chunk, list[Tensor]()
        while self.rest.shape[1] >= chunk * subsampling.factor + subsampling.read_on:
            frames = subsampling.whole_frames(self.rest[:, : chunk * subsampling.factor + subsampling.read_on])
            encoded.append(self._next(frames))
            self.rest = self.rest[:, chunk * subsampling.factor :]
        if is_last and self.rest.shape[1]:
            frames, _ = subsampling(self.rest, torch.tensor([self.rest.shape[1]], device=self.rest.device))
            encoded += map(self._next, frames.split(chunk, 1))
            self.rest = self.rest[:, :0]
        width = self.stack.config.d_model
        return torch.cat(encoded, 1) if encoded else features.new_zeros(len(features), 0, width)

    def _next(self, frames: Tensor) -> Tensor:
        encoded = self.stack.next_chunk(frames, self.cache, self.num_frames)
        self.num_frames += frames.shape[1]
        return encoded
