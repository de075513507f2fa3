"""Folds: every example is tested on once, strata are even, groups stay together, and the order doesn't matter."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.core.errors import DataError, UserError
from vaak.core.folds import FoldExample, FoldSplits, Place, divide, write_folds

REPEATS = (1, 2)


def labelled(counts: dict[str, int]) -> list[FoldExample]:
    return [FoldExample(f"{label}{number}", "", label) for label, count in counts.items() for number in range(count)]


def spoken(speakers: list[tuple[str, ...]], labels: str = "x") -> list[FoldExample]:
    return [FoldExample(f"r{n}", "", labels[n % len(labels)], own) for n, own in enumerate(speakers)]


@given(
    st.integers(2, 6).flatmap(
        lambda folds: st.tuples(
            st.just(folds), st.dictionaries(st.sampled_from("abcd"), st.integers(2 * folds, 40), min_size=1)
        )
    ),
    st.sampled_from((0.05, 0.1, 0.3)),
)
def test_each_example_is_tested_on_once_in_a_repeat_and_strata_differ_by_one_at_most(given_counts, valid: float):
    folds, counts = given_counts
    examples = labelled(counts)
    for repeat in REPEATS:
        places = divide(examples, folds, valid, 42, repeat)
        assert all(1 <= place.test <= folds and place.test not in place.valid for place in places)
        sizes = Counter(place.test for place in places)
        assert max(sizes.values()) - min(sizes.values()) <= 1
        assert len(sizes) == folds
        for label, count in counts.items():
            own = [place for example, place in zip(examples, places, strict=True) if example.stratum == label]
            tested = Counter(place.test for place in own)
            assert max(tested.values()) - min(tested[fold + 1] for fold in range(folds)) <= 1
            for fold in range(1, folds + 1):
                validated = sum(fold in place.valid for place in own)
                assert validated < count - tested[fold], "some are trained on"
                assert abs(validated - valid * (count - tested[fold])) <= 2
        for fold in range(1, folds + 1):
            validated, rest = sum(fold in place.valid for place in places), len(examples) - sizes[fold]
            assert abs(validated - valid * rest) <= 1
            assert validated > 0


@given(
    st.integers(3, 5).flatmap(
        lambda folds: st.tuples(
            st.just(folds),
            st.lists(st.integers(0, 30), min_size=4 * folds, max_size=60).filter(lambda own: len(set(own)) > folds + 1),
        )
    )
)
def test_a_group_is_never_shared(given_groups):
    folds, numbers = given_groups
    examples = spoken([(f"s{number}",) for number in numbers])
    places = divide(examples, folds, 0.2, 42, 1)
    own: dict[str, set[Place]] = {}
    for example, place in zip(examples, places, strict=True):
        own.setdefault(example.groups[0], set()).add(place)
    assert all(len(found) == 1 for found in own.values())
    assert {place.test for place in places} == set(range(1, folds + 1))
    for fold in range(1, folds + 1):
        assert any(fold in place.valid for place in places)
        assert any(place.test != fold and fold not in place.valid for place in places)


def test_who_speaks_with_someone_who_speaks_with_another_is_of_their_group():
    speakers = [("a", "b"), ("c",), ("b", "d"), ("e",), ("d",), ("f",), (), ()]
    places = divide(spoken(speakers), 3, 0.1, 42, 1)
    assert places[0] == places[2] == places[4]


def test_the_order_of_the_files_decides_nothing_and_seed_and_repeat_do():
    examples = labelled({"a": 30, "b": 20})
    by_key = dict(zip((one.key for one in examples), divide(examples, 5, 0.1, 42, 1), strict=True))
    shuffled = random.Random(0).sample(examples, len(examples))
    assert dict(zip((one.key for one in shuffled), divide(shuffled, 5, 0.1, 42, 1), strict=True)) == by_key
    others = [divide(examples, 5, 0.1, seed, repeat) for seed, repeat in ((42, 2), (43, 1))]
    assert all(other != list(by_key.values()) for other in others)


@pytest.mark.parametrize(
    ("examples", "folds", "message"),
    [
        (labelled({"a": 9, "b": 3}), 4, "b has 3 examples, fewer than the 4 folds"),
        (labelled({"": 3}), 4, "there are 3 examples, fewer than the 4 folds"),
        (spoken([("a",), ("b",)] * 9), 3, r"there are 2 groups \(--group-by\), fewer than the 3 folds"),
        (spoken([("a",), ("b",)] * 9), 2, "nothing to validate on"),
        (spoken([("a",), ("b",), ("c",), ("d",)] * 3, "xxxy"), 3, "no example of y to train on"),
    ],
)
def test_too_little_for_so_many_folds_is_said(examples: list[FoldExample], folds: int, message: str):
    with pytest.raises(UserError, match=message):
        divide(examples, folds, 0.1, 42, 1)


def test_a_fold_is_read_back_and_what_it_does_not_know_is_said(tmp_path: Path):
    examples = labelled({"a": 6})
    path = tmp_path / "folds.json"
    rows = [(one, [place]) for one, place in zip(examples, divide(examples, 3, 0.2, 42, 1), strict=True)]
    write_folds(path, {"folds": 3, "repeats": 1, "pool": "all", "by": "वक्ता"}, {"corpus": rows, "कोश": []})
    assert all(word in path.read_text(encoding="utf-8") for word in ("वक्ता", "कोश")), "people read it, too"
    fold = FoldSplits("1:2", str(path), ("train", "test"), "corpus")
    assert [fold.of_key(one.key, "") == "test" for one, _ in rows] == [places[0].test == 2 for _, places in rows]
    assert [fold.of_key(one.key, "") == "valid" for one, _ in rows] == [2 in places[0].valid for _, places in rows]
    assert (fold.of_key(None, ""), fold.list_sources("test")) == ("train", ("train", "test"))
    assert not any(fold.is_all_of_its_source(split) for split in ("train", "valid", "test")), "each is a part of all"
    with pytest.raises(DataError, match=r"here:3: this isn't in .*folds.json: the data have changed"):
        fold.of_key("new", "here:3")
    for fold_of_file, message in (
        (("1:4", str(path)), "has 1 times 3 folds, and no 1:4"),
        (("1:1", f"{tmp_path}/gone"), "vaak crossval"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            FoldSplits(*fold_of_file, ("train",), "corpus").of_key("a0", "")
    with pytest.raises(UserError, match="fold is 3; expected REPEAT:NUMBER"):
        FoldSplits("3", str(path), ("train",), "corpus")
    with pytest.raises(UserError, match="fold 1:2 requires folds_file"):
        FoldSplits("1:2", None, ("train",), "corpus")
