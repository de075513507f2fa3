"""When each symbol of a text ends, by an alignment of the same utterance.

    text         sil  h  ə  l  oʊ  ,        w  ɜː  l  d  .   sil
    alignment    sil  h  ʌ  l  oʊ     sil   w  ɜː  l  d      sil
    seconds     0.0  0.1 …        0.4      0.6 …        0.9      1.0

The two are matched as sequences of phonemes, for an aligner may pronounce a word in another way, or mark it as unknown.
Where they differ, the symbols of the text share the time. Pauses belong to the punctuation at their place, or else to
the boundary of words. All other punctuation gets no time. A pause that was heard where the text has neither becomes a
symbol, ``sil``: no phoneme is trained on silence. Where punctuation is itself written as pauses, so does one that was
heard at a boundary.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import accumulate, pairwise
from typing import NamedTuple

from vaak.audio.labelled import Interval
from vaak.core.errors import DataError
from vaak.text.speech.inventory import BOUNDARY, NOISE, PAUSE, PAUSING, SPECIAL
from vaak.text.speech.processor import PhonemeProcessor

MOST_DIFFERENT = 0.5
"""The fraction of a text's phonemes that may not be found in its alignment."""
SHORTEST_PAUSE = 0.03
"""Seconds that a pause lasts, at least, to become a symbol: three frames of an aligner, as of phonemes."""

_STRESS = "ˈˌ012"


class Aligned(NamedTuple):
    """Symbols with the second at which each of them ends; the first begins at 0."""

    symbols: list[str]
    ends: list[float]


def aligned_symbols(
    symbols: Sequence[str], is_phoneme: Sequence[bool], phones: Sequence[Interval], processor: PhonemeProcessor
) -> Aligned:
    """The ``symbols`` of a text with their ends, and with ``sil`` added where a pause was heard that they lack.

    ``is_phoneme`` says of each whether it is one; ``phones`` are the alignment, which ``processor`` reads. Raises
    DataError where they are of another text, or a label is unknown.
    """
    spoken = _spoken(phones, processor)
    places = [place for place, phoneme in enumerate(is_phoneme) if phoneme]
    if not spoken or not places:
        raise DataError("its alignment has no phonemes" if not spoken else "its text has no phonemes")
    times = _times([symbols[place] for place in places], spoken)
    replaced = {BOUNDARY} if processor.config.punctuation == "pause" else set[str]()
    pauses = _between(times, [start for start, _ in times], max(phone.end for phone in phones))
    found = Aligned([], [])
    for number, (before, after) in enumerate(pairwise([-1, *places, len(symbols)])):
        between, (begun, ended) = list(symbols[before + 1 : after]), pauses[number]
        is_inside = 0 < number < len(places)
        if is_inside and ended - begun > SHORTEST_PAUSE - 1e-6 and set(between) <= replaced:
            between = [PAUSE]
        _add_pause(found, between, (begun, ended))
        if number < len(places):
            found.symbols.append(symbols[after])
            found.ends.append(times[number][1])
    return Aligned(found.symbols, list(accumulate(found.ends, max)))


def _between(times: Sequence[tuple[float, float]], starts: Sequence[float], last: float) -> list[tuple[float, float]]:
    """From the end of each phoneme to the start of the next; the first from 0, the last to ``last``."""
    return list(zip([0.0, *(end for _, end in times)], [*starts, last], strict=True))


def _add_pause(found: Aligned, between: Sequence[str], pause: tuple[float, float]) -> None:
    """Add the symbols ``between`` two phonemes; one gets the pause. Without any, it lengthens what was found last."""
    begun, ended = pause
    if not between:
        if found.ends:
            found.ends[-1] = ended
        return
    own = max(range(len(between)), key=lambda place: (_rank(between[place]), place))
    found.symbols.extend(between)
    found.ends.extend(begun if place < own else ended for place in range(len(between)))


def _rank(symbol: str) -> int:
    """How likely one pauses at a symbol."""
    order = [BOUNDARY, *PAUSING[::-1], PAUSE]
    return order.index(symbol) if symbol in order else -1


def _spoken(phones: Sequence[Interval], processor: PhonemeProcessor) -> list[Interval]:
    """The phonemes of an alignment as symbols; one that is two symbols shares its time."""
    found = []
    for start, end, label in phones:
        symbols = [symbol for symbol in processor.of_phone(label) if symbol != PAUSE]
        step = (end - start) / max(len(symbols), 1)
        found += [Interval(start + step * place, start + step * (place + 1), one) for place, one in enumerate(symbols)]
    return found


def _times(text: Sequence[str], spoken: Sequence[Interval]) -> list[tuple[float, float]]:
    """Start and end of each phoneme of a text. Raises DataError where too few of them are spoken."""
    own, other = ([_without_stress(one) for one in some] for some in (text, [phone.text for phone in spoken]))
    blocks = SequenceMatcher(None, own, other, autojunk=False).get_opcodes()
    found = sum(last - first for kind, first, last, _, _ in blocks if kind == "equal")
    known = len(own) - sum(_unknown(block, other) for block in blocks)
    if found < (1 - MOST_DIFFERENT) * known:
        raise DataError(
            f"its alignment is of another text: only {found} of {len(own)} phonemes are in it (their order counts)"
        )
    times: list[tuple[float, float]] = []
    for kind, first, last, begun, ended in blocks:
        if kind == "equal" or last - first == ended - begun:
            times += [(start, end) for start, end, _ in spoken[begun:ended]]
        elif first == last:  # what the text doesn't have lengthens what is before it
            if times:
                times[-1] = (times[-1][0], spoken[ended - 1].end)
        else:
            start = spoken[begun].start if begun < len(spoken) else spoken[-1].end
            end = spoken[ended - 1].end if ended > begun else start
            step = (end - start) / (last - first)
            times += [(start + step * place, start + step * (place + 1)) for place in range(last - first)]
    return times


def _unknown(block: tuple[str, int, int, int, int], other: Sequence[str]) -> int:
    """How many phonemes of the text an aligner has marked as an unknown word."""
    _, first, last, begun, ended = block
    return last - first if NOISE in other[begun:ended] else 0


def _without_stress(symbol: str) -> str:
    return symbol if symbol in SPECIAL else symbol.strip(_STRESS)
