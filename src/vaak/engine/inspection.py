"""A look at what each module of a model gives: where a number is first not finite, and which units give nothing.

Hooks on all modules follow who calls whom. A module whose *input* is broken, though no module before it has broken
output, isn't to blame. The fault is in its caller's code between two modules (attention scores, say), and the caller is
named. Backwards it is the same: what a module's inputs are given as gradient is its own work, what comes to its output
is its caller's. Negative infinity alone is not a sign of a mistake (masks are made of it); NaN and positive infinity
are. A unit is dead where a layer's input is 0 in every row and at every place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from vaak.core.batch import Batch, Term

ROOT = "model"


@dataclass(frozen=True)
class ModuleStatistics:
    """The output of one call of a module: mean, standard deviation and absolute maximum of its finite values.

    ``non_finite`` is the fraction of those that aren't. ``shape`` is the first tensor's, where there are several.
    """

    module: str
    kind: str
    shape: tuple[int, ...]
    mean: float
    std: float
    absolute_maximum: float
    non_finite: float


@dataclass(frozen=True)
class ModulePlace:
    """A module and where about it: ``output``, ``input``, ``inside, before X``, and for gradients further ones."""

    module: str
    where: str
    parameter: str | None = None


@dataclass(frozen=True)
class NonFiniteFinding:
    """The first thing that is not finite; ``kind`` is weight, data, output, loss or gradient.

    Given are those that apply: the ``parameter`` or buffer, the ``tensor`` of the batch, the ``loss``, and the
    ``place`` in the model.
    """

    kind: str
    place: ModulePlace | None = None
    parameter: str | None = None
    tensor: str | None = None
    loss: str | None = None


@dataclass
class _Call:
    """A module that is being called, its caller, and the tensors it was given that take part in the backward pass."""

    name: str
    caller: str | None
    inputs: list[Tensor] = field(default_factory=list)

    def received(self, value: Any) -> Any:
        """Return the same tensor, with a separate gradient: that of this call only."""
        if not (isinstance(value, Tensor) and value.requires_grad):
            return value
        self.inputs.append(value.view_as(value))
        return self.inputs[-1]


class Watch:
    """A forward pass as seen: ``statistics`` in the order in which modules completed, and the ``first`` broken place.

    ``backward`` runs the backward pass of what was watched, after the ``with`` of ``watching``; ``first_gradient`` is
    then the place where a gradient was first not finite.
    """

    def __init__(self, model: nn.Module) -> None:
        self.statistics: list[ModuleStatistics] = []
        self.first: ModulePlace | None = None
        self.first_gradient: ModulePlace | None = None
        self.model = model
        self._names = {module: name or ROOT for name, module in model.named_modules()}
        self._calls: list[_Call] = []
        # For each tensor, the outermost call that gave it.
        self._makers: Any = WeakTensorKeyDictionary()

    def backward(self, descend: Callable[[], None]) -> None:
        """Run a backward pass and note where a gradient is first not finite."""
        with contextlib.ExitStack() as hooks:
            for name, parameter in self.model.named_parameters():
                if parameter.requires_grad:
                    place = ModulePlace(name.rpartition(".")[0] or ROOT, "gradient of a weight", name)
                    hooks.enter_context(parameter.register_hook(partial(self._note_gradient, place)))
            descend()

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = _Call(self._names[module], self._calls[-1].name if self._calls else None)
        if self.first is None and _is_broken((args, kwargs)):
            self.first = (
                ModulePlace(call.caller, f"inside, before {call.name}")
                if call.caller
                else ModulePlace(call.name, "input")
            )
        self._calls.append(call)
        return tuple(map(call.received, args)), {name: call.received(value) for name, value in kwargs.items()}

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        call = self._calls.pop()
        numbers = list(_numbers(output))
        if numbers:
            self.statistics.append(_statistics(call.name, type(module).__name__, numbers))
        if self.first is None and _is_broken(output):
            self.first = ModulePlace(call.name, "output")
        for tensor in tensors_in(output):
            if tensor.requires_grad:
                if tensor not in self._makers:
                    # This comes before the hooks of inputs: a module may return what it was given.
                    tensor.register_hook(partial(self._note_gradient_of_output, made := [call]))
                    self._makers[tensor] = made
                self._makers[tensor][0] = call
        for tensor in call.inputs:
            tensor.register_hook(partial(self._note_gradient, ModulePlace(call.name, "backward")))

    def _note_gradient(self, place: ModulePlace, gradient: Tensor) -> None:
        if self.first_gradient is None and not gradient.isfinite().all():
            self.first_gradient = place

    def _note_gradient_of_output(self, made: list[_Call], gradient: Tensor) -> None:
        call = made[0]
        if call.caller is None:
            self._note_gradient(ModulePlace(call.name, "gradient of its output"), gradient)
        else:
            self._note_gradient(ModulePlace(call.caller, f"backward, after {call.name}"), gradient)


@contextlib.contextmanager
def watching(model: nn.Module) -> Iterator[Watch]:
    """Watch the inputs and outputs of every module of ``model``; its draws and outputs stay the same.

    Gradients are those of the unwatched model to rounding: what reaches a tensor by several paths may be added up in
    another order. Of a compiled model the plain one is watched: call that one. Nothing that was computed is kept alive.
    """
    watch = Watch(getattr(model, "_orig_mod", model))
    with contextlib.ExitStack() as hooks:
        for module in watch._names:
            hooks.enter_context(module.register_forward_pre_hook(watch._enter, with_kwargs=True))
            hooks.enter_context(module.register_forward_hook(watch._leave, with_kwargs=True))
        yield watch


@dataclass(frozen=True)
class Inspection:
    """One batch, forward and backward: the first non-finite value, if any, the terms' totals, every module."""

    finding: NonFiniteFinding | None
    losses: dict[str, float]
    splittable: bool
    statistics: list[ModuleStatistics]


