"""The ConvNeXt block against its formula."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from vaak.nn.feed_forward import ConvNeXtBlock
from vaak.nn.speech.masks import length_mask


@pytest.mark.parametrize("with_condition", [True, False])
def test_equals_the_formula(with_condition: bool):
    torch.manual_seed(0)
    block = ConvNeXtBlock(6, 10, 5, layer_scale=0.3, condition_width=4 if with_condition else None).double()
    state = block.state_dict()
    x, condition = torch.randn(2, 9, 6, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    y = F.conv1d(x.transpose(1, 2), state["over_time.weight"], state["over_time.bias"], padding=2, groups=6).transpose(
        1, 2
    )
    y = F.layer_norm(y, (6,), eps=1e-6)
    if with_condition:
        modulation = F.linear(F.silu(condition), state["modulation.weight"], state["modulation.bias"])[:, None]
        y = y * (1 + modulation[..., :6]) + modulation[..., 6:]
    y = F.gelu(F.linear(y, state["pointwise.up.weight"], state["pointwise.up.bias"]))
    y = x + state["layer_scale"] * F.linear(y, state["pointwise.down.weight"], state["pointwise.down.bias"])
    assert state["layer_scale"].unique().item() == pytest.approx(0.3)
    torch.testing.assert_close(block(x, None, condition if with_condition else None), y, rtol=1e-12, atol=1e-12)


def test_padding_is_not_read():
    block = ConvNeXtBlock(6, 10).double()
    lengths = torch.tensor([9, 4])
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    together = block(x.masked_fill(~length_mask(lengths)[..., None], torch.nan), length_mask(lengths))
    torch.testing.assert_close(together[1:, :4], block(x[1:, :4]), rtol=1e-12, atol=1e-12)
