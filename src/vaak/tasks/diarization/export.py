"""A trained diarizer as an ONNX file: features of a window in, who speaks in each output frame out.

    features (row, frame, bin), mask (row, frame)  ──▶ probabilities (row, output frame, speaker)
                                                       embeddings (row, speaker, dim), which join windows

A window has a multiple of the encoder's subsampling of frames; ``mask`` is False where it is filled up. Embeddings are
there where speakers have no names, and the model has them. The file's metadata say how features are made, how many
seconds an output frame takes, the names of speakers, and the options of inference (docs/diarization.md).
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from vaak.core.storage.files import whole_folder
from vaak.nn.onnx_file import Called, OnnxModule, write_onnx
from vaak.tasks.diarization.model import DiarizationModel
from vaak.tasks.diarization.predict import Diarizer

FILE = "model.onnx"


def _inferred(model: DiarizationModel, features: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    found = model.infer(features, mask)
    return (found.probabilities,) if found.embeddings is None else (found.probabilities, found.embeddings)


def export_onnx(diarizer: Diarizer, num_bins: int, about_features: str, folder: Path) -> None:
    """Write ``folder``, completely or not at all. Raises UserError where it can't be, or outputs differ from PyTorch's.

    Features have ``num_bins`` numbers a frame; ``about_features`` are the options that they are made with, as JSON.
    """
    model = diarizer.model.float().eval()
    step = model.config.subsampling
    generator = torch.Generator().manual_seed(0)

    def example(*lengths: int) -> dict[str, Tensor]:
        time = -(-max(lengths) // step) * step
        features = torch.randn(len(lengths), time, num_bins, generator=generator)
        return {"features": features, "mask": torch.arange(time) < torch.tensor(lengths)[:, None]}

    first, *others = example(6 * step, 4 * step), example(1), example(20 * step, 7 * step + 1, 3 * step)
    with torch.no_grad():
        outputs = ("probabilities", "embeddings")[: len(_inferred(model, *first.values()))]
    metadata = {
        "features": about_features,
        "frame_seconds": str(diarizer.frame_seconds),
        "names": json.dumps(model.collator.names, ensure_ascii=False),
        "inference": diarizer.inference.model_dump_json(),
    }
    axes = {name: {0: "row", 1: "frame"} for name in ("features", "mask")}
    exported = OnnxModule(Called(model, _inferred), first, axes, outputs, others, metadata, {"frame": step})
    with whole_folder(folder) as made:
        write_onnx(made / FILE, exported)
