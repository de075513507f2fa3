"""A trained classifier as an ONNX file, with its tokenizer and classes."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from vaak.core.storage.files import whole_folder
from vaak.nn.onnx_file import OnnxModule, write_onnx
from vaak.tasks.classification.data import RowFormat
from vaak.tasks.classification.prepare import Classes


class _Exported(nn.Module):
    """The classifier, with a tuple of outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor]:
        return (self.model(inputs, mask),)


def export_onnx(model: nn.Module, rows: RowFormat, classes: Classes, folder: Path) -> None:
    """Write ``model.onnx`` and ``tokenizer.json`` to ``folder``; the classes are in the file's metadata.

    ``inputs`` are ids ``(row, token)``, with [bos] and [eos] around a text if ``ends`` says so; ``mask`` is true where
    they are real; ``logits`` are ``(row, class)``. Raises UserError where the outputs differ from PyTorch's.

    ``model`` reads the ``rows``; ``classes`` are those of each label column.
    """
    generator = torch.Generator().manual_seed(0)

    def examples(num_rows: int, length: int) -> dict[str, Tensor]:
        ids = torch.randint(rows.tokenizer.vocab_size, (num_rows, length), generator=generator)
        lengths = torch.randint(1, length + 1, (num_rows, 1), generator=generator)
        return {"inputs": ids, "mask": torch.arange(length) < lengths}

    axes = {name: {0: "row", 1: "token"} for name in ("inputs", "mask")}
    others = [examples(1, min(7, rows.max_length)), examples(3, min(12, rows.max_length))]
    metadata = {"classes": json.dumps(classes, ensure_ascii=False), "ends": json.dumps(rows.ends)}
    exported = OnnxModule(_Exported(model), examples(2, min(9, rows.max_length)), axes, ("logits",), others, metadata)
    with whole_folder(folder) as temporary:
        rows.tokenizer.save(temporary)
        write_onnx(temporary / "model.onnx", exported)
