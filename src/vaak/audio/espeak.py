"""Speech by espeak-ng, with the times of its words and phonemes: the C library of the wheel espeakng-loader, by ctypes.

The library is one synthesiser for the whole process, and remembers what it has spoken: its echo, its flutter and its
noise continue from the last sentence. So each use loads it, under a lock, and unloads it (5 ms a sentence in all): the
same call gives the same bits, whatever was spoken before, in whichever process or thread.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from vaak.core.errors import UserError
from vaak.core.interrupts import uninterrupted

# Constants of espeak-ng's speak_lib.h.
_RATE, _PITCH, _RANGE = 1, 3, 4
_UTF8 = 1
_LAST_EVENT, _WORD, _END, _PHONEME = 0, 1, 5, 7
HIATUS_LEVEL = 0.3
"""A part without phoneme that is louder than this part of the whole is not a pause."""


class Timed(NamedTuple):
    """A word, or a phoneme in IPA, and its time in seconds."""

    label: str
    start: float
    end: float


@dataclass(frozen=True)
class EspeakSpeech:
    """Samples ``(time,)``, float32 within ±1, and the times of what is spoken.

    ``phonemes`` follow one another without gaps except in pauses; ``words`` are made of whole phonemes. What espeak-ng
    speaks as one word is one here (of the, out of).
    """

    samples: np.ndarray
    sampling_rate: int
    words: tuple[Timed, ...]
    phonemes: tuple[Timed, ...]


def speak(text: str, voice: str, *, pitch: int = 50, pitch_range: int = 50, rate: int = 175) -> EspeakSpeech:
    """``text`` spoken by an espeak-ng voice with its variant, as ``en-us+f3``, and when its words and phonemes are.

    ``pitch`` and ``pitch_range`` go from 0 to 99, 50 being the voice's own; ``rate`` is words a minute, from 80 to 450.

    Raises UserError if the voice or the wheel is missing.
    """
    if not (0 <= pitch <= 99 and 0 <= pitch_range <= 99 and 80 <= rate <= 450):
        raise ValueError(f"pitch {pitch} and range {pitch_range} go from 0 to 99, rate {rate} from 80 to 450")
    with fresh_library(voice, PHONEME_EVENTS | IPA) as (library, sampling_rate):
        for parameter, value in ((_RATE, rate), (_PITCH, pitch), (_RANGE, pitch_range)):
            library.espeak_SetParameter(parameter, value, 0)
        # Flutter and noise are random; a fixed seed makes the same text give the same bits.
        library.espeak_ng_SetRandSeed(ctypes.c_long(1))
        samples, events = _synthesised(library, text)
    sound = samples.astype(np.float32) / np.float32(32768)
    loud = HIATUS_LEVEL * _level(sound)
    spans: list[_Span] = []
    for span in _spans(events, len(sound)):
        if span.phoneme:
            spans.append(span)
        # A stretch without a phoneme is a pause only if it is quiet; otherwise it is the transition between two vowels,
        # and counts as part of the first.
        elif spans and spans[-1].end == span.start and _level(sound[span.start : span.end]) > loud:
            spans[-1].end = span.end
    phonemes = tuple(Timed(span.phoneme, span.start / sampling_rate, span.end / sampling_rate) for span in spans)
    begins = [event.character for event in events if event.type == _WORD]
    words = []
    # espeak-ng reports where words begin but not where they end: take the text up to the next, without punctuation.
    for word, (first, beyond) in enumerate(pairwise([*begins, len(text)])):
        times = [time for span, time in zip(spans, phonemes, strict=True) if span.word == word]
        if times:
            words.append(Timed(text[first:beyond].strip(" \n\t.,;:?!\"'()"), times[0].start, times[-1].end))
    return EspeakSpeech(sound, sampling_rate, tuple(words), phonemes)


class _Identity(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_ubyte * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Identity),
    )


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


class _Happened(NamedTuple):
    """An event: a word begins at a character of the text, or a phoneme (the empty one is a pause), or all ends."""

    type: int
    sample: int
    character: int
    phoneme: str


def _synthesised(library: Any, text: str) -> tuple[np.ndarray, list[_Happened]]:
    """Samples as 16-bit integers, and the events in their order."""
    chunks: list[np.ndarray] = []
    events: list[_Happened] = []

    def receive(samples: Any, number: int, happened: Any) -> int:
        if number > 0 and samples:
            # Copy: espeak-ng reuses its buffer after the callback returns.
            chunks.append(np.ctypeslib.as_array(samples, (number,)).copy())
        place = 0
        while (event := happened[place]).type != _LAST_EVENT:
            if event.type in (_WORD, _END, _PHONEME):
                # Eight bytes that a zero ends only if there is space: a long symbol may be cut within a character.
                phoneme = bytes(event.id.string).split(b"\0")[0].decode(errors="ignore")
                # espeak-ng counts characters from 1.
                events.append(_Happened(event.type, event.sample, event.text_position - 1, phoneme))
            place += 1
        return 0

    # Keep a reference: the library only holds a C pointer, and Python would free the callback while it is in use.
    callback = _Callback(receive)
    library.espeak_SetSynthCallback(callback)
    library.espeak_Synth.argtypes = (
        *(ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int, ctypes.c_uint, ctypes.c_uint),
        *(ctypes.c_void_p, ctypes.c_void_p),
    )
    content = text.encode() + b"\0"
    # ctypes prints and drops exceptions raised in a callback, KeyboardInterrupt among them: hold Ctrl-C back until the
    # end.
    with uninterrupted():
        status = library.espeak_Synth(content, len(content), 0, 1, 0, _UTF8, None, None)
    if status != 0:
        raise RuntimeError(f"espeak-ng could not speak {text!r}")
    return (np.concatenate(chunks) if chunks else np.zeros(0, np.int16)), events


@dataclass
class _Span:
    """A stretch between events, in samples; without a phoneme, it is a pause, or the way from a vowel to the next."""

    phoneme: str
    word: int
    start: int
    end: int


def _spans(events: list[_Happened], num_samples: int) -> list[_Span]:
    """A word's first phoneme begins with the word: the closure of a plosive is its own. After a pause it doesn't."""
    spans: list[_Span] = []
    word, boundary = -1, None
    for event in events:
        if event.type == _WORD:
            word, boundary = word + 1, event.sample
            continue
        start = boundary if boundary is not None and spans and spans[-1].phoneme else event.sample
        boundary = None
        if spans:
            spans[-1].end = start
        spans.append(_Span(event.phoneme if event.type == _PHONEME else "", word, start, num_samples))
    # Several events may share a sample; drop spans of no length.
    return [span for span in spans if span.end > span.start]


def _level(samples: np.ndarray) -> float:
    """Root mean square; 0 of nothing."""
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64)))) if len(samples) else 0.0


# Constants of espeak-ng's speak_lib.h.
_SYNCHRONOUS = 2
_DONT_EXIT = 0x8000
PHONEME_EVENTS, IPA = 1, 2
"""Options of ``fresh_library``."""
_ONE_AT_A_TIME = threading.Lock()


@contextmanager
def fresh_library(voice: str, options: int = 0) -> Iterator[tuple[Any, int]]:
    """A fresh instance of the library with a voice, and its sampling rate; it is unloaded afterwards.

    Raises UserError if the voice or the wheel is missing, or something else in this process uses the library.
    """
    with _ONE_AT_A_TIME, _load_library() as (library, data):
        # Without _DONT_EXIT, espeak-ng exits the whole process if its data is missing.
        sampling_rate = library.espeak_Initialize(_SYNCHRONOUS, 0, data, options | _DONT_EXIT)
        if sampling_rate <= 0:
            raise UserError(
                f"espeak-ng finds no data in {os.fsdecode(data)}; pip install --force-reinstall vaak[audio]"
            )
        if library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise UserError(f"espeak-ng has no voice {voice}")
        yield library, sampling_rate


@contextmanager
def _load_library() -> Iterator[tuple[Any, bytes]]:
    """The library, just loaded, and the folder of its data."""
    try:
        import _ctypes

        import espeakng_loader

        path = espeakng_loader.get_library_path()
        # Loading it a second time would return the same instance, with the state of the other user's sentences.
        if _is_loaded(path):
            raise UserError(
                f"something else in this process uses {path}, so speech would not be reproducible; use two processes"
            )
        library = ctypes.CDLL(path)
    except (ImportError, OSError) as error:
        raise UserError(f"espeak-ng can't be loaded ({error}); pip install 'vaak[audio]'") from error
    try:
        yield library, os.fsencode(espeakng_loader.get_data_path())
        library.espeak_Terminate()
    finally:
        # ctypes never unloads a library, and only a freshly loaded one has forgotten what it spoke before.
        _ctypes.dlclose(library._handle)


def _is_loaded(path: str) -> bool:
    """Return whether the library is in this process already."""
    import _ctypes

    try:
        # RTLD_NOLOAD loads nothing, but a handle that it finds adds a reference, which has to be released.
        handle = _ctypes.dlopen(path, os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    _ctypes.dlclose(handle)
    return True