def first_non_finite(
    model: nn.Module,
    batch: Batch,
    compute_terms: Callable[[Batch], dict[str, Term]],
    descend: Callable[[dict[str, Term]], None],
) -> Inspection:
    """Return the first non-finite value in the losses of a batch or, where these are finite, in their gradient.

    ``compute_terms`` must call the plain ``model``; ``descend`` runs the backward pass of the terms. Gradients are
    added to those that the parameters have.
    """
    with watching(model) as watch:
        terms = compute_terms(batch)
    losses = {name: float(term.total.detach()) for name, term in terms.items()}
    loss = next((name for name, value in losses.items() if not math.isfinite(value)), None)
    finding = None
    if loss is not None:
        finding = _find_in_forward(watch, batch, loss)
    elif terms:
        watch.backward(lambda: descend(terms))
        if watch.first_gradient is not None:
            finding = NonFiniteFinding("gradient", watch.first_gradient, parameter=watch.first_gradient.parameter)
    return Inspection(finding, losses, all(term.splittable for term in terms.values()), watch.statistics)


def culprits(batch: Batch, is_finite: Callable[[Batch], bool]) -> list[int]:
    """Return the indices of the examples in the fewest rows of a batch that, by themselves, are not finite.

    Halves are tried, and halves of those. Where neither half shows it, their rows are to blame together.
    """
    if batch.num_rows > 1:
        guilty = [half for half in batch.split(2) if not is_finite(half)]
        if guilty:
            return [index for half in guilty for index in culprits(half, is_finite)]
    return [index for row in batch.indices for index in row]


def _find_in_forward(watch: Watch, batch: Batch, loss: str) -> NonFiniteFinding:
    """Return where a loss that isn't finite comes from: a weight, the data, a module, or the loss itself."""
    model = watch.model
    parameter = next((name for name, value in _weights(model) if _is_broken(value)), None)
    tensor = next((name for name, value in batch.tensors.items() if _is_broken(value)), None)
    if parameter is None and tensor is None and watch.first is not None:
        # A buffer may hold what a forward pass left in it, such as means of batches: of others' mistakes, too.
        module = model if watch.first.module == ROOT else model.get_submodule(watch.first.module)
        own = module.named_buffers(watch.first.module if module is not model else "", recurse=False)
        parameter = next((name for name, value in own if _is_broken(value)), None)
    if parameter is not None:
        kind = "weight"
    elif tensor is not None:
        kind = "data"
    else:
        kind = "loss" if watch.first is None else "output"
    return NonFiniteFinding(kind, watch.first, parameter, tensor, loss)


def _weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters by name; those of a block that is divided over processes while it is ``gathered``."""
    seen = set[Tensor]()
    for prefix, module in model.named_modules():
        gathered = getattr(module, "gathered", None)
        with gathered() if gathered else contextlib.nullcontext():
            for name, parameter in module.named_parameters(prefix, recurse=gathered is not None):
                if parameter not in seen:
                    seen.add(parameter)
                    yield name, parameter


def _statistics(name: str, kind: str, numbers: list[Tensor]) -> ModuleStatistics:
    values = torch.cat([tensor.reshape(-1).to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in numbers])
    finite = values[values.isfinite()]
    shape = tuple(numbers[0].shape)
    missing = 1.0 - len(finite) / len(values) if len(values) else 0.0
    if not len(finite):
        return ModuleStatistics(name, kind, shape, math.nan, math.nan, math.nan, missing)
    std, mean = torch.std_mean(finite, correction=0)
    return ModuleStatistics(name, kind, shape, float(mean), float(std), float(finite.abs().max()), missing)


def _is_broken(value: Any) -> bool:
    """Return whether there is a NaN or a positive infinity in any tensor of a nested value."""
    return any(bool((tensor.isnan() | tensor.isposinf()).any()) for tensor in _numbers(value))


def _numbers(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a nested value that hold real numbers; complex ones as pairs of them."""
    for tensor in tensors_in(value):
        tensor = tensor.detach()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj())
        if tensor.is_floating_point() and tensor.layout is torch.strided:
            yield tensor


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in tuples, lists, mappings and dataclasses, at any depth."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for one in dataclasses.fields(value):
            yield from tensors_in(getattr(value, one.name, None))


CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d)
"""Layers whose units are the second dimension of their input; those of a linear one are the last."""


@contextlib.contextmanager
def watching_units(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Give by layer, ``(unit,)``, whether an input was ever anything but 0 while this context lasts.

    An activation that is 0 for every input, such as a ReLU of large negative numbers, has no gradient either: what
    is before it no longer learns.
    """
    alive: dict[str, Tensor] = {}
    with contextlib.ExitStack() as hooks:
        for name, layer in model.named_modules():
            if isinstance(layer, (nn.Linear, *CONVOLUTIONS)):
                hooks.enter_context(layer.register_forward_pre_hook(partial(_note, alive, name)))
        yield alive


def _note(alive: dict[str, Tensor], name: str, layer: nn.Module, args: tuple[Any, ...]) -> None:
    if not args or not isinstance(args[0], Tensor) or args[0].ndim < 2:
        return
    units = args[0].detach().movedim(1 if isinstance(layer, CONVOLUTIONS) else -1, 0).flatten(1)
    found = (units != 0).any(1)
    alive[name] = torch.logical_or(alive[name], found) if name in alive else found
