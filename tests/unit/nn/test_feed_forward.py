"""SwiGLU is its formula and has as many weights as the plain layer it replaces."""

import torch
from torch.nn import functional as F

from vaak.nn.feed_forward import SwiGLU, gated_width


def test_equals_the_formula():
    layer = SwiGLU(8, 24).double()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    expected = (F.silu(x @ layer.gate.weight.T) * (x @ layer.up.weight.T)) @ layer.down.weight.T
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-12)


def test_three_matrices_weigh_what_two_of_four_times_the_width_do():
    for width in (64, 256, 512, 768, 1024):
        inner = gated_width(width)
        assert inner % 32 == 0
        assert 0 <= 3 * inner - 8 * width < 3 * 32
