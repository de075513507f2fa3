"""A mixture of experts as one thing for other software.

    mixture    mixture.json  mixture.safetensors (gate and experts)  tokenizer.json  README.md, with its loader
    onnx       encoder.onnx  decoder.onnx  mixture.json  tokenizer.json

The first goes on its base, which transformers loads; the loader, ``mixture_loader.py``, needs no Vaak. The second
has the base in it:

    encoder.onnx    features (row, bin, frame) -> states (row, position, width), experts and weights (row, choice)
    decoder.onnx    tokens (row, token), states, experts, weights -> logits (row, token, vocab)
"""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vaak.core.errors import UserError
from vaak.core.storage.files import whole_folder, write_json, write_text
from vaak.nn.lora_experts import LoraExperts
from vaak.nn.onnx_file import Called, OnnxModule, write_onnx
from vaak.tasks.asr import mixture_loader
from vaak.tasks.asr.model import AsrModel
from vaak.tasks.asr.vocabulary import TOKENIZER, Vocabulary

README = """\
# A mixture of experts on a Whisper

The gate and the low-rank experts; the base is `{base}`. This loads them, with transformers and safetensors alone:

```python
from transformers import WhisperFeatureExtractor
from tokenizers import Tokenizer

whisper, about = load_mixture("{folder}")
extract = WhisperFeatureExtractor(feature_size=about["mel_bins"])
features = extract(
    samples, sampling_rate=16000, return_tensors="pt", padding="max_length",
    max_length=round(16000 * about["seconds"]), truncation=True,
).input_features
tokenizer = Tokenizer.from_file("{folder}/tokenizer.json")
texts = [tokenizer.decode(ids).strip() for ids in write_tokens(whisper, about, features)]
```

where `samples` are those of an utterance, at 16 kHz, and

```python
{loader}```
"""


def write_mixture(model: AsrModel, vocabulary: Vocabulary, base: str, folder: Path) -> None:
    """Write ``folder``, completely or not at all, with gate and experts, and how they are put on ``base``.

    Raises UserError for a model without experts, or where the folder has something in it.
    """
    about = about_of(model, vocabulary, base)
    whisper = {f"{name}.{part}": getattr(layer, part) for name, layer in layers_of(model) for part in LORA}
    gate = {f"gate.{name}": value for name, value in cast("nn.Module", model.gate).state_dict().items()}
    tensors = {name: one.detach().cpu().contiguous() for name, one in {**whisper, **gate}.items()}
    loader = inspect.getsource(mixture_loader)
    with whole_folder(folder) as made:
        save_file(tensors, made / "mixture.safetensors", metadata={"format": "pt"})
        write_json(made / "mixture.json", about)
        write_text(made / TOKENIZER, vocabulary.content)
        write_text(made / "README.md", README.format(base=base, folder=folder.name, loader=loader))


LORA = ("lora_a", "lora_b")


def layers_of(model: AsrModel) -> list[tuple[str, LoraExperts]]:
    """The layers of the Whisper that have experts, by name."""
    return [(name, layer) for name, layer in model.whisper.named_modules() if isinstance(layer, LoraExperts)]


def about_of(model: AsrModel, vocabulary: Vocabulary, base: str) -> dict[str, Any]:
    """What ``mixture.json`` says. Raises UserError for a model without experts."""
    if model.experts is None:
        raise UserError("this model is not a mixture of experts (model.experts); export it as hf or peft")
    layers, ids, config = layers_of(model), vocabulary.ids, model.whisper.config
    return {
        "format": "vaak mixture of low-rank experts",
        "version": 1,
        "base": base,
        "num_experts": model.experts.num_experts,
        "top_k": model.experts.top_k,
        "scale": layers[0][1].scale,
        "layers": [name for name, _ in layers],
        "positions": config.max_source_positions,
        "seconds": config.max_source_positions / 50,
        "mel_bins": config.num_mel_bins,
        "prompt": list(ids.prompt),
        "end": ids.end,
        "never": list(ids.never),
        "never_first": list(ids.never_first),
        "longest": model.max_target_length + 1,
    }


class _Chosen:
    """The experts ``(row, choice)`` that rows chose, and their weights; None: there are no changes."""

    experts: Tensor | None = None
    weights: Tensor | None = None


