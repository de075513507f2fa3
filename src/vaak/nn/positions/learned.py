"""Learned positions: one vector for each place, added to the embeddings.

Source: Gehring et al. 2017, "Convolutional Sequence to Sequence Learning", section 3.1; as in BERT and GPT-2.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LearnedPositions(nn.Module):
    """Adds the vector of each place; there is none beyond ``max_length``."""

    def __init__(self, width: int, max_length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(max_length, width)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Shape and type of ``x`` ``(batch, time, width)`` kept; ``positions`` is ``(batch or 1, time)``.

        Raises ValueError for a place that has no vector, except in an exported model. To know, it waits for the device.
        """
        max_length = self.embedding.num_embeddings
        if not torch.compiler.is_exporting() and (length := int(positions.max()) + 1) > max_length:
            raise ValueError(
                f"{length} tokens are more than the {max_length} that the learned positions reach; shorten the text, "
                "or train with a larger max_length or another position_type"
            )
        placed: Tensor = x + self.embedding(positions).to(x.dtype)
        return placed
