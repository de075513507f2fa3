"""Tables of the documentation, by which tests try what it says."""

from __future__ import annotations

from pathlib import Path

DATASETS = Path(__file__).parents[3] / "docs" / "datasets.md"


def read_layout_table(before: str) -> list[tuple[str, str]]:
    """Return what layouts look like and what they are read as: of the table below a line that begins so."""
    text = DATASETS.read_text(encoding="utf-8")
    table = text[text.index(f"\n{before}") :].partition("|---|---|---|---|\n")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.split("\n")]
    return [(row[0], row[1]) for row in rows]
