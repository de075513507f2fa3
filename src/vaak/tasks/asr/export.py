"""Exports of a trained recogniser that all architectures share, such as a mixture of experts.

    mixture    mixture.json  mixture.safetensors (gate and experts)  tokenizer.json  README.md, with mixture_loader.py

One expert of a mixture is exported times the weight that the gate gives it: the mean over validation utterances that
chose it, unless another is given; at that weight, it is the mixture's.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from safetensors.torch import save_file
from torch import Tensor, nn

from vaak.core.errors import UserError
from vaak.core.storage.files import whole_folder, write_json, write_text
from vaak.engine.checkpoint.names import parse_step
from vaak.engine.metrics_file import iterate_evaluations
from vaak.nn.lora_experts import LoraExperts
from vaak.nn.new_tokens import iterate_new_rows
from vaak.tasks.asr.experts import WithExperts
from vaak.tasks.asr.metrics import EXPERT_WEIGHT
from vaak.tasks.asr.vocabulary import TOKENIZER, VOCABULARY_FILE, Vocabulary

MASKED_LOGIT = 30.0
"""Subtracted from the log-probability of a token that is never said."""


def require_one(model: WithExperts, expert: int | None) -> None:
    """Raises UserError if a model has experts, and no expert is chosen."""
    experts = model.experts
    if experts is None and expert is not None:
        raise UserError("an expert was chosen, but this model has none")
    if experts is not None and (expert is None or not 0 <= expert < experts.num_experts):
        raise UserError(f"choose one of the experts, 0 to {experts.num_experts - 1}")


def mean_weight(run: Path, checkpoint: Path, expert: int) -> float:
    """Return the mean weight that an expert had in the validation utterances that chose it, in a run's last evaluation.

    It is the last one up to the checkpoint. Raises UserError if no utterance chose it, or that isn't known.
    """
    found = None
    for record in iterate_evaluations(run):
        if record["step"] <= parse_step(checkpoint):
            found = record.get(f"val_{EXPERT_WEIGHT}/{expert}")
    if not isinstance(found, float):
        raise UserError(
            f"--expert {expert}: what weight the gate gives this expert is not known: no validation utterance chose it "
            "in the last evaluation, or that was made by an earlier version, or the run is not there; give "
            "--expert-weight, such as 1"
        )
    return found


VOCABULARY_FOLDER = "vocabulary"
"""The folder of a vocabulary that transformers needs in another form."""


def exported_vocabulary(source: Path) -> Vocabulary | None:
    """Return the vocabulary of a folder that was exported here; None for another."""
    return next(
        (Vocabulary.load(one) for one in (source / VOCABULARY_FOLDER, source) if (one / VOCABULARY_FILE).is_file()),
        None,
    )


README = """\
# A mixture of experts on a recogniser

The gate and the low-rank experts; the base is `{base}`. This loads them, with transformers and safetensors alone:

```python
{use}```

where `samples` are those of an utterance, at {rate} Hz, and

```python
{loader}```
"""
OF_ENCODER = """\
from transformers import AutoFeatureExtractor
from tokenizers import Tokenizer

model, about = load_mixture("{folder}")
extract = AutoFeatureExtractor.from_pretrained(about["base"])
values = extract(samples, sampling_rate=extract.sampling_rate, return_tensors="pt").input_values
tokenizer = Tokenizer.from_file("{folder}/tokenizer.json")
texts = [tokenizer.decode(ids).strip() for ids in read_tokens(model, about, values)]
"""


def write_encoder_mixture(
    model: WithExperts, network: nn.Module, vocabulary: Vocabulary, base: str, rate: int, folder: Path
) -> None:
    """Write the same of an encoder, whose ``network`` is transformers' and reads audio of a ``rate``."""
    about = {**describe_experts(model, network, vocabulary, base), "blank": vocabulary.ids.pad}
    head = {f"lm_head.{name}": one for name, one in network.get_submodule("lm_head").state_dict().items()}
    write_mixture_folder(
        {**collect_mixture_tensors(model, network), **head}, about, vocabulary, (OF_ENCODER, rate), folder
    )


