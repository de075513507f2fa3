"""What the backward pass computes again instead of keeping it, in stacks and in networks of transformers.

                  stacks of vaak.nn                            networks of transformers
    False         nothing                                      nothing
    "attention"   attention with its norm                      attention
    True          each block                                   each layer, by transformers' own option
    "all"         each block, and groups of blocks             refused

The same dropout is drawn a second time, so no bit of training changes.

Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from vaak.config.training import Recomputation
from vaak.core.errors import UserError
from vaak.nn.lora_experts import LoraExperts, Routing

RECOMPUTES = "training.performance.gradient_checkpointing"


def set_gradient_checkpointing(model: nn.Module, parts: Recomputation) -> int:
    """Have a model recompute these ``parts`` in the backward pass; return how many of its modules can.

    These are the modules that have a method ``recompute(parts)``, and networks of transformers. Raises UserError for
    parts that one of them can't recompute alone.
    """
    found = 0
    for module in _find_networks(model):
        if callable(getattr(module, "recompute", None)):
            module.recompute(parts)
        else:
            recompute_layers(module, parts)
        found += 1
    return found


def _find_networks(model: Any) -> Iterator[Any]:
    """Yield the outermost modules that recompute, each once."""
    waiting, seen = [model], set[int]()
    while waiting:
        module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        if callable(getattr(module, "recompute", None)) or callable(
            getattr(module, "gradient_checkpointing_enable", None)
        ):
            yield module
        else:
            waiting += module.children()


def recompute_layers(network: Any, parts: Recomputation) -> None:
    """Have a network of transformers recompute its layers, their attention alone, or nothing.

    Raises UserError where it can't.
    """
    kind = f"{RECOMPUTES}: {network.config.model_type} of transformers"
    attention = list(_find_attention(network)) if parts == "attention" else []
    if parts == "all":
        raise UserError(f"{kind} has no groups of layers; set it to block")
    if parts is True and not network.supports_gradient_checkpointing:
        raise UserError(f"{kind} doesn't have it")
    if parts == "attention" and not attention:
        raise UserError(f"{kind}: which part of a layer is attention isn't known; set it to block")
    for module in network.modules():
        if isinstance(vars(module).get("forward"), RecomputedForward):
            del module.forward
    routing = next((one.routing for one in network.modules() if isinstance(one, LoraExperts)), None)
    for module in attention:
        module.forward = RecomputedForward(module.forward, routing)
    _set_layers(network, parts is True, routing)


def _set_layers(network: Any, on: bool, routing: Routing | None) -> None:
    if on == any(getattr(module, "gradient_checkpointing", False) for module in network.modules()):
        return
    # Its name since transformers 5.22.
    new = "activation" if hasattr(network, "activation_checkpointing_enable") else "gradient"
    with warnings.catch_warnings():
        if not on:
            getattr(network, f"{new}_checkpointing_disable")()
            return
        getattr(network, f"{new}_checkpointing_enable")(_options(routing))
    # Embeddings whose outputs require gradients are of use to reentrant checkpoints alone.
    if network.main_input_name == "input_ids":
        network.disable_input_require_grads()


def _options(routing: Routing | None) -> dict[str, Any]:
    """Return the options of a checkpoint: experts are again those that the rows chose in the forward pass."""
    options: dict[str, Any] = {"use_reentrant": False}
    return options if routing is None else {**options, "context_fn": partial(_keep_choices, routing)}


def _keep_choices(routing: Routing) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return contexts of the forward pass, where the rows have chosen, and of what is computed again."""
    return nullcontext(), routing.of(routing.choices)


def _find_attention(network: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost modules in layers that are attention by the names of their classes."""
    waiting = [*network.children()]
    while waiting:
        module = waiting.pop()
        name = type(module).__name__
        if "Attention" in name and any(True for _ in module.parameters()):
            yield module
        else:
            waiting += module.children()


class RecomputedForward:
    """A module's ``forward`` that keeps its inputs alone in training."""

    def __init__(self, forward: Any, routing: Routing | None) -> None:
        """``forward`` is a bound method; ``routing`` says which experts it has, if any."""
        self.forward, self.routing = forward, routing

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self.forward.__self__.training and torch.is_grad_enabled():
            return checkpoint(self.forward, *args, **_options(self.routing), **options)
        return self.forward(*args, **options)
