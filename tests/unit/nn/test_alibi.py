"""ALiBi's slopes are the paper's and Bloom's, its bias is their product with the distance."""

import pytest
import torch

from vaak.nn.kernels.visibility import distances
from vaak.nn.positional_encodings import Alibi, alibi_slopes


def blooms_bias(num_heads: int, num_keys: int) -> torch.Tensor:
    """What Bloom adds to the scores of every query: slope · key's place, ``(heads, 1, key)``."""
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom", reason="the extra hf is not installed")
    return bloom.build_alibi_tensor(torch.ones(1, num_keys), num_heads, torch.float32)


def test_slopes_of_eight_heads_are_the_papers():
    assert alibi_slopes(8) == [1 / 2**power for power in range(1, 9)]


@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20])
def test_slopes_are_blooms(num_heads: int):
    blooms = blooms_bias(num_heads, 2)[:, 0, 1]  # of the key at place 1
    torch.testing.assert_close(torch.tensor(alibi_slopes(num_heads)), blooms, rtol=1e-6, atol=0)


def test_scores_fall_with_the_distance_to_both_sides():
    bias = Alibi(12)(distances(4, 6, torch.device("cpu")))
    assert bias.shape == (12, 4, 6)
    for head, slope in enumerate(alibi_slopes(12)):
        for query in range(4):
            for key in range(6):
                assert bias[head, query, key].item() == pytest.approx(-slope * abs(key - (query + 2)), rel=1e-6)


def test_attention_of_a_decoder_is_blooms():
    """Bloom's differs by a constant for each query, and softmax takes constants out."""
    scores, later = torch.randn(5, 6, 6), torch.ones(6, 6).triu(1).bool()
    ours = Alibi(5)(distances(6, 6, torch.device("cpu")))
    weights = [(scores + bias).masked_fill(later, -torch.inf).softmax(-1) for bias in (blooms_bias(5, 6), ours)]
    torch.testing.assert_close(*weights)


def test_stores_nothing():
    assert Alibi(4).state_dict() == {}
