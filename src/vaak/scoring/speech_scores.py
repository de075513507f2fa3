"""Figures of spoken audio next to recordings of the same texts: sums over utterances, divided once.

mcd_db             mel-cepstral distortion (vaak.scoring.speech_scores), per frame of the warping path
f0_rmse_hz         root mean square error of F0, over frames of the path in which both are voiced
f0_rmse_cents      the same in cents
voicing_error      frames of the path in which one is voiced and the other isn't
wer                words that the recogniser (vaak.scoring.recogniser) gets wrong
skipped_words      words of the text that aren't there, by its alignment of text and audio
repeated_words     words of the text that are there twice
recorded_…         the last three, of the recordings

How far spoken audio is from a recording of the same text: mel-cepstral distortion, F0 and voicing.

Both are analysed at 16 kHz, every 10 ms in windows of 25 ms. The log magnitudes of 40 mel filters (Slaney's scale, of
equal height, 0 to 8 kHz) are written as

    ln A(n) = c(0) / 2 + sum over m of c(m) cos(pi m (n + 1/2) / 40)

and of two frames, c and c', the distortion is ``10 / ln 10 * sqrt(2 * sum over m = 1 … 24 of (c(m) - c'(m))²)`` dB:
the root mean square difference of their spectral envelopes. c(0), the level, is left out. Dynamic time warping
finds the path with the least sum of distortions from the first frames to the last, in steps of one frame of
either or of both; a figure is a mean over this path.

Source: Kubichek 1993, "Mel-Cepstral Distance Measure for Objective Speech Quality Assessment". Differs: cepstra of mel
filters, where others have cepstra of a vocoder's envelope, so values of other programs can't be compared.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from vaak.audio.audio_file import AudioFile, audio_files
from vaak.audio.features.mel import MelSpectrogram
from vaak.audio.features.pitch import fundamental_frequency
from vaak.audio.formats.annotation_lines import name_recordings
from vaak.audio.mel_config import MelConfig, PitchConfig
from vaak.core.errors import DataError, UserError
from vaak.core.matching import quote_names, rename_like
from vaak.core.storage.dialects import GivenDialect
from vaak.core.storage.tables import Table
from vaak.scoring.recogniser import SAMPLING_RATE, Recogniser
from vaak.scoring.word_errors import NAME_KEYS, TEXT_KEYS, read_transcripts
from vaak.text.speech.config import FrontEndConfig
from vaak.text.speech.english import normalise
from vaak.text.speech.phonemes.alphabets import SPECIAL
from vaak.text.speech.processor import PhonemeProcessor

log = logging.getLogger("vaak")
PRONUNCIATIONS = FrontEndConfig(alphabet="arpabet", stress=False, punctuation="pause", word_boundaries=False)
DISTANCES = ("frames", "distortion", "voiced", "squared_hz", "squared_cents", "other_voicing")
WORD_COUNTS = ("words", "word_errors", "aligned_words", "skipped_words", "repeated_words")
RECORDED = "recorded_"


class SpeechScores:
    """Scores utterances; ``sums`` are those of all, the same keys whatever was scored."""

    def __init__(self, recogniser: Recogniser | None) -> None:
        """Words are scored where there is a ``recogniser``."""
        self.recogniser = recogniser
        word_counts = [f"{whose}{name}" for name in WORD_COUNTS for whose in ("", RECORDED)] if recogniser else []
        self.sums = dict.fromkeys((*DISTANCES, *word_counts), 0.0)

    @property
    def protocol(self) -> dict[str, str]:
        """Under which conditions the figures were made."""
        return {"speech": PROTOCOL, **({"recogniser": self.recogniser.protocol} if self.recogniser else {})}

    def add(self, recorded: np.ndarray, spoken: np.ndarray, sampling_rate: int, text: str | None) -> dict[str, float]:
        """Return the figures of one utterance, ``recorded`` and ``spoken`` ``(time,)``, which are added to the sums.

        ``text`` is in words; without it, they aren't scored. Raises DataError without audio.
        """
        recorded, spoken = (_resampled(samples, sampling_rate) for samples in (recorded, spoken))
        if not len(recorded) or not len(spoken):
            raise DataError("no audio to compare")
        found: dict[str, float] = dict(vars(distance(recorded, spoken)))
        if self.recogniser is not None and text is not None:
            for whose, samples in (("", spoken), (RECORDED, recorded)):
                numbers = (
                    *self.recogniser.word_errors(text, samples),
                    *self.recogniser.omissions(text, samples, self._pronounced),
                )
                found |= {f"{whose}{name}": number for name, number in zip(WORD_COUNTS, numbers, strict=True)}
        for name, value in found.items():
            self.sums[name] += value
        return compute_metrics(found)

    @cached_property
    def _processor(self) -> PhonemeProcessor:
        return PhonemeProcessor(PRONUNCIATIONS)

    def _pronounced(self, word: str) -> str | None:
        """Return the phonemes of a word, without stress; None of one that can't be spoken."""
        try:
            return " ".join(symbol for symbol in self._processor.process(word).symbols if symbol not in SPECIAL)
        except DataError:
            return None


