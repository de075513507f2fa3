"""A trained classifier as an ONNX file or as a folder for transformers, with its tokenizer and classes.

Classifiers of transformers that read the first token have a layer with tanh before the classes, which ours doesn't. It
becomes a small multiple of the identity, where tanh is one, too; the classes' weights undo it. What comes out is
compared with ours.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from vaak.core.errors import UserError
from vaak.core.storage.files import whole_folder
from vaak.nn.lora import merged
from vaak.nn.onnx_file import OnnxModule, write_onnx
from vaak.tasks.classification.data import RowFormat
from vaak.tasks.classification.model import TransformerClassifier
from vaak.tasks.classification.prepare import Classes
from vaak.tasks.classification.pretrained import Pretrained
from vaak.tasks.hub import transformers_of
from vaak.text.tokenizers.tokenizer import Tokenizer

HEADS = {
    "bert": ("bert.pooler.dense", "classifier"),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), ("classifier.dense", "classifier.out_proj")),
}
"""The layer with tanh and the one of the classes, by the kind of encoder."""
SHRUNK = 1e-4
"""tanh(x · SHRUNK) / SHRUNK is x but for x³ · 3e-9."""
TOLERANCE = 1e-3


@torch.no_grad()
def export_hf(classifier: nn.Module, tokenizer: Tokenizer, classes: Classes, multi_label: bool, folder: Path) -> None:
    """Write ``folder``, completely or not at all: an ``AutoModelForSequenceClassification`` with its tokenizer.

    Raises UserError for a model that isn't a pretrained encoder with such a class, or whose outputs differ.

    The ``classifier``'s ``classes`` are those of each label column, of which texts have several where ``multi_label``.
    """
    trained = merged(classifier)
    base = trained.transformer if isinstance(trained, TransformerClassifier) else None
    if not isinstance(base, Pretrained) or base.base.config.model_type not in HEADS:
        raise UserError(f"--format hf: a classifier on one of {', '.join(HEADS)} (model.pretrained_model); use onnx")
    model = cast("TransformerClassifier", trained)
    if len(classes) > 1 or model.config.pooling != "first":
        raise UserError("--format hf: transformers has one label column, and pooling first; use onnx")
    (names,) = classes.values()
    config = copy.deepcopy(base.base.config)
    config.update({"id2label": dict(enumerate(names)), "label2id": {name: place for place, name in enumerate(names)}})
    config.problem_type = "multi_label_classification" if multi_label else "single_label_classification"
    peer: Any = transformers_of("--format hf").AutoModelForSequenceClassification.from_config(config).float().eval()
    weights = {name: one for name, one in base.base.state_dict().items() if not name.startswith("pooler.")}
    peer.base_model.load_state_dict(weights, strict=False)
    dense, head = map(peer.get_submodule, HEADS[config.model_type])
    dense.weight.copy_(SHRUNK * torch.eye(len(dense.weight)))
    dense.bias.zero_()
    head.weight.copy_(model.class_weights() / SHRUNK)
    head.bias.copy_(model.head.bias)
    ids = torch.randint(tokenizer.vocab_size, (2, 9), generator=torch.Generator().manual_seed(0))
    ours, theirs = model.eval()(ids, torch.ones_like(ids, dtype=torch.bool)), peer(input_ids=ids).logits
    difference = float((ours - theirs).abs().max())
    if not difference <= TOLERANCE * float(ours.abs().max().clamp(min=1)):
        raise UserError(f"--format hf: the outputs of transformers differ by {difference:.2g}; use onnx")
    with whole_folder(folder) as temporary:
        peer.save_pretrained(temporary)
        tokenizer.save(temporary)


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
