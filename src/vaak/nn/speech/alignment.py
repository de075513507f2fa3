"""Which frames each symbol is spoken in: monotonic alignment search, and an aligner learned without any example.

    frames    0 1 2 3 4 5 6
    symbols   h h ə ə ə l oʊ      durations 2 3 1 1: every symbol has a frame, and none comes back

The best path ends in the last symbol at the last frame; at each frame it stays, or moves on by one symbol:

    best(t, j) = score(t, j) + max(best(t - 1, j), best(t - 1, j - 1))

    symbol ──linear layers──▶ mean cepstra ─┐
    mel ──cosine transform──▶ cepstra ──────┴─ log N(cepstra; mean, variance) + prior ──▶ score(t, j)

The aligner is trained to make recordings likely, summed over all monotonic paths (the forward-sum loss), as hidden
Markov models of phones are. At first all means are equal, and the prior keeps the paths near the diagonal.

Sources: Kim et al. 2020, "Glow-TTS", section 3.2 (search; frames by the means of symbols); Badlani et al. 2021, "One
TTS Alignment To Rule Them All" (the loss, the prior); Davis and Mermelstein 1980 (cepstra), Furui 1986 (their
differences in time). Differs from Badlani et al.: frames have likelihoods, where probabilities of symbols may become
anything if there is little speech; they are those of cepstra, which are nearly independent, where bins are not. On
three minutes the median end of a symbol is 12 ms from the one that a forced alignment gives; it was 35 ms with bins,
232 ms with probabilities. A mean depends on the symbol alone, not on its neighbours, for the same reason; and the sum
over paths is exact, with no blank symbol between them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from vaak.core.batch import Term, running_sum, send
from vaak.core.errors import DataError
from vaak.nn.speech.masks import as_float64, exact, length_mask, masked


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Return the squared distances of all vectors of ``x`` from all of ``y``, ``(batch, first, second)``.

    ``x`` is ``(batch, first, width)``, ``y`` ``(batch, second, width)``.
    """
    x, y = exact(x), exact(y)
    squares = x.square().sum(-1)[:, :, None] + y.square().sum(-1)[:, None, :]
    return squares - 2 * x @ y.transpose(1, 2)


def monotonic_alignment(scores: Tensor, frame_lengths: Tensor, symbol_lengths: Tensor) -> Tensor:
    """Return the number of frames of each symbol on the path with the highest sum of scores, ``(batch, symbol)``.

    ``scores`` is ``(batch, frame, symbol)``; the lengths are ``(batch,)``. Every real symbol has at least one frame,
    and a row's durations add up to its frames. Padding isn't read. No gradient flows; it is computed on the CPU.

    Raises DataError where a row has fewer frames than symbols, or no symbol.
    """
    search = torch.compiler.disable(_search) if torch.compiler.is_compiling() else _search  # numpy isn't to be traced
    return search(scores, frame_lengths, symbol_lengths)


def _search(scores: Tensor, frame_lengths: Tensor, symbol_lengths: Tensor) -> Tensor:
    precise = exact(scores.detach())
    lengths = torch.stack((frame_lengths, symbol_lengths), 1).to(precise)
    both = torch.cat((lengths, precise.flatten(1)), 1).cpu().numpy()  # one copy: a GPU is waited for once
    frames, symbols = both[:, :2].astype(np.int64).T
    _demand_enough_frames(frames, symbols)
    moved = _moves(both[:, 2:].reshape(precise.shape))
    return send(torch.from_numpy(_durations(moved, frames, symbols)), scores.device)


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


NUM_CEPSTRA = 13
"""The first ones, that of loudness among them: the spectrum's envelope without its harmonics."""
LEAST_DEVIATION = 1e-3
"""Digital silence has none."""
LEAST_LOG_VARIANCE = -6.0


