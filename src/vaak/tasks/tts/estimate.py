"""Estimates before the data is prepared: the files that will be read, the size of model and batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vaak.audio.config import AudioConfig
from vaak.core.batch import Batch
from vaak.data.batching import largest_rows
from vaak.tasks.prepared_cuts import Datasets
from vaak.tasks.tts.checks import SYMBOLS_PER_SECOND
from vaak.tasks.tts.config import TtsExperiment
from vaak.tasks.tts.data import Normalisation, TtsExample, collate
from vaak.tasks.tts.model import Inventory, TtsModel
from vaak.tasks.tts.prepare import SpeechSources
from vaak.text.speech.phonemes.alphabets import symbols_of


def source_files(experiment: TtsExperiment, datasets: Datasets) -> list[Path]:
    """The files of all corpora, and the lexicon. Raises DataError for one that doesn't exist."""
    lexicon = experiment.data.front_end.lexicon
    files = [path for corpus in SpeechSources.of(experiment, datasets).corpora() for path in corpus.files]
    return [*files, *([Path(lexicon).expanduser()] if lexicon else [])]


def meta_model(experiment: TtsExperiment) -> TtsModel:
    """A model like the trained one, before its speakers are known."""
    symbols = symbols_of(experiment.data.front_end)
    return TtsModel(experiment.model, Inventory(len(symbols), 0, 1), Normalisation.none(num_bins(experiment)))


def meta_batch(experiment: TtsExperiment) -> Batch:
    """The largest possible microbatch, of silence."""
    audio, longest = experiment.global_config, experiment.data.max_duration
    num_frames = 1 + int(longest / audio.frame_shift)
    num_symbols = min(num_frames, int(longest * SYMBOLS_PER_SECOND))
    durations = np.full(num_symbols, num_frames // num_symbols)
    durations[0] += num_frames - durations.sum()
    mel = np.zeros((num_frames, audio.num_mel_bins), np.float32)
    given = durations if experiment.model.durations == "given" else None
    model = experiment.model
    prosody, key = np.zeros((num_frames, 2 * model.has_prosody), np.float32), 0 if model.matches_flows else None
    example = TtsExample("sketch", "", np.ones(num_symbols, np.int64), mel, given, 0, prosody, key)
    return collate([example] * largest_rows(experiment.training, longest), pad_id=0)


def num_bins(experiment: TtsExperiment) -> int:
    """Numbers in a frame of the spectrogram."""
    audio: AudioConfig = experiment.global_config
    return audio.num_mel_bins
