"""Find the characters of a split's texts that a model's tokens can't represent, so that it can't write them.

A character can't be written where it is in an unknown token, in one that the model never writes, or in no token at all;
a word, where one of its letters, marks or digits can't. All tasks ask here, in preparation: from 0.5 % on it is a
warning, from ``data.max_unknown`` on an error, since what is taught would be "unknown". What a voice can't speak, its
front end says of each text.
"""

from __future__ import annotations

import logging
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer as Backend

from vaak.core.errors import DataError

log = logging.getLogger("vaak")
UNKNOWN_OPTION = "data.max_unknown"
WARNS_FROM = 0.5
"""Percent."""
MOST_NAMED = 8
_TOGETHER = 100_000
"""Number of different words that are checked at once."""
_PROBE = "".join(map(chr, (*range(0x21, 0x7F), *range(0xA1, 0x800), 0x915, 0x4E00, 0xAC00, 0xFFFD, 0x1F600, 0x10FFFD)))
"""Characters of one to four bytes, which nobody's vocabulary has but as bytes."""


class Writer(Protocol):
    """A tokenizer or a front end that writes texts."""

    def find_unwritable(self, words: Sequence[str]) -> list[str]:
        """Return of each word its characters that can't be written."""
        ...


def find_unwritable(backend: Backend, words: Sequence[str], unknown: Collection[int]) -> list[str]:
    """Return of each word the characters that are in a token that is ``unknown``, or in none.

    Characters that are lost alone, such as the vowel signs that BERT's tokenizers for lower case take for accents, are
    lost in words, too.
    """
    # Alone, such a character gives no token at all; within a word, its neighbours' offsets would hide the loss.
    lost = {one for one in {*"".join(words)} if _matters(one) and not _ids(backend, one)}
    found = []
    for word, encoding in zip(words, backend.encode_batch([*words], add_special_tokens=False), strict=True):
        written = set[int]()
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            written.update(() if token in unknown else range(start, end))
        missing = (
            one
            for place, one in enumerate(word)
            if one in lost
            # A mark that was composed with the letter before it has no separate offset, but isn't lost.
            or (place not in written and not (place - 1 in written and _is_composed(word[place - 1 : place + 1])))
        )
        found.append("".join(filter(_matters, missing)))
    return found


def _is_composed(two: str) -> bool:
    """Return whether a letter and its mark are one character composed, which has the place of the letter."""
    return len(unicodedata.normalize("NFC", two)) == 1


def _ids(backend: Backend, text: str) -> list[int]:
    ids: list[int] = backend.encode(text, add_special_tokens=False).ids
    return ids


def writes_everything(writer: Writer) -> bool:
    """Return whether any character can be written, as by tokens that are bytes."""
    return not any(writer.find_unwritable([_PROBE])) and not any(writer.find_unwritable([*_PROBE[::7]]))


def _matters(character: str) -> bool:
    """Return whether a character is more than space, control and format, which tokenizers may leave out."""
    return unicodedata.category(character)[0] not in "CZ" or unicodedata.category(character) == "Co"


def _is_of_words(character: str) -> bool:
    return unicodedata.category(character)[0] in "LMN"