class Aligner(nn.Module):
    """How likely each symbol makes each frame."""

    cosines: Tensor

    def __init__(self, text_width: int, num_bins: int) -> None:
        super().__init__()
        number = min(NUM_CEPSTRA, num_bins)
        bins, orders = torch.arange(num_bins) + 0.5, torch.arange(number)
        self.register_buffer("cosines", torch.cos(torch.pi / num_bins * bins[:, None] * orders), persistent=False)
        self.hidden = nn.Linear(text_width, 2 * text_width)
        self.mean = nn.Linear(2 * text_width, 3 * number)
        self.log_variance = nn.Parameter(torch.zeros(3 * number))

    def forward(
        self, text: Tensor, mel: Tensor, symbol_mask: Tensor, frame_mask: Tensor, prior: Tensor | None = None
    ) -> Tensor:
        """Log-likelihoods, up to a constant, ``(batch, frame, symbol)``; -inf where there is no symbol.

        ``text`` ``(batch, symbol, text_width)`` is real where ``symbol_mask`` is True, ``mel`` ``(batch, frame, bin)``,
        normalised, where ``frame_mask`` is. ``prior`` is what ``beta_binomial_prior`` gives.
        """
        means = self.mean(self.hidden(masked(text, symbol_mask)).relu())
        with torch.autocast(mel.device.type, enabled=False):
            heard = with_differences(exact(masked(mel, frame_mask)) @ exact(self.cosines), frame_mask)
            log_variance = exact(self.log_variance).clamp(min=LEAST_LOG_VARIANCE)
            scale = (-log_variance / 2).exp()
            scores = -(squared_distances(heard * scale, exact(means) * scale) + log_variance.sum()) / 2
            if prior is not None:
                scores = scores + prior
            return scores.masked_fill(~symbol_mask[:, None, :], -torch.inf)


def with_differences(features: Tensor, mask: Tensor) -> Tensor:
    """Features ``(batch, frame, feature)``, their slopes over five frames, and the slopes of these, side by side.

    Each of them, ``(batch, frame, 3 * feature)``, has mean 0 and deviation 1 over the real frames of a row, those where
    ``mask`` is True. Beyond its ends, a row has its first and last frames.
    """
    lengths = mask.sum(1)
    slopes = _slopes(features, lengths)
    together = torch.cat((features, slopes, _slopes(slopes, lengths)), -1)
    counts = lengths.clamp(min=1)[:, None, None]
    centred = together - masked(together, mask).sum(1, keepdim=True) / counts
    deviation = (masked(centred, mask).square().sum(1, keepdim=True) / counts).sqrt()
    return masked(centred / deviation.clamp(min=LEAST_DEVIATION), mask)


def _slopes(features: Tensor, lengths: Tensor) -> Tensor:
    """Return the slopes of the lines that fit a frame and two on each side best, times 10."""
    frames = torch.arange(features.shape[1], device=features.device)
    last = (lengths - 1).clamp(min=0)[:, None]
    slopes = torch.zeros_like(features)
    for distance in (1, 2):
        later, earlier = (frames + distance).minimum(last), (frames - distance).clamp(min=0).minimum(last)
        found = [features.gather(1, at[..., None].expand_as(features)) for at in (later, earlier)]
        slopes = slopes + distance * (found[0] - found[1])
    return slopes


def beta_binomial_prior(
    frame_lengths: Tensor,
    symbol_lengths: Tensor,
    scaling: float = 1.0,
    padded: tuple[int | None, int | None] = (None, None),
) -> Tensor:
    """Log-probabilities of symbols at each frame that favour the diagonal, ``(batch, frame, symbol)``.

    ``padded`` is how many frames and symbols a row has with its padding; None is the longest row's.

    Of frame t of T, counted from 1, they are beta-binomial with n = symbols - 1, a = ``scaling`` · t and
    b = ``scaling`` · (T - t + 1): the larger ``scaling``, the narrower. -inf at padded symbols, 0 at padded frames.
    """
    frames, symbols = as_float64(frame_lengths)[:, None, None], as_float64(symbol_lengths)[:, None, None]
    is_frame = length_mask(frame_lengths, padded[0])[..., None]
    is_symbol = length_mask(symbol_lengths, padded[1])[:, None]
    t = torch.arange(1, is_frame.shape[1] + 1, device=frames.device)[:, None]
    k = torch.arange(is_symbol.shape[2] - 1, device=frames.device)
    a, b = scaling * t, scaling * (frames - t + 1).clamp(min=1)
    rest = (symbols - 1 - k).clamp(min=1)
    ratios = (rest * (k + a) / ((k + 1) * (rest - 1 + b))).log()  # of the probabilities of k + 1 and k
    logs = F.pad(running_sum(ratios), (1, 0)).masked_fill(~is_symbol, -torch.inf)
    return logs.log_softmax(-1).masked_fill(~is_frame & is_symbol, 0.0).float()


