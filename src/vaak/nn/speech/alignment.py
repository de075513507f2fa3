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

CTC with a blank that is never likely (NeMo's forward-sum loss) is the same sum, but its gradient on CUDA doesn't
repeat to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from vaak.core.batch import Term, running_sum
from vaak.core.errors import DataError
from vaak.nn.speech.masks import as_float64, exact, length_mask, masked


def monotonic_alignment(scores: Tensor, frame_lengths: Tensor, symbol_lengths: Tensor) -> Tensor:
    """Return the number of frames of each symbol on the path with the highest sum of scores, ``(batch, symbol)``.

    ``scores`` is ``(batch, frame, symbol)``; the lengths are ``(batch,)``. Every real symbol has at least one frame,
    and a row's durations add up to its frames. Padding isn't read. No gradient flows.

    Raises DataError if a row has fewer frames than symbols, or no symbol. Lengths on a GPU aren't checked, for the
    program would have to wait for them: there, such a row's durations mean nothing.
    """
    # A loop isn't to be traced.
    search = torch.compiler.disable(_search) if torch.compiler.is_compiling() else _search
    return search(scores, frame_lengths, symbol_lengths)


@torch.no_grad()
def _search(scores: Tensor, frame_lengths: Tensor, symbol_lengths: Tensor) -> Tensor:
    if frame_lengths.device.type == "cpu":
        # A dry pass has numbers for NumPy alone.
        _require_enough_frames(frame_lengths.numpy(), symbol_lengths.numpy())
    batch, time, width = scores.shape
    logs, _ = _levelled(scores, frame_lengths, symbol_lengths)
    best = _towards(logs, torch.maximum).add_(logs)[:, :-1]
    frames, symbols = (torch.arange(size, device=scores.device) for size in (time, width))
    moved = best[..., :-1] > best[..., 1:]
    moved |= symbols[1:] == frames[1:, None]  # else the first symbols would get no frame, where scores are NaN
    moved &= (frames[1:] < frame_lengths[:, None])[..., None]
    path = _followed_back(F.pad(moved, (1, 0, 1, 0)).view(torch.uint8), symbol_lengths - 1)
    path = path.masked_fill(frames >= frame_lengths[:, None], width)
    ends = torch.searchsorted(path, symbols.expand(batch, -1).contiguous(), right=True)
    return ends.diff(prepend=torch.zeros_like(ends[:, :1]))


def _followed_back(moved: Tensor, last: Tensor) -> Tensor:
    """Return each frame's symbol, ``(batch, frame)``, where that of the last frame is ``last``, ``(batch,)``.

    ``moved``, ``(batch, frame, symbol)``, is 1 where the frame before has the symbol before, 0 where it has the same.
    """
    batch, time, width = moved.shape
    steps = _in_blocks(moved, 0)
    blocks = steps.shape[1]
    through = torch.arange(width, device=moved.device).expand(blocks, batch, width)
    if blocks > 1:
        # It leads from each symbol that a block may end with to the one that the block before ends with.
        for step in reversed(steps.unbind()):
            through = through - step.gather(-1, through)
    ends = [last[:, None]]
    for block in reversed(range(1, blocks)):
        ends.append(through[block].gather(-1, ends[-1]))
    symbol, path = torch.stack(ends[::-1]), list[Tensor]()
    for step in reversed(steps.unbind()):
        path.append(symbol)
        symbol = symbol - step.gather(-1, symbol)
    return _in_rows(torch.stack(path[::-1]), time)[..., 0]


def _require_enough_frames(frames: np.ndarray, symbols: np.ndarray) -> None:
    for row, (of_frames, of_symbols) in enumerate(zip(frames, symbols, strict=True)):
        if of_frames < of_symbols or of_symbols < 1:
            raise DataError(
                f"row {row} has {of_frames} frames for {of_symbols} symbols; an alignment gives each symbol at least "
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
        """Log-likelihoods, up to a constant, ``(batch, frame, symbol)``; -inf beyond the last symbol.

        ``text`` ``(batch, symbol, text_width)`` is real where ``symbol_mask`` is True, ``mel`` ``(batch, frame, bin)``,
        normalised, where ``frame_mask`` is. ``prior`` is what ``beta_binomial_prior`` gives.
        """
        means = self.mean(self.hidden(masked(text, symbol_mask)).relu())
        with torch.autocast(mel.device.type, enabled=False):
            features = with_differences(exact(masked(mel, frame_mask)) @ exact(self.cosines), frame_mask)
            log_variance = exact(self.log_variance).clamp(min=LEAST_LOG_VARIANCE)
            scale = (-log_variance / 2).exp()
            x, y = features * scale, exact(means) * scale
            squares = x.square().sum(-1)[:, :, None] + y.square().sum(-1)[:, None, :]
            # |x - y|² of each frame and each symbol.
            distances = squares - 2 * x @ y.transpose(1, 2)
            scores = -(distances + log_variance.sum()) / 2
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
    # These are the ratios of the probabilities of k + 1 and k.
    ratios = (rest * (k + a) / ((k + 1) * (rest - 1 + b))).log()
    logs = F.pad(running_sum(ratios), (1, 0)).masked_fill(~is_symbol, -torch.inf)
    return logs.log_softmax(-1).masked_fill(~is_frame & is_symbol, 0.0).float()


def forward_sum_loss(log_probs: Tensor, frame_lengths: Tensor, symbol_lengths: Tensor) -> Term:
    """Return the negative log-likelihood of all monotonic paths together, per frame.

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
        # where each place of a row is found in it when read backwards; padding is anywhere
        _, time, width = log_probs.shape
        frames = (frame_lengths[:, None] - 1 - torch.arange(time, device=log_probs.device)).clamp(min=0)
        symbols = (symbol_lengths[:, None] - 1 - torch.arange(width, device=log_probs.device)).clamp(min=0)
        places = frames[:, :, None] * width + symbols[:, None, :]
        logs, levels = _levelled(log_probs, frame_lengths, symbol_lengths)
        flat = logs.flatten(1)
        towards = _towards(torch.cat((logs, flat.gather(1, places.flatten(1)).view_as(logs))), torch.logaddexp)
        before, after = towards.chunk(2)
        after = after.flatten(1).gather(1, places.flatten(1)).view_as(logs)
        through = before + logs
        ends = ((frame_lengths - 1) * logs.shape[2] + symbol_lengths - 1)[:, None]
        totals = through.flatten(1).gather(1, ends)
        is_real = _is_real(logs, frame_lengths, symbol_lengths)
        posteriors = (through + after - totals[..., None]).masked_fill(~is_real, -torch.inf)
        if posteriors.dtype == torch.float32:
            # Rounded sums: normalise each frame, whose places add up to 1.
            posteriors = (posteriors - posteriors.logsumexp(-1, keepdim=True)).masked_fill(~is_real, -torch.inf)
        ctx.save_for_backward(posteriors.to(log_probs.dtype).exp())
        return (totals[:, 0] + levels).to(log_probs.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (posteriors,) = ctx.saved_tensors
        return gradient[:, None, None] * posteriors, None, None


def _is_real(scores: Tensor, frame_lengths: Tensor, symbol_lengths: Tensor) -> Tensor:
    _, time, width = scores.shape
    return length_mask(frame_lengths, time)[..., None] & length_mask(symbol_lengths, width)[:, None]


def _levelled(scores: Tensor, frame_lengths: Tensor, symbol_lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores in which small differences of large sums count, and by how much a row's paths were lowered.

    On the CPU they have 64 bits. Elsewhere, where these are slow or missing, the best place of each frame is 0.
    """
    if scores.device.type == "cpu":
        return scores.double(), scores.new_zeros(len(scores), dtype=torch.float64)
    scores, is_real = exact(scores), _is_real(scores, frame_lengths, symbol_lengths)
    levels = scores.masked_fill(~is_real, -torch.inf).amax(-1, keepdim=True)
    levels = levels.masked_fill(~levels.isfinite(), 0.0)
    return scores - levels, levels.sum((1, 2))


ROWS_AT_ONCE = 16
"""Exponentials that a CPU computes together; those that are left over have other instructions, and round otherwise."""
FRAMES_OF_A_BLOCK = 16
"""With more of them a block is a matrix of more diagonals, with fewer there are more blocks to go through in turn."""


def _towards(logs: Tensor, combine: Callable[..., Tensor]) -> Tensor:
    """Combined over all ways to each symbol at each frame, without the frame itself; ``(batch, frame, symbol)``.

    ``combine`` is ``torch.logaddexp``, which sums up ways, or ``torch.maximum``, which finds the best. 800 frames are
    1,600 operators on the CPU, 240 elsewhere.
    """
    _, time, num_symbols = logs.shape
    if combine is torch.logaddexp:
        logs = F.pad(logs, (0, -num_symbols % ROWS_AT_ONCE), value=-torch.inf)
    steps = _in_blocks(logs, -torch.inf)
    towards = torch.empty(steps.shape, dtype=logs.dtype, device=logs.device)
    state = _entries(steps, combine)
    first, stayed, moved = state[..., 0], state[..., 1:], state[..., :-1]
    for frame, (found, step) in enumerate(zip(towards, steps, strict=True)):
        combine(stayed, moved, out=found)
        torch.add(found, step, out=stayed)
        if frame == 0:
            first.fill_(-torch.inf)
    return _in_rows(towards, time)[..., :num_symbols]


def _entries(steps: Tensor, combine: Callable[..., Tensor]) -> Tensor:
    """Combined over all ways to each symbol at the frame before each block, ``(block, batch, 1 + symbol)``.

    The first column comes before all symbols. ``steps`` are ``(frame, block, batch, symbol)``. In a block of n frames a
    path moves on by at most n symbols, so a block is a matrix with n + 1 diagonals. The matrices of all blocks are
    found at the same time, then each is applied to the result of the block before it.
    """
    length, blocks, batch, width = steps.shape
    entries = steps.new_full((blocks, batch, length + 1 + width), -torch.inf)
    entries[0, :, length] = 0.0
    if blocks > 1:
        steps = F.pad(steps[:, :-1], (1, 0), value=-torch.inf)
        # [1 + distance, ..., 1 + end].
        ways = steps.new_full((length + 2, blocks - 1, batch, width + 2), -torch.inf)
        ways[1, ..., 1:] = 0.0
        for frame in range(length):
            ends = ways[1 : frame + 3, ..., 1:]
            torch.add(combine(ends, ways[: frame + 2, ..., :-1]), steps[frame], out=ends)
        ways = ways[1:, ..., 1:].flip(0)
        for block in range(blocks - 1):
            begins = entries[block].unfold(-1, length + 1, 1).permute(2, 0, 1)
            found = ways[:, block] + begins
            entries[block + 1, :, length:] = found.amax(0) if combine is torch.maximum else found.logcumsumexp(0)[-1]
    return entries[..., length:]


def block_length(time: int, device: torch.device) -> int:
    """Return how many frames are computed one after the other, as part of a row that has ``time``.

    On the CPU it is the whole row. Elsewhere an operator takes longer to launch than to compute, so that a row is cut
    into blocks that are computed at the same time.
    """
    return time if device.type == "cpu" else FRAMES_OF_A_BLOCK


def _in_blocks(rows: Tensor, value: float) -> Tensor:
    """``(batch, frame, symbol)`` as ``(frame, block, batch, symbol)``, the last block filled up with ``value``."""
    batch, time, width = rows.shape
    length = block_length(time, rows.device)
    if time % length:
        rows = F.pad(rows, (0, 0, 0, -time % length), value=value)
    return rows.reshape(batch, -1, length, width).permute(2, 1, 0, 3)


def _in_rows(steps: Tensor, time: int) -> Tensor:
    """Return the inverse of ``_in_blocks``."""
    return steps.permute(2, 1, 0, 3).flatten(1, 2)[:, :time]
