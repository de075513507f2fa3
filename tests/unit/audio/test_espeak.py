"""Speech by espeak-ng: the times are those of the sound, and the same call gives the same bits."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading

import numpy as np
import pytest

from vaak.audio.espeak import EspeakSpeech, speak
from vaak.core.errors import UserError

TEXT = "Put the old lamp on the table, and take two apples home."
VOICES = ["en-us", "en-us+f1", "en+f5", "en-gb-scotland+m5", "en-029+m7", "en-us+croak"]
"""Among them the kinds that draw on memory: flutter, echo, breath and roughness."""


def bits(spoken: EspeakSpeech) -> str:
    content = spoken.samples.tobytes() + repr((spoken.words, spoken.phonemes)).encode()
    return hashlib.sha256(content).hexdigest()


def level(samples: np.ndarray) -> float:
    """Decibels."""
    return float(10 * np.log10(np.mean(np.square(samples, dtype=np.float64)) + 1e-12))


def part(spoken: EspeakSpeech, start: float, end: float) -> np.ndarray:
    return spoken.samples[round(start * spoken.sampling_rate) : round(end * spoken.sampling_rate)]


def test_the_same_call_gives_the_same_bits_whatever_was_spoken_before() -> None:
    first = {voice: bits(speak(TEXT, voice)) for voice in VOICES}
    assert len(set(first.values())) == len(VOICES)
    for turn, voice in enumerate(reversed(VOICES)):
        speak("Something else entirely. " * (turn + 1), VOICES[turn], pitch=80, pitch_range=10, rate=300)
        assert bits(speak(TEXT, voice)) == first[voice], voice


def test_another_process_gives_the_same_bits() -> None:
    code = (
        "import hashlib; from vaak.audio.espeak import speak; "
        f"s = speak({TEXT!r}, 'en+f5', pitch=30, rate=150); "
        "print(hashlib.sha256(s.samples.tobytes() + repr((s.words, s.phonemes)).encode()).hexdigest())"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert there == bits(speak(TEXT, "en+f5", pitch=30, rate=150))


def test_threads_wait_for_one_another() -> None:
    alone = {voice: bits(speak(TEXT, voice)) for voice in VOICES}
    together: list[tuple[str, str]] = []
    threads = [
        threading.Thread(target=lambda voice=voice: together.append((voice, bits(speak(TEXT, voice)))))
        for voice in VOICES * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(together) == len(threads)
    assert all(alone[voice] == there for voice, there in together)


@pytest.mark.parametrize("voice", VOICES)
def test_words_are_made_of_whole_phonemes_in_order(voice: str) -> None:
    spoken = speak(TEXT, voice)
    expected = ["Put", "the", "old", "lamp", "on the", "table", "and", "take", "two", "apples", "home"]
    assert [word.label for word in spoken.words] == expected
    times = [time for phoneme in spoken.phonemes for time in (phoneme.start, phoneme.end)]
    assert times == sorted(times)
    assert 0 <= times[0] < times[-1] <= len(spoken.samples) / spoken.sampling_rate
    begins = {phoneme.start for phoneme in spoken.phonemes}
    ends = {phoneme.end for phoneme in spoken.phonemes}
    inside = 0
    for word in spoken.words:
        own = [p for p in spoken.phonemes if word.start <= p.start and p.end <= word.end]
        assert word.start in begins
        assert word.end in ends
        assert sum(p.end - p.start for p in own) == pytest.approx(word.end - word.start)
        inside += len(own)
    assert inside == len(spoken.phonemes)


@pytest.mark.parametrize("voice", VOICES)
def test_sound_lies_where_the_words_are_and_not_in_the_pauses(voice: str) -> None:
    spoken = speak(TEXT, voice)
    loud = level(np.concatenate([part(spoken, word.start, word.end) for word in spoken.words]))
    assert all(level(part(spoken, word.start, word.end)) > loud - 15 for word in spoken.words)
    table, following = spoken.words[5:7]
    assert following.start - table.end > 0.05, "the comma is a pause"
    # What an echo leaves rings on for some hundredths of a second.
    assert level(part(spoken, table.end + 0.03, following.start)) < loud - 18
    assert all(b.start == a.end for a, b in zip(spoken.words[:5], spoken.words[1:6], strict=True)), "no pause else"


def test_vowels_are_louder_than_the_closures_of_plosives() -> None:
    """Phoneme times are right, not only their order: shifted by 80 ms, this fails."""
    spoken = speak("Take a cup to a tall cook at a park", "en-us")
    vowels = [p for p in spoken.phonemes if set(p.label) & set("aeiouæɑɔəɐʊʌɪɛ")]
    plosives = [p for p in spoken.phonemes if p.label in "ptk"]

    def difference(shift: float) -> float:
        sounds = [
            np.concatenate([part(spoken, p.start + shift, p.end + shift) for p in of]) for of in (vowels, plosives)
        ]
        return level(sounds[0]) - level(sounds[1])

    assert difference(0) > 10
    assert difference(0) > max(difference(0.08), difference(-0.08)) + 5


def test_phonemes_are_ipa_and_pitch_and_rate_are_obeyed() -> None:
    assert [p.label for p in speak("ship", "en-us").phonemes] == ["ʃ", "ˈɪ", "p"]
    slow, fast = (len(speak(TEXT, "en-us", rate=rate).samples) for rate in (120, 240))
    assert 1.6 < slow / fast < 2.4
    assert bits(speak(TEXT, "en-us", pitch=20)) != bits(speak(TEXT, "en-us", pitch=80))


def test_positions_in_the_text_count_characters_not_bytes() -> None:
    assert [word.label for word in speak("café Zoë's naïve cat", "en").words] == ["café", "Zoë's", "naïve", "cat"]


def test_nothing_is_spoken_of_nothing() -> None:
    for text in ("", "  ", "…"):
        spoken = speak(text, "en")
        assert spoken.words == spoken.phonemes == ()
        assert spoken.samples.dtype == np.float32


def test_a_voice_that_is_not_there_and_a_rate_that_cannot_be() -> None:
    with pytest.raises(UserError, match="no voice en-nowhere"):
        speak(TEXT, "en-nowhere")
    with pytest.raises(ValueError, match="rate 20"):
        speak(TEXT, "en", rate=20)
    assert speak(TEXT, "en").words, "and the next call is as if nothing had been"


def test_a_library_that_someone_else_holds_is_refused() -> None:
    import _ctypes
    import ctypes

    import espeakng_loader

    held = ctypes.CDLL(espeakng_loader.get_library_path())
    try:
        with pytest.raises(UserError, match="something else in this process"):
            speak(TEXT, "en")
    finally:
        _ctypes.dlclose(held._handle)
    speak(TEXT, "en")
