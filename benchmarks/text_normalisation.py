"""How many rows of LJ Speech's metadata the English normaliser writes as the corpus does, and those that differ.

The corpus has figures in words, but leaves the abbreviations that its README lists (Mr., Co., ...) as they are; so they
are expanded in its text before the comparison. Case, punctuation and apostrophes don't count, and an initialism is the
same with spaces (F B I) and without (FBI). ``--strict`` compares with the corpus' text unchanged.

    python benchmarks/text_normalisation.py $VAAK_DATA/ljspeech_mini/text_normalisation.csv
    python benchmarks/text_normalisation.py metadata.csv --json

A row is ``id|text|normalised text``.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vaak.text.speech.english import normalise

EXPANSIONS = {
    "Mr": "Mister",
    "Mrs": "Missus",
    "Dr": "Doctor",
    "No": "Number",
    "St": "Saint",
    "Co": "Company",
    "Jr": "Junior",
    "Maj": "Major",
    "Gen": "General",
    "Drs": "Doctors",
    "Rev": "Reverend",
    "Lt": "Lieutenant",
    "Hon": "Honorable",
    "Sgt": "Sergeant",
    "Capt": "Captain",
    "Esq": "Esquire",
    "Ltd": "Limited",
    "Col": "Colonel",
    "Ft": "Fort",
}
"""The README's list; it has "Misess" for Mrs., which is written in many ways."""

_ABBREVIATION = re.compile(rf"\b({'|'.join(EXPANSIONS)})\.")


class Row(NamedTuple):
    """A row of the corpus and ours, both folded."""

    name: str
    expected: str
    found: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("metadata", type=Path)
    parser.add_argument("--strict", action="store_true", help="compare with the corpus' text unchanged")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = list(compared(options.metadata, options.strict))
    other = [row for row in rows if row.expected != row.found]
    percent = 100 * (1 - len(other) / len(rows))
    if options.json:
        print(json.dumps({"rows": len(rows), "percent": percent, "different": [row.name for row in other]}))
        return
    print("| row | the corpus has | normalised |\n|---|---|---|")
    for row in other:
        expected, found = differences(row)
        print(f"| {row.name} | {expected} | {found} |")
    print(f"\n{len(rows) - len(other)} of {len(rows)} rows are equal: {percent:.1f} %")


def compared(metadata: Path, strict: bool) -> Iterator[Row]:
    for line in metadata.read_text(encoding="utf-8").splitlines():
        name, text, expected = line.split("|")
        if not strict:
            expected = _ABBREVIATION.sub(lambda match: EXPANSIONS[match[1]], expected)
        yield Row(name, folded(expected, strict), folded(normalise(text), strict))


def folded(text: str, strict: bool) -> str:
    """Without case, punctuation and apostrophes; unless strict, single letters in a row are one word."""
    plain = " ".join(re.sub(r"[^\w\s]|_", " ", text.lower().replace("'", "")).split())
    return plain if strict else re.sub(r"(?<=\b\w) (?=\w\b)", "", plain)


def differences(row: Row) -> tuple[str, str]:
    """The words that differ, with one before each, in the corpus and in ours."""
    expected, found = row.expected.split(), row.found.split()
    parts: list[tuple[str, str]] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, expected, found, autojunk=False).get_opcodes():
        if kind != "equal":
            parts.append((" ".join(expected[max(a - 1, 0) : b]), " ".join(found[max(c - 1, 0) : d])))
    return " … ".join(part[0] for part in parts), " … ".join(part[1] for part in parts)


if __name__ == "__main__":
    main()
