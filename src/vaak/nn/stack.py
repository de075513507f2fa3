"""Transformer blocks, one on another, with the positions below them and, before its end, a last normalisation.

The options say which blocks (``vaak.nn.config``); the defaults are Llama's. Source: Touvron et al. 2023, "LLaMA"
(pre-norm, RMSNorm, rotary positions and SwiGLU together).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vaak.nn.attention import is_dense
from vaak.nn.block import Block, Surroundings
from vaak.nn.config import DecoderConfig, StackConfig
from vaak.nn.decoding.cache import StackCache
from vaak.nn.kernels.documents import positions_in_documents
from vaak.nn.kernels.squared_norms import SquaredNorms
from vaak.nn.kernels.visibility import Visibility
from vaak.nn.norms import make_norm
from vaak.nn.positions.kinds import Positions


class TransformerStack(nn.Module):
    """The blocks and the last normalisation (which post-norm blocks don't need).

    ``causal`` hides later tokens from earlier ones, as causal linear attention always does. With ``memory_width`` each
    block looks at an encoder's output of that width. ``max_length`` is needed by learned positions.

    ``gradient_checkpointing = True`` keeps only the blocks' inputs in training and computes the rest again in the
    backward pass, with the same dropout (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost").
    """

    def __init__(
        self, config: StackConfig, *, causal: bool, memory_width: int | None = None, max_length: int | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.causal = causal or config.attention_type == "causal_linear"
        self.cross_type = config.cross_type if isinstance(config, DecoderConfig) else "softmax"
        self.positions = Positions(config, causal=self.causal, max_length=max_length)
        self.blocks = nn.ModuleList(Block(config, memory_width, self.cross_type) for _ in range(config.num_layers))
        self.norm: nn.Module = nn.Identity()
        if config.norm_placement != "post":
            self.norm = make_norm(config.norm_type, config.d_model, config.norm_eps)
        self.gradient_checkpointing = False

    def forward(
        self,
        x: Tensor,
        *,
        documents: Tensor | None = None,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        cache: StackCache | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        norms: tuple[SquaredNorms, SquaredNorms] | None = None,
    ) -> Tensor:
        """Shape kept: ``(batch, time, width)``.

        ``documents`` and ``positions`` are ``(batch, time)``. ``documents`` numbers the document of each token, −1
        where it is padding: tokens see only their own document, and positions restart with each. Without it a row is
        one document, padded on the right where ``mask`` ``(batch, time)`` is False; a causal stack needs none, for no
        token sees what comes after it. ``positions`` replaces the positions computed so. A causal stack with ``cache``
        continues after the tokens already read; ``documents`` then holds the new tokens' only.

        ``memory`` ``(batch, memory time, memory_width)`` is what cross-attention looks at, where ``memory_mask``
        ``(batch, memory time)`` is True. ``norms`` tally what enters feature maps, of these places and of the memory's.

        ``x`` is the embedded tokens.
        """
        assert cache is None or self.causal, "only a causal stack can continue from a cache"
        visibility, own_positions = self._visibility(x, documents, mask, cache)
        positions = own_positions if positions is None else positions
        padding = visibility.key_documents if documents is None else documents
        x = self.positions.add(x, positions, padding, None if cache is None else cache.positions)
        own_norms, memory_norms = norms or (None, None)
        around = Surroundings(
            visibility,
            self.positions.rotation(positions),
            memory,
            _memory_visibility(memory_mask),
            own_norms,
            memory_norms,
            mask,
        )
        recompute = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        for layer, block in enumerate(self.blocks):
            if recompute:
                x = checkpoint(block, x, around, use_reentrant=False)
            elif cache is None:
                x = block(x, around)
            else:
                x = block(x, around, cache.self_attention[layer], cache.cross_attention[layer])
        if cache is not None:
            cache.length += positions.shape[1]
        normed: Tensor = self.norm(x)
        return normed

    def _visibility(
        self, x: Tensor, documents: Tensor | None, mask: Tensor | None, cache: StackCache | None
    ) -> tuple[Visibility, Tensor]:
        """What each token sees, and the positions of the tokens."""
        time, past = x.shape[1], 0 if cache is None else cache.length
        if documents is None:
            key_documents = None if mask is None or self.causal else torch.where(mask, 0, -1)
            positions = torch.arange(past, past + time, device=x.device)[None]
        else:
            key_documents = documents if cache is None else cache.append_documents(documents)
            positions = positions_in_documents(key_documents)[:, -time:]
        visibility = Visibility(self.causal, documents, key_documents, self.positions.bias)
        if is_dense(self.config.attention_type):
            visibility = visibility.of_pairs(time, past + time, x)
        return visibility, positions


def _memory_visibility(mask: Tensor | None) -> Visibility:
    """What cross-attention sees: every real place of the memory."""
    if mask is None:
        return Visibility(causal=False)
    documents = torch.where(mask, 0, -1)
    return Visibility(causal=False, key_documents=documents, pairs=mask[:, None, None, :])


def set_gradient_checkpointing(model: nn.Module, on: bool) -> int:
    """Have the stacks of a model keep only their blocks' inputs in training, or not; return how many there are."""
    stacks = [module for module in model.modules() if isinstance(module, TransformerStack)]
    for stack in stacks:
        stack.gradient_checkpointing = on
    return len(stacks)
