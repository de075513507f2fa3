"""Features of recordings, kept in ``global_config.storage_path``: made once before training, read by every epoch.

What isn't stored is computed on demand: simulated conversations, recordings of test, and those of train if
their audio is augmented.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.features.extractors import Features
from vaak.audio.labelled import AudioSource
from vaak.audio.sources.cut_source import CutSource, WindowSource
from vaak.audio.sources.stored_source import StoredSource, extract_cuts, stored_cuts
from vaak.tasks.diarization.config import DiarizationDataConfig
from vaak.tasks.diarization.prepare import Prepared

log = logging.getLogger("vaak")

READ_EVERY_EPOCH = ("train", "valid")


def store_features(
    prepared: Prepared,
    datasets: Sequence[DatasetConfig],
    audio: AudioConfig,
    data: DiarizationDataConfig,
    device: torch.device,
    skip_bad: bool,
) -> None:
    """Make the features that training will read, unless they are there: on the ``device`` if that is CUDA.

    ``prepared`` has the cuts of ``datasets``; ``audio`` says where features are stored, and ``data`` which splits read
    them. ``skip_bad`` leaves out recordings that can't be read.
    """
    for split in READ_EVERY_EPOCH:
        if split not in prepared.about["statistics"] or _is_drawn_anew(split, data):
            continue
        for number, store in prepared.stores(split):
            if datasets[number].conversations is None:
                extract_cuts(store, audio, "cuda" if device.type == "cuda" else "cpu", skip_bad=skip_bad)


def with_stored_features(source: CutSource | WindowSource, split: str, data: DiarizationDataConfig) -> AudioSource:
    """The source with its stored features, if there are any; otherwise unchanged."""
    if source.audio.storage_path is None or _is_drawn_anew(split, data):
        return source
    store = stored_cuts(source.store, source.audio)
    if store is not None:
        return StoredSource(source, store, Features(source.audio))
    if split == "train":
        log.warning(
            "the features of train are no longer in %s (global_config.storage_path); recomputed ones differ at the "
            "edges of windows from those in training",
            source.audio.storage_path,
        )
    return source


def _is_drawn_anew(split: str, data: DiarizationDataConfig) -> bool:
    return split == "train" and data.augmentation.changes_audio
