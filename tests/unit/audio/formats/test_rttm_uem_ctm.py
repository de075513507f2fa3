"""RTTM, UEM and CTM: what is written is read again; a broken line is named by file and line, with what is wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.audio.formats.annotation_lines import (
    MISSING,
    Word,
    read_ctm,
    read_rttm,
    read_uem,
    write_ctm,
    write_rttm,
    write_uem,
)
from vaak.audio.segments import Segment
from vaak.core.errors import DataError

RTTM = "SPEAKER rec 1 0.5 1.25 <NA> <NA> Ann <NA> <NA>\n"

microseconds = st.integers(0, 20_000_000_000)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" \t\n\r\x0b\x0c"), min_size=1).filter(
    lambda name: name[0] not in ";\ufeff" and name != MISSING
)


def times(shortest: int) -> st.SearchStrategy[tuple[float, float]]:
    pairs = st.tuples(microseconds, st.integers(shortest, 10_000_000))
    return pairs.map(lambda pair: (pair[0] / 1e6, (pair[0] + pair[1]) / 1e6))


segments = st.builds(lambda when, speaker: Segment(when[0], when[1], speaker), times(0), names)
words = st.builds(
    lambda when, text, sure: Word(when[0], when[1], text, sure),
    times(0),
    names,
    st.none() | st.integers(0, 1000).map(lambda n: n / 1e3),
)


@given(recordings=st.dictionaries(names, st.lists(segments, min_size=1, max_size=4), max_size=3))
def test_rttm_round_trip(recordings, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "round.rttm"
    write_rttm(path, recordings)
    assert read_rttm(path) == recordings


@given(recordings=st.dictionaries(names, st.lists(times(1), min_size=1, max_size=4), max_size=3))
def test_uem_round_trip(recordings, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "round.uem"
    write_uem(path, recordings)
    assert read_uem(path) == recordings


@given(recordings=st.dictionaries(names, st.lists(words, min_size=1, max_size=4), max_size=3))
def test_ctm_round_trip(recordings, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "round.ctm"
    write_ctm(path, recordings)
    assert read_ctm(path) == recordings


@given(content=st.binary(max_size=60) | st.text(" \n0123456789.-eNaSPEAKER<>;", max_size=60).map(str.encode))
def test_no_file_makes_a_reader_crash(content, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_bytes(content)
    for read in (read_rttm, read_uem, read_ctm):
        with contextlib.suppress(DataError):
            read(path)


def test_a_line_as_other_tools_write_it(tmp_path: Path):
    path = tmp_path / "out.rttm"
    write_rttm(path, {"rec": [Segment(0.5, 1.75, "Ann"), Segment(0.1, 0.1 + 0.2, "Bob")]})
    first, second = path.read_text().splitlines()
    assert first == "SPEAKER rec 1 0.500 1.250 <NA> <NA> Ann <NA> <NA>"
    assert second == "SPEAKER rec 1 0.100 0.200 <NA> <NA> Bob <NA> <NA>"
    assert read_rttm(path)["rec"][1].end == 0.3


def test_other_types_comments_and_blank_lines_are_skipped_and_overlap_is_kept(tmp_path: Path):
    path = tmp_path / "in.rttm"
    path.write_bytes(
        b"\xef\xbb\xbf;; comment\r\n\r\nSPKR-INFO rec 1 <NA> <NA> <NA> unknown Ann <NA>\r\n"
        b"LEXEME rec 1 0.5 0.2 hello lex Ann 0.9\r\n"
        b"SPEAKER rec 1 3 2 <NA> <NA> Ann <NA>\r\nSPEAKER\trec\t2\t4 5e-1 <NA> <NA> Ann\n"
    )
    assert read_rttm(path) == {"rec": [Segment(3.0, 5.0, "Ann"), Segment(4.0, 4.5, "Ann")]}


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (b"SPEAKER rec 1 0.5 1.25 <NA> <NA>", "SPEAKER requires at least 8 fields, this line has 7"),
        (b"SPEAKER rec 1 0.5 -1.25 <NA> <NA> Ann", "the duration is -1.25 s, which is negative"),
        (b"SPEAKER rec 1 -0.5 1.25 <NA> <NA> Ann", "the start is -0.5 s, which is negative"),
        (b"SPEAKER rec 1 0,5 1.25 <NA> <NA> Ann", "the start is '0,5', which is not a finite number"),
        (b"SPEAKER rec 1 0.5 nan <NA> <NA> Ann", "the duration is 'nan', which is not a finite number"),
        (b"SPEAKER rec 1 1_0 inf <NA> <NA> Ann", "the start is '1_0', which is not a finite number"),
        (b"SPEAKER rec 1 0.5 1.25 <NA> <NA> <NA>", "the speaker is empty (<NA>)"),
        (b"SPEAKER <NA> 1 0.5 1.25 <NA> <NA> Ann", "the recording is empty (<NA>)"),
        (b"SPEAKER rec 1 0.5 1.25 <NA> <NA> Ren\xe9", "byte 0xe9 is not UTF-8; convert the file to UTF-8"),
        (b"rec 1 0.5 1.25", "an RTTM line begins with SPEAKER or another type, not 'rec'"),
    ],
)
def test_broken_rttm(line, wrong, tmp_path: Path):
    path = tmp_path / "broken.rttm"
    path.write_bytes(RTTM.encode() + b";; comment\n\n" + line + b"\n" + RTTM.encode())
    with pytest.raises(DataError) as caught:
        read_rttm(path)
    assert str(caught.value) == f"{path}:4: {wrong}"


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("rec 1 0", "a line of a UEM requires at least 4 fields, this line has 3"),
        ("rec 1 5 5", "this part ends at 5.0 s, but begins at 5.0 s"),
        ("rec 1 0 end", "the end is 'end', which is not a finite number"),
        ("rec 1 -1 2", "the start is -1 s, which is negative"),
    ],
)
def test_broken_uem(line, wrong, tmp_path: Path):
    path = tmp_path / "broken.uem"
    path.write_text(f"rec 1 0 1\n{line}\n")
    with pytest.raises(DataError) as caught:
        read_uem(path)
    assert str(caught.value) == f"{path}:2: {wrong}"


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("rec 1 0 1", "a line of a CTM requires at least 5 fields, this line has 4"),
        ("rec 1 0 -1 word", "the duration is -1 s, which is negative"),
        ("rec 1 * * <ALT_BEGIN>", "the start is '*', which is not a finite number"),
        ("rec 1 0 1 word sure", "the confidence is 'sure', which is not a finite number"),
        ("rec 1 0 1 <NA>", "the word is empty (<NA>)"),
    ],
)
def test_broken_ctm(line, wrong, tmp_path: Path):
    path = tmp_path / "broken.ctm"
    path.write_text(f"rec A 0 1 word NA\n{line}\n")
    with pytest.raises(DataError) as caught:
        read_ctm(path)
    assert str(caught.value) == f"{path}:2: {wrong}"


@pytest.mark.parametrize(
    ("read", "lines", "wrong"),
    [
        (
            read_rttm,
            "SPEAKER rec 1 0 1 <NA> <NA> Speaker 1 <NA> <NA>",
            "SPEAKER has at most 10 fields, this line has 11",
        ),
        (read_rttm, "SPEAKER my rec 1 0 1 <NA> <NA> Ann <NA> <NA>", "SPEAKER has at most 10 fields, this line has 11"),
        (read_rttm, "SPEAKER rec 1 0 1 <NA> <NA> Speaker 2", "the confidence after speaker Speaker is '2'"),
        (read_rttm, "SPEAKER rec 1 0 1 <NA> <NA> Ann Lee <NA>", "the confidence after speaker Ann is 'Lee'"),
        (read_rttm, "SPEAKER rec 1 0 1 <NA> <NA> Ann 0.5 Lee", "the lookahead after speaker Ann is 'Lee'"),
        (read_uem, "my rec 1 0 5", "a line of a UEM has at most 4 fields, this line has 5"),
        (read_uem, "rec 2 1 3 5", "a line of a UEM has at most 4 fields, this line has 5"),
        (read_ctm, "rec 1 0 1 a b c d e", "a line of a CTM has at most 8 fields, this line has 9"),
        (read_ctm, "rec 1 0 1 two words", "the confidence is 'words', which is not a finite number"),
    ],
)
def test_a_blank_in_a_name_shifts_no_field(read, lines, wrong, tmp_path: Path):
    """Else Speaker 1 and Speaker 2 are one speaker, and 0 % is printed where 50 is right."""
    path = tmp_path / "file"
    path.write_text(f"{lines}\n")
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:1: {wrong}")


def test_what_may_follow_a_speaker(tmp_path: Path):
    path = tmp_path / "file"
    for rest in ("", "<NA>", "0.93 <NA>", "<NA> <NA>", "1 0.25", "NA 12"):
        path.write_text(f"SPEAKER rec 1 0 1 <NA> <NA> Ann {rest}\n")
        assert read_rttm(path) == {"rec": [Segment(0.0, 1.0, "Ann")]}


def test_files_that_are_not_there(tmp_path: Path):
    with pytest.raises(DataError, match=r"none\.rttm: can't be read: No such file"):
        read_rttm(tmp_path / "none.rttm")
    with pytest.raises(DataError, match=r"no \*\.uem file in this folder"):
        read_uem(tmp_path)


def test_a_folder_of_files(tmp_path: Path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.rttm").write_text(RTTM)
    (tmp_path / "deep" / "b.rttm").write_text(RTTM.replace("rec", "other"))
    assert sorted(read_rttm(tmp_path)) == ["other", "rec"]
    (tmp_path / "deep" / "c.rttm").write_text(RTTM)
    with pytest.raises(DataError) as caught:
        read_rttm(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'deep' / 'c.rttm'}: recording rec is also in {tmp_path / 'a.rttm'}; keep one of them"
    )


@pytest.mark.parametrize("speaker", ["", "Ann Lee", "<NA>", "Ann\n", "\ud800"])
def test_a_name_that_could_not_be_read_again_is_not_written(speaker, tmp_path: Path):
    path = tmp_path / "out.rttm"
    with pytest.raises(DataError, match="can't be written: the speaker"):
        write_rttm(path, {"rec": [Segment(0.0, 1.0, speaker)]})
    assert not path.exists()


@pytest.mark.parametrize("when", [(1.0, 0.5), (-1.0, 1.0), (0.0, float("nan")), (0.0, float("inf"))])
def test_times_that_are_no_times_are_not_written(when, tmp_path: Path):
    start, end = when
    writers: list[tuple[Callable[..., None], Any]] = [
        (write_rttm, Segment(start, end, "A")),
        (write_uem, when),
        (write_ctm, Word(start, end, "word")),
    ]
    for write, entry in writers:
        with pytest.raises(DataError, match="can't be written: rec has a"):
            write(tmp_path / "out", {"rec": [entry]})


plain_names = names.filter(lambda name: name.split() == [name])
"""Lhotse separates fields by any white space of Unicode."""


@given(recordings=st.dictionaries(plain_names, st.lists(segments, min_size=1, max_size=4), min_size=1, max_size=3))
def test_lhotse_reads_what_is_written_as_we_do(recordings, tmp_path_factory):
    lhotse = pytest.importorskip("lhotse")
    path = tmp_path_factory.getbasetemp() / "lhotse.rttm"
    recordings = {
        recording: [Segment(start, end, f"s{number}") for number, (start, end, _) in enumerate(found) if end > start]
        for recording, found in recordings.items()
    }
    write_rttm(path, recordings)
    read: dict[str, list[Segment]] = {}
    for one in lhotse.SupervisionSet.from_rttm(path):
        read.setdefault(one.recording_id, []).append(Segment(one.start, one.end, one.speaker))
    assert read == {recording: found for recording, found in recordings.items() if found}


@pytest.mark.parametrize(
    "line",
    [
        "; a comment",
        "SPKR-INFO rec 1 <NA> <NA> <NA> unknown Ann <NA>",
        "SPEAKER rec 1 3 2 <NA> <NA> Ann",
        "SPEAKER rec A 3 2 <NA> <NA> Ann <NA> <NA>",
        "SPEAKER rec 1 3 2 <NA> <NA> Ann\u00a0Lee <NA> <NA>",
    ],
)
def test_lines_for_which_this_reader_is_our_own(line, tmp_path: Path):
    """If Lhotse ever reads all of these, it can take over; that its errors have no line remains."""
    lhotse = pytest.importorskip("lhotse")
    path = tmp_path / "odd.rttm"
    path.write_text(f"{RTTM}{line}\n", encoding="utf-8")
    assert read_rttm(path)["rec"][0] == Segment(0.5, 1.75, "Ann")
    with pytest.raises((AssertionError, ValueError)):
        lhotse.SupervisionSet.from_rttm(path)
