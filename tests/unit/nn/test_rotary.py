"""Rotary positions turn pairs by the paper's angles, keep lengths, and let products see only the distance.

Scaled ones are the formulas, and transformers' bits.
"""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vaak.nn.positional_encodings import Rotation, Scaling, ntk_theta, rotate, rotation


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


def angles_of(by: Rotation) -> torch.Tensor:
    """The angles by which the pairs turn, ``(time, pair)``, from minus to plus a half turn."""
    half = by.cosine.shape[-1] // 2
    return torch.atan2(by.sine[0, :, 0, half:], by.cosine[0, :, 0, :half]).double()


@given(st.integers(1, 16), st.floats(10, 1e6), st.integers(0, 5000), st.sampled_from(["linear", "ntk"]))
def test_a_factor_of_one_gives_the_same_bits(half: int, theta: float, position: int, scaling_type: Any):
    places = torch.tensor([[position]])
    scaled = rotation(places, 2 * half, theta, Scaling(scaling_type, 1.0))
    for ours, plain in zip(scaled, rotation(places, 2 * half, theta), strict=True):
        assert torch.equal(ours, plain)


def test_linear_scaling_divides_positions():
    scaled = rotation(torch.arange(0, 40, 4)[None], 8, 100.0, Scaling("linear", 4.0))
    torch.testing.assert_close(angles_of(scaled), angles_of(rotation(torch.arange(10)[None], 8, 100.0)))


def test_ntk_scaling_is_the_formula():
    width, theta, factor = 8, 100.0, 4.0
    angles = angles_of(rotation(torch.arange(3)[None], width, theta, Scaling("ntk", factor)))
    for place in range(3):
        for pair in range(width // 2):
            angle = place * (theta * factor ** (width / (width - 2))) ** (-2 * pair / width)
            assert math.isclose(angles[place, pair].item(), angle, abs_tol=1e-6)


def test_ntk_scaling_keeps_the_fastest_pair_and_slows_the_slowest_by_the_factor():
    plain, scaled = (
        angles_of(rotation(torch.tensor([[1]]), 16, 1e4, Scaling("ntk", factor)))[0] for factor in (1.0, 8.0)
    )
    slower = plain / scaled
    assert math.isclose(slower[0], 1.0, abs_tol=1e-6)
    assert math.isclose(slower[-1], 8.0, rel_tol=1e-5)
    assert slower.diff().gt(0).all()


def test_ntk_scaling_leaves_a_single_pair_as_it_is():
    scaled = rotation(torch.arange(9)[None], 2, 1e4, Scaling("ntk", 8.0))
    assert torch.equal(scaled.sine, rotation(torch.arange(9)[None], 2, 1e4).sine)


@pytest.mark.parametrize(
    ("scaling_type", "scaling_factor", "exported"),
    [
        ("linear", 1.0, {"rope_type": "default", "rope_theta": 5e4}),
        ("linear", 3.0, {"rope_type": "linear", "factor": 3.0, "rope_theta": 5e4}),
        ("ntk", 3.0, {"rope_type": "default", "rope_theta": ntk_theta(5e4, 8, 3.0)}),
    ],
)
def test_an_exported_model_turns_by_the_same_bits(scaling_type: Any, scaling_factor: float, exported: dict):
    transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
    config = transformers.LlamaConfig(hidden_size=32, num_attention_heads=4, rope_parameters=exported)
    places = torch.arange(3000)[None]
    cosine, sine = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)(torch.zeros(1), places)
    ours = rotation(places, 8, 5e4, Scaling(scaling_type, scaling_factor))
    assert torch.equal(ours.cosine[:, :, 0], cosine)
    assert torch.equal(ours.sine[:, :, 0].abs(), sine.abs())
    assert torch.equal(ours.sine[:, :, 0, 4:], sine[..., 4:])
