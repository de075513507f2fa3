"""Pre-norm transformer blocks, one on another, with a last normalisation.

Sources: Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture" (pre-norm); Touvron et al. 2023,
"LLaMA" (RMSNorm, rotary positions and SwiGLU together).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vaak.nn.attention import GroupedQueryAttention
from vaak.nn.cache import KeyValueCache, LayerCache
from vaak.nn.documents import attention_mask, causal_mask, positions_in_documents
from vaak.nn.feed_forward import SwiGLU
from vaak.nn.norms import RMSNorm
from vaak.nn.rotary import Rotation, rotation


@dataclass(frozen=True)
class StackShape:
    """The sizes and options of a stack; ``causal`` False lets every token see its whole document."""

    width: int
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    feed_forward_width: int
    dropout: float = 0.0
    attention_dropout: float = 0.0
    qk_norm: bool = False
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    causal: bool = True


class Block(nn.Module):
    """``x + attention(norm(x))``, then ``x + feed_forward(norm(x))``, with dropout on what is added."""

    def __init__(self, shape: StackShape) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.width, shape.norm_eps)
        self.attention = GroupedQueryAttention(
            shape.width,
            shape.num_heads,
            shape.num_key_value_heads,
            dropout=shape.attention_dropout,
            norm_eps=shape.norm_eps if shape.qk_norm else None,
        )
        self.feed_forward_norm = RMSNorm(shape.width, shape.norm_eps)
        self.feed_forward = SwiGLU(shape.width, shape.feed_forward_width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(
        self, x: Tensor, rotation: Rotation, mask: Tensor | None, is_causal: bool, cache: LayerCache | None = None
    ) -> Tensor:
        """Shape kept: ``(batch, time, width)``."""
        x = x + self.dropout(self.attention(self.attention_norm(x), rotation, mask, is_causal, cache))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class TransformerStack(nn.Module):
    """The blocks and the last normalisation.

    ``gradient_checkpointing = True`` keeps only the blocks' inputs in training and computes the rest again in the
    backward pass, with the same dropout (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost").
    """

    def __init__(self, shape: StackShape) -> None:
        super().__init__()
        self.shape = shape
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.norm = RMSNorm(shape.width, shape.norm_eps)
        self.gradient_checkpointing = False

    def forward(
        self,
        x: Tensor,
        *,
        documents: Tensor | None = None,
        positions: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Shape kept: ``(batch, time, width)``; see ``LanguageModel.forward`` for the arguments."""
        assert cache is None or self.shape.causal, "only a causal stack can go on from a cache"
        mask, default_positions = self._sight(x, documents, cache)
        is_causal = self.shape.causal and mask is None and x.shape[1] > 1
        positions = default_positions if positions is None else positions
        turn = rotation(positions, self.shape.width // self.shape.num_heads, self.shape.rope_theta)
        recompute = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        for layer, block in enumerate(self.blocks):
            if recompute:
                x = checkpoint(block, x, turn, mask, is_causal, use_reentrant=False)
            else:
                x = block(x, turn, mask, is_causal, None if cache is None else cache.layers[layer])
        return self.norm(x)

    def _sight(self, x: Tensor, documents: Tensor | None, cache: KeyValueCache | None) -> tuple[Tensor | None, Tensor]:
        """The mask, None where ``is_causal`` says it all or every key is visible, and the positions of the tokens."""
        time, past = x.shape[1], 0 if cache is None else cache.length
        if documents is None:
            needs_mask = past > 0 and time > 1
            mask = causal_mask(time, past + time, x.device)[None, None] if needs_mask else None
            return mask, torch.arange(past, past + time, device=x.device)[None]
        key_documents = documents if cache is None else cache.append_documents(documents)
        mask = attention_mask(documents, key_documents, self.shape.causal)
        return mask, positions_in_documents(key_documents)[:, -time:]
