"""Splits made here: each name in one of them, stable as a corpus grows, no speaker in two."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.core.errors import UserError
from vaak.core.splits import SPLITS, CountedSplits, Splits


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
        assert splits.find_source(split) == (split if split in given_splits else "train")
        shares = splits.find_source(split) in [splits.find_source(other) for other in expected if other != split]
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


def counted(names: list[str], valid: int | None, test: int | None, given_splits: tuple[str, ...] = ("train",)):
    return CountedSplits(given_splits, valid, test, "corpus", lambda: names)


@given(st.sets(st.text(min_size=1, max_size=9), min_size=4, max_size=30), st.integers(0, 2), st.integers(0, 1))
def test_numbers_are_met_exactly_whatever_the_names(names: set[str], valid: int, test: int):
    splits = counted([*names, *names], valid, test)
    found = [splits.of(name) for name in names]
    assert [found.count(split) for split in ("valid", "test")] == [valid, test]
    assert found.count("train") == len(names) - valid - test
    assert set(splits.names) == set(found)


def test_names_that_are_added_take_the_places_of_as_many_at_most():
    names = [f"recording-{number}" for number in range(40)]
    before, after = counted(names, 4, 2), counted([*names, "new"], 4, 2)
    assert sum(before.of(name) != after.of(name) for name in names) <= 2


def test_given_splits_are_kept_and_one_name_is_left_for_train():
    assert counted(["a", "b"], 1, 1, ("train", "valid")).names == ("train", "valid", "test")
    assert counted(["a", "b"], 1, None).names == ("train", "valid")
    with pytest.raises(UserError, match="there are 2, of which valid_examples: 1 and test_examples: 1 leave none"):
        counted(["a", "b"], 1, 1).of("a")


@given(st.integers(1, 40), st.integers(0, 9), st.integers(0, 9))
def test_ranks_are_divided_by_numbers_or_by_fractions(number: int, valid: int, test: int):
    by_number = counted([], valid, test)
    found = [by_number.of_rank(rank, number) for rank in range(number)]
    assert found == sorted(found, key=SPLITS.index)
    assert found.count("test") == min(test, number)
    assert found.count("valid") == min(valid, number - min(test, number))
    by_fraction = Splits(["train"], fractions(0.6, 0.2), "corpus")
    found = [by_fraction.of_rank(rank, number) for rank in range(number)]
    assert found == sorted(found, key=SPLITS.index)
    assert abs(found.count("train") - 0.6 * number) <= 0.5 + 1e-9