def collect_mixture_tensors(model: WithExperts, network: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of the experts in a network, of the gate, and the rows of tokens that the base lacks."""
    experts = {f"{name}.{part}": getattr(layer, part) for name, layer in list_expert_layers(network) for part in LORA}
    gate = {f"gate.{name}": one for name, one in cast("nn.Module", model.gate).state_dict().items()}
    return experts | gate | {f"{name}.new_rows": one.rows for name, one in iterate_new_rows(network)}


def write_mixture_folder(
    tensors: Mapping[str, Tensor], about: Mapping[str, Any], vocabulary: Vocabulary, use: tuple[str, int], folder: Path
) -> None:
    """Write the tensors with their description; ``use`` is the README's example code, and its audio's sampling rate."""
    # This import loads transformers.
    from vaak.tasks.asr import mixture_loader

    loader, lines, rate = inspect.getsource(mixture_loader), use[0].format(folder=folder.name), use[1]
    with whole_folder(folder) as made:
        written = {name: one.detach().cpu().contiguous() for name, one in tensors.items()}
        save_file(written, made / "mixture.safetensors", metadata={"format": "pt"})
        write_json(made / "mixture.json", about)
        write_text(made / TOKENIZER, vocabulary.content)
        write_text(made / "README.md", README.format(base=about["base"], use=lines, rate=rate, loader=loader))


LORA = ("lora_a", "lora_b")


def list_expert_layers(model: nn.Module) -> list[tuple[str, LoraExperts]]:
    """Return the layers of a network that have experts, by name."""
    return [(name, layer) for name, layer in model.named_modules() if isinstance(layer, LoraExperts)]


def describe_experts(model: WithExperts, network: nn.Module, vocabulary: Vocabulary, base: str) -> dict[str, Any]:
    """Return the part of ``mixture.json`` that all mixtures have. Raises UserError for a model without experts."""
    if model.experts is None:
        raise UserError("this model is not a mixture of experts (model.experts); export it as hf or peft")
    layers, new = list_expert_layers(network), [one.ids for _, one in iterate_new_rows(network)]
    return {
        "format": "vaak mixture of low-rank experts",
        "version": 1,
        "base": base,
        "num_experts": model.experts.num_experts,
        "top_k": model.experts.top_k,
        "scale": layers[0][1].scale,
        "layers": [name for name, _ in layers],
        "never": list(vocabulary.ids.never),
        # Those that the base has no rows for: the first, and the one after the last.
        **({"new_tokens": [new[0].start, new[0].stop]} if new else {}),
    }


class ChosenExperts:
    """The experts that each row chose, ``(row, choice)``, and their weights; None: the base, without experts."""

    experts: Tensor | None = None
    weights: Tensor | None = None

    def choose(self, gate: Any, gate_input: Tensor, top_k: int) -> None:
        """As ``top_k_weights``, whose stable sort an exporter doesn't know."""
        probabilities = gate(gate_input).softmax(-1)
        scores = probabilities if gate.bias is None else probabilities + gate.bias
        self.experts = scores.topk(top_k, dim=-1).indices
        self.weights = probabilities.gather(1, self.experts)
        if top_k > 1:
            self.weights = self.weights / self.weights.sum(-1, keepdim=True)


class _GatheredExperts(nn.Module):
    """``LoraExperts`` without a loop over rows, whose number an exporter doesn't know: each row's matrices gathered."""

    def __init__(self, layer: LoraExperts, chosen: ChosenExperts, top_k: int) -> None:
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


def gathered(model: WithExperts, network: str, chosen: ChosenExperts) -> Any:
    """Return a copy of a model for an exporter, on the CPU; the experts of its ``network`` are those ``chosen``."""
    whole = copy.deepcopy(model).cpu().eval()
    layers = whole.get_submodule(network)
    for name, layer in list_expert_layers(layers):
        layers.set_submodule(name, _GatheredExperts(layer, chosen, cast("Any", model.experts).top_k))
    return whole
