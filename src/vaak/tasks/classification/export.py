"""A trained classifier as an ONNX file, as a folder for transformers, with its tokenizer and classes, or for peft.

The parts that transformers has are in pretrained.py. Its outputs are compared with ours.
"""

from __future__ import annotations

import copy
import json
import re
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from vaak.core.errors import UserError
from vaak.core.storage.files import whole_folder
from vaak.nn.lora import iterate_adapters, merged, write_adapter
from vaak.nn.new_tokens import iterate_new_rows
from vaak.nn.onnx_file import ExportWrapper, OnnxModule, some_tokens, write_onnx
from vaak.tasks.classification.data import Classes, RowFormat
from vaak.tasks.classification.model import TransformerClassifier
from vaak.tasks.classification.pretrained import HEADS, Pretrained, configure_head, write_head
from vaak.tasks.fetching import import_transformers
from vaak.tasks.kept_base import write_base_tokenizer
from vaak.tasks.older_names import write_older_names
from vaak.text.tokenizer import Tokenizer

ONNX_TOLERANCE = 1e-3
OF_HEAD = "head.safetensors"


def explain_no_hf(base: Any, pooling: str, classes: Classes) -> str:
    """Return why transformers has no classifier of ``classes`` on a ``base`` with this ``pooling``; empty: it has one.

    ``base`` is the configuration of the pretrained encoder; None where a model isn't on one.
    """
    if base is None:
        return "transformers has classifiers on its own encoders only (model.pretrained_model)"
    kind, head = base.model_type, HEADS.get(base.model_type)
    if head is None:
        return f"a classifier on {kind} is none of transformers' {', '.join(HEADS)}"
    if len(classes) > 1:
        return "transformers has one label column"
    if pooling not in head.poolings:
        return f"transformers' {kind} has pooling {' or '.join(head.poolings)}, not {pooling}"
    if head.pairs and 2 * sum(map(len, classes.values())) > base.hidden_size:
        return f"transformers' {kind} of width {base.hidden_size} has at most {base.hidden_size // 2} classes of ours"
    return ""


def _get_base(model: nn.Module) -> Any:
    """Return the pretrained encoder; None where a model isn't on one."""
    base = model.transformer if isinstance(model, TransformerClassifier) else None
    return base.base if isinstance(base, Pretrained) else None


@torch.no_grad()
def export_hf(
    classifier: nn.Module, tokenizer: Tokenizer, prepared: Path, classes: Classes, multi_label: bool, folder: Path
) -> None:
    """Write ``folder``, completely or not at all: an ``AutoModelForSequenceClassification`` with its tokenizer.

    Raises UserError for a model that isn't a pretrained encoder with such a class, or whose outputs differ.

    The ``classifier``'s ``classes`` are those of each label column, of which texts have several where ``multi_label``;
    ``prepared`` has its base's configuration.
    """
    peer = _peer(merged(classifier), classes, multi_label, tokenizer.vocab_size)
    with whole_folder(folder) as temporary:
        peer.save_pretrained(temporary)
        write_older_names(temporary)
        write_base_tokenizer(tokenizer, prepared, temporary)


def export_peft(
    classifier: TransformerClassifier, classes: Classes, multi_label: bool, vocab_size: int, base: str, folder: Path
) -> None:
    """Write ``folder`` with the adapters of a pretrained encoder, for peft on ``base``, and with the classes' layers.

    These are in the adapter where transformers has such a classifier, else in a separate file.

    ``classes``, ``multi_label`` and ``vocab_size`` are those of ``export_hf``.
    """
    adapters, names = list(iterate_adapters(classifier)), list(chain(*classes.values()))
    files: dict[str, Any] = {}
    if explain_no_hf(_get_base(classifier).config, classifier.config.pooling, classes):
        prefix, whole, kind, readme = "", {}, "FEATURE_EXTRACTION", README_OF_ENCODER
        layer = {"weight": classifier.class_weights(), "bias": classifier.head.bias}
        files[OF_HEAD] = {name: one.detach().cpu() for name, one in layer.items()}
    else:
        peer = _peer(merged(classifier), classes, multi_label, vocab_size)
        head = HEADS[peer.config.model_type]
        prefix, kind, readme = f"{peer.base_model_prefix}.", "SEQ_CLS", README_OF_CLASSIFIER
        # Of a sequence classifier, peft itself takes the whole of what is called classifier or score.
        saved = dict.fromkeys(re.sub(r"^(classifier|score)\..*", r"\1", name) for name in head.modules)
        whole = {name: peer.get_submodule(name) for name in saved}
    adapters = [one._replace(name=f"{prefix}{one.name.removeprefix(OF_BASE)}") for one in adapters]
    files["README.md"] = readme.format(
        base=base, folder=folder.name, number=len(names), names=", ".join(names), pooling=classifier.config.pooling
    )
    rows = {f"{prefix}{name.removeprefix(OF_BASE)}": one for name, one in iterate_new_rows(classifier)}
    if rows:
        size = max(one.ids.stop for one in rows.values())
        files["README.md"] += README_OF_NEW_TOKENS.format(number=len(next(iter(rows.values())).ids), size=size)
    whole |= rows
    targets = [one.name for one in adapters]
    write_adapter(adapters, classifier.config.lora, targets, base, folder, whole=whole, files=files, kind=kind)