class _GatheredExperts(nn.Module):
    """``LoraExperts`` without a loop over rows, whose number an exporter doesn't know: each row's matrices gathered."""

    def __init__(self, layer: LoraExperts, chosen: _Chosen, top_k: int) -> None:
        super().__init__()
        self.base, self.lora_a, self.lora_b, self.scale = layer.base, layer.lora_a, layer.lora_b, layer.scale
        self.chosen, self.top_k = chosen, top_k

    def forward(self, inputs: Tensor) -> Tensor:
        """``(row, time, out)`` of ``(row, time, in)``."""
        outputs: Tensor = self.base(inputs)
        experts, weights = self.chosen.experts, self.chosen.weights
        if experts is None or weights is None:
            return outputs
        for choice in range(self.top_k):
            first, second = self.lora_a[experts[:, choice]], self.lora_b[experts[:, choice]]
            change = inputs @ first.transpose(1, 2) @ second.transpose(1, 2)
            outputs = outputs + self.scale * weights[:, choice, None, None] * change
        return outputs


def write_mixture_onnx(model: AsrModel, vocabulary: Vocabulary, base: str, folder: Path) -> float:
    """Write ``folder``, completely or not at all, with encoder and decoder for onnxruntime.

    Returns how far their outputs are from PyTorch's at most. Raises UserError as ``write_onnx`` does, and where the
    folder has something in it.
    """
    about = about_of(model, vocabulary, base)
    whole, chosen, top_k = copy.deepcopy(model).cpu().eval(), _Chosen(), about["top_k"]
    for name, layer in layers_of(whole):
        parent, _, own = name.rpartition(".")
        setattr(whole.whisper.get_submodule(parent), own, _GatheredExperts(layer, chosen, top_k))

    def encode(given: AsrModel, features: Tensor) -> tuple[Tensor, ...]:
        chosen.experts = chosen.weights = None
        encoder = given.whisper.model.encoder
        gate: Any = given.gate
        probabilities = gate(encoder(features).last_hidden_state.mean(1)).softmax(-1)
        # As top_k_weights, whose stable sort an exporter doesn't know.
        experts = (probabilities if gate.bias is None else probabilities + gate.bias).topk(top_k, dim=-1).indices
        weights = probabilities.gather(1, experts)
        if top_k > 1:
            weights = weights / weights.sum(-1, keepdim=True)
        chosen.experts, chosen.weights = experts, weights
        return encoder(features).last_hidden_state, experts, weights

    def decode(given: AsrModel, tokens: Tensor, states: Tensor, experts: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        """Logits of ``given`` for ``tokens`` and encoder ``states``, by the chosen ``experts`` and ``weights``."""
        chosen.experts, chosen.weights = experts, weights
        hidden = given.whisper.model.decoder(input_ids=tokens, encoder_hidden_states=states, use_cache=False)
        return (given.whisper.proj_out(hidden.last_hidden_state),)

    def inputs(rows: int, length: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(rows)
        features = torch.randn(rows, about["mel_bins"], 2 * about["positions"], generator=generator)
        tokens = torch.randint(vocabulary.ids.size, (rows, length), generator=generator)
        with torch.no_grad():
            states, experts, weights = encode(whole, features)
        return {"features": features}, {"tokens": tokens, "states": states, "experts": experts, "weights": weights}

    longest = about["longest"] - 1
    given = [inputs(rows, min(length, longest)) for rows, length in ((2, 5), (1, 3), (3, 9))]
    rows = {name: {0: "row"} for name in ("features", "states", "experts", "weights")}
    encoder = OnnxModule(
        Called(whole, encode), given[0][0], {"features": {0: "row"}}, ("states", "experts", "weights"),
        [one for one, _ in given[1:]],
    )  # fmt: skip
    axes = {**{name: rows[name] for name in ("states", "experts", "weights")}, "tokens": {0: "row", 1: "token"}}
    decoder = OnnxModule(Called(whole, decode), given[0][1], axes, ("logits",), [one for _, one in given[1:]])
    with whole_folder(folder) as made:
        differences = [write_onnx(made / "encoder.onnx", encoder), write_onnx(made / "decoder.onnx", decoder)]
        write_json(made / "mixture.json", about)
        write_text(made / TOKENIZER, vocabulary.content)
    return max(differences)
