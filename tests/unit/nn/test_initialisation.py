"""Weights begin as documented, and from the generator's seed alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from vaak.nn.config import DecoderConfig, EncoderDecoderConfig, StackConfig, TokenStackConfig
from vaak.nn.initialisation import initialise
from vaak.nn.models import EncoderDecoderModel, TransformerModel
from vaak.nn.stack import TransformerStack


def drawn_stack(seed: int, **options: Any) -> TransformerStack:
    stack = TransformerStack(StackConfig(d_model=128, num_layers=4, num_heads=4, **options), causal=True, max_length=64)
    torch.manual_seed(seed)
    initialise(stack)
    return stack


@pytest.mark.parametrize("position_type", ["rotary", "learned", "t5", "convolutional"])
def test_same_seed_same_weights(position_type: str):
    first, again, other = (drawn_stack(seed, position_type=position_type).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    drawn = [name for name in first if first[name].ndim > 1]
    assert not any(torch.equal(first[name], other[name]) for name in drawn)


@pytest.mark.parametrize("norm_placement", ["pre", "post", "sandwich"])
@pytest.mark.parametrize("norm_type", ["rmsnorm", "layernorm", "scalenorm"])
def test_deviations_of_one_stack(norm_placement: str, norm_type: str):
    stack = drawn_stack(0, norm_placement=norm_placement, norm_type=norm_type, bias=True, feed_forward_type="gelu")
    assert_documented(stack, {"": 0.02 / 8**0.5})


def test_the_sides_of_an_encoder_decoder_count_for_themselves():
    sizes: dict[str, Any] = {"d_model": 128, "num_heads": 4, "position_type": "learned"}
    config = EncoderDecoderConfig(
        encoder=TokenStackConfig(num_layers=2, **sizes),
        decoder=DecoderConfig(num_layers=3, **sizes),
        share_embeddings=False,
        tie_embeddings=False,
    )
    model = EncoderDecoderModel(config, 90, 100, max_source_length=64, max_target_length=80)
    assert_documented(model, {"encoder": 0.02 / 4**0.5, "decoder": 0.02 / 9**0.5})


def test_deviations_of_tables_of_positions():
    assert_documented(drawn_stack(0, position_type="learned"), {"": 0.02 / 8**0.5})
    kernels = drawn_stack(0, position_type="convolutional").positions.added
    assert isinstance(kernels, nn.Module)
    assert kernels.get_parameter("weight").std().item() == pytest.approx(31**-0.5, rel=0.05)
    assert not kernels.get_parameter("bias").any()
    numbers = drawn_stack(0, position_type="t5").positions.bias
    assert isinstance(numbers, nn.Module)
    assert next(numbers.parameters()).std().item() == pytest.approx(0.02, rel=0.2)


def test_the_stream_hardly_grows_with_depth():
    lengths = []
    for num_layers in (2, 32):
        config = StackConfig(d_model=64, num_layers=num_layers, num_heads=4, position_type="none", dropout=0)
        stack = TransformerStack(config, causal=True)
        torch.manual_seed(0)
        initialise(stack)
        stack.norm = nn.Identity()
        x = 0.02 * torch.randn(4, 32, 64)
        lengths.append((stack(x) - x).norm().item())
    assert 0.5 < lengths[1] / lengths[0] < 2


def test_a_tied_model_draws_its_embedding_once():
    config = StackConfig(d_model=32, num_layers=1, num_heads=2)
    torch.manual_seed(0)
    tied = TransformerModel(config, 50, causal=True, tied=True)
    assert tied.head is None
    assert tied.embedding.weight.std().item() == pytest.approx(0.02, rel=0.1)


def assert_documented(model: nn.Module, deviations: dict[str, float]) -> None:
    """``deviations`` are of the residual outputs, by the beginning of their names."""
    checked = set()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif parameter.ndim == 1:
            gain = 128**0.5 if name.endswith("scale") else 1.0
            assert torch.equal(parameter, torch.full_like(parameter, gain)), name
        else:
            expected = 0.02
            if name.endswith(("attention.output.weight", "feed_forward.down.weight")):
                side = next(side for side in deviations if name.startswith(side))
                expected = deviations[side]
                checked.add(side)
            assert parameter.std().item() == pytest.approx(expected, rel=0.03), name
    assert checked == set(deviations)
