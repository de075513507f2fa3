"""Diarizers that were never trained: small, with weights so large that what they say varies."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from networks import draw_weights
from vaak.audio.segments import Segment, merged
from vaak.tasks.diarization.config import DiarizationModelConfig
from vaak.tasks.diarization.labels import (
    BinaryCollator,
    DiarizationCollator,
    DiarizationExample,
    LabelOptions,
    MultilabelCollator,
    PowersetCollator,
    SpeakerIdCollator,
)
from vaak.tasks.diarization.model import DiarizationModel

COLLATORS: dict[str, type[DiarizationCollator]] = {
    "binary": BinaryCollator,
    "speaker_id": SpeakerIdCollator,
    "multilabel": MultilabelCollator,
    "powerset": PowersetCollator,
}
FRAME_SHIFT = 0.01
NUM_BINS = 6
SPEAKERS = ("ann", "ben", "cat")


def small_diarizer(
    label_type: str = "multilabel", dtype: torch.dtype = torch.float32, seed: int = 0, **options: Any
) -> DiarizationModel:
    """A model in evaluation mode; ``options`` are its own."""
    sizes = {"d_model": 16, "num_layers": 2, "num_heads": 2, "kernel_size": 5, "embedding_dim": 4, **options}
    config = DiarizationModelConfig(**sizes)
    steps = config.output_subsampling, config.subsampling
    about = LabelOptions(FRAME_SHIFT * config.output_subsampling, *steps, config.max_speakers, SPEAKERS)
    torch.manual_seed(seed)
    model = DiarizationModel(config, NUM_BINS, COLLATORS[label_type](about)).to(dtype)
    draw_weights(model)
    return model.eval()


def conversation(seed: int, num_frames: int, name: str = "made") -> DiarizationExample:
    """Features of ``num_frames`` frames, in which two speakers stand out in different bands."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((num_frames, NUM_BINS)).astype(np.float32)
    segments, place = [], int(rng.integers(20))
    while place < num_frames:
        length, speaker = int(rng.integers(20, 120)), int(rng.integers(2))
        last = min(place + length, num_frames)
        features[place:last, 3 * speaker : 3 * speaker + 3] += 3.0
        segments.append(Segment(place * FRAME_SHIFT, last * FRAME_SHIFT, SPEAKERS[speaker]))
        place += length + int(rng.integers(-10, 30))
    return DiarizationExample(name, features, tuple(merged(segments)), num_frames * FRAME_SHIFT)
