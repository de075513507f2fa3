"""Recordings of a corpus as utterances: one text, one speaker, little silence at the ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from vaak.audio.config import AudioConfig
from vaak.audio.formats.alignments import PAUSES
from vaak.audio.labelled import Interval
from vaak.audio.sources.cut_findings import demand_sound
from vaak.audio.sources.utterances import LeftOut, describe, section, utterances_of
from vaak.audio.waveforms.reading import alignment_of, demand_frequencies, lacks_times, read_samples, text_of
from vaak.audio.waveforms.speech_regions import find_speech
from vaak.core.errors import DataError

if TYPE_CHECKING:
    from lhotse.cut import Cut

TOLERANCE = 0.3
"""Seconds by which an alignment may end before or after speech."""
TOO_LONG = "utterances longer than data.max_duration"


def utterances(
    cuts: Iterable[Cut], audio: AudioConfig, silence: float | None, longest: float, left_out: LeftOut
) -> Iterator[Cut]:
    """The utterances of the recordings ``cuts``, without those that are ``left_out``.

    A recording with several labels gives a cut for each. ``audio`` says how recordings are read, ``silence`` how many
    seconds of it stay at the ends (None: all), ``longest`` how many seconds an utterance may have. Raises DataError
    for a recording that can't be read, or is silent, unless such ones are skipped.
    """
    for cut in cuts:
        for one in utterances_of(cut):
            if text_of(one) is None:
                left_out.without_text(one, cut)
                continue
            try:
                demand_frequencies(one, audio)
                _demand_alignment_of_audio(one, audio)
                kept = one if silence is None else trimmed(one, audio, silence)
                demand_sound(kept, audio)
            except DataError as error:
                left_out.bad(error)
                continue
            if kept.duration > longest:
                left_out.counts[TOO_LONG] += 1
                continue
            yield kept


def trimmed(cut: Any, audio: AudioConfig, silence: float) -> Any:
    """The cut with ``silence`` seconds before and after its speech; unchanged where it has no more."""
    start, end = _speech(cut, audio)
    start, end = max(0.0, start - silence), min(cut.duration, end + silence)
    if start <= 0 and end >= cut.duration:
        return cut
    return section(cut, start, end)


def _speech(cut: Any, audio: AudioConfig) -> tuple[float, float]:
    """When speech begins and ends: by the alignment, by the label, or by the audio's energy."""
    phones = [phone for phone in phones_of(cut) if phone.text.lower() not in PAUSES]
    if phones:
        return phones[0].start, phones[-1].end
    label = cut.supervisions[0]
    if not lacks_times(cut) and label.duration < cut.duration:
        return max(0.0, label.start), min(label.end, cut.duration)
    found = find_speech(read_samples(cut, audio), audio.sampling_rate)
    if not found:
        raise DataError(f"{describe(cut)}: it is silent")
    return found[0][0], found[-1][1]


def phones_of(cut: Any) -> tuple[Interval, ...]:
    """The aligned phonemes of an utterance and its pauses, in seconds from its start; none without an alignment."""
    return (alignment_of(cut) or {}).get("phone", ())


def _demand_alignment_of_audio(cut: Any, audio: AudioConfig) -> None:
    """Raises DataError for an alignment that goes beyond the audio, or that ends while someone still speaks."""
    phones = phones_of(cut)
    end = max((phone.end for phone in phones), default=cut.duration)
    if end > cut.duration + TOLERANCE:
        raise DataError(
            f"{describe(cut)}: its alignment goes to {end:.2f} s, but it lasts {cut.duration:.2f} s: one of them is of "
            "another recording, or the file is truncated"
        )
    if end < cut.duration - TOLERANCE:
        after = find_speech(read_samples(cut, audio), audio.sampling_rate)
        if after and after[-1][1] > end + TOLERANCE:
            raise DataError(
                f"{describe(cut)}: its alignment ends at {end:.2f} s, but speech at {after[-1][1]:.2f} s: it is "
                "truncated, or of another recording"
            )
