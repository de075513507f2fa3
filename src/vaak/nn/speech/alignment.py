"""Monotonic alignment search: the best way to give each frame of speech to a symbol, in order.

    frames    0 1 2 3 4 5 6
    symbols   h h ə ə ə l oʊ      durations 2 3 1 1: every symbol has a frame, and none comes back

The best path ends in the last symbol at the last frame; at each frame it stays, or moves on by one symbol. So

    best(t, j) = score(t, j) + max(best(t - 1, j), best(t - 1, j - 1))

which is computed frame by frame for all symbols and rows at once. Source: Kim et al. 2020, "Glow-TTS", section 3.2.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vaak.core.errors import DataError
from vaak.nn.speech.masks import exact


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Of all vectors of ``x`` from all of ``y``, ``(batch, first, second)``.

    ``x`` is ``(batch, first, width)``, ``y`` ``(batch, second, width)``.
    """
    x, y = exact(x), exact(y)
    squares = x.square().sum(-1)[:, :, None] + y.square().sum(-1)[:, None, :]
    return squares - 2 * x @ y.transpose(1, 2)


def monotonic_alignment(scores: Tensor, frame_lengths: Tensor, symbol_lengths: Tensor) -> Tensor:
    """How many frames each symbol has on the path with the highest sum of scores, ``(batch, symbol)``, whole numbers.

    ``scores`` is ``(batch, frame, symbol)``; the lengths are ``(batch,)``. Every real symbol has at least one frame,
    and a row's durations add up to its frames. Padding isn't read. No gradient flows; it is computed on the CPU.

    Raises DataError where a row has fewer frames than symbols, or no symbol.
    """
    frames, symbols = frame_lengths.cpu().numpy(), symbol_lengths.cpu().numpy()
    _demand_enough_frames(frames, symbols)
    moved = _moves(exact(scores.detach()).cpu().numpy())
    return torch.from_numpy(_durations(moved, frames, symbols)).to(scores.device)


def _moves(scores: np.ndarray) -> np.ndarray:
    """``(frame, batch, symbol)``: whether the best path to a symbol at a frame comes from the symbol before it."""
    batch, time, width = scores.shape
    moved = np.empty((time, batch, width), dtype=bool)
    padded = np.full((batch, width + 1), -np.inf)  # of 64 bits; the first column comes before all symbols
    best, before = padded[:, 1:], padded[:, :-1]
    padded[:, 0] = 0.0
    with np.errstate(invalid="ignore"):  # padding may hold anything
        for frame in range(time):
            np.greater(before, best, out=moved[frame])
            best[:] = np.maximum(best, before) + scores[:, frame]
            padded[:, 0] = -np.inf
    return moved


def _durations(moved: np.ndarray, frames: np.ndarray, symbols: np.ndarray) -> np.ndarray:
    """The paths, followed back from the last symbol at the last frame, as ``(batch, symbol)`` counts of frames."""
    time, batch, width = moved.shape
    rows = np.arange(batch)
    durations = np.zeros((batch, width), dtype=np.int64)
    symbol = symbols - 1
    for frame in reversed(range(time)):
        is_real = frame < frames
        durations[rows, symbol] += is_real
        must_move = symbol == frame  # else the first symbols would get no frame, where scores are NaN
        symbol = symbol - (is_real & (symbol > 0) & (moved[frame, rows, symbol] | must_move))
    return durations


def _demand_enough_frames(frames: np.ndarray, symbols: np.ndarray) -> None:
    for row in np.flatnonzero((frames < symbols) | (symbols < 1)):
        raise DataError(
            f"row {row} has {frames[row]} frames for {symbols[row]} symbols; an alignment gives each symbol at least "
            "one frame: leave the utterance out, or use a smaller hop length"
        )
