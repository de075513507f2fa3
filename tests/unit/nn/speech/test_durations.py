"""Rows repeated by durations, and durations rounded so that errors don't add up."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from vaak.nn.speech.masks import length_mask
from vaak.nn.speech.variance_adaptor import number_symbols, regulate, whole_durations

ROWS = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=1, max_size=4)
PREDICTED = st.lists(st.lists(st.floats(0, 40), min_size=1, max_size=30), min_size=1, max_size=3)


def padded(rows: list[list[int]], more: int = 0) -> torch.Tensor:
    width = max(map(len, rows)) + more
    return torch.tensor([row + [0] * (width - len(row)) for row in rows])


@given(ROWS, st.integers(0, 3), st.integers(0, 4))
def test_each_symbol_is_repeated_by_its_duration(rows: list[list[int]], more_symbols: int, more_frames: int):
    durations = padded(rows, more_symbols)
    x = torch.randn(*durations.shape, 3, requires_grad=True)
    num_frames = int(durations.sum(1).max()) + more_frames
    regulated = regulate(x, durations, num_frames)
    assert regulated.shape == (len(rows), num_frames, 3)
    for row, of_row in enumerate(durations):
        frames = int(of_row.sum())
        assert torch.equal(regulated[row, :frames], x[row].repeat_interleave(of_row, 0))
        assert not regulated[row, frames:].any()
        assert torch.equal(number_symbols(durations, num_frames)[row, :frames], torch.repeat_interleave(of_row))
    (gradient,) = torch.autograd.grad(regulated.sum(), x)
    assert torch.equal(gradient, durations[..., None].expand_as(x).to(x.dtype))


def test_there_are_as_many_frames_as_the_longest_row_has():
    assert regulate(torch.randn(2, 3, 4), torch.tensor([[1, 0, 2], [5, 1, 1]])).shape == (2, 7, 4)


@given(PREDICTED, st.sampled_from([0.5, 1.0, 1.3, 2.0]))
def test_the_total_is_that_of_the_predictions(rows: list[list[float]], speed: float):
    width = max(map(len, rows))
    predicted = torch.tensor([row + [99.0] * (width - len(row)) for row in rows], dtype=torch.float64)
    mask = length_mask(torch.tensor(list(map(len, rows))))
    whole = whole_durations(predicted, mask, speed)
    wanted = [[max(value / speed, 0.0) for value in row] for row in rows]
    for row, of_row in enumerate(wanted):
        assert abs(int(whole[row].sum()) - sum(of_row)) <= 0.5 + 1e-6
        assert not whole[row, len(of_row) :].any()
        ends = whole[row, : len(of_row)].cumsum(0).double() - torch.tensor(of_row, dtype=torch.float64).cumsum(0)
        assert ends.abs().max() <= 0.5 + 1e-6, "the end of every symbol is right up to half a frame"
    assert whole[mask].min() >= 0


def test_twice_the_speed_is_half_the_time():
    predicted, mask = 10 * torch.rand(1, 200) + 4, torch.ones(1, 200, dtype=torch.bool)
    slow, fast = (whole_durations(predicted, mask, speed).sum().item() for speed in (1.0, 2.0))
    assert abs(slow / fast - 2) < 0.01


def test_a_row_is_rounded_alike_in_any_batch():
    predicted = 5 * torch.rand(3, 50, generator=torch.Generator().manual_seed(0))
    mask = length_mask(torch.tensor([50, 20, 37]))
    whole = whole_durations(predicted, mask)
    for row, length in enumerate((50, 20, 37)):
        alone = whole_durations(predicted[row : row + 1, :length], mask[row : row + 1, :length])
        assert torch.equal(whole[row : row + 1, :length], alone)


def test_ends_are_exact_in_a_very_long_text():
    predicted = 10 * torch.rand(1, 100_000, generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(predicted, dtype=torch.bool)
    assert torch.equal(whole_durations(predicted, mask), whole_durations(predicted.double(), mask))
