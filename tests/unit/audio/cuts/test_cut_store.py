"""Cuts on disk: they come back as they were, from any place; damage and what ended early are noticed."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiny_audio import cut_of
from vaak.audio.cuts.store import CutStore, write_cuts
from vaak.core.errors import DataError, FormatError

NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=5)
SEGMENTS = st.lists(st.tuples(st.floats(0, 5), st.floats(0.01, 4), NAMES), max_size=4)


@given(st.lists(st.tuples(NAMES, st.floats(0.05, 100), SEGMENTS), max_size=6))
def test_cuts_come_back(tmp_path_factory, rows):
    cuts = [cut_of(name, duration, segments) for name, duration, segments in rows]
    store = write_cuts(tmp_path_factory.mktemp("store"), iter(cuts))
    assert list(store) == cuts
    assert [store[index] for index in reversed(range(len(store)))] == cuts[::-1]
    np.testing.assert_array_equal(store.durations, [cut.duration for cut in cuts])
    spoken = [{s.speaker for s in cut.supervisions if s.start < cut.duration} for cut in cuts]
    assert store.speakers == tuple(sorted(set().union(*spoken)))
    own = [store.speakers.index(*speakers) if len(speakers) == 1 else -1 for speakers in spoken]
    assert store.speaker_numbers.tolist() == own


def test_the_parts_that_count_are_kept(tmp_path: Path):
    store = write_cuts(tmp_path, [cut_of("a"), cut_of("b", 10, uem=[[5, 20], [1, 2]]), cut_of("c")])
    assert store.parts.tolist() == [[1, 1, 2], [1, 5, 10]]


def test_workers_get_its_path_and_places_outside_are_refused(tmp_path: Path):
    store = write_cuts(tmp_path, [cut_of("a")])
    pickled = pickle.dumps(store)
    assert len(pickled) < 500
    assert list(pickle.loads(pickled)) == list(store)
    assert isinstance(store.durations.base, np.memmap)
    assert store.describe(0) == "a (/a.wav)"
    for index in (1, -1):
        with pytest.raises(IndexError, match=f"cut {index} of 1"):
            store[index]


def test_the_fingerprint_is_that_of_the_content(tmp_path: Path):
    marks = [
        write_cuts(tmp_path / str(number), cuts).fingerprint
        for number, cuts in enumerate(([cut_of("a")], [cut_of("a")], [cut_of("b")], [cut_of("a"), cut_of("b")]))
    ]
    assert marks[0] == marks[1]
    assert len(set(marks)) == 3


def test_a_writing_that_ends_early_leaves_no_store(tmp_path: Path):
    write_cuts(tmp_path, [cut_of("a")])

    def cuts():
        yield cut_of("b")
        raise DataError("broken")

    with pytest.raises(DataError, match="broken"):
        write_cuts(tmp_path, cuts())
    with pytest.raises(DataError, match="the cuts are missing or incomplete"):
        CutStore(tmp_path)
    assert [cut.id for cut in write_cuts(tmp_path, [cut_of("c")])] == ["c"]


@pytest.mark.parametrize("name", ["cuts.jsonl", "offsets.bin", "durations.bin", "speaker_numbers.bin"])
def test_damage_is_noticed(tmp_path: Path, name: str):
    write_cuts(tmp_path, [cut_of("a"), cut_of("b")])
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2 - 1])
    with pytest.raises(DataError, match="this is incomplete; delete the folder and run again"):
        CutStore(tmp_path)


@pytest.mark.parametrize(
    ("content", "lacking"), [("[]", "fingerprint and speakers"), ('{"fingerprint": "x"}', "speakers")]
)
def test_cuts_of_an_earlier_version_are_named_with_the_remedy(tmp_path: Path, content: str, lacking: str):
    write_cuts(tmp_path, [cut_of("a")])
    (tmp_path / "store.json").write_text(content)
    with pytest.raises(FormatError) as caught:
        CutStore(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'store.json'}: this version can't read these cuts: they are without {lacking}, and it reads "
        f"those with them; delete {tmp_path} and run again"
    )


def test_what_can_not_be_written_is_told(tmp_path: Path):
    with pytest.raises(DataError, match=r"cut a: its duration is 0\.0 s"):
        write_cuts(tmp_path, [cut_of("a", 0.0)])
    in_memory = cut_of("a")
    in_memory.recording.sources[0].source = b"RIFF"
    with pytest.raises(DataError, match="cut a: it can't be written as JSON"):
        write_cuts(tmp_path, [in_memory])


@pytest.mark.slow
def test_many_cuts_take_the_memory_of_their_lengths(tmp_path: Path):
    """Opened, the store holds maps of pages only: some megabytes at most, for a quarter of a million cuts."""
    line = cut_of("a", 10, [(0, 1, "A")])
    store = write_cuts(tmp_path, (line for _ in range(250_000)))
    assert len(store) == 250_000
    script = (
        "import resource, sys, lhotse.serialization; from vaak.audio.cuts.store import CutStore\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "store = CutStore(sys.argv[1]); store.durations.sum(); [store[i] for i in range(0, 250000, 5000)]\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    asked = [sys.executable, "-c", script, str(tmp_path)]
    grown = int(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
    assert grown < 40_000  # KiB; the cuts as objects take more than 500,000
