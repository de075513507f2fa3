"""A small data set for a task, written as one's own data may be: to begin with, and to compare one's own with."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vaak.config.tasks import load_name, spec_by_name
from vaak.core.errors import UserError, optional_import
from vaak.core.storage.files import write_bytes, write_text

SHARES = {"train": 0.8, "valid": 0.1, "test": 0.1}
NUM_TEXTS = 4000
NUM_SENTENCES = 60
NUM_VOICES = 6
NUM_CONVERSATIONS = 24
EXAMPLE_SECONDS = 12.0


def write_example(task: str, folder: Path) -> None:
    """Write data for a task into a new or empty folder.

    Texts are of the built-in grammar, voices of espeak-ng; the same folder comes out each time. Raises UserError for a
    folder that has files, and if a package that makes the audio is missing.
    """
    writer = spec_by_name(task).example
    if writer is None:
        raise UserError(f"{task}: no example is made for it; give your own data by --data")
    try:
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder} isn't empty; give another folder by --data, or leave --example out to use it")
        folder.mkdir(parents=True, exist_ok=True)
        load_name(writer)(folder)
    except OSError as error:
        raise UserError(f"{folder} can't be written: {error.strerror or error}") from error


def write_table(path: Path, head: Sequence[str], rows: Iterable[Sequence[str]], delimiter: str = ",") -> None:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerows([head, *rows] if head else rows)
    write_text(path, text.getvalue())


def write_audio(path: Path, samples: Any, rate: int) -> None:
    with optional_import("writing audio requires soundfile", "audio"):
        import soundfile
    content = io.BytesIO()
    peak = max(1.0, float(np.abs(samples).max(initial=0.0)) / 0.99)
    soundfile.write(content, samples / np.float32(peak), rate, format="WAV", subtype="PCM_16")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content.getvalue())


def utter_voices(num_voices: int, num_each: int, say_digits: bool) -> Iterator[tuple[str, str, Any, int]]:
    """Yield the voice, the text, the samples and their rate of each sentence."""
    from vaak.audio.corpora.voices import digits, make_voices, sentences, utter

    for number, voice in enumerate(make_voices(num_voices, 0)):
        for text in (digits if say_digits else sentences)(num_each, np.random.default_rng(number)):
            speech = utter(voice, text)
            yield voice.name, text, speech.samples, speech.sampling_rate


def write_voice(folder: Path) -> None:
    """One voice, laid out as LJ Speech."""
    rows = []
    for number, (_, text, samples, rate) in enumerate(utter_voices(1, NUM_SENTENCES, False)):
        write_audio(folder / "wavs" / f"voice-{number:03}.wav", samples, rate)
        rows.append((f"voice-{number:03}", text, text))
    write_table(folder / "metadata.csv", (), rows, "|")
