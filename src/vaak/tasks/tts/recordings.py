"""Recordings of a corpus as utterances: one text, one speaker, little silence at the ends; when each symbol ends.

    text         sil  h  ə  l  oʊ  ,        w  ɜː  l  d  .   sil
    alignment    sil  h  ʌ  l  oʊ     sil   w  ɜː  l  d      sil
    seconds     0.0  0.1 …        0.4      0.6 …        0.9      1.0

Text and alignment are matched as sequences of phonemes, for an aligner may pronounce a word in another way, or mark it
as unknown. Where they differ, the symbols of the text share the time. Pauses belong to the punctuation at their
place, or else to the boundary of words. All other punctuation gets no time. A pause that was heard where the text has
neither becomes a symbol, ``sil``: no phoneme is trained on silence. Where punctuation is itself written as pauses, so
does one that was heard at a boundary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from vaak.audio.config import AudioConfig
from vaak.audio.cuts.findings import require_sound
from vaak.audio.cuts.reading import get_text, lacks_times, merge_alignments, read_samples, require_frequencies
from vaak.audio.cuts.recordings import LeftOut, describe, section, split_utterances
from vaak.audio.formats.alignments import PAUSES
from vaak.audio.segments import Interval
from vaak.audio.speech_regions import find_speech
from vaak.core.errors import DataError
from vaak.text.speech.phonemes.alphabets import BOUNDARY, NOISE, PAUSE, PAUSING, SPECIAL
from vaak.text.speech.processor import PhonemeProcessor

if TYPE_CHECKING:
    from lhotse.cut import Cut

ALIGNMENT_TOLERANCE_SECONDS = 0.3
"""Seconds by which an alignment may end before or after speech."""
TOO_LONG = "utterances longer than data.max_duration"


def utterances(
    cuts: Iterable[Cut], audio: AudioConfig, silence: float | None, longest: float, left_out: LeftOut
) -> Iterator[Cut]:
    """Yield the utterances of the recordings ``cuts``, without those that are ``left_out``.

    A recording with several labels gives a cut for each. ``audio`` says how recordings are read, ``silence`` how many
    seconds of it stay at the ends (None: all), ``longest`` how many seconds an utterance may have. Raises DataError
    for a recording that can't be read, or is silent, unless such ones are skipped.
    """
    for cut in cuts:
        for one in split_utterances(cut):
            if get_text(one) is None:
                left_out.without_text(one, cut)
                continue
            try:
                require_frequencies(one, audio)
                _require_alignment_of_audio(one, audio)
                # Checked before the cut is trimmed by its alignment: a wrong one would cut away speech.
                kept = one if silence is None else trim(one, audio, silence)
                require_sound(kept, audio)
            except DataError as error:
                left_out.bad(error, one.id)
                continue
            if kept.duration > longest:
                left_out.add(one.id, TOO_LONG, f"it lasts {kept.duration:.2f} s")
                continue
            yield kept


def trim(cut: Any, audio: AudioConfig, silence: float) -> Any:
    """Return the cut with ``silence`` seconds before and after its speech; unchanged where it has no more."""
    start, end = _speech(cut, audio)
    start, end = max(0.0, start - silence), min(cut.duration, end + silence)
    if start <= 0 and end >= cut.duration:
        return cut
    return section(cut, start, end)


def _speech(cut: Any, audio: AudioConfig) -> tuple[float, float]:
    """When speech begins and ends: by the alignment, by the label, or by the audio's energy."""
    phones = [phone for phone in get_phones(cut) if phone.text.lower() not in PAUSES]
    if phones:
        return phones[0].start, phones[-1].end
    label = cut.supervisions[0]
    if not lacks_times(cut) and label.duration < cut.duration:
        return max(0.0, label.start), min(label.end, cut.duration)
    found = find_speech(read_samples(cut, audio), audio.sampling_rate)
    if not found:
        raise DataError(f"{describe(cut)}: it is silent")
    return found[0][0], found[-1][1]


def get_phones(cut: Any) -> tuple[Interval, ...]:
    """The aligned phonemes of an utterance and its pauses, in seconds from its start; none without an alignment."""
    return (merge_alignments(cut) or {}).get("phone", ())


