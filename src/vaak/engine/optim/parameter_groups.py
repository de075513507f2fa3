"""Which parameters share a learning rate and a weight decay.

Matrices decay; norms, biases and other vectors don't. A layer's rate falls with its distance from the top by
``layer_decay`` (as in Clark et al. 2020, ELECTRA): embeddings and what follows them are below all layers, the head and
the last norm on top. The first number in a parameter's name is its layer. Of modules without one, those that their
parent has before its layers are below them, and those after are on top; a module with a ``layer_number`` says where it
is (-1: below). ``groups`` scale the rate or replace the decay by name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from vaak.config.optimization import OptimizerConfig, ParameterGroupConfig
from vaak.core.errors import UserError


@dataclass(frozen=True)
class NamedParameter:
    """A parameter that is trained, by its first name; tied names stand for one parameter."""

    name: str
    parameter: nn.Parameter
    module: nn.Module
    is_embedding: bool
    is_head: bool
    layer: int | None = None
    """The number of the layer that it is in: -1 below all layers, None above them."""

    @property
    def is_hidden_matrix(self) -> bool:
        """Whether Muon may update it: a matrix between two hidden layers."""
        return self.parameter.ndim == 2 and not (self.is_embedding or self.is_head)


def trained_parameters(model: nn.Module) -> list[NamedParameter]:
    """The parameters that need a gradient, each once, in the order of the model.

    A head is a module that says so by ``is_output_head = True``, or a linear layer whose name ends in ``head``.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    trained: dict[int, NamedParameter] = {}
    layers = _layers(model)
    for path, module in model.named_modules():
        named_head = isinstance(module, nn.Linear) and path.endswith("head")
        is_head = bool(getattr(module, "is_output_head", named_head))
        for name, parameter in module.named_parameters(path, recurse=False):
            if parameter.requires_grad and id(parameter) not in trained:
                is_embedding = id(parameter) in embeddings
                layer = -1 if is_embedding else None if is_head else layers[name]
                trained[id(parameter)] = NamedParameter(name, parameter, module, is_embedding, is_head, layer)
    return list(trained.values())


def _layers(model: nn.Module) -> dict[str, int | None]:
    """The layer of every parameter by all its names, as if there were neither embeddings nor heads."""
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    said = {
        f"{path}.": module.layer_number for path, module in model.named_modules() if hasattr(module, "layer_number")
    }
    found: dict[str, int | None] = {}
    first: dict[str, int] = {}
    """The place of the first parameter with a number in the modules of each module that has layers."""
    for place, name in enumerate(names):
        numbered = re.match(r"((?:\D[^.]*\.)*?)(\d+)\.", name)
        found[name] = int(numbered[2]) if numbered else None
        if numbered:
            for parent in _parents(numbered[1]):
                first.setdefault(parent, place)
    for place, name in enumerate(names):
        with_layers = next((parent for parent in _parents(name) if parent in first), None)
        if found[name] is None and with_layers is not None and place < first[with_layers]:
            found[name] = -1
        found[name] = next((said[path] for path in said if name.startswith(path)), found[name])
    return found


def _parents(name: str) -> list[str]:
    """The modules around the one that has a parameter, or around a list of layers, the nearest first.

    >>> _parents("encoder.embeddings.norm.weight")
    ['encoder.embeddings.', 'encoder.', '']
    """
    parts = name.split(".")[:-2]
    return ["".join(f"{part}." for part in parts[:length]) for length in range(len(parts), -1, -1)]


def count_layers(parameters: Sequence[NamedParameter]) -> int:
    """The largest layer number and one."""
    return 1 + max((item.layer for item in parameters if item.layer is not None), default=-1)


def parameter_groups(
    parameters: Sequence[NamedParameter], config: OptimizerConfig, lr: float, num_layers: int
) -> list[dict[str, Any]]:
    """Groups for a torch optimizer: ``params``, their ``names``, ``weight_decay``, ``lr``, and its peak ``base_lr``."""
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for item in parameters:
        matching = (group for group in config.groups if re.search(group.match, item.name))
        chosen = next(matching, ParameterGroupConfig(match=""))
        layers_below_top = 0 if item.layer is None else num_layers - item.layer
        rate = lr * chosen.lr_scale * config.layer_decay**layers_below_top
        decay = _default_decay(item, config) if chosen.weight_decay is None else chosen.weight_decay
        empty = {"params": [], "names": [], "lr": rate, "base_lr": rate, "weight_decay": decay}
        group = groups.setdefault((rate, decay), empty)
        group["params"].append(item.parameter)
        group["names"].append(item.name)
    return list(groups.values())


def check_groups(parameters: Sequence[NamedParameter], config: OptimizerConfig) -> None:
    """Raise UserError where ``groups`` has an invalid pattern, or one that matches no parameter."""
    for group in config.groups:
        try:
            pattern = re.compile(group.match)
        except re.error as error:
            raise UserError(
                f"training.optimizer.groups: {group.match!r} is not a valid regular expression: {error}"
            ) from error
        if not any(pattern.search(item.name) for item in parameters):
            some = ", ".join(item.name for item in parameters[:: max(1, len(parameters) // 5)][:5])
            raise UserError(f"training.optimizer.groups: {group.match!r} matches no trained parameter; some are {some}")


def _default_decay(item: NamedParameter, config: OptimizerConfig) -> float:
    is_bias = item.name.rsplit(".", 1)[-1] == "bias"
    is_norm = "Norm" in type(item.module).__name__
    return 0.0 if is_bias or is_norm or item.parameter.ndim < 2 else config.weight_decay
