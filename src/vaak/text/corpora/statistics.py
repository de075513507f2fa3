"""Selection of a split's documents: which of them training keeps, and statistics of those kept and dropped.

Training keeps nothing that an evaluation has too, and nothing twice.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from vaak.core.left_out import SplitContents
from vaak.core.splits import hash_text

log = logging.getLogger("vaak")
MOST_LOGGED = 5
"""Documents that can't be used of which the log says why."""


class Skipped:
    """Counts the documents that can't be used, and logs the reasons of the first ones, once each."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __len__(self) -> int:
        return len(self._said)

    def count_in(self, files: Iterable[Path]) -> int:
        """Return the number of skipped documents in some files, with whose paths their messages begin."""
        return sum(one.startswith(f"{path}:") for path in files for one in self._said)

    def add(self, problem: str) -> None:
        if problem in self._said:
            return
        self._said.add(problem)
        if len(self._said) <= MOST_LOGGED:
            log.warning("skipped: %s", problem)
        elif len(self._said) == MOST_LOGGED + 1:
            log.warning("further ones that are skipped are counted only")


# Letters, vowel signs and other marks of Devanagari, without its digits and dandas.
_DEVANAGARI = re.compile("[\u0900-\u0963\u0971-\u097f\ua8e0-\ua8ff]+")
_LETTERS = re.compile(r"[^\W\d_]+")


@dataclass
class SplitStatistics:
    """The contents of a split after cleaning, and what cleaning dropped.

    ``words`` are separated by white space; ``bytes`` are UTF-8, the unit of bits per byte. ``duplicates`` and
    ``also_in_evaluation`` count the documents dropped, ``empty`` the blank ones, ``unusable`` those that can't be used.
    """

    documents: int = 0
    words: int = 0
    characters: int = 0
    bytes: int = 0
    devanagari: int = 0
    other_letters: int = 0
    longest_document: int = 0
    duplicates: int = 0
    also_in_evaluation: int = 0
    empty: int = 0
    replaced_bytes: int = 0
    unusable: int = 0

    def add(self, text: str) -> None:
        """Count one document; its length is in characters."""
        without_devanagari = _DEVANAGARI.sub("", text)
        self.documents += 1
        self.words += len(text.split())
        self.characters += len(text)
        self.bytes += len(text.encode())
        self.devanagari += len(text) - len(without_devanagari)
        self.other_letters += sum(map(len, _LETTERS.findall(without_devanagari)))
        self.longest_document = max(self.longest_document, len(text))

    def drop(self, reason: Reason) -> None:
        """Count a document that is not kept."""
        setattr(self, reason, getattr(self, reason) + 1)

    def __len__(self) -> int:
        return self.documents

    @property
    def devanagari_share(self) -> float:
        """Fraction of the letters that are Devanagari; 0 without any letters."""
        return self.devanagari / max(self.devanagari + self.other_letters, 1)

    def to_json(self) -> dict[str, Any]:
        """Return the values for a JSON file."""
        return asdict(self) | {"devanagari_share": round(self.devanagari_share, 6)}

    def contents(self) -> SplitContents:
        """How many documents there are, and how many cleaning dropped."""
        dropped = {words: number for name, words in _DROPPED.items() if (number := getattr(self, name))}
        return SplitContents("documents", self.documents, dropped)


_COLUMNS = {
    "documents": "documents",
    "words": "words",
    "characters": "characters",
    "bytes": "bytes",
    "longest_document": "longest",
    "duplicates": "duplicates",
    "also_in_evaluation": "in evaluation",
    "empty": "empty",
    "replaced_bytes": "bad bytes",
    "unusable": "unusable",
}
_ONLY_IF_ANY = ("unusable",)
_DROPPED = {
    "duplicates": "duplicates",
    "also_in_evaluation": "documents that an evaluation split has, too",
    "empty": "empty documents",
    "unusable": "documents that can't be used",
}


def statistics_rows(statistics: Mapping[str, SplitStatistics]) -> list[list[str]]:
    """Return the cells of a table of the statistics: a header, and a row per split."""
    absent = {name for name in _ONLY_IF_ANY if not any(getattr(one, name) for one in statistics.values())}
    shown = [name for name in _COLUMNS if name not in absent]
    rows = [["split", *(_COLUMNS[name] for name in shown), "Devanagari"]]
    for split, counts in statistics.items():
        metrics = [f"{getattr(counts, name):,}" for name in shown]
        rows.append([split, *metrics, f"{counts.devanagari_share:.1%}"])
    return rows


Sides = tuple[tuple[str, ...], ...]
"""The texts of a document or a pair, by side: ``((text,),)``, or ``((source,), targets)``."""
Reason = Literal["empty", "also_in_evaluation", "duplicates"]
Overlap = Literal["source", "pair", "target"]
"""The part that training must not share with an evaluation: a source, a whole pair, or either side."""


class PairFilter:
    """Says of each document or pair of the training files why it is dropped; 8 bytes of digest for each are kept.

    ``num_shared_targets`` counts the pairs kept of which an evaluation has the target, with another source.
    """

    def __init__(self, evaluated: Iterable[Sides], *, deduplicate: bool, overlap: Overlap = "source") -> None:
        """``evaluated`` are the texts of evaluation splits."""
        self._deduplicate, self._overlap = deduplicate, overlap
        self._seen: set[int] = set()
        self._sources, self._targets, self._pairs = set[int](), set[int](), set[int]()
        self.num_shared_targets = 0
        for sources, *targets in evaluated:
            self._sources.update(map(hash_text, sources))
            self._targets.update(hash_text(text) for texts in targets for text in texts)
            if overlap == "pair":
                self._pairs.update(_hash_pairs(sources, *targets))

    def why_dropped(self, sides: Sides) -> Reason | None:
        """Return the reason, or None for a document or pair that is kept, and then remembered."""
        targets = sides[1:]
        shares_target = any(hash_text(text) in self._targets for texts in targets for text in texts)
        if self._is_evaluated(sides, shares_target):
            return "also_in_evaluation"
        digest = hash_text("\0".join(text for texts in sides for text in texts))
        if digest in self._seen:
            return "duplicates"
        if self._deduplicate:
            self._seen.add(digest)
        self.num_shared_targets += shares_target
        return None

    def _is_evaluated(self, sides: Sides, shares_target: bool) -> bool:
        if self._overlap == "pair":
            return any(digest in self._pairs for digest in _hash_pairs(*sides))
        if self._overlap == "target" and shares_target:
            return True
        return any(hash_text(text) in self._sources for text in sides[0])


def _hash_pairs(*sides: tuple[str, ...]) -> Iterator[int]:
    """Return the digests of every text of the first side with every text of the second."""
    return (hash_text("\0".join(texts)) for texts in product(*sides))
