"""Sinusoidal positions against the paper's formula, written with loops."""

import math

import pytest
import torch

from vaak.nn.positional_encodings import Sinusoidal, sinusoidal_encoding


@pytest.mark.parametrize("width", [8, 7])
def test_equals_the_formula(width: int):
    places = [[0, 1, 2, 500], [7, 7, 3, 100_000]]
    expected = torch.zeros(2, 4, width, dtype=torch.float64)
    for row in range(2):
        for place in range(4):
            for coordinate in range(width):
                angle = places[row][place] / 10000 ** (coordinate // 2 * 2 / width)
                expected[row, place, coordinate] = math.cos(angle) if coordinate % 2 else math.sin(angle)
    torch.testing.assert_close(
        sinusoidal_encoding(torch.tensor(places), width, torch.float64), expected, rtol=0, atol=1e-10
    )


def test_is_added_to_every_row_in_the_type_of_the_stream():
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    added = Sinusoidal(6)(x, torch.arange(5)[None])
    torch.testing.assert_close(added - x, sinusoidal_encoding(torch.arange(5), 6, torch.float64).expand_as(x))
    assert Sinusoidal(6)(x.bfloat16(), torch.arange(5)[None]).dtype is torch.bfloat16


def test_angles_are_float32_at_least():
    """In bfloat16 places 256 and 257 would be one."""
    zeros = torch.zeros(1, 2, 8, dtype=torch.bfloat16)
    added = Sinusoidal(8)(zeros, torch.tensor([[256, 257]]))
    torch.testing.assert_close(
        added.double(), sinusoidal_encoding(torch.tensor([[256, 257]]), 8, torch.float64), rtol=0, atol=0.005
    )


def test_stores_nothing():
    assert Sinusoidal(8).state_dict() == {}


def test_in_halves_all_sines_come_before_all_cosines():
    x, places = torch.zeros(1, 4, 6), torch.arange(4)[None]
    added = Sinusoidal(6, in_halves=True)(x, places)
    expected = sinusoidal_encoding(places, 6)
    assert torch.equal(added, torch.cat((expected[..., ::2], expected[..., 1::2]), -1))
