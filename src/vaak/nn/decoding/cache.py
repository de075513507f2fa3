"""The cache of a decoder: keys and values of the tokens it has read.

The caller owns the cache and hands it to each forward pass, which writes what it read into it; the model itself keeps
nothing. Each kernel keeps what it needs: softmax attention every key and value, a window's attention the last of them,
linear attention sums whose size doesn't grow.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

SMALLEST_BUFFER = 32
"""Tokens."""


class LayerCache:
    """Tensors of one layer by name; the first dimension of each is the row.

    Keys and values that grow token by token occupy the first ``length`` tokens of larger buffers.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.length = 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return all keys and values ``(batch, heads, time, head_width)`` so far, with the new ones last.

        They are views of buffers that double when they are full: a token copies itself, and seldom all before it.
        """
        begin, self.length = self.length, self.length + keys.shape[2]
        for name, new in (("keys", keys), ("values", values)):
            buffer = self.tensors.get(name)
            if buffer is None or buffer.shape[2] < self.length:
                old, capacity = buffer, max(2 * self.length, SMALLEST_BUFFER)
                buffer = self.tensors[name] = new.new_empty(*new.shape[:2], capacity, new.shape[3])
                if old is not None:
                    buffer[:, :, :begin] = old[:, :, :begin]
            buffer.narrow(2, begin, new.shape[2]).copy_(new)
        return self.tensors["keys"].narrow(2, 0, self.length), self.tensors["values"].narrow(2, 0, self.length)

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order."""
        self.tensors = {name: tensor.index_select(0, rows) for name, tensor in self.tensors.items()}

    @property
    def keeps_all(self) -> bool:
        """Whether it has the keys and values of all tokens, and nothing else, so that ``join`` can align rows."""
        return type(self) is LayerCache and self.tensors.keys() <= {"keys", "values"} and bool(self.length)

    def join(self, other: LayerCache, kept: int, added: int) -> None:
        """Add the rows of ``other`` after these: of each row, its last ``kept`` or ``added`` tokens, aligned right."""
        for name, tensor in self.tensors.items():
            both = (tensor[:, :, : self.length], other.tensors[name][:, :, : other.length])
            self.tensors[name] = join_rows(*both, 2, kept, added)
        self.length = max(kept, added)


class RecentCache(LayerCache):
    """The last ``most`` keys and values of a layer, and what else a layer reads of the frames before."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the kept keys and values with the new ones last; of these, the last ``most`` are kept."""
        new = {"keys": keys, "values": values}
        whole = {name: torch.cat((self.tensors.get(name, one[:, :, :0]), one), 2) for name, one in new.items()}
        self.tensors |= {name: one[:, :, max(0, one.shape[2] - self.most) :] for name, one in whole.items()}
        return whole["keys"], whole["values"]


def join_rows(first: Tensor, second: Tensor, dim: int, kept: int, added: int) -> Tensor:
    """Return the rows of both, cut to the last ``kept`` and ``added`` of dimension ``dim``, and aligned there.

    Zeros are before those that are shorter.

    >>> join_rows(torch.tensor([[0, 1, 2, 3]]), torch.tensor([[4]]), 1, 3, 1)
    tensor([[1, 2, 3],
            [0, 0, 4]])
    """
    shape = [len(first) + len(second), *first.shape[1:]]
    shape[dim] = size = max(kept, added)
    joined = first.new_zeros(shape)
    for rows, own, number in ((joined[: len(first)], first, kept), (joined[len(first) :], second, added)):
        rows.narrow(dim, size - number, number).copy_(own.narrow(dim, own.shape[dim] - number, number))
    return joined


class StackCache:
    """The caches of a stack's layers, how many tokens were read, and their documents, where they are told apart."""

    def __init__(self, num_layers: int) -> None:
        self.self_attention = [LayerCache() for _ in range(num_layers)]
        self.cross_attention = [LayerCache() for _ in range(num_layers)]
        self.positions = LayerCache()
        self.documents: Tensor | None = None
        self.length = 0
        self._rotation: tuple[Tensor, Tensor] | None = None

    def read_rotation(
        self, compute: Callable[[Tensor], tuple[Tensor, Tensor]], positions: Tensor, *, in_order: bool
    ) -> tuple[Tensor, Tensor]:
        """Return ``compute`` at the ``positions`` ``(#batch, time)`` of the next tokens.

        It is computed for twice as many positions as are needed, and then read: the same bits, in fewer operators.
        ``in_order`` says that the positions are those after the tokens read so far.
        """
        time = positions.shape[1]
        end = self.length + time
        if self._rotation is None or self._rotation[0].shape[1] < end:
            table = torch.arange(max(2 * end, SMALLEST_BUFFER), device=positions.device)
            self._rotation = compute(table[None])
        if in_order:
            cosine, sine = (table.narrow(1, self.length, time) for table in self._rotation)
        else:
            cosine, sine = (table[0][positions] for table in self._rotation)
        return cosine, sine

    def append_documents(self, documents: Tensor) -> Tensor:
        """Return the documents ``(batch, time)`` of all tokens so far, with the new ones last."""
        assert (self.documents is None) == (self.length == 0), (
            "a cache started without documents continues without them"
        )
        self.documents = documents if self.documents is None else torch.cat((self.documents, documents), 1)
        return self.documents

    def select(self, rows: Tensor, *, memory: bool = True) -> None:
        """Keep these rows, in this order; one may be taken several times.

        Without ``memory`` what cross-attention looks at stays: each row has the memory of the one in its place.
        """
        for cache in (*self.self_attention, *(self.cross_attention if memory else ()), self.positions):
            cache.select(rows)
        if self.documents is not None:
            self.documents = self.documents.index_select(0, rows)

    @property
    def can_join(self) -> bool:
        """Whether rows that were read elsewhere can be added; not where a layer keeps sums, or the last tokens only."""
        others = (*self.cross_attention, self.positions)
        return all(one.keeps_all for one in self.self_attention) and not any(one.tensors for one in others)

    def join(self, other: StackCache) -> None:
        """Add the rows of ``other``, which reads with the same layers, after these, aligned at the last token.

        Padding that no row needs any more goes, so a cache whose rows come and go doesn't grow for ever.
        """
        mine, theirs = self.find_documents(), other.find_documents()
        kept, added = count_needed(mine >= 0), count_needed(theirs >= 0)
        for own, new in zip(self.self_attention, other.self_attention, strict=True):
            own.join(new, kept, added)
        # Shifted, so that the zeros before a row are padding.
        self.documents = join_rows(mine + 1, theirs + 1, 1, kept, added) - 1
        self.length = max(kept, added)

    def find_documents(self) -> Tensor:
        """Return the documents ``(row, time)`` of all tokens so far; 0 for each where they aren't told apart."""
        if self.documents is not None:
            return self.documents
        keys = self.self_attention[0].tensors["keys"]
        return torch.zeros(len(keys), self.length, dtype=torch.long, device=keys.device)


def count_needed(real: Tensor) -> int:
    """Return how many of the last columns of ``real`` ``(row, time)`` have all of its True.

    >>> count_needed(torch.tensor([[False, False, True], [False, True, True]]))
    2
    """
    return int(real.any(0).long().cummax(0).values.sum())
