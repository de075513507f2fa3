"""The picture of a diarization: who is taken for whom, rows of long recordings, names that are only text."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

from vaak.audio.segments import Segment
from vaak.core.errors import UserError
from vaak.report.audio import (
    GREYS,
    MOST_AUDIO_ROWS,
    MOST_LANES,
    assign_lanes,
    best_mapping,
    draw_timeline,
    draw_timelines,
    make_rows,
)

REFERENCE = [Segment(0, 4, "Anu"), Segment(3, 6, "Bo"), Segment(6, 9, "Chi")]
HYPOTHESIS = [Segment(0, 1, "2"), Segment(1, 4, "1"), Segment(4, 6, "2"), Segment(6, 9, "3"), Segment(6, 7, "4")]


def test_speakers_are_matched_by_the_time_in_common_all_together():
    """``x`` has most in common with ``a``; but with ``b`` instead, ``y`` can have ``a``, which is more in all."""
    reference = {"a": [(0.0, 10.0)], "b": [(10.0, 14.0)], "c": [(30.0, 31.0)]}
    hypothesis = {"x": [(5.0, 14.0)], "y": [(0.0, 5.0)], "z": [(50.0, 60.0)]}
    assert best_mapping(reference, hypothesis) == {"x": "b", "y": "a"}
    assert best_mapping(reference, {}) == best_mapping({}, hypothesis) == {}


def test_a_speaker_has_the_colour_and_the_place_of_the_one_it_is_taken_for():
    lanes = assign_lanes(HYPOTHESIS, REFERENCE)
    assert [lane.name for lane in lanes["reference"]] == ["Anu", "Bo", "Chi"]
    assert [lane.name for lane in lanes["hypothesis"]] == ["1", "2", "3", "4"]
    colours = [lane.colour for lane in lanes["reference"]]
    assert len(set(colours)) == 3
    assert [lane.colour for lane in lanes["hypothesis"]] == [*colours, GREYS[0]]
    assert lanes["hypothesis"][1].parts == [(0, 1), (4, 6)]


def test_the_same_name_is_not_the_same_speaker():
    lanes = assign_lanes([Segment(5, 6, "Anu"), Segment(0, 4, "Bo")], REFERENCE[:1])
    assert [(lane.name, lane.colour) for lane in lanes["hypothesis"]] == [
        ("Bo", lanes["reference"][0].colour),
        ("Anu", GREYS[0]),
    ]


def test_without_reference_every_speaker_has_a_colour():
    lanes = assign_lanes(HYPOTHESIS, None)
    assert list(lanes) == ["hypothesis"]
    assert len({lane.colour for lane in lanes["hypothesis"]}) == 4


def test_those_who_speak_least_of_very_many_share_a_lane():
    segments = [Segment(number, number + 1 + number / 100, f"voice{number}") for number in range(40)]
    lanes = assign_lanes(segments, segments)["reference"]
    assert len(lanes) == MOST_LANES
    assert lanes[-1].name == f"{40 - MOST_LANES + 1} others"
    assert len(lanes[-1].parts) == 40 - MOST_LANES + 1
    assert lanes[0].name == f"voice{40 - MOST_LANES + 1}"


@given(st.floats(0.0, 100_000.0))
def test_rows_cover_the_recording_and_are_few(duration: float):
    rows = make_rows("name", [], None, duration)
    assert 1 <= len(rows) <= MOST_AUDIO_ROWS
    assert rows[0].start == 0
    assert rows[-1].start <= duration <= rows[-1].end * (1 + 1e-9)
    assert all(one.end == pytest.approx(other.start) for one, other in pairwise(rows))
    assert [row.title for row in rows] == ["name", *[""] * (len(rows) - 1)]


@pytest.mark.parametrize("duration", [0.0, 0.05, 9.0, 130.0, pytest.param(10800.0, marks=pytest.mark.slow)])
def test_a_picture_is_drawn_of_any_length(tmp_path: Path, duration: float):
    draw_timeline(tmp_path / "one.png", HYPOTHESIS, REFERENCE, duration, "title")
    image = imread(tmp_path / "one.png")
    assert image.shape[1] > 1000
    assert 100 < image.shape[0] < 8000


def test_names_are_text_whatever_is_in_them(tmp_path: Path):
    r"""``$\frac$`` would be an error of mathtext, and no font here has Devanagari."""
    names = [r"$\frac$", "आशा", "a\nb", "x" * 500]
    segments = [Segment(number, number + 1, name) for number, name in enumerate(names)]
    draw_timelines(tmp_path / "names.png", [(r"$\frac$ आशा", segments, segments, 5.0)])
    assert imread(tmp_path / "names.png").std() > 0


def test_reference_and_hypothesis_are_in_the_picture(tmp_path: Path):
    draw_timeline(tmp_path / "one.png", [Segment(0, 8, "1")], [Segment(0, 8, "a")], 8.0, "title")
    draw_timeline(tmp_path / "hypothesis.png", [Segment(0, 8, "1")], None, 8.0, "title")
    draw_timelines(tmp_path / "two.png", [(name, [Segment(0, 8, "1")], None, 8.0) for name in "ab"])

    def blue(name: str) -> float:
        image = imread(tmp_path / name)
        return float(((image[..., 2] > 0.6) & (image[..., 0] < 0.3)).sum())

    assert blue("one.png") == pytest.approx(2 * blue("hypothesis.png"), rel=0.05)
    assert blue("two.png") == pytest.approx(2 * blue("hypothesis.png"), rel=0.05)


def test_nothing_is_drawn_beyond_the_margins(tmp_path: Path):
    draw_timeline(tmp_path / "timeline.png", [Segment(0, 24, "1")], [Segment(0, 24, "Anu")], 24, "talk")
    picture = imread(tmp_path / "timeline.png")[..., :3]
    coloured = (picture.max(-1) - picture.min(-1) > 0.3).any(0).nonzero()[0]  # the columns with speech
    assert 0.13 < coloured[0] / picture.shape[1] < 0.15
    assert 0.97 < coloured[-1] / picture.shape[1] < 0.99
    dark = (picture.max(-1) < 0.6).any(0).nonzero()[0]  # the columns with words: reference, hypothesis
    assert 0.003 < dark[0] / picture.shape[1] < 0.02


def test_no_recordings_are_an_empty_picture(tmp_path: Path):
    draw_timelines(tmp_path / "none.png", [])
    assert imread(tmp_path / "none.png").min() == 1


def test_a_place_that_can_not_be_written_is_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"missing/a\.png can't be written: No such file"):
        draw_timeline(tmp_path / "missing" / "a.png", HYPOTHESIS, None, 9.0, "title")
