"""``vaak phonemes`` converts text from an argument, a file or standard input to phonemes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = (sys.executable, "-c", "from vaak.cli.main import main; main()", "phonemes")


def test_a_text(vaak):
    assert vaak("phonemes", "Dr. Roe, 5.") == (0, "Doctor Roe, five.\td ˈɑː k t ɚ | ɹ ˈoʊ , f ˈaɪ v .\n", "")
    assert vaak("phonemes", "Dr. Roe, 5.", "--normalised-only") == (0, "Doctor Roe, five.\n", "")
    code, out, _ = vaak("phonemes", "the cat", "--alphabet", "arpabet", "--no-stress", "--no-word-boundaries")
    assert (code, out) == (0, "the cat\tDH AH K AE T\n")


def test_lines_of_a_file_with_blank_ones(vaak, tmp_path: Path):
    (tmp_path / "lines.txt").write_bytes("One 1.\r\n\r\nCafé\r\n".encode())
    code, out, _ = vaak("phonemes", tmp_path / "lines.txt", "--normalised-only")
    assert (code, out) == (0, "One one.\n\nCafe\n")
    code, _, _ = vaak("phonemes", tmp_path / "lines.txt", "--json", "--output", tmp_path / "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert code == 0
    assert [row["text"] for row in rows] == ["One 1.", "", "Café"]
    assert rows[1] == {"text": "", "normalised": "", "symbols": [], "ids": []}
    assert rows[2]["symbols"] == ["k", "ˈæ", "f", "eɪ"]
    assert len(rows[2]["ids"]) == 4


def test_standard_input(tmp_path: Path):
    for arguments in ((), ("-",)):
        done = subprocess.run(
            [*COMMAND, *arguments, "--normalised-only"], input=b"in 1999\nNo. 5\n", capture_output=True
        )
        assert (done.returncode, done.stdout) == (0, b"in nineteen ninety-nine\nNumber five\n")


def test_symbols_that_are_not_spoken_are_one_line_of_standard_error(vaak, tmp_path: Path):
    lines = tmp_path / "lines.txt"
    lines.write_text("plain\n**so** it is ™\n<b>now</b> ™\n", encoding="utf-8")
    for options in ((), ("--normalised-only",), ("--json",)):
        code, _, err = vaak("phonemes", lines, *options)
        assert code == 0
        assert err == (
            f"6 symbols are not spoken: ** (2, first in {lines}:2), ™ (2, first in {lines}:2), "
            f"<b> (1, first in {lines}:3), </b> (1, first in {lines}:3)\n"
        )
    assert vaak("phonemes", lines, "--language", "hi", "--normalised-only")[2].startswith(
        "6 symbols are not spoken: **"
    )


def test_a_line_that_cant_be_spoken_is_blank_and_named_with_its_place(vaak, tmp_path: Path):
    (tmp_path / "lines.txt").write_text("good\n\nनमस्ते\nlater\n", encoding="utf-8")
    for options in ((), ("--normalised-only",)):
        code, out, err = vaak("phonemes", tmp_path / "lines.txt", *options)
        assert code == 2
        assert [line.partition("\t")[0] for line in out.splitlines()] == ["good", "", "", "later"]
        assert f"{tmp_path / 'lines.txt'}:3: 'नमस्ते': न म स ् त े (Devanagari) can't be read in English" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("…",), "there is nothing to speak in it"),
        (("5", "--no-normalise"), "5 can't be pronounced"),
        (("hello", "--language", "hindi"), "espeak-ng has no language hindi"),
        (("hello", "--phonemizer", "lexicon"), "phonemizer: lexicon requires lexicon"),
        (("hello", "--lexicon", "x"), "lexicon is not read by phonemizer: espeak"),
        (("hello", "--phonemizer", "lexicon", "--lexicon", "missing.dict"), "lexicon missing.dict: No such file"),
        (("missing.txt",), "file missing.txt does not exist"),
        (("texts/missing.txt",), "file texts/missing.txt does not exist"),
        (("./missing",), "file ./missing does not exist"),
    ],
)
def test_mistakes_in_one_line(vaak, arguments, message):
    code, out, err = vaak("phonemes", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("12/25/2020", "December twenty-fifth, twenty twenty"),
        ("km/h", "kilometers per hour"),
        ("foo/h", "foo slash h"),
        ("and/or", "and or"),
        ("https://foo.com/bar", "foo dot com slash bar"),
        ("https://foo.com/bar.txt", "foo dot com slash bar dot T X T"),
    ],
)
def test_a_text_with_slashes_is_no_missing_file(vaak, text: str, spoken: str):
    assert vaak("phonemes", "--normalised-only", text) == (0, f"{spoken}\n", "")


@pytest.mark.parametrize("options", [("--normalised-only",), ()])
def test_readings_that_are_guesses_are_said(vaak, options: tuple[str, ...]):
    code, out, err = vaak("phonemes", *options, "3/4")
    assert (code, out.split("\t")[0].strip()) == (0, "three quarters")
    assert err == "1 reading is a guess: 1/2 as a fraction (1)\n"


def test_what_is_missing_from_a_folder_is_a_file(vaak, tmp_path: Path):
    code, _, err = vaak("phonemes", tmp_path / "lines")
    assert code == 2
    assert f"file {tmp_path / 'lines'} does not exist" in err
