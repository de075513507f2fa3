"""Draws: each row from its own generator, never what can't follow. The filters themselves: test_lm_predict.py."""

import math

import pytest
import torch

from vaak.core.errors import UserError
from vaak.nn.decoding.sampling import SamplingSettings, next_tokens, penalised, probabilities


def generators(number: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in range(number)]


def test_a_row_draws_the_same_whatever_rows_are_beside_it():
    logits, settings = torch.randn(5, 12, generator=torch.Generator().manual_seed(0)), SamplingSettings(top_p=0.9)
    together = next_tokens(logits, [[]] * 5, settings, generators(5))
    alone = [next_tokens(logits[row : row + 1], [[]], settings, [generators(5)[row]])[0] for row in range(5)]
    assert together == alone


def test_what_can_not_follow_is_never_drawn_and_changes_no_other_proportion():
    logits = torch.tensor([0.1, 0.2, 0.4, 0.3]).log()
    possible = logits.masked_fill(torch.tensor([False, False, True, False]), -math.inf)
    expected = torch.tensor([1 / 6, 2 / 6, 0, 3 / 6], dtype=torch.float64)
    torch.testing.assert_close(probabilities(possible, SamplingSettings()), expected, rtol=0, atol=1e-7)
    assert next_tokens(possible[None], [[]], SamplingSettings(temperature=0), []) == [3]
    drawn = next_tokens(possible.expand(200, 4), [[]] * 200, SamplingSettings(), generators(200))
    assert set(drawn) == {0, 1, 3}


def test_the_penalty_is_keskars_formula():
    logits = torch.tensor([[2.0, -1.0, 3.0], [2.0, -1.0, 3.0]])
    assert penalised(logits, [[0, 1], []], 2.0).tolist() == [[1.0, -2.0, 3.0], [2.0, -1.0, 3.0]]
    assert penalised(logits, [[0, 1], []], 1.0) is logits


@pytest.mark.parametrize("row", [[0.0, math.nan], [0.0, math.inf], [-math.inf, -math.inf]])
def test_scores_that_are_no_numbers_are_refused(row: list[float]):
    with pytest.raises(UserError, match="diverged"):
        next_tokens(torch.tensor([[1.0, 2.0], row]), [[], []], SamplingSettings(temperature=0), [])
