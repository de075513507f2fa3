"""Every kind of position with every attention that takes it, in rows longer than a block of local attention.

Decoding from a cache equals the whole, packed documents equal each by itself, padding changes nothing.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from networks import assert_same, draw_weights, vectors
from vaak.nn.config import LINEAR, StackConfig
from vaak.nn.decoding.cache import StackCache
from vaak.nn.kernels.softmax_attention import SMALLEST_BLOCK
from vaak.nn.stack import TransformerStack

WIDTH, TIME = 16, 90
ADDED_TO_SCORES = ("alibi", "t5")
POSITIONS = ("rotary", "sinusoidal", "learned", "convolutional", "none", *ADDED_TO_SCORES)
PAIRS = [
    (position_type, attention_type, causal)
    for position_type in POSITIONS
    for attention_type, causal in [
        ("softmax", True),
        ("softmax", False),
        ("local", True),
        ("local", False),
        ("causal_linear", True),
        ("linear", False),
    ]
    if attention_type not in LINEAR or position_type not in ADDED_TO_SCORES
]
every_pair = pytest.mark.parametrize(("position_type", "attention_type", "causal"), PAIRS)
every_causal_pair = pytest.mark.parametrize(
    ("position_type", "attention_type"), [(position, attention) for position, attention, causal in PAIRS if causal]
)


def made(position_type: Any, attention_type: Any, causal: bool) -> TransformerStack:
    """A stack in float64 whose every part matters."""
    torch.manual_seed(0)
    config = StackConfig(
        d_model=WIDTH,
        num_heads=2,
        num_layers=2,
        d_ff=2,
        position_type=position_type,
        attention_type=attention_type,
        window=7,
    )
    stack = TransformerStack(config, causal=causal, max_length=TIME)
    draw_weights(stack)
    return stack.double().eval()


@every_causal_pair
def test_decoding_from_a_cache_equals_the_whole(position_type: str, attention_type: str):
    """A long beginning, then token by token; one row begins with padding."""
    assert TIME - 5 > 2 * SMALLEST_BLOCK
    stack, x = made(position_type, attention_type, causal=True), vectors(2, TIME, WIDTH)
    documents = torch.zeros(2, TIME, dtype=torch.long)
    documents[0, :11] = -1
    for own in (documents, None):
        whole, cache = stack(x, documents=own), StackCache(2)
        for now in (slice(0, TIME - 5), *(slice(place, place + 1) for place in range(TIME - 5, TIME))):
            piece = stack(x[:, now], documents=None if own is None else own[:, now], cache=cache)
            assert_same(piece, whole[:, now])


@every_pair
def test_packed_documents_equal_each_by_itself(position_type: str, attention_type: str, causal: bool):
    stack, sizes = made(position_type, attention_type, causal), [40, 3, 35, 12]
    documents = torch.arange(4).repeat_interleave(torch.tensor(sizes))[None]
    apart = [(number + 1) * vectors(1, size, WIDTH) for number, size in enumerate(sizes)]
    assert_same(stack(torch.cat(apart, 1), documents=documents), torch.cat([stack(x) for x in apart], 1))


@every_pair
def test_padding_changes_nothing(position_type: str, attention_type: str, causal: bool):
    stack, x, noise = made(position_type, attention_type, causal), vectors(1, 70, WIDTH), 9 * vectors(1, 8, WIDTH)
    documents = torch.tensor([[-1] * 8 + [0] * 70 + [-1] * 8])
    padded = stack(torch.cat((noise, x, noise), 1), documents=documents)
    assert_same(padded[:, 8:78], stack(x))
    assert padded.isfinite().all()


@every_pair
def test_all_but_none_tell_the_order(position_type: str, attention_type: str, causal: bool):
    """The last token of a row whose other tokens change places is another, but not without positions."""
    stack, x = made(position_type, attention_type, causal), vectors(1, 6, WIDTH)
    stack.blocks = stack.blocks[:1]  # deeper, a causal stack knows the order without any positions
    swapped = x[:, [1, 0, 3, 2, 4, 5]]
    same = torch.allclose(stack(x)[:, -1], stack(swapped)[:, -1], rtol=1e-9, atol=1e-9)
    assert same == (position_type == "none")
