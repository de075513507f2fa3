"""Segments as sets of instants, against counting instants one by one."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from vaak.audio.segments import Segment, cropped, merged, shifted, speech_seconds

segments = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 8), st.sampled_from("AB")).map(
        lambda drawn: Segment(drawn[0], drawn[0] + drawn[1], drawn[2])
    ),
    max_size=8,
)


def instants(of) -> Counter[tuple[int, str]]:
    return Counter((second, speaker) for start, end, speaker in of for second in range(int(start), int(end)))


@given(segments)
def test_merging_keeps_every_instant_once(drawn):
    found = merged(drawn)
    assert found == sorted(found)
    assert instants(found) == Counter(set(instants(drawn)))
    assert merged(reversed(found)) == found
    assert speech_seconds(found) == len(set(instants(drawn)))


def test_what_touches_stays_two():
    touching = [Segment(0.0, 1.0, "A"), Segment(1.0, 2.0, "A")]
    assert merged(touching) == touching


@given(segments, st.integers(0, 30), st.integers(0, 10))
def test_cropping_keeps_the_instants_inside(drawn, start, length):
    inside = {key: number for key, number in instants(drawn).items() if start <= key[0] < start + length}
    assert instants(cropped(drawn, start, start + length)) == inside


@given(segments, st.integers(0, 9))
def test_shifting_there_and_back(drawn, seconds):
    assert shifted(shifted(drawn, seconds), -seconds) == drawn
    assert instants(shifted(drawn, seconds)) == {(at + seconds, who): n for (at, who), n in instants(drawn).items()}
