"""Low-rank adapters of frozen linear layers, by peft: added to a model, merged into it, or written for peft.

    y = W x + (alpha / rank) · B A x        W is frozen; B begins as zeros, so nothing changes at first

Source: Hu et al. 2021, "LoRA".
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vaak.core.errors import UserError, optional_import
from vaak.core.storage.files import whole_folder, write_text
from vaak.nn.config import LoraConfig
from vaak.nn.lora_experts import LoraExperts

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def add_lora(model: AnyModule, options: LoraConfig | None, also_trained: Iterable[str] = ()) -> AnyModule:
    """The model, frozen but for the modules ``also_trained``, with low-rank adapters of its layers; None adds none.

    They are drawn from torch's default generator. Raises UserError where peft isn't installed, or no layer outside of
    ``also_trained`` is called as ``options.targets`` say.
    """
    if options is None:
        return model
    own = [model.get_submodule(name) for name in also_trained]
    linear = linear_layers(model, also_trained)
    adapted = [name for name in linear if f".{name}".endswith(tuple(f".{target}" for target in options.targets))]
    demand_layers(bool(adapted), "model.lora", linear, options)
    make: Any = _peft().LoraConfig  # alpha may be any number
    _peft().inject_adapter_in_model(
        make(r=options.rank, lora_alpha=options.alpha, lora_dropout=options.dropout, target_modules=adapted), model
    )
    for module in own:
        module.requires_grad_(True)
    return model


def _peft() -> Any:
    with optional_import("model.lora requires peft", "hf"):
        return importlib.import_module("peft")


def linear_layers(model: nn.Module, besides: Iterable[str] = ()) -> list[str]:
    """The names of linear layers, without those in the modules ``besides``."""
    inside = tuple(f"{name}." for name in besides)
    linear = (name for name, one in model.named_modules() if isinstance(one, nn.Linear))
    return [name for name in linear if not f"{name}.".startswith(inside)]


def demand_layers(found: bool, section: str, linear: Iterable[str], options: LoraConfig) -> None:
    """Raises UserError where none of the ``linear`` layers is called as ``options.targets`` say."""
    if not found:
        layers = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
        raise UserError(f"{section}.targets: no layer is called {' or '.join(options.targets)}; there are {layers}")


def without_lora(weights: dict[str, Tensor], wanted: Collection[str]) -> dict[str, Tensor]:
    """Weights of a model without low-rank adapters, under the names that ``wanted``, those of one with them, has."""
    moved = {name.replace(".base_layer.", "."): name for name in wanted if ".base_layer." in name}
    return {name if name in wanted else moved.get(name, name): tensor for name, tensor in weights.items()}


def is_of_lora(name: str) -> bool:
    """Whether a parameter is one of a low-rank adapter."""
    return ".lora_A." in name or ".lora_B." in name


class Adapter(NamedTuple):
    """A low-rank adapter ``scale * second @ first`` of the layer called ``name``, whose own weights are ``base``'s."""

    name: str
    base: nn.Linear
    first: Tensor
    second: Tensor
    scale: float


def adapters_of(model: nn.Module, expert: int | None = None, weight: float = 1.0) -> Iterator[Adapter]:
    """The low-rank adapters of a model; of a mixture of experts, those of one, multiplied by a ``weight``."""
    for name, layer in model.named_modules():
        one: Any = layer
        if isinstance(layer, LoraExperts) and expert is not None:
            yield Adapter(name, layer.base, layer.lora_a[expert], weight * layer.lora_b[expert], layer.scale)
        elif hasattr(layer, "lora_A"):
            first, second = one.lora_A["default"].weight, one.lora_B["default"].weight
            yield Adapter(name, one.base_layer, first, second, float(one.scaling["default"]))


@torch.no_grad()
def merged(model: AnyModule, expert: int | None = None, weight: float = 1.0) -> AnyModule:
    """The model with its low-rank adapters in the weights: itself if it has none, else a copy.

    ``expert`` and ``weight`` are as in ``adapters_of``.
    """
    adapters = list(adapters_of(model, expert, weight))
    if not adapters:
        return model
    whole = copy.deepcopy(model)
    for name, base, first, second, scale in adapters:
        layer = copy.deepcopy(base)
        layer.weight += scale * second @ first
        parent, _, own = name.rpartition(".")
        setattr(whole.get_submodule(parent), own, layer)
    return whole


def write_adapter(
    adapters: list[Adapter],
    options: LoraConfig | None,
    targets: Iterable[str],
    base: str | None,
    folder: Path,
    *,
    whole: Mapping[str, nn.Module] | None = None,
    files: Mapping[str, str | Mapping[str, Tensor]] | None = None,
) -> None:
    """Write ``folder``, completely or not at all, with the low-rank ``adapters`` alone, as ``options`` made them.

    ``targets`` are the layers' names, or their ends, in the ``base`` that peft is to put them on. ``whole`` are modules
    that were trained whole, by their names in it; ``files`` are further ones: texts, or tensors.

    Raises UserError where there are none, or the folder has something in it.
    """
    if not adapters or options is None:
        raise UserError("this model has no low-rank adapters (model.lora, model.experts); export it as hf")
    config = _peft().LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,
        lora_dropout=options.dropout,
        target_modules=list(targets),
        modules_to_save=list(whole) if whole else None,
        base_model_name_or_path=base,
        inference_mode=True,
    )
    config.target_modules = list(targets)  # peft makes a set of it, written in another order by each process
    tensors = {
        f"base_model.model.{adapter.name}.{name}.weight": weight.detach().cpu().contiguous()
        for adapter in adapters
        for name, weight in (("lora_A", adapter.first), ("lora_B", adapter.second))
    }
    for name, module in (whole or {}).items():
        weights = module.state_dict(prefix=f"base_model.model.{name}.")
        tensors |= {key: one.cpu().contiguous() for key, one in weights.items()}
    with whole_folder(folder) as temporary:
        config.save_pretrained(str(temporary))
        for file, content in {"adapter_model.safetensors": tensors, **(files or {})}.items():
            if isinstance(content, str):
                write_text(temporary / file, content)
            else:
                save_file(dict(content), temporary / file, metadata={"format": "pt"})


def write_own_adapter(
    model: nn.Module, options: LoraConfig | None, base: str | None, folder: Path, whole: Iterable[str] = ()
) -> None:
    """Write the low-rank adapters of ``model``, one of ours, by the names of its modules, with how they are loaded.

    ``base`` is the run that it began with; the modules ``whole`` were trained whole, and are written, too.

    ``options`` are those of the adapters. Raises UserError where there are none, or ``folder`` has something in it.
    """
    adapters = list(adapters_of(model))
    modules = {name: model.get_submodule(name) for name in whole}
    readme = README.format(run=base or "RUN", folder=folder.name)
    names = [adapter.name for adapter in adapters]
    write_adapter(adapters, options, names, base, folder, whole=modules, files={"README.md": readme})


README = """\
# Low-rank adapters of a Vaak model

In the format of peft, under the names of the model's modules in Vaak: no other software has this model. They belong to
the model that their run began with, here called `{run}`:

```python
import peft
import vaak

base = vaak.open("{run}").model  # of a run of several tasks: .model.tasks["NAME"]
model = peft.PeftModel.from_pretrained(base, "{folder}")
```

What was trained whole, such as a classifier's head, is in the file, too, and replaces the base's, which must have the
same shape. Vaak's commands read the run that was exported, not this folder.
"""