def compute_metrics(sums: dict[str, float]) -> dict[str, float]:
    """Return the figures that these sums give, without those that nothing was measured for."""
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


class ScoredFolders(NamedTuple):
    """The figures of each utterance, by name, and of all, under one protocol."""

    rows: dict[str, dict[str, float]]
    total: dict[str, float]
    protocol: dict[str, str]


def score_folders(reference: Path, hypothesis: Path, texts: Path | None, *, partial: bool = False) -> ScoredFolders:
    """Score the audio files of one folder against those of another that ``vaak.core.matching`` pairs with them.

    ``texts`` has the name and the text of each: a table without a header, of which the first column is the name and
    the last the text (as in LJ Speech's metadata.csv), or one with columns of usual names, or JSON lines. Words are
    scored where it is given. Raises UserError for folders without audio, with other names, or, unless a ``partial``
    score is wanted, where a recording has no counterpart; DataError for audio and texts that can't be read.
    """
    ours = _audio_files(reference)
    theirs = rename_like(ours, _audio_files(hypothesis))
    names = sorted(ours.keys() & theirs.keys())
    if not names:
        raise UserError(f"{hypothesis} has no audio of {reference} ({min(theirs)}, not {min(ours)}); rename it")
    if ours.keys() - theirs.keys() and not partial:
        raise UserError(
            f"{hypothesis} has {len(names)} of the {len(ours)} recordings of {reference}, not "
            f"{quote_names(ours.keys() - theirs.keys())}: add these, or score the others alone with --partial"
        )
    for name in sorted(ours.keys() ^ theirs.keys()):
        log.warning("%s: only in one of the folders; it isn't scored", ours.get(name) or theirs[name])
    written = None if texts is None else rename_like(ours, _read_texts(texts))
    scores, rows = SpeechScores(Recogniser() if written is not None else None), {}
    for name in names:
        if written is not None and name not in written:
            raise UserError(f"{texts} has no text of {name}; add a line {name}|TEXT")
        text = None if written is None else normalise(written[name])
        try:
            rows[name] = scores.add(_read(ours[name]), _read(theirs[name]), SAMPLING_RATE, text)
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
    return ScoredFolders(rows, compute_metrics(scores.sums), scores.protocol)


def _read_texts(path: Path) -> dict[str, str]:
    """Return the texts of a table, or of JSON lines, by name. Raises DataError with file and line."""
    if path.suffix.lower() in (".json", ".jsonl"):
        return read_transcripts(path).texts
    # LJ Speech's separator first: its texts are full of commas and quotation marks.
    table = Table(path, has_header=False, given=GivenDialect("|"))
    table = table if table.width > 1 else Table(path, has_header=False)
    found = dict[str, str]()
    for number, row in enumerate(table.rows()):
        cells = [cell.strip() for cell in row.cells]
        if len(cells) < 2:
            raise row.problem or DataError(f"{row.where}: expected a name and its text, such as NAME|TEXT")
        if not number and all({*keys} & {cell.lower() for cell in cells} for keys in (NAME_KEYS, TEXT_KEYS)):
            return read_transcripts(path).texts
        if cells[0] in found:
            raise DataError(f"{row.where}: there are two texts of {cells[0]}")
        found[cells[0]] = cells[-1]
    return found


def _audio_files(folder: Path) -> dict[str, Path]:
    """Return the audio files of a folder and its folders, by their names."""
    files, without = audio_files([folder]) if folder.is_dir() else ([], {})
    if not files:
        raise without.get(folder) or UserError(f"{folder} is not a folder with audio files")
    return {name: path for path, name in name_recordings(files).items()}


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


NUM_CEPSTRA = 24
DECIBELS = 10 * math.sqrt(2) / math.log(10)
ANALYSIS = MelConfig(
    sampling_rate=16_000,
    n_fft=1024,
    hop_length=160,
    win_length=400,
    n_mels=40,
    norm="none",
    # 80 dB below a sine at full scale: digital silence is as silent as any other.
    floor=1e-2,
)
PROTOCOL = (
    f"cepstra 1 to {NUM_CEPSTRA} of {ANALYSIS.n_mels} mel filters, 16 kHz, every 10 ms; dynamic time warping; F0 in "
    "the range of its speaker"
)