OF_BASE = "transformer.base."
README_OF_CLASSIFIER = """\
# Low-rank adapters of a text classifier

```python
import peft
from transformers import AutoModelForSequenceClassification

base = AutoModelForSequenceClassification.from_pretrained("{base}", num_labels={number})
model = peft.PeftModel.from_pretrained(base, "{folder}")
# or: peft.AutoPeftModelForSequenceClassification.from_pretrained("{folder}", num_labels={number})
```

The classes, in the order of the logits: {names}. Their layers are in the adapter. `vaak export RUN --format hf` writes
the whole classifier, which `model.pretrained_model` of another run reads.
"""
README_OF_ENCODER = """\
# Low-rank adapters of a text classifier's encoder

transformers has no classifier such as this one, so the adapters are those of the encoder alone, and the layer of the
classes is in `head.safetensors`:

```python
import peft
from safetensors.torch import load_file
from torch.nn.functional import linear
from transformers import AutoModel

model = peft.PeftModel.from_pretrained(AutoModel.from_pretrained("{base}"), "{folder}")
head = load_file("{folder}/head.safetensors")
logits = linear(pooled, head["weight"], head["bias"])  # of last_hidden_state; pooling over real tokens: {pooling}
```

The classes, in the order of the logits: {names}.
"""


README_OF_NEW_TOKENS = """
The tokenizer has {number} tokens that the base lacks, whose rows are in the adapter (`trainable_token_indices`): give
the base as many rows first, by `base.resize_token_embeddings({size})`.
"""


@torch.no_grad()
def _peer(trained: nn.Module, classes: Classes, multi_label: bool, vocab_size: int) -> Any:
    """Return the equivalent classifier of transformers. Raises UserError if there is none, or outputs differ."""
    base, model = _get_base(trained), cast("TransformerClassifier", trained)
    if reason := explain_no_hf(base and base.config, model.config.pooling, classes):
        raise UserError(f"--format hf: {reason}; use --format onnx")
    head, (names,) = HEADS[base.config.model_type], classes.values()
    config = configure_head(copy.deepcopy(base.config), head, model.config.pooling)
    config.update({"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}})
    config.problem_type = "multi_label_classification" if multi_label else "single_label_classification"
    peer: Any = import_transformers("--format hf").AutoModelForSequenceClassification.from_config(config).float().eval()
    weights = {name: one for name, one in base.state_dict().items() if not name.startswith("pooler.")}
    peer.base_model.load_state_dict(weights, strict=False)
    write_head(peer, head, model.class_weights(), model.head.bias)
    ids = torch.randint(vocab_size, (2, 9), generator=torch.Generator().manual_seed(0))
    ours, theirs = model.eval()(ids, torch.ones_like(ids, dtype=torch.bool)), peer(input_ids=ids).logits
    difference = float((ours - theirs).abs().max())
    # Not "difference >": NaN has to be refused, too.
    if not difference <= ONNX_TOLERANCE * float(ours.abs().max().clamp(min=1)):
        raise UserError(f"--format hf: the outputs of transformers differ by {difference:.2g}; use --format onnx")
    return peer


def export_onnx(model: nn.Module, rows: RowFormat, classes: Classes, folder: Path) -> None:
    """Write ``model.onnx`` and ``tokenizer.json`` to ``folder``; the classes are in the file's metadata.

    ``inputs`` are ids ``(row, token)``, with [bos] and [eos] around a text if ``ends`` is true; ``mask`` is true where
    they are real; ``logits`` are ``(row, class)``. Raises UserError where the outputs differ from PyTorch's.

    ``model`` reads the ``rows``; ``classes`` are those of each label column.
    """
    names = ("inputs", "mask")
    axes = {name: {0: "row", 1: "token"} for name in names}
    first, *others = (
        some_tokens(rows.tokenizer.vocab_size, num_rows, min(length, rows.max_length), names)
        for num_rows, length in ((2, 9), (1, 7), (3, 12))
    )
    metadata = {"classes": json.dumps(classes, ensure_ascii=False), "ends": json.dumps(rows.ends)}
    called = ExportWrapper(model, lambda classifier, inputs, mask: (classifier(inputs, mask),))
    exported = OnnxModule(called, first, axes, ("logits",), others, metadata)
    with whole_folder(folder) as temporary:
        rows.tokenizer.save(temporary)
        write_onnx(temporary / "model.onnx", exported)
