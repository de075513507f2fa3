"""Rows written token by token: each as if alone, until it ends or the greatest length is reached."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tables import TableWriter
from vaak.nn.decoding.sampling import Hypothesis, SamplingSettings, probabilities, uniform_numbers, write

END, VOCAB_SIZE = 1, 5


def settings(**options: Any) -> SamplingSettings:
    defaults: dict[str, Any] = {"max_new_tokens": 6, "stop_ids": (END,), "temperature": 0}
    return SamplingSettings(**(defaults | options))


def written(begin: list[int], chosen: SamplingSettings, seed: int = 0) -> list[Hypothesis]:
    return write(TableWriter(VOCAB_SIZE, begin, seed=seed), torch.tensor(begin), chosen, keys=begin)


def by_hand(first: int, chosen: SamplingSettings, seed: int = 0) -> Hypothesis:
    """One row, one token after another."""
    table, key = TableWriter(VOCAB_SIZE, [first], seed=seed), np.array([first], np.uint64)
    tokens, total = [first], 0.0
    while len(tokens) <= chosen.max_new_tokens:
        scores = table.scores(tuple(tokens))
        distribution = probabilities(scores, chosen)
        if chosen.top_k or chosen.top_p < 1:  # the best are first in the line
            distribution, order = distribution.sort(descending=True, stable=True)
        else:
            order = torch.arange(VOCAB_SIZE)
        place = int((distribution.cumsum(0) <= float(uniform_numbers(key, len(tokens) - 1)[0])).sum())
        token = int(order[place]) if chosen.temperature else int(scores.argmax())
        total += float(scores.log_softmax(-1)[token])
        if token == END:
            return Hypothesis(tuple(tokens[1:]), total, True)
        tokens.append(token)
    return Hypothesis(tuple(tokens[1:]), total, False)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True),
    st.integers(0, 50),
    st.sampled_from([{}, {"temperature": 1.3}, {"temperature": 0.7, "top_k": 3}, {"temperature": 1, "top_p": 0.8}]),
)
def test_a_row_is_written_as_by_hand_whatever_rows_are_beside_it(begin: list[int], seed: int, options: dict):
    found = written(begin, settings(**options), seed)
    for first, hypothesis in zip(begin, found, strict=True):
        expected = by_hand(first, settings(**options), seed)
        assert (hypothesis.tokens, hypothesis.ended) == (expected.tokens, expected.ended)
        assert math.isclose(hypothesis.log_probability, expected.log_probability, abs_tol=1e-9)


def test_rows_that_ended_are_not_scored_any_more():
    begin = list(range(40))
    table = TableWriter(VOCAB_SIZE, begin)
    found = write(table, torch.tensor(begin), settings(max_new_tokens=30))
    scored = [len(one.tokens) + one.ended for one in found]
    assert table.rows_scored == [sum(length > step for length in scored) for step in range(max(scored))]
    assert len(set(table.rows_scored)) > 3


def test_the_penalty_sees_what_was_written():
    plain = written([3], settings(max_new_tokens=4, stop_ids=()))[0].tokens
    assert len(set(written([3], settings(max_new_tokens=4, stop_ids=(), repetition_penalty=1e9))[0].tokens)) == 4
    assert len(set(plain)) < 4


@pytest.mark.parametrize(("penalty", "score"), [(0.0, -6.0), (1.0, -1.5), (0.5, -3.0)])
def test_a_score_counts_the_token_that_ends(penalty: float, score: float):
    assert Hypothesis((4, 5, 6), -6.0, True).score(penalty) == score
    assert Hypothesis((4, 5, 6, 7), -6.0, False).score(penalty) == score
