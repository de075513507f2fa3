"""A batch's pieces add up to it, whatever the number of pieces."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vaak.core.batch import Batch


def batch_of(num_rows: int) -> Batch:
    rows = torch.arange(num_rows)
    return Batch(
        {"x": rows[:, None] * torch.ones(2)},
        {"token": rows + 1, "example": torch.ones(num_rows)},
        indices=[[10 * row, 10 * row + 1] for row in range(num_rows)],
        extra={"k": 1, "names": [f"row {row}" for row in range(num_rows)]},
    )


@given(num_rows=st.integers(1, 12), pieces=st.integers(1, 15))
def test_pieces_have_all_rows_in_order_and_all_counts(num_rows: int, pieces: int):
    whole = batch_of(num_rows)
    parts = whole.split(pieces)
    assert 1 <= len(parts) <= pieces
    assert all(part.num_rows > 0 for part in parts)
    assert torch.cat([part["x"] for part in parts]).equal(whole["x"])
    for unit, total in whole.totals().items():
        assert sum(part.totals()[unit] for part in parts) == total
    assert [row for part in parts for row in part.indices] == whole.indices
    assert [name for part in parts for name in part.extra["names"]] == whole.extra["names"]
    assert all(part.extra["k"] == 1 for part in parts)


def test_totals_are_sums_over_rows():
    assert batch_of(3).totals() == {"token": 6.0, "example": 3.0}


def test_moving_keeps_counts_where_they_are_summed():
    moved = batch_of(2).to(torch.device("meta"))
    assert moved["x"].device.type == "meta"
    assert moved.counts["token"].device.type == "cpu"


def test_a_batch_without_tensors_has_no_rows():
    assert Batch({}, {}).num_rows == 0


def test_an_unknown_tensor_is_an_error():
    with pytest.raises(KeyError, match="speech"):
        batch_of(1)["speech"]
