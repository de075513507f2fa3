"""How classifiers of transformers say what ours do, though they have one layer more before the classes.

tanh     the layer becomes a small multiple of the identity, where tanh is one, too; the classes' weights undo it
pairs    gelu(x) - gelu(-x) = x, and so of relu: the layer has each class's score and its negative, which are subtracted

ModernBERT also normalises after the layer. Numbers far smaller than the epsilon of its norm are only scaled by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

SHRUNK = 1e-4
"""tanh(x · SHRUNK) / SHRUNK is x but for x³ · 3e-9."""
TINY = 1e-6
"""Scores times this are what a norm only scales."""


class Head(NamedTuple):
    """The layer before the classes, and that of the classes, by their names in a classifier of transformers."""

    before: str
    classes: str
    pairs: bool = False
    norm: str | None = None
    poolings: Mapping[str, str] = {"first": "cls"}
    """What it can pool by, in our words and its configuration's."""

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of all modules of the head."""
        return (self.before, *((self.norm,) if self.norm else ()), self.classes)


HEADS = {
    "bert": Head("bert.pooler.dense", "classifier"),
    "albert": Head("albert.pooler", "classifier"),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "mpnet"), Head("classifier.dense", "classifier.out_proj")),
    "electra": Head("classifier.dense", "classifier.out_proj", pairs=True),
    "distilbert": Head("pre_classifier", "classifier", pairs=True),
    **dict.fromkeys(("deberta", "deberta-v2"), Head("pooler.dense", "classifier", pairs=True)),
    "modernbert": Head("head.dense", "classifier", True, "head.norm", {"first": "cls", "mean": "mean"}),
}
"""By the kind of encoder."""
OPTIONS = {"pooler_hidden_act": "gelu", "classifier_activation": "gelu"}
"""Of a configuration, where it has them and the head is of pairs."""


def configured(config: Any, head: Head, pooling: str) -> Any:
    """The configuration of a classifier with such a head."""
    given = {"classifier_pooling": head.poolings[pooling], **(OPTIONS if head.pairs else {})}
    config.update({name: value for name, value in given.items() if hasattr(config, name)})
    return config


@torch.no_grad()
def write_head(peer: nn.Module, head: Head, weight: Tensor, bias: Tensor) -> None:
    """Give ``peer``, a classifier of transformers, the scores ``weight · x + bias`` of what it pools.

    A head of pairs holds half as many classes as it is wide.
    """
    before, classes = peer.get_submodule(head.before), peer.get_submodule(head.classes)
    layers = _layers(head, weight, len(_tensor(before, "weight")), _epsilon(peer, head))
    for module, value in zip((before, classes), layers, strict=True):
        _tensor(module, "weight").copy_(value)
    _tensor(classes, "bias").copy_(bias)
    for name in (head.before, head.norm):
        module_bias = getattr(peer.get_submodule(name), "bias", None) if name else None
        if module_bias is not None:
            module_bias.zero_()
    if head.norm:
        _tensor(peer.get_submodule(head.norm), "weight").fill_(1.0)


def read_head(head: Head, tensors: Mapping[str, Tensor], epsilon: float) -> tuple[Tensor, Tensor] | None:
    """The weights and biases that ``write_head`` wrote; None where a head isn't one of those."""
    before, classes = (tensors.get(f"{name}.weight") for name in (head.before, head.classes))
    bias = tensors.get(f"{head.classes}.bias")
    if before is None or classes is None or bias is None:
        return None
    number = len(classes)
    weight = before[:number] / _scales(head, epsilon)[0] if head.pairs else classes * SHRUNK
    if head.pairs and 2 * number > len(before):
        return None
    again = _layers(head, weight, len(before), epsilon)
    others = [tensors.get(f"{name}.bias") for name in (head.before, head.norm) if name]
    if any(one is not None and one.any() for one in others):
        return None
    pairs = zip((before, classes), again, strict=True)
    return (weight, bias) if all(torch.allclose(one, ours, rtol=1e-5, atol=0) for one, ours in pairs) else None


def _layers(head: Head, weight: Tensor, width: int, epsilon: float) -> tuple[Tensor, Tensor]:
    """The weights of both layers, the first with ``width`` outputs."""
    if not head.pairs:
        return SHRUNK * torch.eye(width), weight / SHRUNK
    number = len(weight)
    shrunk, scale = _scales(head, epsilon)
    before, classes = weight.new_zeros(width, weight.shape[1]), weight.new_zeros(number, width)
    before[: 2 * number] = shrunk * torch.cat([weight, -weight])
    classes[:, : 2 * number] = scale * torch.cat([torch.eye(number), -torch.eye(number)], 1)
    return before, classes


def _scales(head: Head, epsilon: float) -> tuple[float, float]:
    """By what scores are multiplied in the first layer, and in the second."""
    return (TINY, epsilon**0.5 / TINY) if head.norm else (1.0, 1.0)


def _epsilon(peer: nn.Module, head: Head) -> float:
    norm: Any = peer.get_submodule(head.norm) if head.norm else None
    return 0.0 if norm is None else float(norm.eps)


def _tensor(module: nn.Module, name: str) -> Tensor:
    found: Tensor = getattr(module, name)
    return found
