"""T5's buckets and bias are transformers', bit for bit."""

from types import ModuleType

import pytest
import torch

from vaak.nn.kernels.visibility import distances
from vaak.nn.positional_encodings import RelativeBias, distance_buckets

causality = pytest.mark.parametrize("bidirectional", [True, False])


@pytest.fixture
def t5() -> ModuleType:
    """The peer's module."""
    return pytest.importorskip("transformers.models.t5.modeling_t5", reason="the extra hf is not installed")


@causality
def test_buckets_are_those_of_transformers(t5: ModuleType, bidirectional: bool):
    distance = torch.arange(-3000, 3001)
    expected = t5.T5Attention._relative_position_bucket(distance, bidirectional, num_buckets=32, max_distance=128)
    assert torch.equal(distance_buckets(distance, bidirectional), expected)


@causality
def test_the_bias_is_that_of_transformers(t5: ModuleType, bidirectional: bool):
    config = t5.T5Config(d_model=32, num_heads=4, d_kv=8, is_decoder=not bidirectional)
    peer = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = RelativeBias(4, bidirectional)
    with torch.no_grad():
        ours.embedding.weight.copy_(peer.relative_attention_bias.weight)
    for num_queries, num_keys in [(300, 300), (1, 40), (7, 200)]:
        expected = peer.compute_bias(num_queries, num_keys, past_seen_tokens=num_keys - num_queries)[0]
        assert torch.equal(ours(distances(num_queries, num_keys, torch.device("cpu"))), expected)


@causality
def test_every_number_that_is_seen_is_learned(bidirectional: bool):
    bias = RelativeBias(2, bidirectional)
    bias(distances(200, 200, torch.device("cpu"))).sum().backward()
    gradient = bias.embedding.weight.grad
    assert gradient is not None
    learned = gradient.ne(0).all(1)
    assert learned.sum() == (31 if bidirectional else 32)  # distance 0 is not later, so one bucket stays empty
