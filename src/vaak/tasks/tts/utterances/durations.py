"""When each symbol of a text ends, by an alignment of the same utterance.

    text         sil  h  ə  l  oʊ  ,        w  ɜː  l  d  .   sil
    alignment    sil  h  ʌ  l  oʊ     sil   w  ɜː  l  d      sil
    seconds     0.0  0.1 …        0.4      0.6 …        0.9      1.0

The two are matched as sequences of phonemes, for an aligner may pronounce a word in another way, or mark it as unknown.
Where they differ, the symbols of the text share the time. Pauses belong to the punctuation at their place, or else to
the boundary of words; what has neither lengthens the phoneme before it. All other punctuation gets no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import accumulate, pairwise

from vaak.audio.labelled import Interval
from vaak.core.errors import DataError
from vaak.text.speech.inventory import BOUNDARY, NOISE, PAUSE, PAUSING, SPECIAL
from vaak.text.speech.processor import PhonemeProcessor

MOST_DIFFERENT = 0.5
"""The fraction of a text's phonemes that may not be found in its alignment."""

_STRESS = "ˈˌ012"


def symbol_ends(
    symbols: Sequence[str], is_phoneme: Sequence[bool], phones: Sequence[Interval], processor: PhonemeProcessor
) -> list[float]:
    """When each of the ``symbols`` of a text ends, in seconds; the first begins at 0.

    ``is_phoneme`` says of each whether it is one; ``phones`` are the alignment, which ``processor`` reads. Raises
    DataError where they are of another text, or a label is unknown.
    """
    spoken = _spoken(phones, processor)
    places = [place for place, phoneme in enumerate(is_phoneme) if phoneme]
    if not spoken or not places:
        raise DataError("its alignment has no phonemes" if not spoken else "its text has no phonemes")
    times = _times([symbols[place] for place in places], spoken)
    ends = [0.0] * len(symbols)
    for place, (_, end) in zip(places, times, strict=True):
        ends[place] = end
    last = max(phone.end for phone in phones)
    starts = [start for start, _ in times]
    for (before, after), (begun, ended) in zip(
        pairwise([-1, *places, len(symbols)]), _between(times, starts, last), strict=True
    ):
        _share_pause(symbols, ends, (before, after), (begun, ended))
    return list(accumulate(ends, max))


def _between(times: Sequence[tuple[float, float]], starts: Sequence[float], last: float) -> list[tuple[float, float]]:
    """From the end of each phoneme to the start of the next; the first from 0, the last to ``last``."""
    return list(zip([0.0, *(end for _, end in times)], [*starts, last], strict=True))


def _share_pause(
    symbols: Sequence[str], ends: list[float], between: tuple[int, int], pause: tuple[float, float]
) -> None:
    """Give a pause to one of the symbols between two phonemes, or to the first of these."""
    (before, after), (begun, ended) = between, pause
    if before + 1 == after:
        ends[before] = ended
        return
    own = max(range(before + 1, after), key=lambda place: (_rank(symbols[place]), place))
    for place in range(before + 1, after):
        ends[place] = begun if place < own else ended


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
