"""How a stack knows the order of its tokens: which of the kinds of positions it has, and where each acts.

    sinusoidal (and in halves), learned, convolutional    added to the stream before the first block
    rotary                                                queries and keys are turned in every layer
    alibi, t5                                             added to the score of every pair of tokens

Sources: Vaswani et al. 2017, "Attention Is All You Need", section 3.5 (sinusoidal); Gehring et al. 2017, "Convolutional
Sequence to Sequence Learning", section 3.1 (learned); Baevski et al. 2020, "wav2vec 2.0", section 2, and Chu et al.
2021, "Conditional Positional Encodings for Vision Transformers", section 3 (convolutional); Su et al. 2021, "RoFormer",
section 3.4.2 (rotary); Press et al. 2022, "Train Short, Test Long", section 3 (ALiBi), and its code for numbers of
heads that are not a power of two; Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified
Text-to-Text Transformer", section 2.1 (T5). Differs: ALiBi counts later tokens, where they are seen, by their distance
like earlier ones. A pair of rotary coordinates is half a head apart, as in Llama's published weights. A convolution is
depthwise, over time, without weight normalisation, and begins as noise that keeps the variance of its input.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Annotated as Float
from typing import Annotated as Int
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.core.errors import UserError
from vaak.core.torch_internals import is_fake, unwatched
from vaak.nn.config import StackConfig
from vaak.nn.decoding.cache import LayerCache, StackCache
from vaak.nn.kernels.device_paths import paths_on
from vaak.nn.kernels.row_kernels import has_rotated, rotated

BASE = 10000.0


class Sinusoidal(nn.Module):
    """Adds each place's encoding; nothing is learned or stored, and rows may be of any length."""

    def __init__(self, width: int, *, in_halves: bool = False) -> None:
        """``in_halves`` puts all sines before all cosines, as Marian does."""
        super().__init__()
        self.width, self.in_halves = width, in_halves

    def forward(
        self, x: Float[Tensor, "batch time width"], positions: Int[Tensor, "#batch time"]
    ) -> Float[Tensor, "batch time width"]:
        """Return ``x`` with the encoding of each position added, in the type of ``x``."""
        precision = torch.promote_types(x.dtype, torch.float32)
        encoding = sinusoidal_encoding(positions, self.width, precision)
        if self.in_halves:
            encoding = torch.cat((encoding[..., ::2], encoding[..., 1::2]), -1)
        return x + encoding.to(x.dtype)


