"""What a decoder remembers of the tokens it has read: every layer's keys and values.

The caller owns the cache and hands it to each forward pass, which lengthens it; the model itself keeps nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor


class LayerCache:
    """Keys and values of one layer, each ``(batch, heads, time, head_width)``."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values so far, with the new ones last."""
        if self.keys is not None and self.values is not None:
            keys, values = torch.cat((self.keys, keys), 2), torch.cat((self.values, values), 2)
        self.keys, self.values = keys, values
        return keys, values


class KeyValueCache:
    """One ``LayerCache`` for every layer, and the documents of the tokens read, where they are told apart."""

    def __init__(self, num_layers: int) -> None:
        self.layers = [LayerCache() for _ in range(num_layers)]
        self.documents: Tensor | None = None

    @property
    def length(self) -> int:
        """How many tokens have been read."""
        keys = self.layers[0].keys
        return 0 if keys is None else keys.shape[2]

    def append_documents(self, documents: Tensor) -> Tensor:
        """The documents ``(batch, time)`` of all tokens so far, with the new ones last."""
        assert (self.documents is None) == (self.length == 0), "a cache begun without documents goes on without them"
        self.documents = documents if self.documents is None else torch.cat((self.documents, documents), 1)
        return self.documents
