"""Estimates before the data is prepared: the files that will be read, the size of batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vaak.core.batch import Batch
from vaak.data.batching import largest_rows
from vaak.tasks.prepared_cuts import Datasets, corpora_of
from vaak.tasks.vocoder.config import VocoderExperiment
from vaak.tasks.vocoder.data import VocoderExample, collate


def source_files(experiment: VocoderExperiment, datasets: Datasets) -> list[Path]:
    """The files of all corpora. Raises DataError for one that doesn't exist."""
    return [path for corpus in corpora_of(datasets, experiment.global_config) for path in corpus.files]


def meta_batch(experiment: VocoderExperiment) -> Batch:
    """The largest microbatch, of silence."""
    mel = experiment.global_config.mel
    assert mel is not None
    num_samples = experiment.data.crop_frames * mel.hop_length
    example = VocoderExample("sketch", np.zeros(num_samples, np.float32))
    return collate([example] * largest_rows(experiment.training, num_samples / mel.sampling_rate), mel)
