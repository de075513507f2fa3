"""TextGrid: both forms, read and written, against praatio; broken lines are named."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from praatio import textgrid as praatio

from vaak.audio.formats.alignments import Interval, read_textgrid, to_segments, to_tiers, write_textgrid
from vaak.audio.segments import Segment
from vaak.core.errors import DataError

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), min_size=1, max_size=8).filter(
    lambda text: text == text.strip() != ""
)
FORMS = ("long", "short")


@st.composite
def tiers(draw) -> dict[str, list[Interval]]:
    """Tiers of intervals that don't overlap, or of points, within 100 s."""
    found = {}
    for name in draw(st.lists(texts, max_size=3, unique=True)):
        places = sorted(draw(st.sets(st.integers(0, 100_000), max_size=8)))
        if draw(st.booleans()):
            found[name] = [Interval(at / 1e3, at / 1e3, draw(texts)) for at in places]
        else:
            pairs = zip(places[::2], places[1::2], strict=False)
            found[name] = [Interval(start / 1e3, end / 1e3, draw(texts)) for start, end in pairs]
    return found


@pytest.mark.parametrize("form", FORMS)
@given(drawn=tiers())
def test_round_trip(form, drawn, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / f"{form}.TextGrid"
    write_textgrid(path, drawn, 100.0, form)
    assert read_textgrid(path) == drawn


SOME = {
    'A "x" = 1': [Interval(0.5, 1.0, 'he "said"'), Interval(1.0, 2.25, "! <b> 3")],
    "points": [Interval(0.5, 0.5, "click")],
}


@pytest.mark.parametrize("form", FORMS)
def test_praatio_reads_what_is_written(form, tmp_path: Path):
    write_textgrid(tmp_path / "a.TextGrid", SOME, 3.0, form)
    grid = praatio.openTextgrid(str(tmp_path / "a.TextGrid"), includeEmptyIntervals=False)
    first, points = (grid.getTier(name) for name in grid.tierNames)
    assert (grid.tierNames, grid.maxTimestamp) == (tuple(SOME), 3.0)
    assert [tuple(entry) for entry in first.entries] == [tuple(interval) for interval in SOME['A "x" = 1']]
    assert [tuple(entry) for entry in points.entries] == [(0.5, "click")]


@pytest.mark.parametrize("form", ["long_textgrid", "short_textgrid"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_what_praatio_writes_is_read(form, encoding, ending, tmp_path: Path):
    path = tmp_path / "a.TextGrid"
    grid = praatio.Textgrid(0, 4)
    grid.addTier(praatio.IntervalTier("वाक्", [(0.5, 1.5, "é = 1"), (2, 3, "b")], 0, 4))
    grid.addTier(praatio.PointTier("p", [(1.25, "x")], 0, 4))
    grid.save(str(path), form, includeBlankSpaces=True)
    path.write_bytes(path.read_text(encoding="utf-8").replace("\n", ending).encode(encoding))
    assert read_textgrid(path) == {
        "वाक्": [Interval(0.5, 1.5, "é = 1"), Interval(2.0, 3.0, "b")],
        "p": [Interval(1.25, 1.25, "x")],
    }


LONG = """\
File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0
xmax = 2
tiers? <exists>
size = 1
item []:
    item [1]:
        class = "IntervalTier"
        name = "Ann"
        xmin = 0
        xmax = 2
        intervals: size = 1
        intervals [1]:
            xmin = 0.5
            xmax = 1.5
            text = "hello"
"""
SHORT = '"ooTextFile"\n"TextGrid"\n0\n2\n<exists>\n1\n"IntervalTier"\n"Ann"\n0\n2\n1\n0.5\n1.5\n"hello"\n'


@pytest.mark.parametrize(
    ("text", "old", "new", "wrong"),
    [
        (LONG, "xmax = 1.5", "xmax = 0.25", "17: this interval ends at 0.25 s, but begins at 0.5 s"),
        (LONG, "xmin = 0.5", "xmin = nan", "16: the start is 'nan', which is not a finite number"),
        (LONG, "xmin = 0.5", "xmin = -0.5", "16: the start is -0.5 s, which is negative"),
        (LONG, 'text = "hello"', "", "17: the file ends here; expected a text"),
        (LONG, "intervals: size = 1", "intervals: size = x", "14: expected a number of intervals, not x"),
        (LONG, '"IntervalTier"', '"Tier"', "10: a tier is an IntervalTier or a TextTier, not 'Tier'"),
        (
            LONG,
            "ooTextFile",
            "ooBinaryFile",
            "1: this is not a text TextGrid: expected ooTextFile, not 'ooBinaryFile'",
        ),
        (LONG, "intervals: size = 1", "intervals: size = 0", "16: expected the end of the file, not 0.5"),
        (SHORT, "0.5\n", "half\n", "12: the start is 'half', which is not a finite number"),
        (SHORT, '"hello"', "hello", "14: expected a text in quotes, not hello"),
        (SHORT, '"hello"', '"hello', '14: expected a text in quotes, not "'),
        (SHORT, "1.5\n", "", "13: the end is '\"hello\"', which is not a finite number"),
    ],
)
def test_broken_files(text, old, new, wrong, tmp_path: Path):
    path = tmp_path / "broken.TextGrid"
    path.write_text(text)
    assert read_textgrid(path) == {"Ann": [Interval(0.5, 1.5, "hello")]}
    path.write_text(text.replace(old, new))
    with pytest.raises(DataError) as caught:
        read_textgrid(path)
    assert str(caught.value).startswith(f"{path}:{wrong}")


def test_not_utf_8(tmp_path: Path):
    path = tmp_path / "latin.TextGrid"
    path.write_bytes(LONG.replace("Ann", "René").encode("latin-1"))
    with pytest.raises(DataError, match=r"latin\.TextGrid:11: byte 0xe9 is not UTF-8"):
        read_textgrid(path)
    path.write_bytes(LONG.encode("utf-16")[:-1])
    with pytest.raises(DataError, match=r"UTF-16 ends at byte \d+; is the file truncated"):
        read_textgrid(path)


@given(
    content=st.binary(max_size=80)
    | st.text(list('"<>=! \n019.-xnaN'), max_size=60).map(lambda t: (SHORT[:60] + t).encode())
)
def test_no_file_makes_the_reader_crash(content, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any.TextGrid"
    path.write_bytes(content)
    with contextlib.suppress(DataError):
        read_textgrid(path)


@pytest.mark.parametrize(
    ("intervals", "wrong"),
    [
        ([Interval(0, 1, "a"), Interval(0.5, 2, "b")], "0.5 to 2 s overlaps with what is before it"),
        ([Interval(0, 9, "a")], "or is outside of 0 to 3 s"),
        ([Interval(0, float("nan"), "a")], "or is outside"),
        ([Interval(0, 1, "a"), Interval(2, 2, "b")], "has points and intervals; make them two tiers"),
    ],
)
def test_what_a_tier_can_not_hold_is_not_written(intervals, wrong, tmp_path: Path):
    with pytest.raises(DataError, match=wrong):
        write_textgrid(tmp_path / "a.TextGrid", {"tier": intervals}, 3)
    assert not (tmp_path / "a.TextGrid").exists()


def test_speakers_as_tiers_and_back(tmp_path: Path):
    said = [Segment(0.0, 2.0, "Ann"), Segment(1.0, 3.0, "Bob"), Segment(2.5, 4.0, "Ann")]
    write_textgrid(tmp_path / "a.TextGrid", to_tiers([*said, Segment(0.5, 1.0, "Ann")]), 4.0)
    assert to_segments(read_textgrid(tmp_path / "a.TextGrid")) == said
