"""Builders of the update rules (``vaak.config.optimization.UPDATE_RULES``), and which parameters share a rate.

Matrices decay; norms, biases and other vectors don't. A layer's rate falls with its distance from the top by
``layer_decay`` (as in Clark et al. 2020, ELECTRA): embeddings and what follows them are below all layers, the head and
the last norm on top. The first number in a parameter's name is its layer. Of modules without one, those that their
parent has before its layers are below them, and those after are on top; a module with a ``layer_number`` says where it
is (-1: below). ``groups`` scale the rate or replace the decay by name.

A user's ``torch.optim.Optimizer`` is made with the same groups; what it keeps in ``state[parameter]`` or in its groups,
as tensors or plain values, is what a checkpoint keeps.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, Adam, AdamW, Optimizer

from vaak.config.components import check_options, resolve_component
from vaak.config.optimization import UPDATE_RULES, OptimizerConfig, ParameterGroupConfig
from vaak.config.tasks import load_name
from vaak.core.errors import UserError
from vaak.core.out_of_memory import is_out_of_memory
from vaak.core.torch_internals import uncompiled
from vaak.engine.distributed.sharding import is_sharded
from vaak.engine.optim.schedules import compile_pattern


def build_parameter_optimizers(
    parameters: list[NamedParameter], config: OptimizerConfig, folder: Path
) -> list[Optimizer]:
    """Return the optimizers of these parameters: one, or for muon two.

    Raises UserError without parameters, where fused kernels are wanted and don't exist, or where a user's class
    doesn't fit.
    """
    if not parameters:
        raise UserError("the model has no trainable parameters: all are frozen")
    if config.is_users(config.type):
        return [users_optimizer(_groups(parameters, config), config, folder)]
    optimizers: list[Optimizer] = load_name(UPDATE_RULES[config.type].builder)(parameters, config)
    return optimizers


def adamw(parameters: list[NamedParameter], config: OptimizerConfig) -> list[Optimizer]:
    return [adam_rule(AdamW, _groups(parameters, config), config, has_fused_kernels(AdamW, parameters, config.fused))]


def adam(parameters: list[NamedParameter], config: OptimizerConfig) -> list[Optimizer]:
    return [adam_rule(Adam, _groups(parameters, config), config, has_fused_kernels(Adam, parameters, config.fused))]


def sgd(parameters: list[NamedParameter], config: OptimizerConfig) -> list[Optimizer]:
    nesterov, fused = config.nesterov and config.momentum > 0, has_fused_kernels(SGD, parameters, config.fused)
    rule = uncompiled(SGD)(
        _groups(parameters, config), lr=config.lr, momentum=config.momentum, nesterov=nesterov, fused=fused
    )
    if fused and config.momentum > 0:
        rule.register_step_pre_hook(_begin_momentum)
    return [rule]


def adafactor(parameters: list[NamedParameter], config: OptimizerConfig) -> list[Optimizer]:
    return [uncompiled(Adafactor)(_groups(parameters, config), lr=config.lr)]


def lion(parameters: list[NamedParameter], config: OptimizerConfig) -> list[Optimizer]:
    return [uncompiled(Lion)(_groups(parameters, config), lr=config.lr, betas=config.betas)]


def _groups(parameters: list[NamedParameter], config: OptimizerConfig) -> list[dict[str, Any]]:
    return parameter_groups(parameters, config, config.lr, count_layers(parameters))


def update_condition(config: OptimizerConfig, device: torch.device) -> dict[str, str]:
    """Return what the bits of updates depend on in a machine, by its name; empty where that is nothing.

    >>> update_condition(OptimizerConfig(type="muon"), torch.device("meta"))
    {'muon': 'bfloat16'}
    """
    rule = UPDATE_RULES.get(config.type)
    if rule is None or rule.condition is None:
        return {}
    return {rule.condition.name: load_name(rule.condition.value)(device)}


def _begin_momentum(optimizer: Optimizer, *_: Any) -> None:
    """Give a zero momentum to each parameter that gets its first gradient after others got theirs.

    It may have been frozen, or not been reached by a batch. torch 2.13's fused SGD fails there: it makes the momenta
    for all parameters or for none.
    """
    if optimizer.state:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not optimizer.state.get(parameter):
                    optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def adam_rule(
    rule: Callable[..., Optimizer], groups: list[dict[str, Any]], config: OptimizerConfig, fused: bool
) -> Optimizer:
    """Return Adam or AdamW of torch, as ``rule`` says, with these groups."""
    optimizer: Optimizer = uncompiled(rule)(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused)
    vars(optimizer)[OBEYS] = fused
    return optimizer


OBEYS = "obeys_found_inf"


def obeys_found_inf(optimizer: Optimizer, of_others: Container[Tensor]) -> bool:
    """Return whether ``given_found_inf`` keeps its next step from changing anything: that of fused Adam and AdamW.

    Not the first one of a parameter, which makes its moments, and not where parameters are divided over ranks; those
    ``of_others`` it doesn't update.
    """
    return bool(vars(optimizer).get(OBEYS)) and all(
        parameter in optimizer.state and not is_sharded(parameter)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None and parameter not in of_others
    )


@contextlib.contextmanager
def given_found_inf(optimizer: Optimizer, found_inf: Tensor) -> Iterator[None]:
    """Within this context, a step of an optimizer that obeys it changes no bits where ``found_inf`` is 1."""
    vars(optimizer)["found_inf"] = found_inf
    try:
        yield
    finally:
        del vars(optimizer)["found_inf"]


def has_fused_kernels(rule: Callable[..., Optimizer], parameters: list[NamedParameter], wanted: bool | None) -> bool:
    """Return whether to use fused kernels. Raises UserError where they are wanted and don't exist."""
    if wanted is False or (rule is SGD and any(is_sharded(item.parameter) for item in parameters)):
        # torch divides Adam's over processes, not SGD's.
        return False
    kinds = {(item.parameter.device, item.parameter.dtype) for item in parameters}
    lacking = [kind for kind in kinds if not _has_fused(rule, *kind)]
    if wanted and lacking:
        device, dtype = lacking[0]
        raise UserError(
            f"training.optimizer.fused: no fused kernels for {dtype} on {device.type}; leave the option out"
        )
    return not lacking