def _require_alignment_of_audio(cut: Any, audio: AudioConfig) -> None:
    """Raises DataError for an alignment that goes beyond the audio, or that ends while someone still speaks."""
    phones = get_phones(cut)
    end = max((phone.end for phone in phones), default=cut.duration)
    if end > cut.duration + ALIGNMENT_TOLERANCE_SECONDS:
        raise DataError(
            f"{describe(cut)}: its alignment goes to {end:.2f} s, but it lasts {cut.duration:.2f} s: one of them is of "
            "another recording, or the file is truncated"
        )
    if end < cut.duration - ALIGNMENT_TOLERANCE_SECONDS:
        after = find_speech(read_samples(cut, audio), audio.sampling_rate)
        if after and after[-1][1] > end + ALIGNMENT_TOLERANCE_SECONDS:
            raise DataError(
                f"{describe(cut)}: its alignment ends at {end:.2f} s, but speech at {after[-1][1]:.2f} s: it is "
                "truncated, or of another recording"
            )


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
    DataError if they are of another text, or a label is unknown.
    """
    spoken: list[Interval] = []
    for start, end, label in phones:
        own = [symbol for symbol in processor.of_phone(label) if symbol != PAUSE]
        # A phone that is several symbols shares its time among them.
        step = (end - start) / max(len(own), 1)
        spoken += [Interval(start + step * index, start + step * (index + 1), one) for index, one in enumerate(own)]
    places = [place for place, phoneme in enumerate(is_phoneme) if phoneme]
    if not spoken or not places:
        raise DataError("its alignment has no phonemes" if not spoken else "its text has no phonemes")
    times = _times([symbols[place] for place in places], spoken)
    replaced = {BOUNDARY} if processor.config.punctuation == "pause" else set[str]()
    # from the end of each phoneme to the start of the next; the first from 0, the last to the end
    starts, ends = [start for start, _ in times], [end for _, end in times]
    pauses = list(zip([0.0, *ends], [*starts, max(phone.end for phone in phones)], strict=True))
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
    # Phones of an alignment may overlap a little; durations can't be negative.
    return Aligned(found.symbols, list(accumulate(found.ends, max)))


def _add_pause(found: Aligned, between: Sequence[str], pause: tuple[float, float]) -> None:
    """Add the symbols ``between`` two phonemes; one gets the pause. Without any, it lengthens what was found last."""
    begun, ended = pause
    if not between:
        if found.ends:
            found.ends[-1] = ended
        return
    # The places, by how likely one pauses there.
    order = [BOUNDARY, *PAUSING[::-1], PAUSE]
    ranks = [order.index(symbol) if symbol in order else -1 for symbol in between]
    own = max(range(len(between)), key=lambda place: (ranks[place], place))
    found.symbols.extend(between)
    found.ends.extend(begun if place < own else ended for place in range(len(between)))


def _times(text: Sequence[str], spoken: Sequence[Interval]) -> list[tuple[float, float]]:
    """Start and end of each phoneme of a text. Raises DataError if too few of them are spoken."""
    own, other = (
        [one if one in SPECIAL else one.strip(_STRESS) for one in some]
        for some in (text, [phone.text for phone in spoken])
    )
    # With autojunk, difflib would ignore phonemes that are frequent in texts of 200 or more.
    blocks = SequenceMatcher(None, own, other, autojunk=False).get_opcodes()
    found = sum(last - first for kind, first, last, _, _ in blocks if kind == "equal")
    # an aligner has marked the other phonemes as an unknown word
    known = len(own) - sum(last - first for _, first, last, begun, ended in blocks if NOISE in other[begun:ended])
    if found < (1 - MOST_DIFFERENT) * known:
        raise DataError(
            f"its alignment is of another text: only {found} of {len(own)} phonemes are in it (their order counts)"
        )
    times: list[tuple[float, float]] = []
    for kind, first, last, begun, ended in blocks:
        if kind == "equal" or last - first == ended - begun:
            times += [(start, end) for start, end, _ in spoken[begun:ended]]
        elif first == last:
            # What the text doesn't have lengthens what is before it.
            if times:
                times[-1] = (times[-1][0], spoken[ended - 1].end)
        else:
            start = spoken[begun].start if begun < len(spoken) else spoken[-1].end
            end = spoken[ended - 1].end if ended > begun else start
            step = (end - start) / (last - first)
            times += [(start + step * index, start + step * (index + 1)) for index in range(last - first)]
    return times
