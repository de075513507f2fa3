"""A trained vocoder as an ONNX file, without its discriminators."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from vaak.core.storage.files import whole_folder
from vaak.nn.onnx_file import OnnxModule, write_onnx
from vaak.nn.speech.vocoder.vocos import Vocos
from vaak.tasks.vocoder.model import VocoderModel

FILE = "model.onnx"


class _Exported(nn.Module):
    """The generator, with a tuple of outputs."""

    def __init__(self, generator: Vocos) -> None:
        super().__init__()
        self.generator = generator

    def forward(self, mel: Tensor) -> tuple[Tensor]:
        return (self.generator(mel),)


def export_onnx(model: VocoderModel, folder: Path) -> None:
    """Write the generator to ``folder``; the options of its spectrograms are in the file's metadata.

    ``mel`` is ``(row, frame, bin)``, ``samples`` ``(row, frame * hop_length)``. Raises UserError where the outputs
    differ from PyTorch's.
    """
    config = model.mel.config
    generator = torch.Generator().manual_seed(0)
    first, *others = (
        {"mel": torch.randn(*shape, config.n_mels, generator=generator)} for shape in ((2, 50), (1, 7), (3, 120))
    )
    axes = {"mel": {0: "row", 1: "frame"}}
    exported = OnnxModule(
        _Exported(model.generator), first, axes, ("samples",), others, {"mel": config.model_dump_json()}
    )
    with whole_folder(folder) as temporary:
        write_onnx(temporary / FILE, exported)
