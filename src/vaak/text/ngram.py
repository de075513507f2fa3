"""An n-gram model of words, read from an ARPA file, as KenLM, SRILM and IRSTLM write it.

    \\data\\              log10 p(word | words before)   the n-gram   log10 of its back-off, if it is continued
    ngram 1=3
    \\1-grams:           -0.5    so    -0.3
    \\2-grams:           -0.2    so it
    \\end\\

    p(w | h) = that of the n-gram h w where there is one, else back-off(h) · p(w | h without its first word)

The file becomes sorted arrays once, in FILE.ngram next to it, which all processes map into memory: 20 bytes an n-gram,
28 a word, 8 an n-gram of the highest order, 8 a beginning of words. Probabilities are rounded to float32, to about 7
digits.

    ngram.json     counts by order, the highest scores, and the size and time of the file they are from
    hashes.bin     int64, sorted: word w has the hash hashes[w]
    beginnings.bin int64, sorted: the hashes of all that a word begins with
    words.bin      uint32: the last words of n-grams, all of order 1, then 2, …; of one history together, sorted
    scores.bin     float32: log10 of their probabilities
    back_offs.bin  float32, as the next ones not of the highest order: log10 of the back-off
    firsts.bin     uint32: the place of the first n-gram that continues this one
    suffixes.bin   uint32: the place of this one without its first word, or words

Sources: Katz 1987, "Estimation of Probabilities from Sparse Data" (back-off); Heafield 2011, "KenLM" (what a missing
``<unk>`` counts: 10^-100; a trie with links to suffixes).
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import math
import shutil
import tempfile
import weakref
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vaak.core.artifact import Artifact
from vaak.core.errors import DataError, UserError
from vaak.core.storage.files import replacing

log = logging.getLogger("vaak")

START, END, UNKNOWN = "<s>", "</s>", "<unk>"
NOWHERE = -100.0
"""The log10 of the probability of an unknown word where the file has none."""
FORMAT, ENDING, MARKER = "vaak ngram 2", ".ngram", "ngram.json"
KENLM = b"mmap lm http://kheafield.com/code"
"""The first bytes of a file that KenLM's build_binary writes."""
DTYPES = {
    "hashes": "<i8", "beginnings": "<i8", "words": "<u4", "scores": "<f4", "back_offs": "<f4", "firsts": "<u4",
    "suffixes": "<u4",
}  # fmt: skip
MOST_NGRAMS, MOST_KEPT = 2**32 - 2, 200_000
"""N-grams that a place of 32 bits can name, and answers that are kept for the next time they are asked for."""


