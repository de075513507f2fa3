"""A batch's chunks add up to it, whatever the number of chunks."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vaak.core.batch import Batch
from vaak.core.errors import UserError


def batch_of(num_rows: int) -> Batch:
    rows = torch.arange(num_rows)
    return Batch(
        {"x": rows[:, None] * torch.ones(2)},
        {"token": rows + 1, "example": torch.ones(num_rows)},
        indices=[[10 * row, 10 * row + 1] for row in range(num_rows)],
        extra={"k": 1, "names": [f"row {row}" for row in range(num_rows)]},
    )


@given(num_rows=st.integers(1, 12), chunks=st.integers(1, 15))
def test_chunks_have_all_rows_in_order_and_all_counts(num_rows: int, chunks: int):
    whole = batch_of(num_rows)
    parts = whole.split(chunks)
    assert 1 <= len(parts) <= chunks
    assert all(part.num_rows > 0 for part in parts)
    assert torch.cat([part["x"] for part in parts]).equal(whole["x"])
    for unit, total in whole.totals().items():
        assert sum(part.totals()[unit] for part in parts) == total
    assert [row for part in parts for row in part.indices] == whole.indices
    assert [name for part in parts for name in part.extra["names"]] == whole.extra["names"]
    assert all(part.extra["k"] == 1 for part in parts)


EXTRAS = st.dictionaries(
    st.sampled_from("abc"),
    st.one_of(
        st.lists(st.integers(), max_size=8),
        st.lists(st.integers(), max_size=8).map(tuple),
        st.text(max_size=8),
        st.dictionaries(st.integers(), st.integers(), max_size=3),
    ),
)


@given(num_rows=st.integers(1, 6), chunks=st.integers(2, 8), extra=EXTRAS)
def test_a_list_has_an_entry_for_each_row_and_all_else_is_of_the_whole_batch(num_rows: int, chunks: int, extra: dict):
    batch = Batch({"x": torch.arange(num_rows)}, {"token": torch.ones(num_rows)}, extra=extra)
    if any(isinstance(value, list) and len(value) != num_rows for value in extra.values()):
        with pytest.raises(UserError, match=rf"a batch of {num_rows} rows has extra\['[abc]'\] with \d entries"):
            batch.split(chunks)
        return
    parts = batch.split(chunks)
    for name, value in extra.items():
        if isinstance(value, list):
            assert [entry for part in parts for entry in part.extra[name]] == value
        else:
            assert all(part.extra[name] is value for part in parts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensors": {"x": torch.ones(3, 2), "y": torch.ones(2)}}, r"3 rows has tensors\['y'\] of shape \(2,\)"),
        ({"tensors": {"x": torch.ones(3), "scale": torch.tensor(2.0)}}, r"tensors\['scale'\] of shape \(\)"),
        ({"counts": {"token": torch.ones(1)}}, r"3 rows has counts\['token'\] of shape \(1,\)"),
        ({"indices": [[1], [2]]}, "2 rows of examples was collated to tensors of 3 rows"),
    ],
)
def test_what_is_not_there_for_each_row_is_named(change: dict, message: str):
    batch = replace(Batch({"x": torch.ones(3)}, {"token": torch.ones(3)}, [[1], [2], [3]]), **change)
    with pytest.raises(UserError, match=message):
        batch.split(2)
    assert batch.split(1) == [batch]


def test_a_batch_without_rows_is_one_chunk():
    for empty in (Batch({}, {}), Batch({"x": torch.ones(0, 2)}, {"token": torch.ones(0)})):
        assert empty.split(4) == [empty]


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
