"""Data such as the readers of docs/tutorials have, few and made up, under the names that the tutorials use."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

import vaak
from vaak.audio.corpora.voices import SAMPLING_RATE, Voice, digits, make_voices, sentences, utter
from vaak.text.grammar import grammar_pairs
from vaak.text.grammar import sentences as hindi_sentences

SEED = 3


def write_texts(folder: Path) -> None:
    """``texts``: two files of Hindi sentences."""
    lines = [*hindi_sentences("train", 300, SEED)]
    for name, part in (("one.txt", lines[:200]), ("two.txt", lines[200:])):
        write(folder / "texts" / name, "\n".join(part) + "\n")


def write_pairs(folder: Path) -> None:
    """``pairs.tsv``: English and Hindi."""
    write_table(folder / "pairs.tsv", ("en", "hi"), grammar_pairs("train", 300, SEED), delimiter="\t")


def write_clips(folder: Path) -> None:
    """``clips``: three speakers read digits; ``clips.csv``; ``new.wav``, of the first of them."""
    rng, rows = np.random.default_rng(SEED), []
    voices = make_voices(3, SEED)
    for voice in voices:
        for number, text in enumerate(digits(12, rng)):
            name = f"{voice.name}-{number}.wav"
            say(voice, text, folder / "clips" / name)
            rows.append((name, text, voice.name))
    write_table(folder / "clips" / "clips.csv", ("audio", "text", "speaker"), rows)
    say(voices[0], "seven two", folder / "new.wav")


def write_voice(folder: Path) -> None:
    """``my-voice``: one voice, laid out as LJ Speech."""
    (voice,), rows = make_voices(1, SEED), []
    for number, text in enumerate(sentences(16, np.random.default_rng(SEED))):
        say(voice, text, folder / "my-voice" / "wavs" / f"clip-{number:02}.wav")
        rows.append((f"clip-{number:02}", text))
    write(folder / "my-voice" / "metadata.csv", "".join(f"{name}|{text}|{text}\n" for name, text in rows))


def write_meetings(folder: Path) -> None:
    """``meetings``: conversations of two, each with RTTM; ``new.wav``, one more."""
    rng = np.random.default_rng(SEED)
    voices = {voice.name: [utter(voice, text).samples for text in sentences(2, rng)] for voice in make_voices(4, SEED)}
    [*vaak.audio.simulate(voices, SAMPLING_RATE, 8, duration=6.0, folder=folder / "meetings")]
    (new,) = vaak.audio.simulate(voices, SAMPLING_RATE, 1, duration=6.0, seed=SEED)
    soundfile.write(folder / "new.wav", new.samples, SAMPLING_RATE)


def write_messages(folder: Path) -> None:
    """``messages.csv``: texts of three kinds."""
    things = ("order", "parcel", "card", "account", "invoice", "password", "address", "refund")
    kinds = {
        "delivery": ("where is my {}", "when will the {} arrive", "the {} has not come yet"),
        "cancel": ("please cancel my {}", "i no longer want the {}", "stop the {} at once"),
        "thanks": ("thank you for the {}", "the {} is perfect , thanks", "great help with my {}"),
    }
    rows = [(text.format(thing), kind) for kind, texts in kinds.items() for text in texts for thing in things]
    write_table(folder / "messages.csv", ("text", "label"), rows)


WRITERS: dict[str, Callable[[Path], None]] = {
    "language-model": write_texts,
    "translator": write_pairs,
    "recogniser": write_clips,
    "voice": write_voice,
    "who-speaks-when": write_meetings,
    "classifier": write_messages,
}
"""By the name of the tutorial."""


def say(voice: Voice, text: str, path: Path) -> None:
    spoken = utter(voice, text)
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, spoken.samples, spoken.sampling_rate)


def write_table(path: Path, header: tuple[str, ...], rows: Iterable[Any], delimiter: str = ",") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows([header, *rows])


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
