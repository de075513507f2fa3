"""Figures of spoken audio next to recordings of the same texts: sums over utterances, divided once.

mcd_db             mel-cepstral distortion (vaak.audio.scoring.speech_distance), per frame of the warping path
f0_rmse_hz         root mean square error of F0, over frames of the path in which both are voiced
f0_rmse_cents      the same in cents
voicing_error      frames of the path in which one is voiced and the other isn't
wer                words that the recogniser (vaak.audio.scoring.recogniser) gets wrong
skipped_words      words of the text that aren't there, by its alignment of text and audio
repeated_words     words of the text that are there twice
recorded_…         the last three, of the recordings
"""

from __future__ import annotations

import logging
import math
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vaak.audio.scoring.recogniser import SAMPLING_RATE, Recogniser
from vaak.audio.scoring.speech_distance import PROTOCOL, distance
from vaak.audio.waveforms.audio_file import AudioFile
from vaak.audio.waveforms.suffixes import is_audio
from vaak.core.errors import DataError, UserError
from vaak.text.speech.config import FrontEndConfig
from vaak.text.speech.inventory import SPECIAL
from vaak.text.speech.normalisation.english import normalise
from vaak.text.speech.processor import PhonemeProcessor

log = logging.getLogger("vaak")

PRONUNCIATIONS = FrontEndConfig(alphabet="arpabet", stress=False, punctuation="pause", word_boundaries=False)
DISTANCES = ("frames", "distortion", "voiced", "squared_hz", "squared_cents", "other_voicing")
HEARD = ("words", "word_errors", "aligned_words", "skipped_words", "repeated_words")
RECORDED = "recorded_"


class SpeechScores:
    """Scores utterances; ``sums`` are those of all, the same keys whatever was scored."""

    def __init__(self, recogniser: Recogniser | None) -> None:
        """Words are scored where there is a ``recogniser``."""
        self.recogniser = recogniser
        heard = [f"{whose}{name}" for name in HEARD for whose in ("", RECORDED)] if recogniser else []
        self.sums = dict.fromkeys((*DISTANCES, *heard), 0.0)

    @property
    def protocol(self) -> dict[str, str]:
        """Under which conditions the figures were made."""
        return {"speech": PROTOCOL, **({"recogniser": self.recogniser.protocol} if self.recogniser else {})}

    def add(self, recorded: np.ndarray, spoken: np.ndarray, sampling_rate: int, text: str | None) -> dict[str, float]:
        """The figures of one utterance, ``recorded`` and ``spoken`` ``(time,)``, which are added to the sums.

        ``text`` is in words; without it, they aren't scored. Raises DataError where there is no audio.
        """
        recorded, spoken = (_resampled(samples, sampling_rate) for samples in (recorded, spoken))
        if not len(recorded) or not len(spoken):
            raise DataError("there is no audio to compare")
        found: dict[str, float] = dict(vars(distance(recorded, spoken)))
        if self.recogniser is not None and text is not None:
            for whose, samples in (("", spoken), (RECORDED, recorded)):
                numbers = (
                    *self.recogniser.word_errors(text, samples),
                    *self.recogniser.omissions(text, samples, self._pronounced),
                )
                found |= {f"{whose}{name}": number for name, number in zip(HEARD, numbers, strict=True)}
        for name, value in found.items():
            self.sums[name] += value
        return figures_of(found)

    @cached_property
    def _processor(self) -> PhonemeProcessor:
        return PhonemeProcessor(PRONUNCIATIONS)

    def _pronounced(self, word: str) -> str | None:
        """The phonemes of a word, without stress; None of one that can't be spoken."""
        try:
            return " ".join(symbol for symbol in self._processor.process(word).symbols if symbol not in SPECIAL)
        except DataError:
            return None


def figures_of(sums: dict[str, float]) -> dict[str, float]:
    """The figures that these sums give; those of nothing are left out."""
    divided = {
        "mcd_db": ("distortion", "frames"),
        "f0_rmse_hz": ("squared_hz", "voiced"),
        "f0_rmse_cents": ("squared_cents", "voiced"),
        "voicing_error": ("other_voicing", "frames"),
    }
    for whose in ("", RECORDED):
        divided[f"{whose}wer"] = (f"{whose}word_errors", f"{whose}words")
        for name in ("skipped_words", "repeated_words"):
            divided[f"{whose}{name}"] = (f"{whose}{name}", f"{whose}aligned_words")
    found = {name: sums[above] / sums[below] for name, (above, below) in divided.items() if sums.get(below)}
    return {name: math.sqrt(value) if name.startswith("f0") else value for name, value in found.items()}


class Scored(NamedTuple):
    """The figures of each utterance, by name, and of all, under one protocol."""

    rows: dict[str, dict[str, float]]
    total: dict[str, float]
    protocol: dict[str, str]


def score_folders(reference: Path, hypothesis: Path, texts: Path | None) -> Scored:
    """Score the audio files of one folder against those with the same names, without their suffixes, of another.

    ``texts`` has a line for each: its name, ``|``, and its text, which is what follows the last ``|`` (as in LJ
    Speech's metadata.csv). Words are scored where it is given. Raises UserError for folders without audio or with
    other names, DataError for audio that can't be read.
    """
    ours, theirs = _audio_files(reference), _audio_files(hypothesis)
    names = sorted(ours.keys() & theirs.keys())
    if not names:
        raise UserError(f"{hypothesis} has no audio of {reference} ({min(theirs)}, not {min(ours)}); rename it")
    for name in sorted(ours.keys() ^ theirs.keys()):
        log.warning("%s: only in one of the folders; it isn't scored", ours.get(name) or theirs[name])
    written = None if texts is None else _texts(texts)
    scores, rows = SpeechScores(Recogniser() if written is not None else None), {}
    for name in names:
        if written is not None and name not in written:
            raise UserError(f"{texts} has no text of {name}; add a line {name}|TEXT")
        text = None if written is None else normalise(written[name])
        try:
            rows[name] = scores.add(_read(ours[name]), _read(theirs[name]), SAMPLING_RATE, text)
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
    return Scored(rows, figures_of(scores.sums), scores.protocol)


def _audio_files(folder: Path) -> dict[str, Path]:
    """The audio files of a folder by name."""
    found = {path.stem: path for path in sorted(folder.iterdir()) if is_audio(path)} if folder.is_dir() else {}
    if not found:
        raise UserError(f"{folder} is not a folder with audio files")
    return found


def _texts(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} can't be read: {getattr(error, 'strerror', None) or error}") from error
    return {line.split("|")[0]: line.split("|")[-1] for line in lines if "|" in line}


def _read(path: Path) -> np.ndarray:
    with AudioFile(path, SAMPLING_RATE) as file:
        return file.samples(0, file.num_samples)


def _resampled(samples: np.ndarray, sampling_rate: int) -> np.ndarray:
    if sampling_rate == SAMPLING_RATE:
        return samples
    try:
        import soxr
    except (ImportError, OSError) as error:
        raise UserError(f"scoring speech requires soxr ({error}); pip install 'vaak[audio]'") from error
    resampled: np.ndarray = soxr.resample(samples, sampling_rate, SAMPLING_RATE)
    return resampled
