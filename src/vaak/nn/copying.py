"""Tokens copied from the source: the scores of a decoder, mixed with where it looks.

    p(token) = p_generate · softmax(logits)[token] + (1 − p_generate) · attention on the source's places that are it

What is rare in training, or new (names, numbers, a gloss), can so be output without having been learned.

Source: See, Liu and Manning 2017, "Get To The Point: Summarization with Pointer-Generator Networks", equations 8 and 9.
Differs: the attention is a separate one, with a single head, and the decision to generate is made from the decoder's
state alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LEAST = 1e-20
"""Added under the logarithm of what nothing points to."""


class Copying(nn.Module):
    """Mixes scores of tokens with attention on the source, which has the same vocabulary."""

    def __init__(self, width: int, memory_width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(memory_width, width, bias=False)
        self.generates = nn.Linear(width, 1)

    def forward(self, logits: Tensor, hidden: Tensor, memory: Tensor, source: Tensor, mask: Tensor) -> Tensor:
        """Log-probabilities ``(batch, time, vocab)`` from scores of the same shape.

        ``hidden`` is ``(batch, time, width)``; ``memory (batch, source time, memory_width)`` is what the encoder made
        of the tokens ``source (batch, source time)``, real where ``mask`` is True.

        ``logits`` ``(batch, time, vocab)`` are the scores.
        """
        query = self.query(hidden)
        scores = (query @ self.key(memory).transpose(1, 2)) * query.shape[-1] ** -0.5
        exact = torch.promote_types(scores.dtype, torch.float32)
        weights = scores.to(exact).masked_fill(~mask[:, None], -torch.inf).softmax(-1)
        copied = _gathered(weights, source, logits.shape[-1])
        decision = self.generates(hidden).to(exact)
        written = F.logsigmoid(decision) + logits.log_softmax(-1, dtype=exact)
        return torch.logaddexp(written, F.logsigmoid(-decision) + (copied + LEAST).log())


def _gathered(weights: Tensor, source: Tensor, vocab_size: int) -> Tensor:
    """The weights ``(batch, time, source time)`` of the source's places, added up by token ``(batch, time, vocab)``."""
    batch, time, _ = weights.shape
    rows = torch.arange(batch * time, device=weights.device).view(batch, time, 1) * vocab_size
    places = (rows + source[:, None]).flatten()  # one dimension: there CUDA has a sum that repeats to the bit
    summed = weights.new_zeros(batch * time * vocab_size).index_add(0, places, weights.flatten())
    return summed.view(batch, time, vocab_size)
