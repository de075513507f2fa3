"""Builders of the update rules (``vaak.config.optimization.UPDATE_RULES``), and which parameters share a rate.

Matrices decay; norms, biases and other vectors don't. A layer's rate falls with its distance from the top by
``layer_decay`` (as in Clark et al. 2020, ELECTRA): embeddings and what follows them are below all layers, the head and
the last norm on top. The first number in a parameter's name is its layer. Of modules without one, those that their
parent has before its layers are below them, and those after are on top; a module with a ``layer_number`` says where it
is (-1: below). ``groups`` scale the rate or replace the decay by name.

Muon (Jordan et al. 2024) updates the hidden layers' matrices; AdamW the embeddings, heads, norms and biases. The
matrices' rate is scaled by √max(1, rows / columns), Jordan's rule (torch's ``original``): ``lr`` then is the spectral
size of an update, alike at every width. AdamW's rate means something else, so it has its own, a third of ``lr`` unless
given. Matrices of one shape are orthogonalised together (Newton-Schulz): fewer kernels are started than by the rule of
torch, and the bits are the same. Differs: on a CPU without bf16 in hardware, it is done in fp32 (``muon_dtype``).

A user's ``torch.optim.Optimizer`` is made with the same groups; what it keeps in ``state[parameter]`` or in its groups,
as tensors or plain values, is what a checkpoint keeps.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
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
from vaak.engine.precision import muon_dtype


def build_parameter_optimizers(
    parameters: list[NamedParameter], config: OptimizerConfig, folder: Path
) -> list[Optimizer]:
    """The optimizers of these parameters: one, or for muon two.

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
    return [_adam(AdamW, _groups(parameters, config), config, _fused(AdamW, parameters, config.fused))]


def adam(parameters: list[NamedParameter], config: OptimizerConfig) -> list[Optimizer]:
    return [_adam(Adam, _groups(parameters, config), config, _fused(Adam, parameters, config.fused))]


def sgd(parameters: list[NamedParameter], config: OptimizerConfig) -> list[Optimizer]:
    nesterov, fused = config.nesterov and config.momentum > 0, _fused(SGD, parameters, config.fused)
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


def muon_precision(device: torch.device) -> str:
    """The numbers in which Muon orthogonalises on a device, as text."""
    return str(muon_dtype(device)).removeprefix("torch.")


def muon(parameters: list[NamedParameter], config: OptimizerConfig) -> list[Optimizer]:
    """Muon for the hidden matrices, AdamW for the rest; either is left out where it has nothing to do."""
    if not hasattr(torch.optim, "Muon"):
        raise UserError(f"training.optimizer.type: muon needs torch 2.9 or newer; this is {torch.__version__}")
    matrices = [item for item in parameters if item.is_hidden_matrix]
    rest = [item for item in parameters if not item.is_hidden_matrix]
    num_layers = count_layers(parameters)
    optimizers: list[Optimizer] = []
    if matrices:
        groups = parameter_groups(matrices, config, config.lr, num_layers)
        # torch's own orthogonalises matrix by matrix; equal shapes are stacked here to launch fewer kernels
        rule = uncompiled(_stacked_muon(torch.optim.Muon))(
            groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov, adjust_lr_fn="original"
        )
        optimizers.append(rule)
    if rest:
        groups = parameter_groups(rest, config, config.adamw_lr or config.lr / 3, num_layers)
        optimizers.append(_adam(AdamW, groups, config, _fused(AdamW, rest, config.fused)))
    return optimizers


MOST_STACKED = 2**27
"""Bytes of the matrices that are orthogonalised together, or of a single one that is larger."""


@cache
def _stacked_muon(rule: Any) -> Any:
    """Return torch's Muon, but with matrices of one shape updated together."""
    return type(rule.__name__, (rule,), {"__module__": rule.__module__, "step": _muon_step})