def forward_sum_loss(log_probs: Tensor, frame_lengths: Tensor, symbol_lengths: Tensor) -> Term:
    """The negative log-likelihood of all monotonic paths together, per frame.

    ``log_probs``, of each symbol at each frame, is ``(batch, frame, symbol)``, the lengths ``(batch,)``. A row with
    fewer frames than symbols has no path; its loss is infinite.
    """
    return Term(-path_log_likelihoods(log_probs, frame_lengths, symbol_lengths).sum(), per="frame")


def path_log_likelihoods(log_probs: Tensor, frame_lengths: Tensor, symbol_lengths: Tensor) -> Tensor:
    """The log of the summed probabilities of a row's monotonic paths, ``(batch,)``, from ``(batch, frame, symbol)``.

    Paths are those of ``vaak.nn.speech.alignment``.
    """
    likelihoods: Tensor = _SumOverPaths.apply(  # type: ignore[no-untyped-call]
        log_probs, frame_lengths, symbol_lengths
    )
    return likelihoods


class _SumOverPaths(torch.autograd.Function):
    """The gradient is the probability that a path passes through a symbol at a frame.

    For that, a path's part before a place and the part after it are summed up alike: the second in the row read
    backwards. Both are done in one pass, as a batch twice as large.
    """

    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, frame_lengths: Tensor, symbol_lengths: Tensor) -> Tensor:
        places = _backwards(log_probs, frame_lengths, symbol_lengths)
        logs = as_float64(log_probs)
        flat = logs.flatten(1)
        towards = _towards(torch.cat((logs, flat.gather(1, places.flatten(1)).view_as(logs))))
        before, after = towards.chunk(2)
        after = after.flatten(1).gather(1, places.flatten(1)).view_as(logs)
        through = before + logs
        ends = ((frame_lengths - 1) * logs.shape[2] + symbol_lengths - 1)[:, None]
        totals = through.flatten(1).gather(1, ends)
        is_real = (
            length_mask(frame_lengths, logs.shape[1])[..., None] & length_mask(symbol_lengths, logs.shape[2])[:, None]
        )
        posteriors = (through + after - totals[..., None]).masked_fill(~is_real, -torch.inf)
        ctx.save_for_backward(posteriors.to(log_probs.dtype).exp())
        return totals[:, 0].to(log_probs.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (posteriors,) = ctx.saved_tensors
        return gradient[:, None, None] * posteriors, None, None


AT_ONCE = 16
"""A CPU computes so many exponentials with other instructions than those that are left over, and rounds otherwise."""


def _towards(logs: Tensor) -> Tensor:
    """Summed over all ways to each symbol at each frame, without the frame itself; ``(batch, frame, symbol)``."""
    batch, time, num_symbols = logs.shape
    width = -(-num_symbols // AT_ONCE) * AT_ONCE
    logs = F.pad(logs, (0, width - num_symbols), value=-torch.inf)
    towards = torch.empty(time, batch, width, dtype=logs.dtype, device=logs.device)
    state = logs.new_full((batch, width + 1), -torch.inf)  # the first column comes before all symbols
    state[:, 0] = 0.0
    for frame in range(time):
        torch.logaddexp(state[:, 1:], state[:, :-1], out=towards[frame])
        torch.add(towards[frame], logs[:, frame], out=state[:, 1:])
        state[:, 0] = -torch.inf
    return towards.transpose(0, 1)[..., :num_symbols]


def _backwards(log_probs: Tensor, frame_lengths: Tensor, symbol_lengths: Tensor) -> Tensor:
    """Where each place of a row is found in it when read backwards, ``(batch, frame, symbol)``; padding is anywhere."""
    _, time, width = log_probs.shape
    frames = (frame_lengths[:, None] - 1 - torch.arange(time, device=log_probs.device)).clamp(min=0)
    symbols = (symbol_lengths[:, None] - 1 - torch.arange(width, device=log_probs.device)).clamp(min=0)
    return frames[:, :, None] * width + symbols[:, None, :]