@dataclass(frozen=True)
class Distance:
    """Sums over the frames of a path; utterances add up."""

    frames: int
    distortion: float
    """In dB."""
    voiced: int
    """Where both are."""
    squared_hz: float
    squared_cents: float
    other_voicing: int
    """Where one is voiced and the other isn't."""


def mel_cepstra(samples: np.ndarray) -> np.ndarray:
    """The coefficients c(1) to c(24) of each frame of ``samples`` ``(time,)`` at 16 kHz, ``(frame, 24)`` float64."""
    with torch.inference_mode():
        logs = MelSpectrogram(ANALYSIS)(torch.from_numpy(np.asarray(samples, np.float32))).double().numpy()
    places = np.pi * (np.arange(ANALYSIS.n_mels) + 0.5) / ANALYSIS.n_mels
    cosines = np.cos(np.outer(places, np.arange(1, NUM_CEPSTRA + 1)))
    cepstra: np.ndarray = logs @ cosines * (2 / ANALYSIS.n_mels)
    return cepstra


def distance(reference: np.ndarray, hypothesis: np.ndarray) -> Distance:
    """Return the distance of two utterances of one text, samples ``(time,)`` at 16 kHz."""
    first, second = mel_cepstra(reference), mel_cepstra(hypothesis)
    # |a - b|² = |a|² + |b|² - 2 a·b for all pairs at once; rounding may make it negative, hence the clip below.
    squares = np.square(first).sum(1)[:, None] + np.square(second).sum(1) - 2 * first @ second.T
    # The costs are distances between all pairs of frames, in dB.
    costs = DECIBELS * np.sqrt(squares.clip(min=0))
    path = warping_path(costs)
    pitches = [pitch_in_range(samples) for samples in (reference, hypothesis)]
    ours, theirs = (pitch[places] for pitch, places in zip(pitches, path.T, strict=True))
    both = (ours > 0) & (theirs > 0)
    cents = 1200 * np.log2(theirs[both] / ours[both])
    return Distance(
        frames=len(path),
        distortion=float(costs[path[:, 0], path[:, 1]].sum()),
        voiced=int(both.sum()),
        squared_hz=float(np.square(theirs[both] - ours[both], dtype=np.float64).sum()),
        squared_cents=float(np.square(cents, dtype=np.float64).sum()),
        other_voicing=int(((ours > 0) != (theirs > 0)).sum()),
    )


def pitch_in_range(samples: np.ndarray) -> np.ndarray:
    """F0 in Hz of each frame of ``samples`` ``(time,)`` at 16 kHz within the range of their speaker, 0 where unvoiced.

    Where audio is hardly periodic, as Griffin-Lim's often is, dips two octaves apart are equally deep, and the whole
    range of voices has both. So F0 is looked for twice: among all voices, and then from three quarters of the first
    quartile of what was found to one and a half times the third.

    Source: De Looze and Hirst 2008, "Detecting changes in key and range for the automatic modelling and coding of
    intonation".
    """
    found = fundamental_frequency(samples, ANALYSIS)
    if not (found > 0).any():
        return found
    lowest, highest = np.percentile(found[found > 0], (25, 75)) * (0.75, 1.5)
    return fundamental_frequency(samples, ANALYSIS, PitchConfig(f0_min=float(lowest), f0_max=float(highest)))


def warping_path(costs: np.ndarray) -> np.ndarray:
    """Return the path ``(place, 2)`` of least total cost from the first to the last corner of ``costs (row, column)``.

    >>> warping_path(np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]])).tolist()
    [[0, 0], [1, 1], [1, 2]]
    """
    rows, columns = costs.shape
    totals = np.full((rows + 1, columns + 1), np.inf)
    totals[0, 0] = 0
    # Places of a diagonal depend only on those of the two before it, so they are computed at once.
    for diagonal in range(rows + columns - 1):
        row = np.arange(max(0, diagonal - columns + 1), min(diagonal, rows - 1) + 1)
        column = diagonal - row
        before = np.minimum(np.minimum(totals[row, column], totals[row, column + 1]), totals[row + 1, column])
        totals[row + 1, column + 1] = costs[row, column] + before
    path = [(rows - 1, columns - 1)]
    while path[-1] != (0, 0):
        row, column = path[-1]
        steps = ((row - 1, column - 1), (row - 1, column), (row, column - 1))
        path.append(min(steps, key=lambda step: totals[step[0] + 1, step[1] + 1]))
    return np.array(path[::-1])
