"""Connectionist temporal classification: the probability of a text, summed over all ways to place it in the frames.

    frames      0 1 2 3 4 5 6
    classes     ␣ h h ␣ ə ə l       ␣ is the blank: equal classes side by side are one, then blanks are left out: h ə l

A text u1 … uL is read along ␣ u1 ␣ u2 ␣ … uL ␣. At each frame a path stays, moves on by one place, or by two where it
would skip a blank between different tokens. So a text needs as many frames as tokens, and one more for each token that
equals the one before it. With α(t, s) the sum over all ways to place s at frame t, and β(t, s) over all ways on from
it,

    log p(u) = log Σ_s α(t, s) β(t, s) / p(t, s)    at any t
    d log p(u) / d log p(t, k) = Σ γ(t, s) over the places s of class k

where γ(t, s) is the probability that a path is at s. Both sums are one recursion: β is α of the row read backwards. It
has 64 bits, and nothing in it is added in an order that may change, so it gives the same bits every time; torch's own
gradient doesn't on CUDA.

Source: Graves et al. 2006, "Connectionist Temporal Classification", section 4.1 and equation 15. Differs: the gradient
is that of log-probabilities, whose normalisation has its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated as Float
from typing import Annotated as Int
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from vaak.nn.speech.alignment import ROWS_AT_ONCE
from vaak.nn.speech.masks import as_float64, length_mask


def frames_needed(ids: Sequence[int]) -> int:
    """Return the number of frames in which these tokens can be placed.

    >>> frames_needed([7, 7, 8]), frames_needed([])
    (4, 0)
    """
    return len(ids) + sum(before == after for before, after in itertools.pairwise(ids))


def collapse(classes: Sequence[int], blank: int) -> list[int]:
    """Return the tokens of the classes of frames.

    >>> collapse([0, 7, 7, 0, 7, 8, 8], blank=0)
    [7, 7, 8]
    """
    return [one for before, one in itertools.pairwise([blank, *classes]) if one not in (before, blank)]


MOST_STATES = 2**31
"""Frames times places of a text that a search for its best path may keep, a byte each."""


def best_path(
    log_probs: Float[np.ndarray, "frame vocab"],
    ids: Sequence[int],
    blank: int = 0,
    *,
    within: bool = False,
    width: int = 2048,
) -> Int[np.ndarray, " frame"] | None:
    """Return the place of ␣ u1 ␣ … uL ␣ (0 to 2L) at each frame on the most probable path of a text of L tokens.

    With ``within``, the text is somewhere within the audio: speech before and after it costs nothing. For long texts,
    only ``width`` places around the best one are examined in each frame; more where the path comes near the edge of
    these. None if the text doesn't fit the frames, or is so far from the speech that the path can't be found within
    MOST_STATES.

    Source: Kürzinger et al. 2020, "CTC-Segmentation of Large Corpora for German End-to-End Speech Recognition",
    section 2. Differs: the band follows the best place, and grows.
    """
    classes = np.full(2 * len(ids) + 1, blank)
    classes[1::2] = ids
    if len(log_probs) < frames_needed(ids):
        return None
    while True:
        width = min(width, len(classes))
        if width * len(log_probs) > MOST_STATES:
            return None
        path = _path_in_band(log_probs, classes, blank, within, width)
        if path is not None or width == len(classes):
            return path
        width *= 2


def _path_in_band(
    log_probs: np.ndarray, classes: np.ndarray, blank: int, within: bool, width: int
) -> np.ndarray | None:
    """Return the best path among ``width`` places a frame; None if it touches the edge, or doesn't reach the end."""
    num_frames, last = len(log_probs), len(classes) - 1
    skips = np.zeros(len(classes), bool)
    skips[2:] = (classes[2:] != blank) & (classes[2:] != classes[:-2])
    any_class = log_probs.max(1)
    steps = np.empty((num_frames, width), np.uint8)
    firsts = np.zeros(num_frames, np.int64)
    scores = np.full(width, -np.inf)
    ways = np.empty((3, width))
    for frame in range(num_frames):
        first = firsts[frame - 1] if frame else 0
        if frame:
            # The band follows the best place; it never goes back, and never beyond the last place.
            moved = int(np.clip(first + scores.argmax() - width // 2, first, last + 1 - width)) - first
            before = np.concatenate(([-np.inf, -np.inf], scores, np.full(moved, -np.inf)))[moved:]
            first += moved
            ways[0], ways[1] = before[2:], before[1:-1]
            ways[2] = np.where(skips[first : first + width], before[:-2], -np.inf)
            steps[frame] = ways.argmax(0)
            scores = ways.max(0)
        else:
            scores[:2] = 0.0
        firsts[frame] = first
        emitted = log_probs[frame, classes[first : first + width]].astype(np.float64)
        if within and first == 0:
            emitted[0] = any_class[frame]
        if within and first + width > last:
            emitted[-1] = any_class[frame]
        scores = scores + emitted
    if firsts[-1] + width <= last:
        return None
    place = last if width == 1 or scores[-1] >= scores[-2] else last - 1
    if not np.isfinite(scores[place - firsts[-1]]):
        return None
    path, margin = np.empty(num_frames, np.int64), width // 16 if width <= last else 0
    for frame in range(num_frames - 1, -1, -1):
        path[frame], column = place, place - firsts[frame]
        if (column < margin and firsts[frame]) or (column >= width - margin and firsts[frame] + width <= last):
            return None
        place -= int(steps[frame, column]) if frame else 0
    return path


def ctc_log_likelihoods(
    log_probs: Float[Tensor, "batch frame vocab"],
    targets: Int[Tensor, "batch token"],
    frame_lengths: Int[Tensor, " batch"],
    target_lengths: Int[Tensor, " batch"],
    blank: int = 0,
) -> Float[Tensor, " batch"]:
    """Return the log-probability of each row's tokens; -inf, without a gradient, where they don't fit its frames.

    What is beyond the lengths isn't read; ``targets`` may be anything there.
    """
    apply: Any = _SumOverPaths.apply
    # A loop isn't to be traced.
    sums = torch.compiler.disable(apply) if torch.compiler.is_compiling() else apply
    likelihoods: Tensor = sums(log_probs, targets, frame_lengths, target_lengths, blank)
    return likelihoods


class _SumOverPaths(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, log_probs: Tensor, targets: Tensor, frame_lengths: Tensor, target_lengths: Tensor, blank: int
    ) -> Tensor:
        places = _Places(log_probs, targets, frame_lengths, target_lengths, blank)
        logs = as_float64(log_probs).gather(2, places.classes[:, None].expand(-1, log_probs.shape[1], -1))
        towards = _towards(torch.cat((logs, places.backwards(logs))), torch.cat((places.skips, places.skips_backwards)))
        before, after = towards.chunk(2)
        through = before + logs
        last = through.gather(1, (frame_lengths - 1)[:, None, None].expand(-1, 1, through.shape[2]))[:, 0]
        totals = last.masked_fill(~places.is_end, -torch.inf).logsumexp(-1)
        posteriors = through + places.backwards(after) - totals[:, None, None]
        is_real = places.is_real & totals.isfinite()[:, None, None]
        ctx.save_for_backward(posteriors.masked_fill(~is_real, -torch.inf).exp(), places.classes)
        ctx.like = log_probs.shape[2], log_probs.dtype
        return totals.to(log_probs.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        posteriors, classes = ctx.saved_tensors
        vocab_size, dtype = ctx.like
        # A product adds in one order.
        by_class = posteriors @ F.one_hot(classes, vocab_size).to(posteriors.dtype)
        return gradient[:, None, None] * by_class.to(dtype), None, None, None, None


class _Places:
    """The places ␣ u1 ␣ … uL ␣ of each row, ``(batch, place)``, and where they are in the row read backwards."""

    def __init__(
        self, log_probs: Tensor, targets: Tensor, frame_lengths: Tensor, target_lengths: Tensor, blank: int
    ) -> None:
        time, device = log_probs.shape[1], log_probs.device
        is_token = length_mask(target_lengths, targets.shape[1])
        tokens = targets.masked_fill(~is_token, blank)
        width = 2 * tokens.shape[1] + 1
        self.classes = tokens.new_full((len(tokens), width), blank)
        self.classes[:, 1::2] = tokens
        self.skips = _skips(self.classes, blank)
        numbers = torch.arange(width, device=device)
        last = 2 * target_lengths[:, None]
        self.is_end = (numbers == last) | (numbers == last - 1)
        self.is_real = length_mask(frame_lengths, time)[..., None] & (numbers <= last)[:, None]
        # each row is reversed within its own length, so that the backward pass is the forward pass again, and starts
        # where a text ends
        order = (last - numbers).clamp(min=0)
        self.skips_backwards = _skips(self.classes.gather(1, order), blank)
        frames = (frame_lengths[:, None] - 1 - torch.arange(time, device=device)).clamp(min=0)
        self._order = (frames[:, :, None] * width + order[:, None]).flatten(1)

    def backwards(self, x: Tensor) -> Tensor:
        """Reverse each row in frames and places; the values in padding are arbitrary."""
        return x.flatten(1).gather(1, self._order).view_as(x)


def _skips(classes: Tensor, blank: int) -> Tensor:
    """Where a path may come from two places before; to the first token it may, from before all places."""
    before = F.pad(classes, (2, 0), value=-1)[:, :-2]
    return (classes != blank) & (classes != before)


def _towards(logs: Tensor, skips: Tensor) -> Tensor:
    """Summed over all ways to each place at each frame, without the frame itself; ``(batch, frame, place)``."""
    batch, time, num_places = logs.shape
    padding = -num_places % ROWS_AT_ONCE
    steps = F.pad(logs, (0, padding), value=-torch.inf).transpose(0, 1).contiguous()
    barred = torch.where(F.pad(skips, (0, padding)), 0.0, -torch.inf).to(logs.dtype)
    towards = torch.empty_like(steps)
    state = logs.new_full((batch, num_places + padding + 2), -torch.inf)
    # Before all places there is one before the first.
    state[:, 1] = 0.0
    for frame in range(time):
        torch.logaddexp(state[:, 2:], state[:, 1:-1], out=towards[frame])
        torch.logaddexp(towards[frame], state[:, :-2] + barred, out=towards[frame])
        torch.add(towards[frame], steps[frame], out=state[:, 2:])
        state[:, 1] = -torch.inf
    return towards.transpose(0, 1)[..., :num_places]
