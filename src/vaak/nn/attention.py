"""The attention layer: heads of queries, keys and values, what mixes them, and the way back to the stream.

Self-attention takes all three from the stream; cross-attention takes keys and values from a memory, an encoder's
output. What mixes them is a separate kernel: ``softmax_attention``, ``local_attention`` or ``linear_attention``.

Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2; Henry et al. 2020, "Query-Key Normalization for
Transformers" (here as RMSNorm per head, like Qwen3). Query, key and value keep separate matrices: one fused product
isn't faster on a CPU, and Muon treats each as a matrix. On CUDA small ones are joined for it (``project_joined``).
"""

from __future__ import annotations

from typing import Annotated as Float

from torch import Tensor, nn

from vaak.nn.config import LINEAR, StackConfig
from vaak.nn.decoding.cache import LayerCache
from vaak.nn.kernels.linear_attention import linear_attention
from vaak.nn.kernels.random_features import RandomFeatures, SquaredNorms
from vaak.nn.kernels.softmax_attention import attend, attention_weights, local_attention
from vaak.nn.kernels.variable_length import attend_segments
from vaak.nn.kernels.visibility import Visibility
from vaak.nn.norms import RMSNorm, project, project_joined
from vaak.nn.positional_encodings import Rotation, rotate


class Attention(nn.Module):
    """One layer of attention of any type; with ``memory_width``, cross-attention to vectors of that width."""

    def __init__(self, config: StackConfig, attention_type: str, memory_width: int | None = None) -> None:
        super().__init__()
        width, head_width = config.d_model, config.head_width
        num_key_heads = config.num_key_value_heads or config.num_heads
        self.attention_type = attention_type
        self.head_width = head_width
        self.window = config.window
        self.scale_scores = config.scale_scores
        self.dropout = config.dropout if config.attention_dropout is None else config.attention_dropout
        bias = config.bias or config.qkv_bias
        # three matrices, not one: keys and values may have fewer heads, and cross-attention another input width
        self.query = nn.Linear(width, config.num_heads * head_width, bias=bias)
        self.key = nn.Linear(memory_width or width, num_key_heads * head_width, bias=bias)
        self.value = nn.Linear(memory_width or width, num_key_heads * head_width, bias=bias)
        self.output = nn.Linear(config.num_heads * head_width, width, bias=config.bias)
        self.query_norm = RMSNorm(head_width, config.norm_eps) if config.qk_norm else nn.Identity()
        self.key_norm = RMSNorm(head_width, config.norm_eps) if config.qk_norm else nn.Identity()
        self.features = None
        if attention_type in LINEAR:
            self.features = RandomFeatures(
                head_width, config.num_features, kernel=config.kernel_type, orthogonal=config.orthogonal_features
            )

    def forward(
        self,
        x: Float[Tensor, "batch time d_model"],
        visibility: Visibility,
        *,
        rotation: Rotation | None = None,
        memory: Float[Tensor, "batch memory_time memory_width"] | None = None,
        cache: LayerCache | None = None,
        norms: tuple[SquaredNorms, SquaredNorms] | None = None,
    ) -> Float[Tensor, "batch time d_model"]:
        """Return each token's mixture of what it may see.

        ``visibility`` says which keys each query sees, and ``rotation`` is that of the positions, None without rotary
        ones. Cross-attention looks at ``memory``. A ``cache`` continues a row: its contents come first.
        ``norms`` tally the queries and the keys that enter a feature map, of ``x`` and of the memory.
        """
        if memory is None:
            query, key, value = self._heads(x, rotation)
        elif cache is not None and cache.tensors:
            # It was read with the first tokens.
            query = self._queries(self.query(x), rotation)
            key, value = cache.tensors.get("keys", query), cache.tensors.get("values", query)
        else:
            query = self._queries(self.query(x), rotation)
            of_keys, of_values = project(memory, self.key, self.value)
            key = self._rotated_heads(self.key_norm, of_keys, rotation)
            value = self._split_heads(of_values).transpose(1, 2)
        if norms is not None and self.features is not None:
            norms[0].add(query)
            norms[1].add(key)
        mixed = self._mix(query, key, value, visibility, cache, is_cross=memory is not None)
        out: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return out

    def weights(
        self,
        x: Float[Tensor, "batch time d_model"],
        memory: Float[Tensor, "batch memory_time memory_width"],
        visibility: Visibility,
    ) -> Float[Tensor, "batch heads time memory_time"]:
        """Return how much of each token of ``memory`` each token of ``x`` takes: to look at."""
        query = self._queries(self.query(x), None)
        key = self._repeat_heads(self._rotated_heads(self.key_norm, self.key(memory), None), query)
        pairs = visibility.of_pairs(query.shape[2], key.shape[2], query).pairs
        if self.features is not None:
            products = self.features(query) @ self.features(key).transpose(-1, -2)
            seen: Tensor = products if pairs is None else products * pairs
            return seen / seen.sum(-1, keepdim=True)
        return attention_weights(query, key, pairs, is_causal=False)

    def _mix(
        self,
        query: Float[Tensor, "batch heads query_time head_width"],
        key: Float[Tensor, "batch key_heads key_time head_width"],
        value: Float[Tensor, "batch key_heads key_time head_width"],
        visibility: Visibility,
        cache: LayerCache | None,
        is_cross: bool,
    ) -> Float[Tensor, "batch heads query_time head_width"]:
        """Return the mixture of values for each query, which looks at keys as far as ``visibility`` lets it.

        The ``cache`` is continued; where ``is_cross``, it keeps the memory's keys and values.
        """
        dropout = self.dropout if self.training else 0.0
        if self.features is not None:
            key, value = self._repeat_heads(key, query), self._repeat_heads(value, query)
            return linear_attention(self.features, query, key, value, visibility, cache)
        if self.attention_type == "local":
            key, value = self._repeat_heads(key, query), self._repeat_heads(value, query)
            return local_attention(query, key, value, visibility, window=self.window, dropout=dropout, cache=cache)
        if cache is not None and is_cross:
            cache.tensors.update(keys=key, values=value)
        elif cache is not None:
            key, value = cache.append(key, value)
        if visibility.segments is not None and cache is None:
            return attend_segments(query, key, value, visibility.segments, causal=visibility.causal)
        if not visibility.is_of_pairs:
            visibility = visibility.of_pairs(query.shape[2], key.shape[2], query)
        is_causal = visibility.causal and visibility.pairs is None
        if cache is not None and query.shape[2] == 1:
            # A token that follows those of a cache sees them all.
            is_causal = False
        return attend(query, key, value, mask=visibility.pairs, is_causal=is_causal, dropout=dropout)

    def _heads(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the heads of the queries, keys and values of self-attention, ``(batch, heads, time, head_width)``."""
        are_normed = not isinstance(self.query_norm, nn.Identity)
        joined = None if are_normed else project_joined(x, self.query, self.key, self.value)
        if joined is None:
            of_queries, of_keys, of_values = project(x, self.query, self.key, self.value)
            query = self._queries(of_queries, rotation)
            key = self._rotated_heads(self.key_norm, of_keys, rotation)
            return query, key, self._split_heads(of_values).transpose(1, 2)
        # Queries and keys are rotated by one operator. Heads are split before they are transposed, so that their
        # gradients are concatenated without a copy.
        num_heads, num_key_heads = (len(one.weight) // self.head_width for one in (self.query, self.key))
        turned, value = self._split_heads(joined).split([num_heads + num_key_heads, num_key_heads], 2)
        if rotation is not None:
            turned = rotate(turned, rotation, joined.dtype)
        query, key = turned.to(joined.dtype).split([num_heads, num_key_heads], 2)
        return self._scaled(query.transpose(1, 2)), key.transpose(1, 2), value.transpose(1, 2)

    def _queries(self, projected: Tensor, rotation: Rotation | None) -> Tensor:
        """Return the heads of queries."""
        return self._scaled(self._rotated_heads(self.query_norm, projected, rotation))

    def _scaled(self, query: Tensor) -> Tensor:
        """Return queries; where scores aren't scaled, multiplied by the root that kernels divide by."""
        return query if self.scale_scores else query * self.head_width**0.5

    def _rotated_heads(self, norm: nn.Module, projected: Tensor, rotation: Rotation | None) -> Tensor:
        """Return the heads of queries or keys, normalised and rotated to their positions."""
        heads: Tensor = norm(self._split_heads(projected))
        if rotation is not None:
            heads = rotate(heads, rotation, projected.dtype)
        return heads.to(projected.dtype).transpose(1, 2)

    def _split_heads(self, projected: Tensor) -> Tensor:
        heads: Tensor = projected.unflatten(-1, (-1, self.head_width))
        return heads

    @staticmethod
    def _repeat_heads(x: Tensor, query: Tensor) -> Tensor:
        """Return the heads of keys or values, each repeated for every query head that shares it."""
        groups = query.shape[1] // x.shape[1]
        return x.repeat_interleave(groups, 1) if groups > 1 else x
