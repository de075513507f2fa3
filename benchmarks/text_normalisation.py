"""Count the rows of LJ Speech's metadata that the English normaliser writes as the corpus does, and print the others.

The corpus writes figures in words, but keeps the abbreviations that its README lists (Mr., Co., ...), so those are
expanded in its text before the comparison. Case, punctuation and apostrophes don't count, and an initialism is the
same with spaces (F B I) and without (FBI). ``--strict`` compares with the corpus' text unchanged.

    python benchmarks/text_normalisation.py $VAAK_DATA/ljspeech_mini/text_normalisation.csv
    python benchmarks/text_normalisation.py metadata.csv --json

A row is ``id|text|normalised text``. A file ``.tsv`` has sentences instead (category, part, written, spoken; readings
that are right are separated by |, those of a phrase in braces). The share that is right is printed by category and
part, with its 95 % interval:

    python benchmarks/text_normalisation.py tests/unit/text/speech/hindi_sentences.tsv --language hi

``--wrong tuned`` prints only that part's sentences that are read otherwise, so that the others stay unseen.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import itertools
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vaak.core.errors import DataError
from vaak.report.examples import wilson
from vaak.text.speech.config import FrontEndConfig
from vaak.text.speech.english import normalise
from vaak.text.speech.processor import PhonemeProcessor

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
    parser.add_argument("--language", choices=("en", "hi"), default="en", help="of sentences")
    parser.add_argument("--wrong", metavar="PART", help="print what is wrong of this part only")
    options = parser.parse_args()
    if options.metadata.suffix == ".tsv":
        print_sentences(options.metadata, options.language, options.wrong)
        return
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


def print_sentences(path: Path, language: str, part_shown: str | None = None) -> None:
    """Print the correct sentences of each category and part, the shares of the parts, and the differing readings."""
    processor = PhonemeProcessor(FrontEndConfig() if language == "en" else FrontEndConfig(language=language))
    right, number = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    wrong: list[tuple[str, str, str]] = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            found = read_sentence(processor, row["written"])
            is_right = found in list_readings(row["spoken"])
            for key in ((row["category"], row["part"]), ("all", row["part"])):
                number[key] += 1
                right[key] += is_right
            if not is_right:
                wrong.append((row["part"], row["written"], found))
    parts = list(dict.fromkeys(part for _, part in number))
    print(f"| category | {' | '.join(parts)} |\n|---|{'---|' * len(parts)}")
    for category in dict.fromkeys(category for category, _ in number):
        print(f"| {category} | {' | '.join(f'{right[category, one]} of {number[category, one]}' for one in parts)} |")
    for part in parts:
        low, high = wilson(right["all", part], number["all", part])
        share = 100 * right["all", part] / number["all", part]
        print(f"{part}: {share:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f})")
    for part, written, found in wrong:
        if part_shown in (None, part):
            print(f"{part}: {written} -> {found}")


def read_sentence(processor: PhonemeProcessor, written: str) -> str:
    try:
        return spoken_words(processor.normalise(written, (), [], pictures=True))
    except DataError as error:
        return str(error)


def list_readings(spoken: str) -> set[str]:
    """The words of each reading; alternatives are separated by |, those of a phrase in braces.

    >>> sorted(list_readings("{|the} first")), sorted(list_readings("one|two"))
    (['first', 'the first'], ['one', 'two'])
    """
    phrases = re.split(r"[{}]", spoken) if "{" in spoken else [spoken]
    alternatives = [[spoken_words(one) for one in phrase.split("|")] for phrase in phrases]
    return {" ".join(filter(None, one)) for one in itertools.product(*alternatives)}


def spoken_words(text: str) -> str:
    """The words of a text in lower case, without marks and apostrophes; oh is zero."""
    text = unicodedata.normalize("NFC", text).lower().replace("'", "")
    plain = "".join(one if unicodedata.category(one)[0] in "LMN" or one == "&" else " " for one in text)
    return " ".join("zero" if word == "oh" else word for word in plain.split())


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
