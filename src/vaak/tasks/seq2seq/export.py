"""A trained translator as ONNX files, with its tokenizers; or its low-rank adapters for peft, on the base.

    encoder.onnx    source (row, token), source_mask (row, token)  ──▶ memory (row, token, width)
    decoder.onnx    target (row, prefix), memory, source_mask      ──▶ logits (row, prefix, vocab)

``logits[:, -1]`` scores the token after a prefix, which begins with [bos]. A decoder that copies takes ``source``, too.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from vaak.core.errors import UserError
from vaak.core.storage.files import read_json, whole_folder
from vaak.nn.lora import iterate_adapters, merged, write_adapter
from vaak.nn.new_tokens import iterate_new_rows
from vaak.nn.onnx_file import ExportWrapper, OnnxModule, some_tokens, write_onnx
from vaak.tasks.kept_base import read_config
from vaak.tasks.seq2seq.model import Seq2SeqModel
from vaak.tasks.seq2seq.pretrained import detect_family
from vaak.text.tokenizer import Tokenizer

SOURCE = ("source", "source_mask")
SIDES = ("source", "target")


def export_onnx(model: Seq2SeqModel, tokenizers: dict[str, Tokenizer], longest: tuple[int, int], folder: Path) -> None:
    """Write ``folder``, completely or not at all; ``tokenizers`` by the names of their folders in it.

    Sources and targets have at most as many tokens as ``longest`` says. Raises UserError where the model can't be
    exported, or the outputs differ from PyTorch's.
    """
    trained = merged(model).eval()
    copies = trained.copying is not None
    sizes = [(2, 9, 6), (1, 7, 11), (3, 70, 70)]
    sources = [_tokens(trained.source_embedding, rows, min(time, longest[0])) for rows, time, _ in sizes]
    prefixes = [_tokens(trained.target_embedding, rows, min(time, longest[1])) for rows, _, time in sizes]

    def encode(translator: Seq2SeqModel, source: Tensor, source_mask: Tensor) -> tuple[Tensor]:
        # What an encoder gives in padding has no meaning; as zeros, it doesn't count in the comparison with PyTorch.
        return (translator.encode(source, source_mask) * source_mask[..., None],)

    def decode(
        translator: Seq2SeqModel, target: Tensor, memory: Tensor, source_mask: Tensor, *source: Tensor
    ) -> tuple[Tensor]:
        hidden = translator.decode(target, memory, source_mask)
        return (translator.logits(hidden, source[0] if source else target, memory, source_mask),)

    read = []
    for source, prefix in zip(sources, prefixes, strict=True):
        with torch.no_grad():
            (memory,) = encode(trained, *source.values())
        given = {"target": prefix["source"], "memory": memory, "source_mask": source["source_mask"]}
        read.append({**given, "source": source["source"]} if copies else given)
    of_source = {name: {0: "row", 1: "token"} for name in (*SOURCE, "memory")}
    axes = {**of_source, "target": {0: "row", 1: "prefix"}}
    with whole_folder(folder) as made:
        for name, tokenizer in tokenizers.items():
            tokenizer.save(made / name)
        encoder = OnnxModule(ExportWrapper(trained, encode), sources[0], axes, ("memory",), sources[1:])
        write_onnx(made / "encoder.onnx", encoder)
        write_onnx(
            made / "decoder.onnx", OnnxModule(ExportWrapper(trained, decode), read[0], axes, ("logits",), read[1:])
        )


def ct2_scores(
    model: Seq2SeqModel, start: int, end: int, longest: tuple[int, int], folder: Path
) -> tuple[np.ndarray, np.ndarray]:
    """The log-probabilities that CTranslate2 gives for ``folder``, and those of ``model``, of a drawn pair's target.

    The target begins after the token ``start``, and ``end`` is the last one; ``longest`` is that of ``export_onnx``.
    """
    import ctranslate2

    shared = folder / "shared_vocabulary.json"
    names = {side: read_json(shared if shared.is_file() else folder / f"{side}_vocabulary.json") for side in SIDES}
    draw = torch.Generator().manual_seed(0)
    sizes = [min(24, one - 1) for one in longest]
    source, target = (
        torch.randint(len(names[side]), (size,), generator=draw).tolist()
        for side, size in zip(SIDES, sizes, strict=True)
    )
    words = [[names[side][one] for one in ids] for side, ids in zip(SIDES, (source, target), strict=True)]
    translator = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32")
    (found,) = translator.score_batch([words[0]], [words[1]])
    with torch.inference_mode():
        rows = torch.tensor([source])
        logits = model.eval()(rows, torch.ones_like(rows, dtype=torch.bool), torch.tensor([[start, *target]]))[0]
    # Marian's padding, the last token, isn't in CTranslate2's vocabulary.
    log_probs = logits[:, : len(names["target"])].log_softmax(-1)
    expected = log_probs.gather(1, torch.tensor([*target, end])[:, None])[:, 0]
    return np.array(found.log_probs), expected.numpy()


def _tokens(embedding: nn.Embedding, num_rows: int, length: int) -> dict[str, Tensor]:
    return some_tokens(embedding.num_embeddings, num_rows, length, SOURCE)


def export_peft(model: Seq2SeqModel, prepared: Path, base: str, folder: Path) -> None:
    """Write ``folder`` with the low-rank adapters alone, which peft loads on the ``base``, by its names.

    ``prepared`` has its configuration. Raises UserError where there are none, or the folder has something in it.
    """
    family = detect_family(read_config(prepared), base)
    adapters = [
        adapter._replace(name=family.theirs(f"{adapter.name}.weight").removesuffix(".weight"))
        for adapter in iterate_adapters(model)
    ]
    # An embedding of both sides is found as the source's.
    named = {name.replace("source_embedding", "target_embedding"): one for name, one in iterate_new_rows(model)}
    rows = {family.theirs(f"{name}.weight").removesuffix(".weight"): one for name, one in named.items()}
    # Also for a T5 with a separate output layer: transformers says of every T5 that it is tied, and
    # resize_token_embeddings ties it, so that its logits would be others.
    if rows and (len(rows) > 1 or model.output_bias is not None):
        number = len(next(iter(rows.values())).ids)
        raise UserError(
            f"--format peft: {base} lacks {number} tokens that are learned here, and peft puts their rows into one of "
            "its embeddings alone; use --format hf"
        )
    size = model.target_embedding.num_embeddings
    files = {"README.md": README_OF_NEW_TOKENS.format(base=base, size=size, folder=folder.name)} if rows else {}
    names = [adapter.name for adapter in adapters]
    write_adapter(adapters, model.config.lora, names, base, folder, whole=rows, files=files, kind="SEQ_2_SEQ_LM")


README_OF_NEW_TOKENS = """\
# Low-rank adapters of a translator with tokens that its base lacks

Their rows are in the adapter (`trainable_token_indices`). The base is given as many rows as the tokenizer has tokens,
then the adapter is put on it:

```python
import peft
import transformers

base = transformers.AutoModelForSeq2SeqLM.from_pretrained("{base}")
base.resize_token_embeddings({size})
model = peft.PeftModel.from_pretrained(base, "{folder}")
```

`vaak export RUN --format hf` writes the whole model.
"""
