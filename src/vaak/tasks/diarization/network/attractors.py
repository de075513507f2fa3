"""Attractors: one vector for each speaker, found one after another until no speaker is left.

    hidden frames ──LSTM──▶ state ──LSTM, fed zeros──▶ attractor 1, attractor 2, ... ──▶ is there such a speaker?
    score of speaker s in frame t = hidden t · attractor s

Source: Horiguchi et al. 2020, "End-to-End Speaker Diarization for an Unknown Number of Speakers with Encoder-Decoder
Based Attractors". Differs: frames enter in a random order that depends only on their number, in training and after it,
so that the result of a row doesn't depend on the batch or on chance.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence


class Attractors(nn.Module):
    """Scores of up to ``max_speakers`` speakers in each frame, and that each of them is there."""

    def __init__(self, width: int, max_speakers: int) -> None:
        super().__init__()
        self.max_speakers = max_speakers
        self.reader = nn.LSTM(width, width, batch_first=True)
        self.writer = nn.LSTM(width, width, batch_first=True)
        self.exists = nn.Linear(width, 1)

    def forward(self, hidden: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of activity ``(row, frames, speakers)`` and of existence ``(row, speakers + 1)``.

        ``hidden`` is ``(row, frames, width)``, of which ``lengths`` ``(row,)`` frames are real.
        """
        rows, time, width = hidden.shape
        order = torch.stack([_order(length, time) for length in lengths.tolist()]).to(hidden.device)
        shuffled = hidden.gather(1, order[..., None].expand(-1, -1, width))
        packed = pack_padded_sequence(shuffled, lengths.cpu(), batch_first=True, enforce_sorted=False)
        state = self.reader(packed)[1]
        attractors = self.writer(hidden.new_zeros(rows, self.max_speakers + 1, width), state)[0]
        # the gradient of existence stays out of the attractors, as in the paper: it would make them similar
        existence = self.exists(attractors.detach())[..., 0]
        return hidden @ attractors[:, :-1].transpose(1, 2), existence


def _order(length: int, time: int) -> Tensor:
    """An order of the first ``length`` of ``time`` frames that depends on ``length`` alone; the others stay."""
    drawn = torch.randperm(length, generator=torch.Generator().manual_seed(length))
    return torch.cat([drawn, torch.arange(length, time)])
