"""A trained recogniser for other software: a Whisper for transformers, or an adapter for peft.

    hf      config.json  generation_config.json  model.safetensors  tokenizer.json  vocabulary.json (for model.base)
    peft    adapter_config.json  adapter_model.safetensors

Low-rank changes are merged in the first, and alone in the second. Of a mixture of experts, one is exported.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vaak.core.errors import UserError
from vaak.core.storage.files import whole_folder
from vaak.nn.lora_experts import LoraExperts
from vaak.tasks.asr.config import AsrModelConfig
from vaak.tasks.asr.model import AsrModel
from vaak.tasks.asr.vocabulary import Vocabulary


class Change(NamedTuple):
    """A low-rank change ``scale * second @ first`` of the layer called ``name``, whose own weights are ``base``'s."""

    name: str
    base: nn.Linear
    first: Tensor
    second: Tensor
    scale: float


def changes_of(model: AsrModel, expert: int | None) -> Iterator[Change]:
    """The low-rank changes of a model. Raises UserError where it has experts, and none of them is chosen."""
    experts = model.experts
    if experts is None and expert is not None:
        raise UserError("an expert was chosen, but this model has none")
    if experts is not None and (expert is None or not 0 <= expert < experts.num_experts):
        raise UserError(f"choose one of the experts, 0 to {experts.num_experts - 1}")
    for name, layer in model.whisper.named_modules():
        one: Any = layer
        if isinstance(layer, LoraExperts):
            assert expert is not None
            yield Change(name, layer.base, layer.lora_a[expert], layer.lora_b[expert], layer.scale)
        elif hasattr(layer, "lora_A"):
            first, second = one.lora_A["default"].weight, one.lora_B["default"].weight
            yield Change(name, one.base_layer, first, second, float(one.scaling["default"]))


@torch.no_grad()
def write_whisper(model: AsrModel, vocabulary: Vocabulary, folder: Path, expert: int | None = None) -> None:
    """Write ``folder``, completely or not at all, with all changes merged.

    Raises UserError where the folder has something in it, or no ``expert`` is chosen of several.
    """
    changes = list(changes_of(model, expert))
    merged = copy.deepcopy(model.whisper)
    for name, base, first, second, scale in changes:
        layer = copy.deepcopy(base)
        layer.weight += scale * second @ first
        parent, _, own = name.rpartition(".")
        setattr(merged.get_submodule(parent), own, layer)
    ids = vocabulary.ids
    settings: Any = merged.generation_config
    settings.update(
        suppress_tokens=list(ids.never),
        begin_suppress_tokens=list(ids.never_first) or None,
        max_length=model.max_target_length,
    )
    with whole_folder(folder) as temporary:
        merged.save_pretrained(temporary)
        vocabulary.save(temporary)


def write_adapter(model: AsrModel, options: AsrModelConfig, folder: Path, expert: int | None = None) -> None:
    """Write ``folder``, completely or not at all, with the low-rank changes alone.

    Raises UserError for a model without any, where the folder has something in it, or no ``expert`` is chosen.
    """
    import peft

    changes = list(changes_of(model, expert))
    section = options.experts or options.lora
    if not changes or section is None:
        raise UserError("this model has no low-rank changes (model.lora, model.experts); export it as hf")
    make: Any = peft.LoraConfig  # alpha may be any number
    config = make(
        r=section.rank,
        lora_alpha=section.alpha,
        lora_dropout=section.dropout,
        target_modules=list(section.targets),
        base_model_name_or_path=options.base,
    )
    tensors = {
        f"base_model.model.{change.name}.{name}.weight": weight.detach().cpu().contiguous()
        for change in changes
        for name, weight in (("lora_A", change.first), ("lora_B", change.second))
    }
    with whole_folder(folder) as temporary:
        config.save_pretrained(str(temporary))
        save_file(tensors, temporary / "adapter_model.safetensors", metadata={"format": "pt"})