@torch.no_grad()
def _muon_step(self: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
    """Update the matrices that have a gradient; returns what ``closure`` does."""
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    for group in self.param_groups:
        rounds: list[dict[tuple[Any, ...], list[Tensor]]] = [{}]
        size = 0
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter.grad)
            # a copy of each in its stack, and of its products: so much memory is bounded, whatever the model's size
            size += parameter.numel() * parameter.grad.dtype.itemsize
            if size > MOST_STACKED and rounds[-1]:
                rounds.append({})
                size = parameter.numel() * parameter.grad.dtype.itemsize
            shape = tuple(parameter.shape)
            if parameter.device.type != "cpu":
                # one on end is one lying down; on a CPU the products of a transposed matrix are rounded otherwise
                shape = (min(shape), max(shape))
            rounds[-1].setdefault((shape, parameter.device, parameter.grad.dtype), []).append(parameter)
        for stacks in rounds:
            in_order = [sorted(stack, key=lambda one: one.shape[0] <= one.shape[1]) for stack in stacks.values()]
            if in_order:
                _update_stacks(in_order, self.state, group)
    return loss


def _update_stacks(stacks: list[list[Tensor]], states: Mapping[Tensor, Any], group: dict[str, Any]) -> None:
    """Update matrices; those of a stack have one shape when they lie down. What is no product is done for all at once.

    Where a stack has standing matrices, they come first.
    """
    parameters = [one for stack in stacks for one in stack]
    gradients = [one.grad for one in parameters if one.grad is not None]
    momenta = [states[one]["momentum_buffer"] for one in parameters]
    torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
    towards = torch._foreach_lerp(gradients, momenta, group["momentum"]) if group["nesterov"] else momenta
    torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
    # Newton-Schulz: X ← aX + b(XXᵀ)X + c(XXᵀ)²X moves all singular values towards 1. In 16 bits where they are quicker,
    # since it needn't be exact; and lying down, so that the product XXᵀ is the smaller one.
    a, b, c = group["ns_coefficients"]
    sizes = [len(stack) for stack in stacks]
    lying = [_stack_lying(parts) for parts in _split(towards, sizes)]
    norms = torch._foreach_norm([one for x in lying for one in x.unbind()])
    for stack, x, of_stack in zip(stacks, lying, _split(norms, sizes), strict=True):
        x = x / torch.stack(of_stack).clamp(min=group["eps"])[:, None, None]
        for _ in range(group["ns_steps"]):
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        x, standing = x.to(stack[0].dtype), sum(one.shape[0] > one.shape[1] for one in stack)
        for own, change in ((stack[:standing], x[:standing].mT), (stack[standing:], x[standing:])):
            if own:
                rows, columns = own[0].shape
                scale = group["lr"] * max(1.0, rows / columns) ** 0.5
                # side by side in memory as weights are, or CUDA would add each by itself
                torch._foreach_add_(own, change.contiguous().unbind(), alpha=-scale)


def _stack_lying(matrices: list[Tensor]) -> Tensor:
    """Return matrices as ``(matrix, row, column)`` with no more rows than columns, in the numbers of Muon's products.

    Where all stand, a transposed view: on a CPU its products are rounded as those of a single transposed matrix.
    """
    dtype, is_standing = muon_dtype(matrices[0].device), [one.shape[0] > one.shape[1] for one in matrices]
    if all(is_standing):
        return torch.stack(matrices).to(dtype).mT
    return torch.stack([one.mT if stands else one for one, stands in zip(matrices, is_standing, strict=True)]).to(dtype)


def _split(values: Sequence[Tensor], sizes: Iterable[int]) -> list[list[Tensor]]:
    """Return the values in lists of these sizes."""
    left = iter(values)
    return [list(islice(left, size)) for size in sizes]


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


def _adam(
    rule: Callable[..., Optimizer], groups: list[dict[str, Any]], config: OptimizerConfig, fused: bool
) -> Optimizer:
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


def _fused(rule: Callable[..., Optimizer], parameters: list[NamedParameter], wanted: bool | None) -> bool:
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
    """The parameters that need a gradient, each once, in the order of the model.

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
    """The layer of every parameter by all its names, as if there were neither embeddings nor heads."""
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
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
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
    """The optimizer of ``config.type``; ``folder`` is where a ``./file.py`` is looked for.

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