def sinusoidal_encoding(positions: Tensor, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Coordinate 2i is ``sin(position / 10000^(2i / width))``, 2i + 1 its cosine, ``(*positions, width)``.

    >>> sinusoidal_encoding(torch.tensor([0, 1]), 4).round(decimals=2)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8400, 0.5400, 0.0100, 1.0000]])
    """
    exponents = torch.arange(0, width, 2, device=positions.device).to(dtype) / width
    angles = positions[..., None].to(dtype) / BASE**exponents
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)[..., :width]


class LearnedPositions(nn.Module):
    """Adds the vector of each place; there is none beyond ``max_length``."""

    def __init__(self, width: int, max_length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(max_length, width)

    def forward(
        self, x: Float[Tensor, "batch time width"], positions: Int[Tensor, "#batch time"], below: int | None = None
    ) -> Float[Tensor, "batch time width"]:
        """Return ``x`` with the vector of each position added, in the type of ``x``.

        Raises ValueError for a place that has no vector, except in an exported model. To know, it waits for the device,
        unless ``below``, which positions are less than, is within reach.
        """
        max_length = self.embedding.num_embeddings
        is_in_reach = torch.compiler.is_exporting() or (below is not None and below <= max_length)
        if not is_in_reach and (length := int(positions.max()) + 1) > max_length:
            raise ValueError(
                f"{length} tokens are more than the {max_length} that the learned positions reach; shorten the text, "
                "or train with a larger max_length or another position_type"
            )
        placed: Tensor = x + self.embedding(positions).to(x.dtype)
        return placed


POSITION_BLOCK = 16
"""Tokens that are convolved by one product of matrices."""


class ConvolutionalPositions(nn.Module):
    """Adds to each token a mixture of its neighbours within its document, ``x + gelu(convolution(x))``.

        a row            a b c d e _         three tokens of one document, two of the next, padding
        is convolved as  a b c 0 d e 0 0     documents set apart by zeros that a kernel of 3 can't reach across

    In a decoder it reaches back only. ``kernel_size`` is odd.
    """

    def __init__(self, width: int, causal: bool, kernel_size: int = 31) -> None:
        super().__init__()
        assert kernel_size % 2, "a token stands in the middle of its kernel"
        self.causal = causal
        self.kernel_size = kernel_size
        self.weight = nn.Parameter(torch.empty(width, 1, kernel_size))
        self.bias = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the kernels again; biases start at 0, or they would drown small embeddings."""
        nn.init.normal_(self.weight, std=self.kernel_size**-0.5)
        nn.init.zeros_(self.bias)

    def forward(
        self,
        x: Float[Tensor, "batch time width"],
        documents: Int[Tensor, "batch time"] | None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch time width"]:
        """Return ``x`` with a mixture of neighbours of the same document added to each token, in the type of ``x``.

        With a cache, ``x`` continues after the tokens that it remembers.
        """
        read, read_documents = x, documents
        if cache is not None:
            read, read_documents = self._with_the_last(x, documents, cache)
        convolved = self._convolve(read) if read_documents is None else self._convolve_apart(read, read_documents)
        return x + F.gelu(convolved[:, -x.shape[1] :]).to(x.dtype)

    def _with_the_last(self, x: Tensor, documents: Tensor | None, cache: LayerCache) -> tuple[Tensor, Tensor]:
        """``x`` and its documents after as many earlier tokens as the kernel reaches, which the cache keeps."""
        assert self.causal, "only a decoder can continue from a cache"
        if documents is None:
            documents = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        if cache.tensors:
            x = torch.cat((cache.tensors["inputs"], x), 1)
            documents = torch.cat((cache.tensors["documents"], documents), 1)
        first_kept = max(0, x.shape[1] - (self.kernel_size - 1))
        cache.tensors.update(inputs=x[:, first_kept:], documents=documents[:, first_kept:])
        return x, documents

    def _convolve_apart(self, x: Tensor, documents: Tensor) -> Tensor:
        """Return the convolution of each document by itself; in an exported model, a row has one."""
        if torch.compiler.is_exporting():
            return self._convolve(x.masked_fill(documents[..., None] < 0, 0.0))
        begins = documents[:, 1:] != documents[:, :-1]
        gap = self.kernel_size - 1 if self.causal else self.kernel_size // 2
        places = torch.arange(x.shape[1], device=x.device) + F.pad(gap * begins.cumsum(1), (1, 0))
        index = places[..., None].expand_as(x)
        spread = x.new_zeros(x.shape[0], int(places.max()) + 1, x.shape[2])
        spread = spread.scatter(1, index, x.masked_fill(documents[..., None] < 0, 0.0))
        return self._convolve(spread).gather(1, index)

    def _convolve(self, x: Tensor) -> Tensor:
        reach = self.kernel_size - 1
        before = reach if self.causal else reach // 2
        if paths_on(x.device).toeplitz_convolution and not torch.compiler.is_exporting():
            return self._convolve_by_products(x, before)
        padded = F.pad(x.transpose(1, 2), (before, reach - before))
        return F.conv1d(padded, self.weight, self.bias, groups=x.shape[2]).transpose(1, 2)

    def _convolve_by_products(self, x: Tensor, before: int) -> Tensor:
        """Each block of tokens is a product of what its kernels reach with a matrix that has the kernel in every row.

        On a CPU this takes a tenth of the time of torch's depthwise convolution, forward and backward.
        """
        rows, time, width = x.shape
        reach, blocks = self.kernel_size - 1, -(-time // POSITION_BLOCK)
        padded = F.pad(x.permute(2, 0, 1), (before, blocks * POSITION_BLOCK + reach - before - time))
        read = padded.unfold(2, POSITION_BLOCK + reach, POSITION_BLOCK).flatten(1, 2)
        # a kernel with zeros after it, repeated: cut in rows that are shorter by one, it moves on in each
        again = F.pad(self.weight[:, 0], (0, POSITION_BLOCK)).repeat(1, POSITION_BLOCK)
        kernels = again[:, : POSITION_BLOCK * (POSITION_BLOCK + reach)].unflatten(
            1, (POSITION_BLOCK, POSITION_BLOCK + reach)
        )
        convolved = torch.bmm(read, kernels.transpose(1, 2)).reshape(width, rows, blocks * POSITION_BLOCK)
        return convolved[:, :, :time].permute(1, 2, 0) + self.bias


class Rotation(NamedTuple):
    """Cosine and signed sine of every position's angles, each ``(batch or 1, time, 1, head_width)``."""

    cosine: Tensor
    sine: Tensor


class Scaling(NamedTuple):
    """How rows that are ``factor`` times longer than in training are fitted in; 1 changes nothing.

    Each pair of a head's coordinates ``(x[i], x[i + width/2])`` turns by ``position · theta^(-2i / width)``. ``linear``
    slows all pairs down by the factor; ``ntk`` leaves the fastest pair unchanged and slows the slowest down by the
    factor, the others by something between. ``llama3`` and ``yarn`` count how often a pair turns within the length of
    training. Below a bound it is slowed down by the whole factor, above another not at all. In between, a mixture is
    linear in the turns (llama3) or in the number of the pair (yarn). ``yarn`` also scales the
    rotated values by ``0.1 ln(factor) + 1``. ``original_length`` (tokens) and ``bounds`` (turns in it) are read by
    llama3 and yarn.

    Sources: Chen et al. 2023, "Extending Context Window of Large Language Models via Positional Interpolation"
    (linear); bloc97 2023, "NTK-Aware Scaled RoPE", and Peng et al. 2023, "YaRN", sections 3.1 (ntk), 3.2 (llama3;
    Llama Team 2024, "The Llama 3 Herd of Models") and 3.4 (yarn, as in its published code).
    """

    type: Literal["linear", "ntk", "llama3", "yarn"] = "linear"
    factor: float = 1.0
    original_length: int = 8192
    bounds: tuple[float, float] | None = None

    @property
    def turns(self) -> tuple[float, float]:
        """The bounds, with their null filled in."""
        return self.bounds or ((1.0, 32.0) if self.type == "yarn" else (1.0, 4.0))


def rotation(
    positions: Int[Tensor, "#batch time"], head_width: int, theta: float, scaling: Scaling | None = None
) -> Rotation:
    """Return the rotation of each position; the same for all layers, so made once in a forward pass.

    Angles are float32 even in a float64 model: that is what transformers computes, and exports agree to the last bit.

    ``head_width`` is the number of values that are rotated in pairs, ``theta`` the base of the angles. ``scaling`` is
    how longer rows are fitted in.
    """
    kind, factor, *_ = scaling = scaling or Scaling()
    exponents = torch.arange(0, head_width, 2, device=positions.device, dtype=torch.float32) / head_width
    if kind == "ntk":
        theta = ntk_theta(theta, head_width, factor)
    frequencies = 1.0 / theta**exponents
    if kind == "linear" and factor != 1:
        frequencies = frequencies / factor
    elif kind in ("llama3", "yarn") and factor != 1:
        slowed = _slowed(frequencies, theta, scaling)
        frequencies = frequencies * (1 - slowed) + frequencies / factor * slowed
    angles = positions[..., None].float() * frequencies
    cosine, sine = angles.cos(), angles.sin()
    if kind == "yarn" and factor != 1:
        cosine, sine = cosine * yarn_factor(factor), sine * yarn_factor(factor)
    # coordinate i turns with i + width/2: both halves have the same angles, the first sine negated
    return Rotation(torch.cat((cosine, cosine), -1).unsqueeze(-2), torch.cat((-sine, sine), -1).unsqueeze(-2))


LONGEST_KEPT = 8192
"""Rotations of longer rows are made for each batch."""


def rotation_from_start(x: Tensor, head_width: int, theta: float, scaling: Scaling) -> Rotation:
    """Return the rotation of the positions 0, 1, … of ``x`` ``(batch, time, width)``; on CUDA it was made before.

    It is a slice of the rotation of as many positions or more, which is never given back: a CUDA graph may read it.
    """
    time = x.shape[1]
    is_kept = x.is_cuda and not (torch.compiler.is_compiling() or is_fake(x)) and time <= LONGEST_KEPT
    if is_kept and not torch.cuda.is_current_stream_capturing():
        longest = max(64, 1 << (time - 1).bit_length())
        return Rotation(*(one[:, :time] for one in _kept_rotation(longest, head_width, theta, scaling, x.device)))
    return rotation(torch.arange(time, device=x.device)[None], head_width, theta, scaling)


@cache
def _kept_rotation(time: int, head_width: int, theta: float, scaling: Scaling, device: torch.device) -> Rotation:
    with torch.inference_mode(False), unwatched():
        return rotation(torch.arange(time, device=device)[None], head_width, theta, scaling)


def _slowed(frequencies: Tensor, theta: float, scaling: Scaling) -> Tensor:
    """Return how much of the factor each pair is slowed down by, from 0 to 1, ``(pair,)``."""
    (low, high), length, width = scaling.turns, scaling.original_length, 2 * len(frequencies)
    if scaling.type == "llama3":
        return 1 - ((length * frequencies / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
    first, last = (width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (high, low))
    first, last = max(math.floor(first), 0), min(math.ceil(last), width - 1)
    pairs = torch.arange(len(frequencies), device=frequencies.device, dtype=torch.float32)
    return ((pairs - first) / (last - first if last != first else 0.001)).clamp(0, 1)


def yarn_factor(factor: float) -> float:
    """Return the factor by which ``yarn`` multiplies rotated queries and keys."""
    return 0.1 * math.log(factor) + 1.0


def ntk_theta(theta: float, head_width: int, scaling_factor: float) -> float:
    """Return the base at which the slowest pair turns ``scaling_factor`` times as slowly, and the fastest as before.

    >>> ntk_theta(10000.0, 64, 1.0)
    10000.0
    """
    if head_width == 2:
        # Its one pair is the fastest.
        return theta
    stretched: float = theta * scaling_factor ** (head_width / (head_width - 2))
    return stretched


def rotate(
    x: Float[Tensor, "batch time heads head_width"], by: Rotation, dtype: torch.dtype | None = None
) -> Float[Tensor, "batch time heads head_width"]:
    """Return ``x`` with every head rotated to its position, in ``dtype``, or the precision of the angles or of ``x``.

    Rolling by half a head swaps the members of each pair; the signs are in the sine.
    """
    dtype = torch.promote_types(x.dtype, by.cosine.dtype) if dtype is None else dtype
    if has_rotated(x):
        return rotated(x, by.cosine, by.sine, dtype)
    return torch.addcmul(x * by.cosine, x.roll(x.shape[-1] // 2, -1), by.sine).to(dtype)


class Alibi(nn.Module):
    """``-slope · |distance|`` for every head."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.slopes = alibi_slopes(num_heads)

    def forward(self, distance: Int[Tensor, "query key"]) -> Float[Tensor, "heads query key"]:
        """Return the bias of the scores at these distances, float32."""
        slopes = torch.tensor(self.slopes, dtype=torch.float32, device=distance.device)
        return -slopes[:, None, None] * distance.abs()


def alibi_slopes(num_heads: int) -> list[float]:
    """The geometric sequence that ends at 1/256; for other numbers, filled up by every second slope of twice as many.

    >>> alibi_slopes(4)
    [0.25, 0.0625, 0.015625, 0.00390625]
    >>> alibi_slopes(3)
    [0.0625, 0.00390625, 0.25]
    """
    power = 2 ** int(math.log2(num_heads))
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    if power == num_heads:
        return slopes
    return slopes + alibi_slopes(2 * power)[::2][: num_heads - power]


NUM_BUCKETS = 32
MAX_DISTANCE = 128


class RelativeBias(nn.Module):
    """The number of each distance's bucket; ``bidirectional`` tells earlier from later, else later ones count as 0."""

    def __init__(self, num_heads: int, bidirectional: bool) -> None:
        super().__init__()
        self.bidirectional = bidirectional
        self.embedding = nn.Embedding(NUM_BUCKETS, num_heads)

    def forward(self, distance: Int[Tensor, "query key"]) -> Float[Tensor, "heads query key"]:
        """Return the bias of the scores at these distances."""
        bias: Tensor = self.embedding(distance_buckets(distance, self.bidirectional)).permute(2, 0, 1)
        return bias


def distance_buckets(distance: Tensor, bidirectional: bool) -> Tensor:
    """Return the bucket of each distance, key's place less query's.

    >>> distance_buckets(torch.tensor([-200, -20, -3, 0, 3, 200]), bidirectional=True)
    tensor([15, 10,  3,  0, 19, 31])
    >>> distance_buckets(torch.tensor([-200, -20, -3, 0, 3]), bidirectional=False)
    tensor([31, 17,  3,  0,  0])
    """
    num_buckets = NUM_BUCKETS // 2 if bidirectional else NUM_BUCKETS
    side = (distance > 0).long() * num_buckets if bidirectional else 0
    steps = distance.abs() if bidirectional else (-distance).clamp(min=0)
    num_exact = num_buckets // 2
    growth = torch.log(steps.clamp(min=1).float() / num_exact) / math.log(MAX_DISTANCE / num_exact)
    far = (num_exact + (growth * (num_buckets - num_exact)).long()).clamp(max=num_buckets - 1)
    return side + torch.where(steps < num_exact, steps, far)


SINUSOIDAL = ("sinusoidal", "sinusoidal_halves")


class Positions(nn.Module):
    """The positions of one stack; ``max_length`` is the longest sequence that learned ones have a vector for."""

    def __init__(self, config: StackConfig, *, causal: bool, max_length: int | None) -> None:
        super().__init__()
        self.config = config
        kind = config.position_type
        self.added: Sinusoidal | LearnedPositions | ConvolutionalPositions | None = None
        self.bias: Alibi | RelativeBias | None = None
        if kind in SINUSOIDAL:
            self.added = Sinusoidal(config.d_model, in_halves=kind == "sinusoidal_halves")
        elif kind == "learned":
            if max_length is None:
                raise UserError("position_type learned has a vector for each position; give max_length")
            self.added = LearnedPositions(config.d_model, max_length)
        elif kind == "convolutional":
            self.added = ConvolutionalPositions(config.d_model, causal)
        elif kind == "alibi":
            self.bias = Alibi(config.num_heads)
        elif kind == "t5":
            self.bias = RelativeBias(config.num_heads, bidirectional=not causal)

    def add(
        self,
        x: Float[Tensor, "batch time width"],
        positions: Int[Tensor, "#batch time"] | None,
        documents: Int[Tensor, "batch all_time"] | None,
        cache: LayerCache | None,
        below: int | None = None,
    ) -> Float[Tensor, "batch time width"]:
        """Return ``x``, with the positions added if they are of a kind that is; without any, these are 0, 1, …

        They are less than ``below``, if it is known.
        """
        if self.added is None:
            return x
        if positions is None:
            positions, below = torch.arange(x.shape[1], device=x.device)[None], x.shape[1]
        around: tuple[Any, ...] = (positions,)
        if isinstance(self.added, ConvolutionalPositions):
            around = (documents, cache)
        elif isinstance(self.added, LearnedPositions):
            around = (positions, below)
        placed: Tensor = self.added(x, *around)
        return placed

    def rotation(self, positions: Int[Tensor, "#batch time"]) -> Rotation | None:
        """Return the rotation of queries and keys at these positions; None if they aren't rotated."""
        return None if self.config.position_type != "rotary" else self._rotate_at(positions)

    def rotation_from_start(self, x: Float[Tensor, "batch time width"]) -> Rotation | None:
        """Return the rotation of queries and keys at the positions 0, 1, …; None if they aren't rotated."""
        if self.config.position_type != "rotary":
            return None
        return rotation_from_start(x, self.config.head_width, self.config.rope_theta, self._scaling)

    def continued_rotation(
        self, positions: Int[Tensor, "#batch time"], cache: StackCache, *, in_order: bool
    ) -> Rotation | None:
        """Return the rotation of tokens that follow those of a cache, which keeps that of later ones, too.

        ``in_order`` says that the positions are those after all tokens read so far.
        """
        if self.config.position_type != "rotary":
            return None
        return Rotation(*cache.read_rotation(self._rotate_at, positions, in_order=in_order))

    def _rotate_at(self, positions: Tensor) -> Rotation:
        return rotation(positions, self.config.head_width, self.config.rope_theta, self._scaling)

    @property
    def _scaling(self) -> Scaling:
        config = self.config
        return Scaling(
            config.rope_scaling_type,
            config.rope_scaling_factor,
            config.rope_original_length,
            config.rope_scaling_bounds,
        )
