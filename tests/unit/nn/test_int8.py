"""Linear layers in 8 bits give the products of fp32 to rounding, and models say what computes so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vaak.core.errors import UserError
from vaak.nn.int8 import Int8Linear, compute_in_int8, require_int8


@pytest.mark.parametrize("bias", [True, False])
def test_products_are_those_of_fp32_to_rounding(bias: bool):
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(64, 48, bias=bias)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(48, 64, generator=generator) * torch.logspace(-3, 1, 48)[:, None])
    inputs = torch.randn(3, 7, 64, generator=generator)
    rounded = Int8Linear(layer)
    errors = (rounded(inputs) - layer(inputs)).detach().square().mean((0, 1)).sqrt()
    assert (errors < 0.02 * layer(inputs).detach().std((0, 1))).all(), "each row has its own scale"
    assert (errors > 0).all()
    steps = layer.weight.detach().abs().amax(1) / 127
    assert ((rounded.weight - layer.weight).detach().abs().amax(1) <= 0.51 * steps).all()
    assert (rounded.bias is None) == (layer.bias is None)


def test_a_large_vector_leaves_the_others_as_exact_as_they_are():
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(64, 48)
    inputs = torch.randn(3, 7, 64, generator=generator)
    inputs[1, 2] *= 1000
    inputs[2, 4] = 0
    expected = layer(inputs).detach()
    errors = (Int8Linear(layer)(inputs) - expected).abs()
    assert (errors <= 0.05 * inputs.norm(dim=-1, keepdim=True) * layer.weight.detach().norm(dim=1)).all()
    assert errors.amax(-1)[2, 4] == 0, "nothing but the bias"


@pytest.mark.parametrize("bias", [True, False])
def test_a_vector_alone_is_as_among_others_to_rounding(bias: bool):
    layer = Int8Linear(nn.Linear(64, 48, bias=bias))
    inputs = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([layer(one[None]) for one in inputs])
    assert (alone - layer(inputs)).abs().max() < 0.1 * alone.std()
    assert layer(inputs[0]).equal(alone[0]), "without a dimension of rows"


def test_layers_that_are_read_or_hooked_stay_in_fp32():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.hooked, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 9)
            self.attention = nn.MultiheadAttention(4, 1, batch_first=True)
            self.hooked.register_forward_hook(lambda *_: None)

    net = Net().eval()
    assert compute_in_int8(net) == (1, 4)
    kinds = {name: type(getattr(net, name)) for name in ("first", "hooked", "head")}
    assert kinds == {"first": Int8Linear, "hooked": nn.Linear, "head": nn.Linear}
    assert net.attention(*[torch.ones(1, 2, 4)] * 3)[0].shape == (1, 2, 4)


def test_a_gpu_is_refused():
    with pytest.raises(UserError, match="int8: it is for CPUs, and the device is cuda; use bf16"):
        require_int8(torch.device("cuda"))
