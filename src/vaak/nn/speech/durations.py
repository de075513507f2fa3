"""Symbols made as long as they are spoken: whole numbers of frames, and rows repeated by them.

    symbols     h    ə    l    oʊ
    durations   2    3    1    1       whole_durations makes them of predictions, with a speed
    frames      h h  ə ə ə  l  oʊ      regulate

Source: Ren et al. 2019, "FastSpeech", section 3.2 (length regulator). Differs: rounding carries its error along.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vaak.nn.speech.masks import length_mask, masked, most_exact


def symbol_of_frame(durations: Tensor, num_frames: int) -> Tensor:
    """Which symbol each frame belongs to, ``(batch, num_frames)``, from ``durations`` ``(batch, symbol)``.

    Frames after the last get the last symbol.

    >>> symbol_of_frame(torch.tensor([[2, 0, 1]]), 4)
    tensor([[0, 0, 2, 2]])
    """
    ends = durations.cumsum(1)
    frames = torch.arange(num_frames, device=durations.device)
    return (frames[None, :, None] >= ends[:, None, :]).sum(-1).clamp(max=durations.shape[1] - 1)


def regulate(x: Tensor, durations: Tensor, num_frames: int | None = None) -> Tensor:
    """Each symbol's vector repeated by its duration, ``(batch, frame, width)``, then 0.

    ``x`` is ``(batch, symbol, width)``, ``durations`` ``(batch, symbol)`` in frames, 0 at padded symbols. There are
    ``num_frames``, or as many as the longest row has.
    """
    lengths = durations.sum(1)
    longest = int(lengths.max()) if num_frames is None else num_frames
    index = symbol_of_frame(durations, longest)[..., None].expand(-1, -1, x.shape[2])
    return masked(x.gather(1, index), length_mask(lengths, longest))


def whole_durations(durations: Tensor, mask: Tensor, speed: float | Tensor = 1.0, minimum: float = 1.0) -> Tensor:
    """Durations in whole frames, ``(batch, symbol)``; a row's total is that of its real symbols, rounded.

    ``durations`` ``(batch, symbol)`` are in frames, real where ``mask`` is True. They are divided by ``speed`` and
    raised to ``minimum``. It is the symbols' ends that are rounded, so errors don't add up.

    >>> whole_durations(torch.tensor([[1.4, 1.4, 1.4, 1.4, 1.4]]), torch.ones(1, 5, dtype=torch.bool))
    tensor([[1, 2, 1, 2, 1]])
    """
    lengths = masked((most_exact(durations) / speed).clamp(min=minimum), mask)
    ends = (lengths.cumsum(1) + 0.5).floor().long()
    return ends.diff(dim=1, prepend=torch.zeros_like(ends[:, :1]))
