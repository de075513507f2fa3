"""Estimates before the data is prepared: the files that will be read, the size of batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vaak.audio.augmentation.pipeline import longest_factor
from vaak.audio.config import AudioConfig
from vaak.audio.features.extractors import Features
from vaak.audio.segments import Segment
from vaak.core.batch import Batch
from vaak.data.batching import largest_rows
from vaak.tasks.diarization.config import DiarizationExperiment, longest_example
from vaak.tasks.diarization.labels import DiarizationCollator, DiarizationExample
from vaak.tasks.prepared_cuts import Datasets, corpora_of


def source_files(datasets: Datasets, audio: AudioConfig) -> list[Path]:
    """The files of all corpora. Raises DataError for one that doesn't exist."""
    return [path for corpus in corpora_of(datasets, audio) for path in corpus.files]


def meta_batch(experiment: DiarizationExperiment, collator: DiarizationCollator, features: Features) -> Batch:
    """The largest possible microbatch, of silence and one speaker."""
    seconds = longest_example(experiment) * longest_factor(experiment.data.augmentation)
    num_frames = features.num_frames(round(seconds * features.config.sampling_rate))
    silence = np.zeros((num_frames, features.dims), dtype=np.float32)
    example = DiarizationExample("sketch", silence, (Segment(0.0, seconds, "speaker"),), seconds)
    return collator.batch([example] * largest_rows(experiment.training, seconds))
