"""Splits made here: each name in one of them, stable as a corpus grows, no speaker in two."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.audio.config import DatasetConfig
from vaak.audio.corpora.splits import CorpusSplits
from vaak.core.errors import UserError

SPLITS = ("train", "valid", "test")


def dataset(**options) -> DatasetConfig:
    return DatasetConfig(name="d", type="json", **options)


def test_fractions_are_met():
    splits = CorpusSplits(["train"], dataset(train_fraction=0.7, valid_fraction=0.2))
    found = [splits.of(f"recording-{number}", ()) for number in range(5000)]
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
    splits = CorpusSplits(given_splits, dataset(**options))
    assert splits.names == expected
    for split in expected:
        assert splits.source_of(split) == (split if split in given_splits else "train")


@given(st.text(), st.sets(st.text(min_size=1), max_size=3))
def test_every_name_falls_in_one_split_and_one_speaker_always_in_the_same(name: str, speakers: set[str]):
    assert CorpusSplits(["train"], dataset()).of(name, speakers) in SPLITS
    by_speaker = CorpusSplits(["train"], dataset(split_by="speaker"))
    each = {by_speaker.of("", {speaker}) for speaker in speakers}
    found = by_speaker.of(name, speakers)
    assert each == {found} if len(each) == 1 else found in (SPLITS if not speakers else (None,))


def test_fractions_beyond_the_whole_are_told():
    with pytest.raises(UserError, match=r"datasets, d: train_fraction and valid_fraction add up to 1\.1, more than 1"):
        CorpusSplits(["train"], dataset(train_fraction=0.9, valid_fraction=0.2))
