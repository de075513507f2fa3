"""Recordings of a corpus as utterances: one text, one speaker, little silence at the ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from vaak.audio.config import AudioConfig
from vaak.audio.sources.utterances import WITHOUT_TEXT, LeftOut, describe, section, utterances_of
from vaak.audio.waveforms.reading import lacks_times, read_samples, text_of
from vaak.audio.waveforms.speech_regions import find_speech
from vaak.core.errors import DataError
from vaak.tasks.tts.utterances.durations import Phone

if TYPE_CHECKING:
    from lhotse.cut import Cut

PAUSES = ("", "sil", "sp", "<eps>")
PHONES = "phone"
TOO_LONG = "utterances longer than data.max_duration"


def utterances(
    cuts: Iterable[Cut], audio: AudioConfig, silence: float | None, longest: float, left_out: LeftOut
) -> Iterator[Cut]:
    """The utterances of the recordings ``cuts``, without those that are ``left_out``.

    A recording with several labels gives a cut for each. ``audio`` says how recordings are read, ``silence`` how many
    seconds of it stay at the ends (None: all), ``longest`` how many seconds an utterance may have. Raises DataError
    for a recording that can't be read, unless such ones are skipped.
    """
    for cut in cuts:
        for one in utterances_of(cut):
            if text_of(one) is None:
                left_out.counts[WITHOUT_TEXT] += 1
                continue
            try:
                _demand_frequencies(one, audio)
                kept = one if silence is None else trimmed(one, audio, silence)
            except DataError as error:
                left_out.bad(error)
                continue
            if kept.duration > longest:
                left_out.counts[TOO_LONG] += 1
                continue
            yield kept


def _demand_frequencies(cut: Any, audio: AudioConfig) -> None:
    """Raises DataError for a recording whose sampling rate is too low for the filters."""
    rate, highest = int(cut.sampling_rate), audio.mel.nyquist if audio.mel is not None else 0.0
    if rate / 2 < highest:
        raise DataError(
            f"{describe(cut)}: it has {rate:,} Hz, so nothing above {rate // 2:,} Hz, but global_config.mel.f_max is "
            f"{highest:,.0f} Hz; leave it out, or lower f_max"
        )


def trimmed(cut: Any, audio: AudioConfig, silence: float) -> Any:
    """The cut with ``silence`` seconds before and after its speech; unchanged where it has no more."""
    start, end = _speech(cut, audio)
    start, end = max(0.0, start - silence), min(cut.duration, end + silence)
    if start <= 0 and end >= cut.duration:
        return cut
    return section(cut, start, end)


def _speech(cut: Any, audio: AudioConfig) -> tuple[float, float]:
    """When speech begins and ends: by the alignment, by the label, or by the audio's energy."""
    phones = [phone for phone in phones_of(cut) if phone.label not in PAUSES]
    if phones:
        return phones[0].start, phones[-1].end
    label = cut.supervisions[0]
    if not lacks_times(cut) and label.duration < cut.duration:
        return max(0.0, label.start), min(label.end, cut.duration)
    found = find_speech(read_samples(cut, audio), audio.sampling_rate)
    if not found:
        raise DataError(f"{describe(cut)}: it is silent")
    return found[0][0], found[-1][1]


def phones_of(cut: Any) -> list[Phone]:
    """The aligned phonemes of an utterance and its pauses, in seconds from its start; none without an alignment."""
    items = [item for label in cut.supervisions for item in (label.alignment or {}).get(PHONES, ())]
    return sorted((Phone(item.symbol, item.start, item.end) for item in items), key=lambda phone: phone.start)
