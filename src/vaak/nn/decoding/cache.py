"""What a decoder remembers of the tokens it has read.

The caller owns the cache and hands it to each forward pass, which writes what it read into it; the model itself keeps
nothing. Each kernel keeps what it needs: softmax attention every key and value, a window's attention the last of them,
linear attention sums whose size doesn't grow.
"""

from __future__ import annotations

import torch
from torch import Tensor


class LayerCache:
    """Tensors of one layer by name; the first dimension of each is the row."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values ``(batch, heads, time, head_width)`` so far, with the new ones last."""
        if self.tensors:
            keys = torch.cat((self.tensors["keys"], keys), 2)
            values = torch.cat((self.tensors["values"], values), 2)
        self.tensors.update(keys=keys, values=values)
        return keys, values


class StackCache:
    """The caches of a stack's layers, how many tokens were read, and their documents, where they are told apart."""

    def __init__(self, num_layers: int) -> None:
        self.self_attention = [LayerCache() for _ in range(num_layers)]
        self.cross_attention = [LayerCache() for _ in range(num_layers)]
        self.positions = LayerCache()
        self.documents: Tensor | None = None
        self.length = 0

    def append_documents(self, documents: Tensor) -> Tensor:
        """The documents ``(batch, time)`` of all tokens so far, with the new ones last."""
        assert (self.documents is None) == (self.length == 0), (
            "a cache started without documents continues without them"
        )
        self.documents = documents if self.documents is None else torch.cat((self.documents, documents), 1)
        return self.documents

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; one may be taken several times."""
        for cache in (*self.self_attention, *self.cross_attention, self.positions):
            cache.tensors = {name: tensor.index_select(0, rows) for name, tensor in cache.tensors.items()}
        if self.documents is not None:
            self.documents = self.documents.index_select(0, rows)
