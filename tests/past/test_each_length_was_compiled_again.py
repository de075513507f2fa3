"""Under torch.compile, causal attention was compiled again for each length: a flag was computed from the length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from vaak.nn.config import StackConfig
from vaak.nn.decoding.cache import StackCache
from vaak.nn.stack import TransformerStack

LENGTHS = (65, 100, 130, 190, 200)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()
    counters.clear()


def stack_of(**options: Any) -> TransformerStack:
    return TransformerStack(
        StackConfig(d_model=16, num_heads=2, window=16, **{"num_layers": 2, **options}), causal=True
    )


@pytest.mark.slow  # tests/unit/tasks/test_compiled.py counts the graphs of a step
@pytest.mark.parametrize(
    "options",
    [
        {"position_type": "rotary"},
        {"position_type": "sinusoidal"},
        {"position_type": "none", "num_key_value_heads": 1},
        {"position_type": "alibi"},
        {"position_type": "t5"},
        {"position_type": "rotary", "attention_type": "local"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
@pytest.mark.parametrize("packed", [False, True])
def test_two_graphs_serve_all_lengths(options: dict[str, Any], packed: bool):
    stack = stack_of(dropout=0.0, num_layers=1, **options)
    compiled: Any = torch.compile(stack, backend="eager")  # whose graphs are those of every backend
    for length in LENGTHS:
        x = torch.randn(2, length, 16)
        documents = (torch.arange(length) // 50).expand(2, -1) if packed else None
        output = compiled(x, documents=documents)
        torch.testing.assert_close(output, stack(x, documents=documents), rtol=1e-5, atol=1e-5)
        output.sum().backward()
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]


@pytest.mark.parametrize("pieces", [(1, 1, 1, 1), (1, 3), (3, 1), (4,)])
def test_a_lone_token_still_sees_all_before_it(pieces: tuple[int, ...]):
    stack = stack_of().eval()
    x, cache = torch.randn(2, 4, 16), StackCache(2)
    parts = [stack(piece, cache=cache) for piece in x.split(pieces, 1)]
    torch.testing.assert_close(torch.cat(parts, 1), stack(x), rtol=1e-5, atol=1e-5)
