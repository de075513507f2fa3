"""Learned positions are rows of a table, and reading beyond its end is a clear error."""

import pytest
import torch

from vaak.nn.positional_encodings import LearnedPositions


def test_adds_each_places_vector():
    learned = LearnedPositions(4, 6)
    x, places = torch.randn(2, 3, 4), torch.tensor([[0, 1, 2], [5, 0, 5]])
    added = learned(x, places)
    for row in range(2):
        for place in range(3):
            assert torch.equal(added[row, place], x[row, place] + learned.embedding.weight[places[row, place]])
    assert torch.equal(learned(x, torch.arange(3)[None])[1], x[1] + learned.embedding.weight[:3])


def test_beyond_the_table_the_length_and_the_limit_are_said():
    learned = LearnedPositions(4, 6)
    learned(torch.zeros(1, 6, 4), torch.arange(6)[None])
    with pytest.raises(ValueError, match="7 tokens are more than the 6 that"):
        learned(torch.zeros(1, 7, 4), torch.arange(7)[None])
    with pytest.raises(ValueError, match="11 tokens are more than the 6 that"):
        learned(torch.zeros(1, 1, 4), torch.tensor([[10]]))
