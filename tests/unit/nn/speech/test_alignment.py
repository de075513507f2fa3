"""The best of all paths and the sum over them, against all paths; neither depends on padding or on the batch."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vaak.core.errors import DataError
from vaak.nn.speech import alignment
from vaak.nn.speech.alignment import monotonic_alignment, path_log_likelihoods

SIZES = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 4)).map(lambda n: (n[0], n[0] + n[1])), min_size=1, max_size=4
)


def all_durations(symbols: int, frames: int) -> Iterator[tuple[int, ...]]:
    """All ways to give ``frames`` to ``symbols`` in order, at least one to each."""
    for ends in itertools.combinations(range(1, frames), symbols - 1):
        yield tuple(np.diff((0, *ends, frames)))


def compute_score(scores: Tensor, durations: tuple[int, ...]) -> float:
    """The sum of a row's ``(frame, symbol)`` scores along a path."""
    symbols = torch.repeat_interleave(torch.tensor(durations))
    return scores[torch.arange(len(symbols)), symbols].double().sum().item()


BLOCKS = st.sampled_from([1, 2, 3, 1000])
"""Frames of the blocks that a GPU would cut a row into; the last one is what the CPU does."""


def aligned(scores: Tensor, sizes: list[tuple[int, int]], block: int = 1000) -> Tensor:
    symbols, frames = torch.tensor(sizes).T
    with patch.object(alignment, "block_length", lambda time, device: min(block, time)):
        return monotonic_alignment(scores, frames, symbols)


def drawn(sizes: list[tuple[int, int]], seed: int, more: int = 0) -> Tensor:
    """Scores of rows by (symbols, frames); padding is NaN or infinite, for it must not even be read."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.full((len(sizes), max(f for _, f in sizes) + more, max(s for s, _ in sizes) + more), torch.nan)
    scores[:, :, -1] = torch.inf
    for row, (symbols, frames) in enumerate(sizes):
        scores[row, :frames, :symbols] = torch.randn(frames, symbols, generator=generator)
    return scores


@given(SIZES, st.integers(0, 2**31), st.integers(0, 3), BLOCKS)
def test_is_the_best_of_all_paths(sizes: list[tuple[int, int]], seed: int, more: int, block: int):
    scores = drawn(sizes, seed, more)
    durations = aligned(scores, sizes, block)
    for row, (symbols, frames) in enumerate(sizes):
        best = max(all_durations(symbols, frames), key=lambda path: compute_score(scores[row], path))
        assert tuple(durations[row, :symbols].tolist()) == best
        assert not durations[row, symbols:].any()


@given(SIZES, st.integers(0, 2**31), st.integers(0, 3), BLOCKS, st.sampled_from([-torch.inf, -2.0]))
def test_sums_up_all_paths(sizes: list[tuple[int, int]], seed: int, more: int, block: int, lowest: float):
    """Also where many symbols are impossible; the gradient is how probable it is that a path goes through a place."""
    scores = drawn(sizes, seed, more).double()
    scores = scores.masked_fill(scores < -1, lowest).requires_grad_()
    symbols, frames = torch.tensor(sizes).T
    with patch.object(alignment, "block_length", lambda time, device: min(block, time)):
        totals = path_log_likelihoods(scores, frames, symbols)
    (gradient,) = torch.autograd.grad(totals.sum(), scores)
    for row, size in enumerate(sizes):
        paths = [torch.repeat_interleave(torch.tensor(path)) for path in all_durations(*size)]
        logs = torch.stack([scores[row].detach()[torch.arange(size[1]), path].sum() for path in paths])
        torch.testing.assert_close(totals[row], logs.logsumexp(0))
        if logs.isinf().all():
            continue
        expected = torch.zeros(scores.shape[1:], dtype=torch.float64)
        for path, probability in zip(paths, logs.softmax(0), strict=True):
            expected[torch.arange(size[1]), path] += probability
        torch.testing.assert_close(gradient[row], expected)


@given(SIZES, st.integers(0, 2**31))
def test_neither_padding_nor_the_batch_changes_a_row(sizes: list[tuple[int, int]], seed: int):
    scores = drawn(sizes, seed, more=5)
    together = aligned(scores, sizes)
    for row, (symbols, frames) in enumerate(sizes):
        alone = aligned(scores[row : row + 1, :frames, :symbols], [(symbols, frames)])
        assert torch.equal(together[row, :symbols], alone[0])


def test_a_long_path_is_found_again():
    durations = torch.randint(1, 9, (3, 100), generator=torch.Generator().manual_seed(0))
    durations[1, 60:] = 0
    frames, symbols = durations.sum(1), torch.tensor([100, 60, 100])
    scores = torch.randn(3, int(frames.max()), 100)
    for row in range(3):
        path = torch.repeat_interleave(durations[row])
        scores[row, torch.arange(len(path)), path] += 20
    assert torch.equal(monotonic_alignment(scores, frames, symbols), durations)


def test_small_differences_of_large_sums_count():
    """In 32 bits, sums of log-likelihoods of many frames would hide them."""
    scores = torch.full((1, 2000, 2), -1e4)
    scores[0, 1990, 1] += 0.01
    scores[0, 1989, 1] -= 0.01
    assert aligned(scores, [(2, 2000)]).tolist()[0][0] in (1990, *range(1, 1990))
    scores[0, 1:1990, 1] -= 0.01
    scores[0, 1991:, 0] -= 0.01
    assert aligned(scores, [(2, 2000)]).tolist() == [[1990, 10]]


@pytest.mark.parametrize("block", [2, 1000])
@pytest.mark.parametrize("value", [torch.nan, -torch.inf, 0.0])
def test_a_path_is_valid_whatever_the_scores(value: float, block: int):
    durations = aligned(torch.full((2, 6, 4), value), [(4, 6), (3, 3)], block)
    assert durations.sum(1).tolist() == [6, 3]
    assert (durations > 0).tolist() == [[True] * 4, [True] * 3 + [False]]


@pytest.mark.parametrize("sizes", [(3, 2), (0, 4)])
def test_rows_without_a_path_are_named(sizes: tuple[int, int]):
    with pytest.raises(DataError, match=f"row 1 has {sizes[1]} frames for {sizes[0]} symbols"):
        aligned(torch.zeros(2, 5, 5), [(5, 5), sizes])


def test_takes_a_fraction_of_a_step():
    """800 frames and 150 symbols in 16 rows: a loop over rows and symbols would take seconds."""
    scores = torch.randn(16, 800, 150)
    sizes = torch.full((16,), 800), torch.full((16,), 150)
    taken = []
    for _ in range(5):
        started = time.process_time()
        monotonic_alignment(scores, *sizes)
        taken.append(time.process_time() - started)
    assert min(taken) < 0.1
