"""Several documents in one row: positions that restart, and attention that stays within each document.

``documents`` ``(batch, time)`` numbers the document of each token, and is −1 where a token is padding. A document is
a run of equal numbers. Padding is one more document: no real token sees it, and every padded token sees at
least itself, so no row of attention is empty (an empty one would be NaN).
"""

from __future__ import annotations

import torch
from torch import Tensor


def positions_in_documents(documents: Tensor) -> Tensor:
    """How far each token is from the first of its document, ``(batch, time)``.

    >>> positions_in_documents(torch.tensor([[0, 0, 0, 1, 1, -1]]))
    tensor([[0, 1, 2, 0, 1, 0]])
    """
    index = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return index - torch.where(begins, index, 0).cummax(1).values


def attention_mask(documents: Tensor, key_documents: Tensor, causal: bool) -> Tensor:
    """True where a query may see a key, ``(batch, 1, query, key)``; the queries are the last of the keys' tokens."""
    same = documents[:, None, :, None] == key_documents[:, None, None, :]
    return same & causal_mask(documents.shape[1], key_documents.shape[1], documents.device) if causal else same


def causal_mask(num_queries: int, num_keys: int, device: torch.device) -> Tensor:
    """True where a key is not later than the query, ``(query, key)``; the queries are the last of the keys' tokens."""
    return torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).tril(num_keys - num_queries)
