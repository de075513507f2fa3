"""How often a text had several readings and nothing around it decided: counted by kind, while someone counts.

Rules report a guess where they take one reading of several (``1/2`` as a fraction, ``3-4`` as a range). Texts are read
by functions of a text alone, so what they report goes to ``count_guesses`` of the thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_COUNTS: ContextVar[Counter[str] | None] = ContextVar("guesses", default=None)
MOST_NAMED = 8


@contextmanager
def count_guesses() -> Iterator[Counter[str]]:
    """The number of guesses of each kind within the block, which a block around it counts, too.

    >>> with count_guesses() as guesses:
    ...     report_guess("3-4 as a range")
    >>> dict(guesses)
    {'3-4 as a range': 1}
    """
    counts, around = Counter[str](), _COUNTS.get()
    token = _COUNTS.set(counts)
    try:
        yield counts
    finally:
        _COUNTS.reset(token)
        if around is not None:
            around.update(counts)


def report_guess(kind: str) -> None:
    """Count a guess, where guesses are counted."""
    counts = _COUNTS.get()
    if counts is not None:
        counts[kind] += 1


def summarize_guesses(counts: Mapping[str, int]) -> str:
    """Say how many there are, and which are the most frequent.

    >>> summarize_guesses({"3-4 as a range": 2, "1/2 as a fraction": 1})
    '3 readings are guesses: 3-4 as a range (2), 1/2 as a fraction (1)'
    """
    total, most = sum(counts.values()), Counter(counts).most_common(MOST_NAMED)
    named = ", ".join(f"{kind} ({times:,})" for kind, times in most)
    more = len(counts) - len(most)
    said = "1 reading is a guess" if total == 1 else f"{total:,} readings are guesses"
    kinds = "kind" if more == 1 else "kinds"
    return f"{said}: {named}" + (f" and {more:,} more {kinds}" if more else "")