class Ngram:
    """The log-probability of a word after others. A state is the place of the longest n-gram that ends the words."""

    def __init__(self, path: str | Path) -> None:
        """Map the arrays of an ARPA file, or of one that gzip compressed, which are made where they aren't there.

        Raises DataError, with its line, for a file that isn't such.
        """
        self.path = Path(path).expanduser()
        try:
            source = self.path.stat()
            about, folder = self._make({"size": source.st_size, "changed": source.st_mtime_ns})
        except (OSError, UnicodeDecodeError, EOFError) as error:
            raise DataError(f"{self.path}: this n-gram model can't be read: {error}") from error
        self.counts: list[int] = about["counts"]
        self.highest: float = about["highest"]
        """No word has a higher score than this."""
        self.unknown: float = about["unknown"]
        """No word that the model lacks has a higher score than this."""
        for name, dtype in DTYPES.items():
            size = (folder / f"{name}.bin").stat().st_size
            mapped = np.memmap(folder / f"{name}.bin", dtype, "r") if size else np.zeros(0, dtype)
            setattr(self, f"_{name}", mapped.view(np.ndarray))
        self._nothing = len(self._back_offs)
        """The state of no words."""
        self._unknown = self._find_word(UNKNOWN)
        self._known: dict[tuple[int, str], tuple[float, int]] = {}
        self._begun: dict[str, bool] = {}

    _hashes: np.ndarray
    _beginnings: np.ndarray
    _words: np.ndarray
    _scores: np.ndarray
    _back_offs: np.ndarray
    _firsts: np.ndarray
    _suffixes: np.ndarray

    def _make(self, source: dict[str, int]) -> tuple[dict[str, Any], Path]:
        """Return the content of the arrays' marker, and their folder: next to the file, or a temporary one."""
        folder = self.path.with_name(self.path.name + ENDING)
        if (about := _find_made(folder, source)) is not None:
            return about, folder
        try:
            _make_arrays(self.path, folder, source)
        except UserError as error:
            if isinstance(error, DataError):
                raise
            folder = Path(tempfile.mkdtemp(prefix="vaak-ngram-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            _make_arrays(self.path, folder, source)
            log.warning("%s; they are in a temporary folder, and will be rebuilt next time", error)
        about = _find_made(folder, source)
        assert about is not None
        return about, folder

    @property
    def order(self) -> int:
        """The words of the longest n-grams."""
        return len(self.counts)

    @property
    def num_bytes(self) -> int:
        """The size of all arrays."""
        return sum(getattr(self, f"_{name}").nbytes for name in DTYPES)

    def __contains__(self, word: str) -> bool:
        return self._find_word(word) is not None

    def _find_word(self, word: str) -> int | None:
        return find_number(self._hashes, hash_word(word))

    def has_beginning(self, letters: str) -> bool:
        """Return whether a word of the model begins with these letters."""
        found = self._begun.get(letters)
        if found is None:
            if len(self._begun) > MOST_KEPT:
                self._begun.clear()
            found = self._begun[letters] = find_number(self._beginnings, hash_word(letters)) is not None
        return found

    def begin(self) -> int:
        """Return the state before the first word."""
        return self.after(self._nothing, START) if self.order > 1 and START in self else self._nothing

    def read(self, asked: Sequence[tuple[int, str]]) -> list[tuple[float, int]]:
        """Return the natural log of the probability of each word after a state, and the state after it."""
        if len(self._known) > MOST_KEPT:
            self._known.clear()
        return [self._known.get(one) or self._look_up(one) for one in asked]

    def score(self, before: Sequence[str], word: str) -> float:
        """Return the natural log of the probability of a word after others.

        Of the words before, as many count as the model has in a row.
        """
        state = self._nothing
        for one in before:
            state = self.after(state, one)
        return self.read([(state, word)])[0][0]

    def after(self, state: int, word: str) -> int:
        """Return the state after one more word."""
        return self.read([(state, word)])[0][1]

    def _look_up(self, asked: tuple[int, str]) -> tuple[float, int]:
        state, text = asked
        word = self._find_word(text)
        word = self._unknown if word is None else word
        found, lost = None, 0.0
        # Back-off: pay the weight of the longer history, then try a shorter one.
        while word is not None and (found := self._find(state, word)) is None:
            lost += float(self._back_offs[state])
            state = int(self._suffixes[state])
        if found is None:
            # no word of this name, nor <unk>: after no history
            while state != self._nothing:
                lost += float(self._back_offs[state])
                state = int(self._suffixes[state])
            known = (lost + NOWHERE) * math.log(10), self._nothing
        else:
            score, after = (lost + float(self._scores[found])) * math.log(10), found
            # An n-gram of the highest order isn't continued: the longest that ends it and is.
            while after >= self._nothing and state != self._nothing:
                state = int(self._suffixes[state])
                shorter = self._find(state, word) if word is not None else None
                after = after if shorter is None else shorter
            known = score, min(after, self._nothing)
        self._known[asked] = known
        return known

    def _find(self, state: int, word: int) -> int | None:
        """Return the place of the n-gram of the words of a state and one more."""
        if state == self._nothing:
            return word
        first, last = int(self._firsts[state]), int(self._firsts[state + 1])
        place = first + int(self._words[first:last].searchsorted(word))
        return place if place < last and self._words[place] == word else None


def find_number(numbers: np.ndarray, number: int) -> int | None:
    """Return the place of a number among sorted ones; None if it isn't there."""
    place = int(numbers.searchsorted(number))
    return place if place < len(numbers) and numbers[place] == number else None


def hash_word(word: str) -> int:
    """Return 64 bits of a word, with a sign."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little", signed=True)


def _find_made(folder: Path, source: dict[str, int]) -> dict[str, Any] | None:
    """Return the marker of arrays if they are complete and made of this file; else None."""
    artifact = Artifact(
        folder, MARKER, "arrays of an n-gram model", FORMAT, {"counts": list, "highest": float, "unknown": float}
    )
    about = artifact.find()
    return None if about is None or about.get("source") != source or artifact.damage() is not None else about


def _make_arrays(path: Path, folder: Path, source: dict[str, int]) -> None:
    artifact = Artifact(folder, MARKER, "arrays of an n-gram model", FORMAT)
    with artifact.making(lambda: _find_made(folder, source) is not None, keeps_empty=False) as needed:
        if not needed:
            return
        builder = _Builder(path)
        for name, parts in builder.arrays().items():
            # Replaced, not overwritten: other processes have the old ones mapped.
            with replacing(folder / f"{name}.bin") as temporary, open(temporary, "wb") as file:
                for part in parts:
                    part.astype(DTYPES[name]).tofile(file)
        highest = {"highest": builder.find_highest(), "unknown": builder.find_highest(builder.ids.get(UNKNOWN, -1))}
        artifact.finish({"format": FORMAT, "counts": builder.counts, **highest, "source": source})


class _Level(NamedTuple):
    """The n-grams of one order, sorted; places are counted from the first n-gram of order 1."""

    first: int
    keys: np.ndarray
    """The place of an n-gram without its last word, and that word: 64 bits; of order 1, hashes."""
    scores: np.ndarray
    back_offs: np.ndarray
    suffixes: np.ndarray


class _Builder:
    """An ARPA file as sorted arrays. Takes about 50 bytes an n-gram of the largest order while it works."""

    def __init__(self, path: Path) -> None:
        self.path, self.levels, self.num_lost = path, list[_Level](), 0
        self.ids: dict[str, int] = {}
        with open(path, "rb") as file:
            if file.read(len(KENLM)) == KENLM:
                raise DataError(
                    f"{path}: this is KenLM's binary form; give the ARPA file that build_binary made it of (it may be "
                    "compressed by gzip)"
                )
        with (
            gzip.open(path, "rt", encoding="utf-8", newline="\n")
            if path.suffix == ".gz"
            else open(path, encoding="utf-8", newline="\n") as lines
        ):
            counts = self._read(lines)
        self.counts = [len(level.keys) for level in self.levels]
        if self.num_lost:
            log.warning("%s: %d n-grams have words that \\1-grams lacks; they are left out", path, self.num_lost)
        if sum(counts) > MOST_NGRAMS:
            raise DataError(f"{path}: {sum(counts)} n-grams are more than the {MOST_NGRAMS} that can be read")

    def _read(self, lines: Iterator[str]) -> list[int]:
        counts, found, length, section = dict[int, int](), list[int](), 0, _Section(0)
        for number, line in enumerate(lines, start=1):
            text = line.strip()
            if text.startswith("\\") and (text == "\\end\\" or text.endswith("-grams:") or text == "\\data\\"):
                if length:
                    found.append(self._finish(section, length))
                if text == "\\end\\":
                    break
                length = int(text[1:-7]) if text.endswith("-grams:") and text[1:-7].isdecimal() else 0
                if length and length != len(found) + 1:
                    raise DataError(f"{self.path}:{number}: expected \\{len(found) + 1}-grams:, not {text}")
                section = _Section(number)
            elif text.startswith("ngram ") and not length:
                order, _, many = text[6:].partition("=")
                counts[int(order)] = int(many)
            elif text and length:
                self._add(section, text, length, number)
        else:
            raise DataError(f"{self.path}: this is not a whole ARPA file: it has no \\end\\")
        # The header's counts must agree: otherwise an n-gram is missing, or occurs twice.
        if not counts or list(counts.values()) != found:
            raise DataError(f"{self.path}: \\data\\ counts {list(counts.values())} n-grams, but there are {found}")
        return found

    def _add(self, section: _Section, text: str, length: int, number: int) -> None:
        fields = text.split()
        try:
            score, back_off = float(fields[0]), float(fields[length + 1]) if len(fields) == length + 2 else 0.0
            if not length + 1 <= len(fields) <= length + 2:
                raise ValueError
        except (ValueError, IndexError) as error:
            expected = f"a number, {length} words and maybe a number"
            raise DataError(f"{self.path}:{number}: expected {expected}, not {text!r}") from error
        words = fields[1 : length + 1]
        if length == 1:
            section.texts.append(words[0])
        else:
            ids = [self.ids.get(word) for word in words]
            if None in ids:
                section.num_lost += 1
                return
            section.words.extend(one for one in ids if one is not None)
        section.scores.append(score)
        section.back_offs.append(back_off)

    def _finish(self, section: _Section, length: int) -> int:
        """Sort the n-grams of an order; return how many different ones there were."""
        scores, back_offs = np.array(section.scores, np.float32), np.array(section.back_offs, np.float32)
        first = self.levels[-1].first + len(self.levels[-1].keys) if self.levels else 0
        if length == 1:
            keys = np.array([hash_word(word) for word in section.texts], np.int64)
            rows = np.zeros((len(keys), 1), np.int64)
        else:
            rows = np.array(section.words, np.uint32).reshape(-1, length).astype(np.int64)
            before = self._find(rows[:, :-1])
            if (before < 0).any():
                named = list(self.ids)
                lost = " ".join(named[one] for one in rows[(before < 0).argmax()])
                why = f"the n-gram of its first {length - 1} words, which has its back-off, is missing"
                raise DataError(f"{self.path}: the n-gram {lost!r} can't be used: {why}")
            keys = (before << 32) | rows[:, -1]
        order = np.argsort(keys, kind="stable")
        keys, rows = keys[order], rows[order]
        suffixes = np.full(len(keys), -1, np.int64)
        for start in range(1, length):  # the longest that is there: of one word at least
            missing = suffixes < 0
            suffixes[missing] = self._find(rows[missing, start:])
        self.levels.append(_Level(first, keys, scores[order], back_offs[order], suffixes))
        if length == 1:
            # Words are numbered in the order of their hashes.
            self.ids = {section.texts[place]: number for number, place in enumerate(order.tolist())}
        self.num_lost += section.num_lost
        return len(np.unique(keys)) + section.num_lost

    def _find(self, rows: np.ndarray) -> np.ndarray:
        """Return the places of n-grams by the numbers of their words ``(n-gram, word)``; -1 where there is none."""
        found = rows[:, 0]
        for level, words in zip(self.levels[1:], rows[:, 1:].T, strict=False):
            keys = (found << 32) | words
            places = np.minimum(level.keys.searchsorted(keys), max(0, len(level.keys) - 1))
            is_there = (found >= 0) & (level.keys[places] == keys) if len(level.keys) else np.zeros(len(keys), bool)
            found = np.where(is_there, level.first + places, -1)
        return found

    def arrays(self) -> dict[str, list[np.ndarray]]:
        """Return the arrays of all orders, in parts."""
        lower = self.levels[:-1]
        nothing = sum(len(level.keys) for level in lower)
        words = [np.arange(len(self.levels[0].keys)), *(level.keys & 0xFFFFFFFF for level in self.levels[1:])]
        firsts = list[np.ndarray]()
        for level, longer in zip(self.levels, self.levels[1:], strict=False):
            before = longer.keys >> 32
            firsts.append(longer.first + before.searchsorted(np.arange(len(level.keys)) + level.first))
        total = nothing + len(self.levels[-1].keys)
        return {
            "hashes": [self.levels[0].keys],
            "beginnings": [self._hash_beginnings()],
            "words": words,
            "scores": [level.scores for level in self.levels],
            "back_offs": [level.back_offs for level in lower],
            "firsts": [*firsts, np.array([total])],
            "suffixes": [np.where(level.suffixes < 0, nothing, level.suffixes) for level in lower],
        }

    def _hash_beginnings(self) -> np.ndarray:
        letters = {word[:size] for word in self.ids for size in range(1, len(word) + 1)}
        found = np.fromiter(map(hash_word, letters), np.int64, len(letters))
        found.sort()
        return found

    def find_highest(self, word: int | None = None) -> float:
        """Return more than any score: a probability, and as many back-offs as may come before it.

        Of a ``word``, more than any score of it, or of one that isn't there.
        """
        most = NOWHERE
        for level in self.levels:
            scores = level.scores
            if word is not None:
                words = np.arange(len(scores)) if level is self.levels[0] else level.keys & 0xFFFFFFFF
                scores = scores[words == word]
            most = max(most, float(scores.max(initial=NOWHERE)))
        back_offs = (max(0.0, float(level.back_offs.max(initial=0.0))) for level in self.levels[:-1])
        return (most + sum(back_offs)) * math.log(10)


class _Section:
    """The n-grams of an order, as the file has them."""

    def __init__(self, line: int) -> None:
        self.line, self.num_lost, self.texts = line, 0, list[str]()
        self.words, self.scores, self.back_offs = array("I"), array("f"), array("f")
