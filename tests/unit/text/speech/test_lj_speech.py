"""Text of LJ Speech, normalised by hand: the rows that differ are those that the documentation lists."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[4]


def measured(*arguments: object) -> dict[str, Any]:
    script = ROOT / "benchmarks" / "text_normalisation.py"
    done = subprocess.run(
        [sys.executable, script, *map(str, arguments), "--json"], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_rows_are_equal_but_those_that_the_documentation_lists(vaak_data):
    rows = vaak_data("ljspeech_mini") / "text_normalisation.csv"
    found = measured(rows)
    assert found["rows"] == 1129
    assert found["percent"] > 98
    page = (ROOT / "docs" / "tts-front-end.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (LJ\d+-\d+) \|", page, re.MULTILINE) == found["different"]
    assert f"{found['percent']:.1f} %" in page
    assert f"{measured(rows, '--strict')['percent']:.1f} %" in page


def test_a_wrong_word_counts(tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("a|In 1999, Mr. Hunt|In nineteen ninety-nine, Mr. Hunt\nb|5|six\nc|FBI|FBI\nd|x.|X\n")
    assert measured(rows) == {"rows": 4, "percent": 75.0, "different": ["b"]}
    assert measured(rows, "--strict") == {"rows": 4, "percent": 25.0, "different": ["a", "b", "c"]}
