"""Pairs on disk: they come back as they were, from any place, and damage is noticed."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.core.errors import DataError, FormatError
from vaak.core.storage.mapped_lines import writing_lines
from vaak.text.corpora.parallel import Pair
from vaak.text.corpora.stores import PairStore, Texts

PAIRS = st.lists(st.builds(Pair, st.text(), st.lists(st.text(), min_size=1, max_size=3).map(tuple), st.text()))


@given(pairs=PAIRS)
def test_pairs_come_back(tmp_path_factory, pairs: list[Pair]):
    pairs = [pair for pair in pairs if "".join((pair.source, *pair.targets, pair.where)).isprintable()]
    store = PairStore.write(tmp_path_factory.mktemp("store"), iter(pairs))
    assert list(store) == pairs
    assert [store[index] for index in reversed(range(len(store)))] == pairs[::-1]
    both = Texts(store, "source", "target")
    assert list(both) == list(both) == [text for pair in pairs for text in (pair.source, pair.targets[0])]


def test_workers_get_its_path_and_places_outside_are_refused(tmp_path: Path):
    store = PairStore.write(tmp_path, [Pair("a\nb", ("क",), "f:1")])
    pickled = pickle.dumps(store)
    assert len(pickled) < 500
    assert list(pickle.loads(pickled)) == list(store)
    for index in (1, -1):
        with pytest.raises(IndexError, match=f"pair {index} of 1"):
            store[index]


@pytest.mark.parametrize(
    ("line", "found"),
    [('{"source": "a", "target": "b", "where": "f:1"}', "source and target and where"), ("[1]", "nothing")],
)
def test_pairs_of_an_earlier_version_are_named_with_the_remedy(tmp_path: Path, line: str, found: str):
    with writing_lines(tmp_path / "pairs.jsonl") as lines:
        lines.write(f"{line}\n".encode())
    with pytest.raises(FormatError) as caught:
        PairStore(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'pairs.jsonl'}: this version can't read these pairs: they are {found}, and it reads "
        f"source and targets and where; delete {tmp_path} and run again"
    )


def test_damage_is_noticed(tmp_path: Path):
    with pytest.raises(DataError, match="no pairs here"):
        PairStore(tmp_path)
    PairStore.write(tmp_path, [Pair("a", ("b",), "f:1")])
    (tmp_path / "pairs.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match=r": this is incomplete; delete the folder"):
        PairStore(tmp_path)
    (tmp_path / "offsets.bin").write_bytes(b"123")
    with pytest.raises(DataError, match="incomplete; delete the folder"):
        PairStore(tmp_path)
