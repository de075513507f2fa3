"""Draws: each row by its own key, never what can't follow, in the proportions of the filtered distribution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vaak.core.errors import UserError
from vaak.nn.decoding import sampling
from vaak.nn.decoding.sampling import (
    SamplingSettings,
    drawn,
    next_tokens,
    penalised,
    probabilities,
    require_tokens,
    uniform_numbers,
)

FILTERS = [
    {},
    {"temperature": 0.7},
    {"top_k": 3},
    {"top_p": 0.7},
    {"min_p": 0.2},
    {"top_k": 5, "top_p": 0.8, "min_p": 0.1, "temperature": 1.4},
]


def uniforms(number: int, position: int = 0) -> np.ndarray:
    return uniform_numbers(np.arange(number, dtype=np.uint64), position)


@pytest.mark.parametrize("options", FILTERS)
def test_a_row_draws_the_same_whatever_rows_are_beside_it(options: dict[str, Any]):
    logits, settings = torch.randn(5, 12, generator=torch.Generator().manual_seed(0)), SamplingSettings(**options)
    together = next_tokens(logits, [[]] * 5, settings, uniforms(5))
    alone = [next_tokens(logits[row : row + 1], [[]], settings, uniforms(5)[row : row + 1]) for row in range(5)]
    assert together.tolist() == torch.cat(alone).tolist()


def test_numbers_are_a_function_of_key_and_position_and_uniform():
    numbers = np.array([uniform_numbers(np.arange(200, dtype=np.uint64), position) for position in range(200)])
    assert len(np.unique(numbers)) > 39_900  # of 40,000, in 2**24 values
    assert ((numbers >= 0) & (numbers < 1)).all()
    counts = np.histogram(numbers, bins=100, range=(0, 1))[0]
    assert ((counts - 400) ** 2 / 400).sum() < 149.5  # chi-square of 99 degrees of freedom, 0.1 %
    for one, other in ((numbers[:-1], numbers[1:]), (numbers[:, :-1], numbers[:, 1:])):  # positions, rows
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.02
    assert (uniform_numbers(np.array([7], np.uint64), 3) == numbers[3, 7]).all()


@pytest.mark.parametrize("options", FILTERS)
def test_tokens_come_as_often_as_they_are_probable(options: dict[str, Any]):
    """Chi-square against the exact probabilities: a wrong one would be seen in 20,000 draws."""
    number, settings = 20_000, SamplingSettings(**options)
    logits = torch.tensor([0.3, 2.0, -1.0, 1.2, 0.0, 1.9, -3.0])
    found = next_tokens(logits.expand(number, -1), [[]] * number, settings, uniforms(number))
    expected = number * probabilities(logits.double(), settings)
    counts = found.bincount(minlength=len(logits))
    assert not counts[expected == 0].any()
    possible = expected > 0
    statistic = float(((counts - expected).square() / expected)[possible].sum())
    limits = {1: 10.8, 2: 13.8, 3: 16.3, 4: 18.5, 5: 20.5, 6: 22.5}  # 0.1 %, by degrees of freedom
    assert statistic < limits[int(possible.sum()) - 1]


@pytest.mark.parametrize("size", [1, 5, 511, 512, 513, 5000])
def test_a_place_is_drawn_by_the_running_sum(size: int):
    """By definition: the first place whose running sum exceeds the number."""
    weights = torch.rand(40, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    weights[:, ::3] = 0 if size > 1 else 1
    numbers = torch.from_numpy(uniforms(40))
    sums = weights.cumsum(-1)
    expected = (sums <= (numbers * sums[:, -1])[:, None]).sum(-1)
    assert drawn(weights, numbers).tolist() == expected.tolist()
    ends = drawn(weights.float(), torch.tensor([0.0, 1 - 2.0**-24] * 20))
    assert bool((weights.gather(1, ends[:, None]) > 0).all())


@given(
    st.lists(st.integers(-320, 320).map(lambda units: units / 64), min_size=2, max_size=12, unique=True),
    st.sampled_from([{"top_k": 3}, {"top_p": 0.37}, {"top_p": 0.83}, {"min_p": 0.11}, {"min_p": 0.9}]),
    st.floats(0.3, 3),
)
def test_filters_are_those_of_transformers(scores: list[float], option: dict[str, Any], temperature: float):
    warpers = pytest.importorskip("transformers.generation.logits_process")
    logits = torch.tensor([scores], dtype=torch.float64)
    ((name, value),) = option.items()
    warper = {
        "top_k": warpers.TopKLogitsWarper, "top_p": warpers.TopPLogitsWarper, "min_p": warpers.MinPLogitsWarper
    }[name]  # fmt: skip
    warped = warper(value)(None, warpers.TemperatureLogitsWarper(temperature)(None, logits))
    expected = warped.softmax(-1)
    found = probabilities(logits, SamplingSettings(temperature=temperature, **option))
    if torch.equal(found > 0, expected > 0):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    else:  # rounding moved the border: one token is on it
        assert int((found > 0).sum() - (expected > 0).sum()) in (-1, 1)
        border = expected[(found > 0) != (expected > 0)].max() + found[(found > 0) != (expected > 0)].max()
        assert name != "top_k"
        assert float(border) > 0


@pytest.mark.parametrize("first_ranked", [1, 4, 256])
def test_all_filters_together_are_those_of_transformers(first_ranked: int, monkeypatch: pytest.MonkeyPatch):
    warpers = pytest.importorskip("transformers.generation.logits_process")
    monkeypatch.setattr(sampling, "FIRST_RANKED", first_ranked)
    logits = 3 * torch.randn(20, 1000, generator=torch.Generator().manual_seed(1))
    cases: list[dict[str, Any]] = [
        {"top_k": 50, "top_p": 0.9, "min_p": 0.02},
        {"top_p": 0.9},
        {"top_p": 0.999},
        {"min_p": 0.05},
    ]
    for options in cases:
        warped = warpers.TemperatureLogitsWarper(0.8)(None, logits)
        for name, warper in (("top_k", "TopK"), ("top_p", "TopP"), ("min_p", "MinP")):
            if name in options:
                warped = getattr(warpers, f"{warper}LogitsWarper")(options[name])(None, warped)
        found = probabilities(logits, SamplingSettings(temperature=0.8, **options))
        torch.testing.assert_close(found, warped.softmax(-1), rtol=1e-4, atol=1e-6)


def test_what_can_not_follow_is_never_drawn_and_changes_no_other_proportion():
    logits = torch.tensor([0.1, 0.2, 0.4, 0.3]).log()
    possible = logits.masked_fill(torch.tensor([False, False, True, False]), -math.inf)
    expected = torch.tensor([1 / 6, 2 / 6, 0, 3 / 6])
    torch.testing.assert_close(probabilities(possible, SamplingSettings()), expected, rtol=0, atol=1e-6)
    assert next_tokens(possible[None], [[]], SamplingSettings(temperature=0)).tolist() == [3]
    for options in ({}, {"top_k": 3}, {"top_p": 0.999}):
        found = next_tokens(possible.expand(200, 4), [[]] * 200, SamplingSettings(**options), uniforms(200))
        assert set(found.tolist()) == {0, 1, 3}


def test_the_penalty_is_keskars_formula():
    logits = torch.tensor([[2.0, -1.0, 3.0], [2.0, -1.0, 3.0]])
    assert penalised(logits, [[0, 1], []], 2.0).tolist() == [[1.0, -2.0, 3.0], [2.0, -1.0, 3.0]]
    assert penalised(logits, [[0, 1], []], 1.0) is logits


@pytest.mark.parametrize("row", [[0.0, math.nan], [0.0, math.inf], [-math.inf, -math.inf]])
def test_scores_that_are_no_numbers_are_refused(row: list[float]):
    logits = torch.tensor([[1.0, 2.0], row])
    for settings in (SamplingSettings(temperature=0), SamplingSettings(top_k=1), SamplingSettings(top_p=0.5)):
        found = next_tokens(logits, [[], []], settings, uniforms(2))
        assert found.tolist()[1] == -1
        with pytest.raises(UserError, match="diverged"):
            require_tokens(found)
        assert require_tokens(found[:1]) in ([0], [1])