@cache
def _has_fused(rule: Callable[..., Optimizer], device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether a rule's fused kernel updates a number of this kind, found by doing it once."""
    number = torch.zeros(1, device=device, dtype=dtype, requires_grad=True)
    number.grad = torch.zeros_like(number)
    try:
        uncompiled(rule)([number], lr=0.1, fused=True).step()
    except RuntimeError as error:
        if is_out_of_memory(error):
            # It would be taken for an answer until the process ends.
            raise
        return False
    return True


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
    """Return the parameters that need a gradient, each once, in the order of the model.

    A head is a module with ``is_output_head = True``, or a linear layer whose name ends in ``head``; an embedding, one
    with ``is_embedding = True``, or torch's.
    """
    tables = (module for module in model.modules() if isinstance(module, nn.Embedding))
    # Not their weight, which is computed where some of its rows are trained (vaak.nn.new_tokens).
    embeddings = {id(one) for table in tables for one in table.parameters(recurse=False)}
    trained: dict[int, NamedParameter] = {}
    layers = _layers(model)
    for path, module in model.named_modules():
        named_head = isinstance(module, nn.Linear) and path.endswith("head")
        is_head = bool(getattr(module, "is_output_head", named_head))
        for name, parameter in module.named_parameters(path, recurse=False):
            if parameter.requires_grad and id(parameter) not in trained:
                is_embedding = id(parameter) in embeddings or bool(getattr(module, "is_embedding", False))
                layer = -1 if is_embedding else None if is_head else layers[name]
                trained[id(parameter)] = NamedParameter(name, parameter, module, is_embedding, is_head, layer)
    return list(trained.values())


def _layers(model: nn.Module) -> dict[str, int | None]:
    """Return the layer of every parameter by all its names, as if there were neither embeddings nor heads."""
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    said = {
        f"{path}.": module.layer_number for path, module in model.named_modules() if hasattr(module, "layer_number")
    }
    found: dict[str, int | None] = {}
    first: dict[str, int] = {}
    """The place of the first parameter with a number in the modules of each module that has layers."""
    for index, name in enumerate(names):
        numbered = re.match(r"((?:\D[^.]*\.)*?)(\d+)\.", name)
        found[name] = int(numbered[2]) if numbered else None
        if numbered:
            for parent in _parents(numbered[1]):
                first.setdefault(parent, index)
    # A name without a number belongs below the layers where its parent has it before them (an embedding's norm), and
    # on top where after them (the last norm); a module's own declaration takes precedence.
    for index, name in enumerate(names):
        with_layers = next((parent for parent in _parents(name) if parent in first), None)
        if found[name] is None and with_layers is not None and index < first[with_layers]:
            found[name] = -1
        found[name] = next((said[path] for path in said if name.startswith(path)), found[name])
    return found


def _parents(name: str) -> list[str]:
    """Return the modules around the one that has a parameter, or around a list of layers, the nearest first.

    >>> _parents("encoder.embeddings.norm.weight")
    ['encoder.embeddings.', 'encoder.', '']
    """
    parts = name.split(".")[:-2]
    return ["".join(f"{part}." for part in parts[:length]) for length in range(len(parts), -1, -1)]


def count_layers(parameters: Sequence[NamedParameter]) -> int:
    """Return the largest layer number and one."""
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
        is_bias, is_norm = item.name.rsplit(".", 1)[-1] == "bias", "Norm" in type(item.module).__name__
        default_decay = 0.0 if is_bias or is_norm or item.parameter.ndim < 2 else config.weight_decay
        decay = default_decay if chosen.weight_decay is None else chosen.weight_decay
        empty = {"params": [], "names": [], "lr": rate, "base_lr": rate, "weight_decay": decay}
        group = groups.setdefault((rate, decay), empty)
        group["params"].append(item.parameter)
        group["names"].append(item.name)
    return list(groups.values())


def check_groups(parameters: Sequence[NamedParameter], config: OptimizerConfig) -> None:
    """Raise UserError where ``groups`` has an invalid pattern, or one that matches no parameter.

    Warns where ``layer_decay`` can change no rate, as no trained parameter is in a layer with a number.
    """
    names = [item.name for item in parameters]
    if config.layer_decay != 1 and not count_layers(parameters):
        log.warning("training.optimizer.layer_decay has no effect: no trained parameter is in a layer with a number")
    for group in config.groups:
        compile_pattern(group.match, names, "training.optimizer.groups", "trained parameter")


log = logging.getLogger("vaak")


def evaluate_closure(closure: Callable[[], Any] | None) -> Any:
    """Return what the closure of an optimizer's step returns, computed with gradients; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class Lion(Optimizer):
    """Keeps one moment; its rate is usually 3 to 10 times smaller than AdamW's, and its decay as much larger."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have a gradient; returns what ``closure`` does."""
        loss = evaluate_closure(closure)
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            for parameter in parameters:
                if not self.state[parameter]:
                    self.state[parameter]["momentum"] = torch.zeros_like(parameter)
            gradients = [parameter.grad for parameter in parameters]
            momenta = [self.state[parameter]["momentum"] for parameter in parameters]
            first, second = group["betas"]

            # Lion keeps its momentum by another beta than it steps by, so the direction is not the stored momentum
            directions = torch._foreach_lerp(momenta, gradients, 1 - first)
            torch._foreach_sign_(directions)
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(parameters, directions, alpha=-group["lr"])
            torch._foreach_lerp_(momenta, gradients, 1 - second)
        return loss


def users_optimizer(groups: list[dict[str, Any]], config: OptimizerConfig, folder: Path) -> Optimizer:
    """Return the optimizer of ``config.type``; ``folder`` is where a ``./file.py`` is looked for.

    Raises UserError for a class that isn't an optimizer, needs a closure, or lacks one of the options.
    """
    key, name = config.key, config.type
    found = resolve_component(key, name, folder)
    if not (isinstance(found, type) and issubclass(found, Optimizer)):
        raise UserError(f"{key}: {name} is not a torch.optim.Optimizer class")
    try:
        inspect.signature(found.step).bind(None)
    except TypeError as error:
        raise UserError(
            f"{key}: step() of {name} needs a closure, and training calls it without; choose another"
        ) from error
    known = check_options(key, name, found, config.options, reserved=("params", "lr"))
    # a class with **kwargs isn't known in full: it gets a rate unless its signature shows that it takes none
    rate: dict[str, Any] = {"lr": config.lr} if known is None or "lr" in inspect.signature(found).parameters else {}
    try:
        made = found(groups, **rate, **config.options)
    except (TypeError, ValueError) as error:
        raise UserError(f"{key}: {name} can't be created: {error}") from error
    if config.weight_decay and "weight_decay" not in made.defaults:
        log.warning("%s.weight_decay: %s has no weight decay, so nothing decays", key, name)
    return made
