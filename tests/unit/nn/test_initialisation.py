"""Weights begin as documented, and from the generator's seed alone."""

import torch

from vaak.nn.initialisation import initialise
from vaak.nn.stack import StackShape, TransformerStack


def drawn_stack(seed: int) -> TransformerStack:
    stack = TransformerStack(StackShape(128, 4, 4, 4, 256))
    torch.manual_seed(seed)
    initialise(stack, 4)
    return stack


def test_same_seed_same_weights():
    first, again, other = (drawn_stack(seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["blocks.0.attention.query.weight"], other["blocks.0.attention.query.weight"])


def test_deviations():
    for name, parameter in drawn_stack(0).named_parameters():
        if parameter.ndim == 1:
            assert torch.equal(parameter, torch.ones_like(parameter))
            continue
        expected = 0.02 / 8**0.5 if name.endswith(("attention.output.weight", "feed_forward.down.weight")) else 0.02
        assert abs(parameter.std().item() / expected - 1) < 0.03, name
