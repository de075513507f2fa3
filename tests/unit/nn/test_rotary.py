"""Rotary positions turn pairs by the paper's angles, keep lengths, and let products see only the distance."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from vaak.nn.rotary import rotate, rotation


def test_turns_each_pair_by_its_angle():
    width, theta, position = 8, 100.0, 3
    x = torch.randn(1, 1, 1, width)
    turned = rotate(x, rotation(torch.tensor([[position]]), width, theta)).flatten()
    for pair in range(width // 2):
        angle = position * theta ** (-2 * pair / width)
        first, second = x.flatten()[pair].item(), x.flatten()[pair + width // 2].item()
        assert math.isclose(turned[pair].item(), first * math.cos(angle) - second * math.sin(angle), abs_tol=1e-5)
        assert math.isclose(
            turned[pair + width // 2].item(), first * math.sin(angle) + second * math.cos(angle), abs_tol=1e-5
        )


def test_position_zero_changes_nothing_and_lengths_are_kept():
    x = torch.randn(2, 5, 3, 16)
    turned = rotate(x, rotation(torch.arange(5)[None], 16, 10000.0))
    assert torch.equal(turned[:, 0], x[:, 0])
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 300))
def test_products_depend_on_the_distance_alone(query_position: int, key_position: int, shift: int):
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64, generator=generator)

    def product(offset: int) -> torch.Tensor:
        turned_query = rotate(query, rotation(torch.tensor([[query_position + offset]]), 8, 10000.0))
        return (turned_query * rotate(key, rotation(torch.tensor([[key_position + offset]]), 8, 10000.0))).sum()

    torch.testing.assert_close(product(0), product(shift), rtol=0, atol=5e-4)
