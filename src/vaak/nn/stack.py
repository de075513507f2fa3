"""Transformer blocks, one on another, with the positions below them and, before its end, a last normalisation.

A block is attention, in a decoder of an encoder's output also cross-attention, and feed-forward:

    pre         x + layer(norm(x))
    post        norm(x + layer(x))
    sandwich    x + norm'(layer(norm(x)))

Dropout falls on what a layer adds. The options say which blocks (``vaak.nn.config``); the defaults are Llama's.

Sources: Vaswani et al. 2017, "Attention Is All You Need" (post); Xiong et al. 2020, "On Layer Normalization in the
Transformer Architecture" (pre); Ding et al. 2021, "CogView", section 2.4 (sandwich); Touvron et al. 2023, "LLaMA"
(pre-norm, RMSNorm, rotary positions and SwiGLU together).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Annotated as Bool
from typing import Annotated as Float
from typing import Annotated as Int
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vaak.config.training import Recomputation
from vaak.nn.attention import Attention
from vaak.nn.config import ConvolutionalStackConfig, DecoderConfig, StackConfig, TokenStackConfig
from vaak.nn.decoding.cache import LayerCache, StackCache
from vaak.nn.decoding.static_cache import StaticCache
from vaak.nn.feed_forward import MixtureOfExperts, inner_width, make_feed_forward
from vaak.nn.kernels.random_features import SquaredNorms
from vaak.nn.kernels.variable_length import has_kernels
from vaak.nn.kernels.visibility import Visibility, find_segments, positions_in_documents
from vaak.nn.norms import MOST_CAST, cast_weights, make_norm
from vaak.nn.positional_encodings import SINUSOIDAL, Positions, Rotation


class TransformerStack(nn.Module):
    """The blocks and the last normalisation (which post-norm blocks don't need).

    ``causal`` hides later tokens from earlier ones, as causal linear attention always does. With ``memory_width`` each
    block looks at an encoder's output of that width. ``max_length`` is needed by learned positions.

    ``gradient_checkpointing`` says what training computes again in the backward pass, with the same dropout, instead of
    keeping it (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"):

        False          nothing
        "attention"    self- and cross-attention with their norms; what feed-forward needs is kept
        True           each block: its input alone is kept
        "all"          each block, and groups of about √layers of them: the groups' inputs alone are kept until the
                       backward pass reaches a group, which then keeps its blocks' inputs. Two more forward passes, not
                       one; of use from four blocks on

    ``variable_length = False`` always tells documents apart by a mask.
    """

    def __init__(
        self, config: StackConfig, *, causal: bool, memory_width: int | None = None, max_length: int | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.causal = causal or config.attention_type == "causal_linear"
        self.cross_type = config.cross_type if isinstance(config, DecoderConfig) else "softmax"
        self.positions = Positions(config, causal=self.causal, max_length=max_length)
        self.blocks = nn.ModuleList(self.make_block(config, memory_width) for _ in range(config.num_layers))
        self.has_experts = False
        if isinstance(config, TokenStackConfig) and config.moe is not None:
            self.has_experts = True
            inner = inner_width(config.d_model, config.d_ff, config.feed_forward_type)
            for number in config.mixture_layers:
                block: Any = self.blocks[number]
                block.feed_forward = MixtureOfExperts(
                    config.moe,
                    config.d_model,
                    inner,
                    lambda size: make_feed_forward(config.feed_forward_type, config.d_model, size, config.bias),
                )
                # names its loads in a step's terms
                block.feed_forward.layer = str(number)
        self.norm: nn.Module = nn.Identity()
        if config.norm_placement != "post":
            self.norm = make_norm(config.norm_type, config.d_model, config.norm_eps)
        self.gradient_checkpointing: Recomputation = False
        self.variable_length = True

    def make_block(self, config: StackConfig, memory_width: int | None) -> nn.Module:
        """Return a new block; it is called as ``Block`` is."""
        return Block(config, memory_width, self.cross_type)

    def forward(
        self,
        x: Float[Tensor, "batch time d_model"],
        *,
        documents: Int[Tensor, "batch time"] | None = None,
        mask: Bool[Tensor, "batch time"] | None = None,
        positions: Int[Tensor, "#batch time"] | None = None,
        cache: StackCache | None = None,
        memory: Float[Tensor, "batch memory_time memory_width"] | None = None,
        memory_mask: Bool[Tensor, "batch memory_time"] | None = None,
        norms: tuple[SquaredNorms, SquaredNorms] | None = None,
        num_documents: int | None = None,
    ) -> Float[Tensor, "batch time d_model"]:
        """Return the blocks' output for the embedded tokens ``x``.

        ``documents`` numbers the document of each token, −1 where it is padding: tokens see only their own document,
        and positions restart with each. ``num_documents`` is how many there are in all rows at most, which kernels of
        variable length need to know (``vaak.nn.kernels.variable_length``). Without documents a row is one, padded on
        the right where ``mask`` is False; a causal stack needs none, for no token sees what comes after it.
        ``positions`` replaces the positions computed so. A causal stack with ``cache`` continues after the tokens
        already read; ``documents`` then holds the new tokens' only.

        ``memory`` is what cross-attention looks at, where ``memory_mask`` is True. ``norms`` tally what enters feature
        maps, of these tokens and of the memory's.
        """
        assert cache is None or self.causal, "only a causal stack can continue from a cache"
        visibility, own_positions = self._visibility(x, documents, mask, cache, num_documents)
        are_own = positions is None
        positions = own_positions if positions is None else positions
        padding = visibility.key_documents if documents is None else documents
        below = x.shape[1] if are_own and cache is None else None
        x = self.positions.add(x, positions, padding, None if cache is None else cache.positions, below)
        own_norms, memory_norms = norms or (None, None)
        # Cross-attention sees every real token of the memory.
        of_memory = Visibility(causal=False)
        if memory_mask is not None:
            numbers = memory_mask.long() - 1
            of_memory = Visibility(causal=False, key_documents=numbers, pairs=memory_mask[:, None, None, :])
        if self.has_experts and mask is None and documents is not None:
            mask = documents >= 0
        around = AttentionInputs(
            visibility,
            self._rotation(x, positions, cache if are_own else None, in_order=documents is None),
            memory,
            of_memory,
            own_norms,
            memory_norms,
            mask,
        )
        x = self.through_blocks(x, around, cache)
        if isinstance(cache, StaticCache):
            cache.end_token()
        elif cache is not None:
            cache.length += x.shape[1]
        normed: Tensor = self.norm(x)
        return normed

    def through_blocks(self, x: Tensor, around: AttentionInputs, cache: StackCache | None = None) -> Tensor:
        """Apply the blocks to ``x``, one after another; the ``cache`` is continued."""
        recompute: Recomputation = self.training and torch.is_grad_enabled() and self.gradient_checkpointing
        if recompute == "all":
            at_once = math.ceil(math.sqrt(len(self.blocks)))
            for start in range(0, len(self.blocks), at_once):
                group = self.blocks[start : start + at_once]
                x = checkpoint(_recompute_blocks, group, x, around, use_reentrant=False)
            return x
        if recompute is True:
            return _recompute_blocks(self.blocks, x, around)
        around = around._replace(recompute_attention=recompute == "attention")
        with cast_weights(self, at_most=MOST_CAST):
            for layer, block in enumerate(self.blocks):
                if cache is None:
                    x = _run_block(block, x, around)
                else:
                    x = block(x, around, cache.self_attention[layer], cache.cross_attention[layer])
        return x

    def new_cache(self) -> StackCache:
        """Return an empty cache, for decoding token by token."""
        return StackCache(len(self.blocks))

    @property
    def has_static_step(self) -> bool:
        """Whether a token can be read with a cache whose shapes don't change (``vaak.nn.decoding.static_cache``)."""
        # Learned positions wait for the device; experts, too.
        are_computed = self.config.position_type in ("rotary", "none", *SINUSOIDAL)
        is_known = type(self) is TransformerStack and self.causal and not self.has_experts
        return is_known and are_computed and self.config.attention_type == "softmax"

    def recompute(self, parts: Recomputation) -> None:
        """Set ``gradient_checkpointing``."""
        self.gradient_checkpointing = parts

    def _visibility(
        self,
        x: Tensor,
        documents: Tensor | None,
        mask: Tensor | None,
        cache: StackCache | None,
        num_documents: int | None,
    ) -> tuple[Visibility, Tensor | None]:
        """Return what each token sees, and the positions of the tokens, None where they are 0, 1, …"""
        if isinstance(cache, StaticCache):
            # One token a row; a tensor on the device holds what it sees, so that a graph can be replayed.
            return Visibility(self.causal, pairs=cache.see_token()), cache.next_positions
        time, past = x.shape[1], 0 if cache is None else cache.length
        if documents is None:
            positions = None if cache is None else torch.arange(past, past + time, device=x.device)[None]
            if mask is not None and not self.causal and self._sees_by_mask(x):
                return Visibility(self.causal, pairs=mask[:, None, None, :]), positions
            key_documents = None if mask is None or self.causal else mask.long() - 1
        else:
            key_documents = documents if cache is None else cache.append_documents(documents)
            positions = positions_in_documents(key_documents)[:, -time:]
        visibility = Visibility(self.causal, documents, key_documents, self.positions.bias)
        if self.config.attention_type == "softmax":
            # It forms the scores of all pairs of tokens.
            if documents is None and key_documents is not None:
                documents, num_documents = key_documents, x.shape[0]
            if documents is not None and num_documents is not None and cache is None and self._has_kernels(x):
                # Each row's padding is one, too.
                segments = find_segments(documents, num_documents + x.shape[0])
                return replace(visibility, segments=segments), positions
            visibility = visibility.of_pairs(time, past + time, x)
        return visibility, positions

    def _rotation(
        self, x: Tensor, positions: Tensor | None, cache: StackCache | None, *, in_order: bool
    ) -> Rotation | None:
        """Return the rotation of the tokens; ``in_order`` says that they follow all those that the cache has read."""
        if positions is None:
            return self.positions.rotation_from_start(x)
        if cache is None or isinstance(cache, StaticCache):
            return self.positions.rotation(positions)
        return self.positions.continued_rotation(positions, cache, in_order=in_order)

    def _sees_by_mask(self, x: Tensor) -> bool:
        """Return whether the mask of a row's real tokens is all that attention needs to know."""
        is_softmax = self.config.attention_type == "softmax" and self.positions.bias is None
        return is_softmax and self.config.position_type != "convolutional" and not self._has_kernels(x)

    def _has_kernels(self, x: Tensor) -> bool:
        """Return whether attention can tell documents apart without a mask of pairs; its kernels drop no weights."""
        config, kind = self.config, x.device.type
        dropout = config.dropout if config.attention_dropout is None else config.attention_dropout
        if not self.variable_length or self.positions.bias is not None or (self.training and dropout > 0):
            return False
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        num_key_heads = config.num_key_value_heads or config.num_heads
        return has_kernels(x, dtype, config.num_heads, num_key_heads, config.head_width)


def _run_block(block: nn.Module, x: Tensor, around: AttentionInputs) -> Tensor:
    with cast_weights(block):
        found: Tensor = block(x, around)
    return found


def _recompute_blocks(blocks: Iterable[nn.Module], x: Tensor, around: AttentionInputs) -> Tensor:
    for block in blocks:
        x = checkpoint(_run_block, block, x, around, use_reentrant=False)
    return x


def set_variable_length(model: nn.Module, on: bool) -> None:
    """Have the stacks of a model use attention kernels of variable length where a device has them, or masks alone."""
    for module in model.modules():
        if isinstance(module, TransformerStack):
            module.variable_length = on


class AttentionInputs(NamedTuple):
    """The inputs that all blocks of a stack share in one forward pass."""

    visibility: Visibility
    rotation: Rotation | None = None
    memory: Float[Tensor, "batch memory_time memory_width"] | None = None
    memory_visibility: Visibility | None = None
    norms: SquaredNorms | None = None
    memory_norms: SquaredNorms | None = None
    mask: Bool[Tensor, "batch time"] | None = None
    """True where a token is real; None where all are."""
    recompute_attention: bool = False
    """Whether the backward pass computes attention again."""


class Block(nn.Module):
    """One block; with ``memory_width`` it looks at vectors of that width between attention and feed-forward."""

    def __init__(self, config: StackConfig, memory_width: int | None = None, cross_type: str = "softmax") -> None:
        super().__init__()
        # Weights are drawn in the order of these lines: another order trains another model from the same seed.
        self.placement = config.norm_placement
        self.attention_norm = self.make_norm(config)
        self.attention = Attention(config, config.attention_type)
        self.cross_attention = None
        if memory_width is not None:
            self.cross_attention_norm = self.make_norm(config)
            self.cross_attention = Attention(config, cross_type, memory_width)
        self.feed_forward_norm = self.make_norm(config)
        self.feed_forward = make_feed_forward(
            config.feed_forward_type,
            config.d_model,
            inner_width(config.d_model, config.d_ff, config.feed_forward_type),
            config.bias,
            config.feed_forward_kernel if isinstance(config, ConvolutionalStackConfig) else 1,
        )
        if config.norm_placement == "sandwich":
            self.attention_output_norm = self.make_norm(config)
            if memory_width is not None:
                self.cross_attention_output_norm = self.make_norm(config)
            self.feed_forward_output_norm = self.make_norm(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Float[Tensor, "batch time d_model"],
        around: AttentionInputs,
        cache: LayerCache | None = None,
        cross_cache: LayerCache | None = None,
    ) -> Float[Tensor, "batch time d_model"]:
        """Return ``x`` plus the outputs of attention, cross-attention and feed-forward."""
        visibility, rotation, memory, memory_visibility, norms, memory_norms, mask, recompute = around
        own = None if norms is None else (norms, norms)
        x = self.add(
            "attention",
            x,
            lambda y: self.attention(y, visibility, rotation=rotation, cache=cache, norms=own),
            recompute=recompute,
        )
        if self.cross_attention is not None:
            cross, across = self.cross_attention, None
            if norms is not None and memory_norms is not None:
                across = (norms, memory_norms)
            x = self.add(
                "cross_attention",
                x,
                lambda y: cross(y, memory_visibility, memory=memory, cache=cross_cache, norms=across),
                recompute=recompute,
            )
        return self.add("feed_forward", x, lambda y: self.feed_forward(y, mask))

    def add(self, name: str, x: Tensor, layer: Callable[[Tensor], Tensor], *, recompute: bool = False) -> Tensor:
        """Return ``x`` with what the layer of this name adds to it, normalised where ``placement`` says.

        With ``recompute``, the backward pass computes the layer and its norms again, from ``x``.
        """
        norm: Callable[[Tensor], Tensor] = getattr(self, f"{name}_norm")

        def compute(x: Tensor) -> Tensor:
            if self.placement == "post":
                return layer(x)
            y = layer(norm(x))
            if self.placement == "sandwich":
                y = getattr(self, f"{name}_output_norm")(y)
            return y

        y = checkpoint(compute, x, use_reentrant=False) if recompute else compute(x)
        added: Tensor = x + self.dropout(y)
        return norm(added) if self.placement == "post" else added

    @staticmethod
    def make_norm(config: StackConfig) -> nn.Module:
        """Return a norm of the stream."""
        return make_norm(config.norm_type, config.d_model, config.norm_eps)
