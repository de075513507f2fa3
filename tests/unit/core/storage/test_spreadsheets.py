"""Spreadsheets are tables with the same rows as when saved as CSV; sheets that aren't read are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from spreadsheets import write_spreadsheet
from vaak.core.errors import DataError
from vaak.core.storage.tables import Table

pytest.importorskip("python_calamine", reason="the extra spreadsheets is not installed")
ROWS = [("Text", "Label", "Nr"), ("नमस्ते, दुनिया", "good", 1), (None, None, None), ("a\nb", "bad", 2.5)]


@pytest.mark.parametrize("name", ["मेरी तालिका.xlsx", "a b.ods"])
def test_rows_are_texts_with_the_number_that_the_spreadsheet_shows(name: str, tmp_path: Path):
    path = write_spreadsheet(tmp_path / name, ROWS)
    table = Table(path)
    assert table.names == ["Text", "Label", "Nr"]
    assert [(row.where, row.cells, row.problem) for row in table.rows()] == [
        (f"{path}: row 2", ["नमस्ते, दुनिया", "good", "1"], None),
        (f"{path}: row 4", ["a\nb", "bad", "2.5"], None),
    ]


def test_sheets_that_are_not_read_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = write_spreadsheet(tmp_path / "a.xlsx", [], {"data": ROWS, "notes": [("x",)]})
    assert Table(path).names == ["Text", "Label", "Nr"]
    assert caplog.messages == [f"{path}: sheet 'data' is read; not read: notes"]


def test_a_row_that_is_wider_than_the_header_is_a_problem(tmp_path: Path):
    path = write_spreadsheet(tmp_path / "a.xlsx", [("a", "b"), (1, 2), (1, 2, "stray")])
    first, second = Table(path).rows()
    assert (first.cells, first.problem) == (["1", "2"], None)
    assert str(second.problem) == f"{path}: row 3: 3 columns, but the first row has 2: a, b"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 half", b"text,label\na,b\n"])
def test_what_is_no_spreadsheet_is_named(content: bytes, tmp_path: Path):
    path = tmp_path / "a.xlsx"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a.xlsx: this is not a spreadsheet that can be read: "):
        Table(path)