class Coverage:
    """Counts of a split's characters that can't be written; without a ``writer``, of those given to ``add``."""

    def __init__(self, writer: Writer | None, done: str = "written") -> None:
        """``done`` is the participle for messages: lost characters can't be written, spoken, ..."""
        self.writer, self.done, self.is_whole = writer, done, writer is not None and writes_everything(writer)
        self.characters = self.words = self.lost_characters = self.lost_words = 0
        self.lost: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        self.examples: Counter[str] = Counter()
        self._open: Counter[str] = Counter()

    def count(self, text: str) -> None:
        """Count the words of a text."""
        # A byte-level tokenizer writes everything, so nothing needs to be counted.
        if self.is_whole:
            return
        self._open.update(text.split())
        if len(self._open) >= _TOGETHER:
            self.look()

    def add(self, text: str, lost: Sequence[str], where: str) -> None:
        """Count a text, called ``where`` in messages, and its ``lost`` symbols, one entry for each occurrence.

        A symbol of several characters, such as a tag of markup, is of no word.
        """
        words = text.split()
        self.words += len(words)
        self.characters += sum(map(_matters, text))
        self.lost.update(lost)
        self.lost_characters += sum(_matters(one) for symbol in lost for one in symbol)
        for one in lost:
            self.first.setdefault(one, where)
        of_words = {one for one in lost if len(one) == 1 and _is_of_words(one)}
        broken = [word for word in words if of_words.intersection(word)] if of_words else []
        self.lost_words += len(broken)
        self.examples.update(broken)

    def watch(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield the texts, counting each one read."""
        for text in texts:
            self.count(text)
            yield text

    def look(self) -> None:
        """Look at the words that were counted since the last time."""
        if not self._open or self.writer is None:
            return
        words = [*self._open]
        for word, missing in zip(words, self.writer.find_unwritable(words), strict=True):
            times = self._open[word]
            self.words += times
            self.characters += times * sum(map(_matters, word))
            self.lost_characters += times * len(missing)
            for one in missing:
                self.lost[one] += times
            if any(map(_is_of_words, missing)):
                self.lost_words += times
                self.examples[word] += times
        self._open.clear()
        for counts in (self.lost, self.examples):
            # Bounded memory: rare entries are dropped now and then, and only the most frequent are ever shown.
            if len(counts) > _TOGETHER:
                kept = counts.most_common(_TOGETHER // 2)
                counts.clear()
                counts.update(dict(kept))

    def shares(self) -> tuple[float, float]:
        """Return the percentages of characters and of words that can't be written."""
        self.look()
        return 100 * self.lost_characters / max(1, self.characters), 100 * self.lost_words / max(1, self.words)

    def report(self, split: str, limit: float | None, advice: str = "") -> dict[str, Any]:
        """Log what can't be written, and return it for statistics.

        Raises DataError if it is ``limit`` percent or more, with ``advice``; None only warns.
        """
        characters, words = self.shares()
        about = {"characters": round(characters, 4), "words": round(words, 4)}
        if not self.lost:
            log.info("%s: all of its characters can be %s", split, self.done)
            return about
        said = f"{split}: {self.describe()}"
        worst = max(characters, words)
        if limit is not None and worst >= limit:
            raise DataError(f"{said}; {advice or _ADVICE}, or raise {UNKNOWN_OPTION} ({limit:g} %)")
        (log.warning if worst >= WARNS_FROM else log.info)("%s", said)
        return about | {"most_frequent": dict(self.lost.most_common(MOST_NAMED))}

    def describe(self) -> str:
        """Return the shares and the most frequent characters and words that can't be written."""
        characters, words = self.shares()
        first = {one: f", first in {where}" for one, where in self.first.items()}
        named = " ".join(f"{one} ({number:,}{first.get(one, '')})" for one, number in self.lost.most_common(MOST_NAMED))
        some = f" (as {' '.join(word for word, _ in self.examples.most_common(3))})" if self.examples else ""
        lost = f"{self.lost_characters:,} of {self.characters:,}"
        return (
            f"{_percent(characters)} of the characters ({lost}) and {_percent(words)} of the words{some} "
            f"can't be {self.done}: {named}"
        )


_ADVICE = "choose a tokenizer that knows them, or change the texts"


def _percent(share: float) -> str:
    return f"{share:.1f} %" if share >= 0.05 or not share else "under 0.1 %"


def measure(writer: Writer, texts: Iterable[str]) -> Coverage:
    """Measure which characters of texts the writer can't write."""
    coverage = Coverage(writer)
    for text in texts:
        coverage.count(text)
    coverage.look()
    return coverage
