"""Built-in voices: speakers synthesised by espeak-ng, each with its own sentences, with times of words and phonemes.

FOLDER/
  VOICE-FINGERPRINT/     one voice, complete or not there, so an interrupted synthesis continues with the next
    000.flac …           its sentences, 16 bits
    sentences.jsonl      one line per sentence: text, number of samples, times of words and phonemes

A voice's fingerprint is that of the voice, of its sentences and of the synthesiser: a changed option never finds what
was made before, and more voices add to those that are there.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vaak import __version__
from vaak.audio.config import DatasetConfig
from vaak.audio.simulation.conversations import LEVEL
from vaak.audio.synthesis.espeak import Spoken, Timed, speak
from vaak.audio.synthesis.sentences import digits, sentences
from vaak.core.errors import UserError, optional_import
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.storage.files import fingerprint_of, sync_directory, sync_file
from vaak.core.storage.json_lines import read_json_lines
from vaak.core.storage.lock import locked

if TYPE_CHECKING:
    from lhotse import MonoCut

SAMPLING_RATE = 16_000
SILENCE = 0.25
"""Seconds before and after a sentence."""

LANGUAGES = (
    *("en", "en-us", "en-029", "en-gb-scotland", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-gb-x-rp", "en-us-nyc"),
)
VARIANTS = (
    *("m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "f1", "f2", "f3", "f4", "f5"),
    *("Alicia", "Andy", "Annie", "Gene", "Lee", "Mario", "Michael", "adam", "belinda", "steph"),
)
"""Those of espeak-ng that sound like people; 23 have no factor in common with 8, so all pairs come before one twice."""


@dataclass(frozen=True)
class Voice:
    """A speaker. ``pitch``, ``pitch_range`` and ``rate`` are espeak-ng's.

    ``size`` above 1 is a smaller head: pitch and formants are multiplied by it. ``tilt`` above 0 is darker.
    """

    name: str
    language: str
    variant: str
    pitch: int
    pitch_range: int
    rate: int
    size: float
    tilt: float


def make_voices(number: int, seed: int) -> list[Voice]:
    """``number`` voices, spread over all properties of voices.

    Voices of one variant have different languages (the first eight) and pitches from different parts of the range.
    """
    rng = np.random.default_rng(draw_key(Purpose.VOICES, seed))

    def spread(least: float, greatest: float) -> np.ndarray:
        return least + (greatest - least) * (rng.permutation(number) + rng.random(number)) / number

    variants, languages = rng.permutation(VARIANTS), rng.permutation(LANGUAGES)
    rounds = -(-number // len(variants))
    parts = np.stack([rng.permutation(rounds) for _ in variants], axis=1).ravel()[:number]
    pitches = 20 + 70 * (parts + rng.uniform(0.2, 0.8, number)) / rounds
    ranges, rates = spread(20, 90), spread(140, 210)
    sizes, tilts = np.exp(spread(np.log(0.88), np.log(1.14))), spread(-0.4, 0.7)
    return [
        Voice(
            name=f"voice-{index:03}",
            language=str(languages[index % len(languages)]),
            variant=str(variants[index % len(variants)]),
            pitch=int(pitches[index]),
            pitch_range=int(ranges[index]),
            rate=int(rates[index]),
            size=round(float(sizes[index]), 3),
            tilt=round(float(tilts[index]), 3),
        )
        for index in range(number)
    ]


def utter(voice: Voice, text: str) -> Spoken:
    """``text`` as the voice says it, at 16 kHz and one level, with silence around it."""
    with optional_import("voices require soxr", "audio"):
        import soxr
    spoken = speak(
        text,
        f"{voice.language}+{voice.variant}",
        pitch=voice.pitch,
        pitch_range=voice.pitch_range,
        rate=voice.rate,
    )
    samples = soxr.resample(spoken.samples, spoken.sampling_rate * voice.size, SAMPLING_RATE)
    samples[1:] += np.float32(voice.tilt) * samples[:-1]
    samples *= LEVEL / np.sqrt(np.mean(np.square(samples, dtype=np.float64)))
    samples = np.pad(samples, round(SILENCE * SAMPLING_RATE))

    def moved(times: tuple[Timed, ...]) -> tuple[Timed, ...]:
        return tuple(
            Timed(label, round(start / voice.size + SILENCE, 5), round(end / voice.size + SILENCE, 5))
            for label, start, end in times
        )

    return Spoken(samples.clip(-1, 1), SAMPLING_RATE, moved(spoken.words), moved(spoken.phonemes))


def voice_cuts(dataset: DatasetConfig, folder: Path) -> Iterator[MonoCut]:
    """Cuts of all sentences of all voices; those not yet in ``folder`` are made.

    A cut has one supervision: speaker, text, the time of its speech, and alignments "word" and "phone".

    Raises UserError if the folder can't be written.
    """
    for number, voice in enumerate(make_voices(dataset.num_voices, dataset.seed)):
        rng = np.random.default_rng(draw_key(Purpose.SENTENCES, dataset.seed, number))
        texts = (digits if dataset.say == "digits" else sentences)(dataset.num_sentences, rng)
        try:
            there = _folder_of(voice, texts, folder)
        except OSError as error:
            raise UserError(
                f"voices can't be written to {folder}: {error.strerror or error}; give another folder by VAAK_CACHE or "
                "by the dataset's output_dir"
            ) from error
        lines = read_json_lines(there / "sentences.jsonl")
        whole = [line for _, line in lines.objects if line.keys() >= {"text", "num_samples", "words", "phonemes"}]
        if len(whole) != len(texts):
            raise UserError(f"{there / 'sentences.jsonl'}: this is damaged; delete {there}, and it is made again")
        for place, line in enumerate(whole):
            yield _cut(voice, there / f"{place:03}.flac", line)


def _folder_of(voice: Voice, texts: list[str], folder: Path) -> Path:
    """The folder of the voice's sentences; they are made if they don't exist."""
    synthesiser = importlib.metadata.version("espeakng-loader")
    mark = fingerprint_of([asdict(voice), texts, synthesiser, __version__])
    there = folder / f"{voice.name}-{mark}"
    if there.exists():
        return there
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock"):
        for left in folder.glob(".*.tmp"):  # by a process that was killed: no other writes here now
            shutil.rmtree(left)
        if not there.exists():
            temporary = folder / f".{there.name}.tmp"
            temporary.mkdir()
            _write_sentences(voice, texts, temporary)
            os.replace(temporary, there)
            sync_directory(folder)
    return there


def _write_sentences(voice: Voice, texts: list[str], folder: Path) -> None:
    with optional_import("voices require soundfile", "audio"):
        import soundfile
    with open(folder / "sentences.jsonl", "w", encoding="utf-8") as lines:
        for place, text in enumerate(texts):
            spoken = utter(voice, text)
            path = folder / f"{place:03}.flac"
            soundfile.write(path, spoken.samples, spoken.sampling_rate, subtype="PCM_16")
            sync_file(path)
            about = {"num_samples": len(spoken.samples), "words": spoken.words, "phonemes": spoken.phonemes}
            lines.write(json.dumps({"text": text, **about}, ensure_ascii=False) + "\n")
    sync_file(folder / "sentences.jsonl")


def _cut(voice: Voice, path: Path, about: dict[str, Any]) -> MonoCut:
    """A line of ``sentences.jsonl`` as a cut."""
    from lhotse import MonoCut, Recording, SupervisionSegment
    from lhotse.audio import AudioSource
    from lhotse.supervision import AlignmentItem

    name = f"{voice.name}-{path.stem}"
    duration = about["num_samples"] / SAMPLING_RATE
    times = {
        kind: [AlignmentItem(label, start, round(end - start, 5)) for label, start, end in about[key]]
        for kind, key in (("word", "words"), ("phone", "phonemes"))
    }
    start, end = about["phonemes"][0][1], about["phonemes"][-1][2]
    supervision = SupervisionSegment(
        id=name,
        recording_id=name,
        start=start,
        duration=round(end - start, 5),
        text=about["text"],
        language="English",
        speaker=voice.name,
        alignment=times,
        custom={"accent": voice.language},
    )
    source = AudioSource(type="file", channels=[0], source=str(path))
    recording = Recording(name, [source], SAMPLING_RATE, about["num_samples"], duration)
    return MonoCut(name, 0.0, duration, 0, supervisions=[supervision], recording=recording)
