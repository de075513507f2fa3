"""Alignments in TextGrid, CTM and JSON: the same tiers, pauses by one name, faults with their file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vaak.audio.formats.alignments import Interval, read_alignment, write_textgrid
from vaak.core.errors import DataError

MFA = """File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0
xmax = 1.5
tiers? <exists>
size = 2
item []:
    item [1]:
        class = "IntervalTier"
        name = "words"
        xmin = 0
        xmax = 1.5
        intervals: size = 4
        intervals [1]:
            xmin = 0
            xmax = 0.25
            text = ""
        intervals [2]:
            xmin = 0.25
            xmax = 0.5
            text = "so"
        intervals [3]:
            xmin = 0.5
            xmax = 1.0
            text = "<eps>"
        intervals [4]:
            xmin = 1.0
            xmax = 1.5
            text = "it's"
    item [2]:
        class = "IntervalTier"
        name = "phones"
        xmin = 0
        xmax = 1.5
        intervals: size = 5
        intervals [1]:
            xmin = 0
            xmax = 0.25
            text = "sil"
        intervals [2]:
            xmin = 0.25
            xmax = 0.375
            text = "S"
        intervals [3]:
            xmin = 0.375
            xmax = 0.5
            text = "OW1"
        intervals [4]:
            xmin = 0.5
            xmax = 1.0
            text = "sp"
        intervals [5]:
            xmin = 1.0
            xmax = 1.5
            text = "spn"
"""
WORDS = (Interval(0, 0.25, ""), Interval(0.25, 0.5, "so"), Interval(0.5, 1, ""), Interval(1, 1.5, "it's"))
PHONES = (
    *(Interval(0, 0.25, ""), Interval(0.25, 0.375, "S"), Interval(0.375, 0.5, "OW1"), Interval(0.5, 1, "")),
    Interval(1, 1.5, "spn"),
)


def test_a_textgrid_of_the_aligner_with_its_pauses(tmp_path: Path):
    (tmp_path / "a.TextGrid").write_text(MFA)
    assert read_alignment(tmp_path / "a.TextGrid") == {"word": WORDS, "phone": PHONES}
    (tmp_path / "b.TextGrid").write_text(MFA.replace('"words"', '"Ann - words"').replace('"phones"', '"Ann - phones"'))
    assert read_alignment(tmp_path / "b.TextGrid") == {"word": WORDS, "phone": PHONES}


def test_json_and_ctm(tmp_path: Path):
    rows = [list(row) for row in PHONES]
    for content in (rows, {"phone": rows}, {"phones": rows}, rows[::-1]):
        (tmp_path / "a.json").write_text(json.dumps(content))
        assert read_alignment(tmp_path / "a.json") == {"phone": PHONES}
    (tmp_path / "a.ctm").write_text("a 1 0.25 0.25 so\na 1 1.0 0.5 it's\nb 1 0 1 other\n")
    assert read_alignment(tmp_path / "a.ctm", "a") == {"word": (WORDS[1], WORDS[3])}
    (tmp_path / "b.ctm").write_text("x 1 0 1 alone\n")
    assert read_alignment(tmp_path / "b.ctm", "b") == {"word": (Interval(0, 1, "alone"),)}


def test_rounded_times_touch_and_points_are_left_out(tmp_path: Path):
    (tmp_path / "a.json").write_text(json.dumps([[0, 0.501, "a"], [0.5, 0.7, "b"], [0.7, 0.7, "c"]]))
    assert read_alignment(tmp_path / "a.json") == {"phone": (Interval(0, 0.501, "a"), Interval(0.501, 0.7, "b"))}


FAULTS: dict[str, tuple[str, Any, str]] = {
    "overlap": (
        "a.json",
        [[0, 0.6, "a"], [0.5, 0.7, "b"]],
        r"the phone 'b' begins at 0\.5 s, before the last one ends",
    ),
    "backwards": ("a.json", [[0.6, 0.5, "a"]], r"a phone from 0\.6 to 0\.5 s is not an interval"),
    "negative": ("a.json", [[-0.5, 0.5, "a"]], r"a phone from -0\.5 to 0\.5 s is not an interval"),
    "NaN": ("a.json", [[0, float("nan"), "a"]], r"a phone from 0 to nan s is not an interval"),
    "row": ("a.json", [[0, "a"]], r'\[0, "a"\] is not of the form \[start, end, symbol\]'),
    "tier": ("a.json", {"syllable": []}, "has lists for word and phone, not for syllable"),
    "nothing": ("a.json", {}, "has lists for word and phone, not for nothing"),
    "kind": ("a.json", {"word": "so"}, r"is a list of \[start, end, symbol\], not a str"),
    "no JSON": ("a.json", "{", "this is not JSON"),
    "recording": ("a.ctm", "x 1 0 1 a\ny 1 0 1 b\n", "no recording a; it has x, y"),
    "ending": ("a.lab", "", r"expected an alignment in a file that ends with \.textgrid, \.ctm, \.json"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_name_the_file(tmp_path: Path, fault: str):
    name, content, message = FAULTS[fault]
    (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(DataError, match=message) as raised:
        read_alignment(tmp_path / name, "a")
    assert name in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_textgrid_without_or_with_several_alignments_is_refused(tmp_path: Path):
    write_textgrid(tmp_path / "a.TextGrid", {"Ann": [Interval(0, 1, "so")]}, 2.0)
    with pytest.raises(DataError, match=r"a\.TextGrid: no tier is called words or phones; there are Ann"):
        read_alignment(tmp_path / "a.TextGrid")
    two = {f"{name} - words": [Interval(0, 1, "so")] for name in ("Ann", "Ben")}
    write_textgrid(tmp_path / "b.TextGrid", two, 2.0)
    with pytest.raises(DataError, match=r"b\.TextGrid: there are several tiers of words; an utterance has one"):
        read_alignment(tmp_path / "b.TextGrid")
