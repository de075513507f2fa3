"""Fingerprints of weights see every bit and every place; differences name the rank and the key."""

from __future__ import annotations

import pytest
import torch

from vaak.engine.distributed.launcher import LOG_CHUNK_BYTES, canonical, describe_differences, weights_fingerprint

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_fingerprint_sees_one_bit_and_two_that_trade_places(dtype: torch.dtype):
    weights = {"a": torch.randint(0, 2, (3, 5)).to(dtype), "b": torch.zeros((), dtype=dtype)}
    weights["a"][0, 0], weights["a"][2, 4] = 0, 1
    before = weights_fingerprint(weights)
    assert weights_fingerprint({name: tensor.clone() for name, tensor in weights.items()}) == before
    weights["a"].view(torch.uint8)[1, 1] ^= 1
    assert weights_fingerprint(weights) != before
    weights["a"].view(torch.uint8)[1, 1] ^= 1
    weights["a"][0, 0], weights["a"][2, 4] = 1, 0
    assert weights_fingerprint(weights) != before


def test_a_fingerprint_sees_names_shapes_and_more_than_a_chunk():
    tensor = torch.zeros(2 * LOG_CHUNK_BYTES + 3)
    before = weights_fingerprint({"a": tensor})
    assert weights_fingerprint({"b": tensor}) != before
    assert weights_fingerprint({"a": tensor[:-1]}) != before
    assert weights_fingerprint({"a": tensor.t()}) == before
    seen = {before}
    for place in (0, LOG_CHUNK_BYTES, 2 * LOG_CHUNK_BYTES, 2 * LOG_CHUNK_BYTES + 2):
        tensor[place] = 1.0
        seen.add(weights_fingerprint({"a": tensor}))
        tensor[place] = 0.0
    assert len(seen) == 5
    assert weights_fingerprint({"a": torch.full((3,), float("nan"))}) == weights_fingerprint(
        {"a": torch.full((3,), float("nan"))}
    )
    assert weights_fingerprint({}) == weights_fingerprint({})


def test_differences_are_named_against_rank_0():
    first = {"training": {"random_seed": 42}, "torch": "2.13", "data": "x" * 200}
    other = {"training": {"random_seed": 7}, "torch": "2.13", "data": "x" * 200}
    assert describe_differences([first, first]) == ""
    assert describe_differences([first, other, other]) == ("ranks 1, 2 run with training.random_seed 7, rank 0 with 42")
    said = describe_differences([first, {}])
    assert "rank 1 runs with torch nothing, rank 0 with 2.13" in said
    assert "x" * 78 not in said
    many = describe_differences([{str(key): 0 for key in range(9)}, {str(key): 1 for key in range(9)}])
    assert many.endswith("; and 4 more")


def test_values_in_another_order_are_the_same_values():
    first = {"seed": 1, "data": {"max": 9, "min": 0}, "list": [2, 1]}
    assert canonical(first) == canonical({"list": [2, 1], "data": {"min": 0, "max": 9}, "seed": 1})
    assert canonical(first) != canonical(first | {"list": [1, 2]})
