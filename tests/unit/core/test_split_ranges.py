"""Splits made here: each name in one of them, stable as a corpus grows, no speaker in two."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.core.errors import UserError
from vaak.core.split_ranges import SPLITS, Splits


def fractions(train_fraction: float = 0.8, valid_fraction: float = 0.1) -> SimpleNamespace:
    return SimpleNamespace(train_fraction=train_fraction, valid_fraction=valid_fraction)


def test_fractions_are_met():
    splits = Splits(["train"], fractions(0.7, 0.2), "corpus")
    found = [splits.of(f"recording-{number}") for number in range(5000)]
    for split, fraction in zip(SPLITS, (0.7, 0.2, 0.1), strict=True):
        assert found.count(split) / 5000 == pytest.approx(fraction, abs=0.02)


@pytest.mark.parametrize(
    ("given_splits", "options", "expected"),
    [
        (("train",), {}, SPLITS),
        (("train", "valid", "test"), {}, SPLITS),
        (("train", "valid"), {}, ("train", "valid")),
        (("train", "test"), {}, SPLITS),
        (("train", "test"), {"valid_fraction": 0}, ("train", "test")),
        (("train",), {"train_fraction": 1, "valid_fraction": 0}, ("train",)),
        (("train",), {"train_fraction": 0.9, "valid_fraction": 0.1}, ("train", "valid")),
        (("test",), {}, ("test",)),
    ],
)
def test_which_splits_there_are(given_splits, options, expected):
    splits = Splits(given_splits, fractions(**options), "corpus")
    assert splits.names == expected
    for split in expected:
        assert splits.source_of(split) == (split if split in given_splits else "train")
        shares = splits.source_of(split) in [splits.source_of(other) for other in expected if other != split]
        assert splits.is_all_of_its_source(split) != shares


@given(st.text(), st.sets(st.text(min_size=1), max_size=3))
def test_every_name_falls_in_one_split_and_several_in_theirs_or_in_none(name: str, names: set[str]):
    splits = Splits(["train"], fractions(), "corpus")
    assert splits.of(name) in SPLITS
    each = {splits.of(one) for one in names}
    assert splits.of(*names) == (each.pop() if len(each) == 1 else None)


def test_fractions_beyond_the_whole_are_told():
    with pytest.raises(UserError, match=r"datasets, d: train_fraction and valid_fraction add up to 1\.1, more than 1"):
        Splits(["train"], fractions(0.9, 0.2), "datasets, d")
