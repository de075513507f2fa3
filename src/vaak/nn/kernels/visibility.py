"""Which keys each query may see, and what is added to their scores; several documents in one row stay apart.

A stack makes one ``Visibility`` in each forward pass, and every layer's kernel reads from it what it needs: softmax
attention the mask of all pairs, the others, which never form all pairs, the rules themselves.

``documents`` ``(batch, time)`` numbers the document of each token, and is −1 where a token is padding. A document is a
run of equal numbers; positions restart with each. Padding is one more document: no real token sees it, and every padded
token sees at least itself, so no row of attention is empty (an empty one would be NaN).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vaak.core.batch import find_places


class Segments(NamedTuple):
    """Documents by where they begin, with all rows laid end to end, and a length that none exceeds.

    ``bounds`` are int32. Where there are fewer documents than there might be, the rest are empty: their bounds are the
    number of all tokens.
    """

    bounds: Tensor
    longest: int


@dataclass(frozen=True)
class Visibility:
    """The queries are the last of the keys' tokens where both are of one sequence.

    ``documents`` ``(batch, query)`` and ``key_documents`` ``(batch, key)`` number the document of each token, −1 where
    it is padding; a query sees its own document. Without ``documents`` it sees every real key,
    without ``key_documents`` too every key. ``bias`` gives what is added to scores ``(heads, query, key)`` for the
    distances ``(query, key)``, key's place less query's. ``pairs`` ``(batch or 1, heads or 1, query, key)`` says all of
    it at once: True where a key is seen, or the number that is added to the score; None if ``causal`` says it all.
    ``segments`` are the documents for the kernels of variable length, which then need no ``pairs``.
    """

    causal: bool
    documents: Tensor | None = None
    key_documents: Tensor | None = None
    bias: Callable[[Tensor], Tensor] | None = None
    pairs: Tensor | None = None
    segments: Segments | None = None

    @property
    def is_of_pairs(self) -> bool:
        """Whether ``pairs``, or ``causal`` alone, says all that there is to say."""
        return self.pairs is not None or (self.documents is None and self.key_documents is None and self.bias is None)

    def of_pairs(self, num_queries: int, num_keys: int, like: Tensor) -> Visibility:
        """Return this visibility with ``pairs`` filled in, as numbers of ``like``'s type on its device."""
        mask = self._mask(num_queries, num_keys, like.device)
        if self.bias is None:
            return replace(self, pairs=mask)
        scores = self.bias(distances(num_queries, num_keys, like.device))[None].to(like.dtype)
        if mask is None and self.causal and num_queries > 1:
            mask = causal_mask(num_queries, num_keys, like.device)[None, None]
        return replace(self, pairs=scores if mask is None else scores.masked_fill(~mask, float("-inf")))

    def _mask(self, num_queries: int, num_keys: int, device: torch.device) -> Tensor | None:
        """True where a key is seen; None if ``causal`` says it all, or every key is visible."""
        key_documents = self.documents if self.key_documents is None else self.key_documents
        if key_documents is None:
            needed = self.causal and 1 < num_queries < num_keys
            return causal_mask(num_queries, num_keys, device)[None, None] if needed else None
        if self.documents is None:
            return (key_documents >= 0)[:, None, None, :]
        return attention_mask(self.documents, key_documents, self.causal)


def distances(num_queries: int, num_keys: int, device: torch.device) -> Tensor:
    """Return each key's distance from each query, ``(query, key)``, below 0 before it; queries are the last keys.

    >>> distances(2, 3, torch.device("cpu"))
    tensor([[-1,  0,  1],
            [-2, -1,  0]])
    """
    keys = torch.arange(num_keys, device=device)
    return keys[None] - keys[num_keys - num_queries :, None]


def positions_in_documents(documents: Tensor) -> Tensor:
    """Return how far each token is from the first of its document, ``(batch, time)``.

    >>> positions_in_documents(torch.tensor([[0, 0, 0, 1, 1, -1]]))
    tensor([[0, 1, 2, 0, 1, 0]])
    """
    index = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return index - torch.where(begins, index, 0).cummax(1).values


def find_segments(documents: Tensor, at_most: int) -> Segments:
    """Return the runs of equal numbers in ``documents`` ``(batch, time)``, ``at_most`` of them.

    The device isn't waited for: how many there are isn't read, and more are an error on the device.

    >>> find_segments(torch.tensor([[0, 0, 1, -1], [0, 0, 0, 0]]), 5).bounds.tolist()
    [0, 2, 3, 4, 8, 8]
    """
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    torch._assert_async(begins.sum() <= at_most, "a row has more documents than at_most")
    return Segments(F.pad(find_places(begins, at_most), (0, 1), value=documents.numel()).int(), documents.shape[1])


def attention_mask(documents: Tensor, key_documents: Tensor, causal: bool) -> Tensor:
    """True where a query may see a key, ``(batch, 1, query, key)``; the queries are the last of the keys' tokens."""
    same = documents[:, None, :, None] == key_documents[:, None, None, :]
    return same & causal_mask(documents.shape[1], key_documents.shape[1], documents.device) if causal else same


def causal_mask(num_queries: int, num_keys: int, device: torch.device) -> Tensor:
    """True where a key is not later than the query, ``(query, key)``; the queries are the last of the keys' tokens."""
    return torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).tril(num_keys - num_queries)
