"""An n-gram model of words, read from an ARPA file, as KenLM, SRILM and IRSTLM write it.

    \\data\\              log10 p(word | words before)   the n-gram   log10 of its back-off, if it is continued
    ngram 1=3
    \\1-grams:           -0.5    so    -0.3
    \\2-grams:           -0.2    so it
    \\end\\

    p(w | h) = that of the n-gram h w where there is one, else back-off(h) · p(w | h without its first word)

Sources: Katz 1987, "Estimation of Probabilities from Sparse Data" (back-off); Heafield 2011, "KenLM" (what a missing
``<unk>`` counts: 10^-100).
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from vaak.core.errors import DataError

START, END, UNKNOWN = "<s>", "</s>", "<unk>"
NOWHERE = -100.0
"""The log10 of the probability of an unknown word where the file has none."""


class Ngram:
    """The log-probability of a word after others."""

    def __init__(self, path: str | Path) -> None:
        """Read an ARPA file, or one that gzip compressed. Raises DataError, with its line, for one that isn't such."""
        self.path = Path(path).expanduser()
        self.order, self.highest = 0, 0.0
        self._entries: dict[tuple[str, ...], tuple[float, float]] = {}
        """The log10 of the probability and of the back-off, by n-gram."""
        self._histories, self._states = list[tuple[str, ...]](), dict[tuple[str, ...], int]()
        try:
            with (
                gzip.open(self.path, "rt", encoding="utf-8", newline="\n")
                if self.path.suffix == ".gz"
                else open(self.path, encoding="utf-8", newline="\n") as lines
            ):
                self._read(lines)
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.path}: this n-gram model can't be read: {error}") from error

    def _read(self, lines: TextIO) -> None:
        counts, length = dict[int, int](), 0
        for number, line in enumerate(lines, start=1):
            text = line.strip()
            if text == "\\end\\":
                break
            if text.startswith("\\"):
                length = int(text[1:-7]) if text.endswith("-grams:") and text[1:-7].isdecimal() else 0
            elif text.startswith("ngram ") and not length:
                order, _, many = text[6:].partition("=")
                counts[int(order)] = int(many)
            elif text and length:
                self._add(text, length, number)
        else:
            raise DataError(f"{self.path}: this is not a whole ARPA file: it has no \\end\\")
        # The header's counts must agree: otherwise an n-gram is missing, or occurs twice.
        found = [sum(len(words) == one for words in self._entries) for one in counts]
        if not counts or list(counts.values()) != found:
            raise DataError(f"{self.path}: \\data\\ counts {list(counts.values())} n-grams, but there are {found}")
        self.order = max(counts)
        # A probability, and as many back-offs as may come before it.
        back_offs = [
            max((two for words, (_, two) in self._entries.items() if len(words) == one), default=0.0) for one in counts
        ]
        most = max(one for one, _ in self._entries.values()) + sum(max(0.0, one) for one in back_offs)
        self.highest = most * math.log(10)
        """No word has a higher score than this."""

    def _add(self, text: str, length: int, number: int) -> None:
        fields = text.split()
        try:
            back_off = float(fields[length + 1]) if len(fields) == length + 2 else 0.0
            if not length + 1 <= len(fields) <= length + 2:
                raise ValueError
            self._entries[tuple(fields[1 : length + 1])] = float(fields[0]), back_off
        except (ValueError, IndexError) as error:
            expected = f"a number, {length} words and maybe a number"
            raise DataError(f"{self.path}:{number}: expected {expected}, not {text!r}") from error

    def __contains__(self, word: str) -> bool:
        return (word,) in self._entries

    def begin(self) -> int:
        """Return the state before the first word."""
        return self._intern((START,)[: self.order - 1])

    def _intern(self, words: tuple[str, ...]) -> int:
        if words not in self._states:
            self._states[words] = len(self._histories)
            self._histories.append(words)
        return self._states[words]

    def read(self, asked: Sequence[tuple[int, str]]) -> list[tuple[float, int]]:
        """Return the natural log of the probability of each word after a state, and the state after it."""
        found = []
        for state, word in asked:
            before = self._histories[state]
            found.append((self.score(before, word), self._intern(self.after(before, word))))
        return found

    def score(self, before: tuple[str, ...], word: str) -> float:
        """Return the natural log of the probability of a word after those ``before``, of which the last count."""
        word = word if word in self else UNKNOWN
        before = before[max(0, len(before) - self.order + 1) :]
        lost = 0.0
        while before:
            entry = self._entries.get((*before, word))
            if entry is not None:
                return (lost + entry[0]) * math.log(10)
            # Back-off: pay the weight of the longer history, then try a shorter one. A missing weight is 0 in the
            # logarithm.
            lost += self._entries.get(before, (0.0, 0.0))[1]
            before = before[1:]
        return (lost + self._entries.get((word,), (NOWHERE, 0.0))[0]) * math.log(10)

    def after(self, before: tuple[str, ...], word: str) -> tuple[str, ...]:
        """Return what counts of the words before the next one."""
        known = word if word in self else UNKNOWN
        return (*before, known)[-(self.order - 1) :] if self.order > 1 else ()
