"""Each feed-forward layer is its formula, and as wide as the option says."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vaak.nn.config import FACTORS_END
from vaak.nn.feed_forward import FEED_FORWARDS, gated_width, inner_width, make_feed_forward

ACTIVATIONS = {
    "gelu": lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2,
    "relu": lambda x: x.clamp(min=0),
    "silu": lambda x: x * torch.sigmoid(x),
    "swiglu": lambda x: x * torch.sigmoid(x),
    "geglu": lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2,
    "geglu_tanh": lambda x: x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2,
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("feed_forward_type", ["gelu", "relu", "silu"])
def test_plain_layers_equal_the_formula(feed_forward_type, bias):
    layer = make_feed_forward(feed_forward_type, 8, 24, bias).double()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    inner = ACTIVATIONS[feed_forward_type](_linear(layer, "up", x))
    expected = _linear(layer, "down", inner)
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("feed_forward_type", ["swiglu", "geglu", "geglu_tanh"])
def test_gated_layers_equal_the_formula(feed_forward_type, bias):
    layer = make_feed_forward(feed_forward_type, 8, 24, bias).double()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    gate = ACTIVATIONS[feed_forward_type](_linear(layer, "gate", x))
    inner = gate * (_linear(layer, "up", x))
    expected = _linear(layer, "down", inner)
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("feed_forward_type", FEED_FORWARDS)
def test_gradients(feed_forward_type):
    layer = make_feed_forward(feed_forward_type, 4, 8, True).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,), fast_mode=True)


@pytest.mark.parametrize("feed_forward_type", FEED_FORWARDS)
def test_biases_only_where_asked_for(feed_forward_type):
    with_bias = {name for name, _ in make_feed_forward(feed_forward_type, 4, 8, True).named_parameters()}
    without = {name for name, _ in make_feed_forward(feed_forward_type, 4, 8, False).named_parameters()}
    assert without == {name for name in with_bias if name.endswith("weight")}
    assert with_bias == without | {name.replace("weight", "bias") for name in without}


@pytest.mark.parametrize("feed_forward_type", FEED_FORWARDS)
def test_a_kernel_sees_as_many_neighbours_and_no_padding(feed_forward_type):
    layer = make_feed_forward(feed_forward_type, 4, 8, True, kernel_size=5).double()
    x, mask = torch.randn(1, 12, 4, dtype=torch.float64), torch.ones(1, 12, dtype=torch.bool)
    changed = x.clone()
    changed[0, 6] += 1
    different = (layer(x, mask) != layer(changed, mask)).any(-1)[0]
    assert different.nonzero()[:, 0].tolist() == [4, 5, 6, 7, 8]
    mask[0, 9:] = False
    changed = x.clone()
    changed[0, 9:] = torch.randn(3, 4, dtype=torch.float64)
    torch.testing.assert_close(layer(x, mask)[:, :9], layer(changed, mask)[:, :9], rtol=0, atol=0)
    torch.testing.assert_close(layer(x, mask)[:, :9], layer(x[:, :9])[:, :9], rtol=0, atol=1e-12)


def test_a_kernel_of_one_is_the_layer_without_neighbours():
    layer, x = make_feed_forward("swiglu", 4, 8, True, kernel_size=3), torch.randn(1, 6, 4)
    alone = make_feed_forward("swiglu", 4, 8, True)
    kernels = {name: value.clone() for name, value in alone.state_dict().items()}
    for name in ("up.weight", "gate.weight"):
        kernels[name] = F.pad(kernels[name][..., None], (1, 1))  # neighbours count for nothing
    layer.load_state_dict(kernels)
    torch.testing.assert_close(layer(x), alone(x), rtol=0, atol=1e-6)


def test_swiglu_is_the_language_models():
    layer = make_feed_forward("swiglu", 8, 24, False)
    up, gate, down = (layer.get_submodule(name) for name in ("up", "gate", "down"))
    x = torch.randn(2, 3, 8)
    assert torch.equal(layer(x), down(F.silu(gate(x)) * up(x)))


def test_three_matrices_weigh_what_two_of_four_times_the_width_do():
    for width in (64, 256, 512, 768, 1024):
        inner = gated_width(width)
        assert inner % 32 == 0
        assert 0 <= 3 * inner - 8 * width < 3 * 32


def test_inner_width():
    assert FACTORS_END == 32
    assert [inner_width(96, factor, "gelu") for factor in (1, 4, 31)] == [96, 384, 2976]
    assert [inner_width(96, width, "swiglu") for width in (4, 32, 100)] == [384, 32, 100]
    assert [inner_width(96, None, kind) for kind in ("gelu", "relu", "swiglu", "geglu")] == [384, 384, 256, 256]


def _linear(layer: nn.Module, name: str, x: torch.Tensor) -> torch.Tensor:
    """What its linear part of this name does."""
    part = layer.get_submodule(name)
    assert isinstance(part, nn.Linear)
    return x @ part.weight.T + (0.0 if part.bias is None else part.bias)
