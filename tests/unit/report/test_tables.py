"""Tables as text, and what drawing them costs those who don't: neither torch nor matplotlib is imported."""

from __future__ import annotations

import csv
import io
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from vaak.report.tables import aligned, csv_text

CELLS = st.text(st.characters(categories=("L", "N")), min_size=1, max_size=9)
TABLES = st.integers(1, 4).flatmap(lambda width: st.lists(st.lists(CELLS, min_size=width, max_size=width), min_size=1))


@given(TABLES, st.integers(0, 4))
def test_every_cell_is_in_its_column(rows: list[list[str]], left: int):
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, line in zip(rows, aligned(rows, left), strict=True):
        for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
            begin = sum(widths[:number]) + 2 * number
            there = line[begin : begin + width]
            assert there.strip(" ") == cell
            assert there.startswith(cell) if number < left else there.endswith(cell)


def test_a_table_is_read_again_as_it_was():
    rows = [["a,b", 1.5, None], ['"', 2, "c\nd"]]
    read = list(csv.reader(io.StringIO(csv_text(("x", "y", "z"), rows))))
    assert read == [["x", "y", "z"], ["a,b", "1.5", ""], ['"', "2", "c\nd"]]
    assert csv_text(("x",), [[1 / 3], [2]], decimals=3) == "x\n0.333\n2\n"


def test_a_report_needs_no_torch():
    names = "tables, charts, audio, attention"
    own = "from vaak.tasks.asr import report; from vaak.tasks.asr.stages import drawings"
    program = (
        f"import sys; from vaak.report import {names}; {own}; print(*{{'torch', 'matplotlib'}} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
