"""A pretrained model whose linear layers are kept in four bits from the start, so that it is never whole in memory.

    file ──one tensor──▶ fp32 ──quantise──▶ 0.516 bytes a number     embeddings and head in bf16, all others in fp32

A layer's parameters are on the device meta until its tensors are read: ``read_in_nf4`` does so for a network of ours,
``layers_in_nf4`` while transformers reads its own. What was quantised is kept next to the prepared data, under a
fingerprint of the base's files: the next start reads it from there and quantises nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.utils._python_dispatch import _get_current_dispatch_mode

from vaak.core.errors import UserError
from vaak.core.storage.files import compute_fingerprint, replacing
from vaak.core.storage.model_formats import list_weights
from vaak.engine.memory import free_memory
from vaak.engine.snapshot import model_tensors
from vaak.nn.config import LoraConfig
from vaak.nn.lora import NF4Linear, list_nf4_layers, list_token_modules
from vaak.nn.nf4 import Quantised, quantise
from vaak.tasks.pretrained import PRETRAINED_KEY, WEIGHTS, check_tensors, fetch_folder, iterate_tensors

log = logging.getLogger("vaak")
Imported = Callable[[Iterator[tuple[str, Tensor]], list[str]], Iterable[tuple[str, Tensor]]]
FOUR_BITS = "in_four_bits"
"""The folder, in prepared data, of what was quantised."""
FREED_AT_ONCE = 2**27
"""Bytes of whole weights after which what was forgotten of them is given back to the system."""
LARGEST_REST = 0.1
"""A line warns where the numbers that stay whole, tokens' rows aside, exceed this fraction of those in four bits."""
READ_AHEAD = "HF_DEACTIVATE_ASYNC_LOAD"
"""True has transformers read a tensor when it needs it; else its threads would read the whole model meanwhile."""


def can_stream() -> bool:
    """Return whether a model may be made on the device meta; not while it is made in parts, for several processes."""
    return _get_current_dispatch_mode() is None


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Within this context, parameters of modules are on the device meta; buffers, which are computed, are real."""

    def place(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None:
            return None
        return nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)

    hook: Any = place
    handle = register_module_parameter_registration_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@torch.no_grad()
def read_in_nf4(
    model: nn.Module,
    source: str,
    imported: Imported,
    theirs: Callable[[str], str],
    folder: Path,
    halved: Collection[str] = (),
) -> None:
    """Fill ``model``, whose parameters are on meta, with the weights of ``source``: linear layers in four bits.

    ``imported`` and ``theirs`` are those of ``vaak.tasks.pretrained.read_weights``; ``folder`` is that of prepared
    data. Tensors whose names are in ``halved`` are in bf16. Rows of tokens that it lacks are 0. Raises UserError where
    tensors are missing or of other shapes.
    """
    layers, left = list_nf4_layers(model), dict(model_tensors(model))
    kept = _locate(source, folder)
    known = _read_kept(source, kept, layers)
    skipped = {theirs(f"{name}.weight") for name in known}
    tensors = iterate_tensors(source, lambda name: name not in skipped)
    found, forgotten = dict(known), _Forgotten()
    for name, tensor in check_tensors(source, imported(tensors, list(left))):
        target, (path, _, field) = left.pop(name), name.rpartition(".")
        if path in layers and field == "weight":
            found[path] = NF4Linear(_checked_layer(layers[path], tensor, source, name)).kept[0]
            forgotten.add(tensor.numel())
            continue
        # A model may have more rows than its base: those of tokens that were added, or that fill up a multiple.
        if tensor.shape[1:] != target.shape[1:] or len(tensor) > len(target):
            raise _other_shape(source, name, tensor, target)
        dtype = torch.bfloat16 if name in halved else torch.float32
        rows = torch.zeros(target.shape, dtype=dtype) if target.is_meta else target
        rows[: len(tensor)] = tensor
        if target.is_meta:
            setattr(model.get_submodule(path), field, nn.Parameter(rows, requires_grad=False))
    lacking = [name for name in left if not (name.endswith(".weight") and name.removesuffix(".weight") in known)]
    if lacking:
        raise UserError(f"{PRETRAINED_KEY}: {source} lacks {theirs(min(lacking))}")
    # Only now: a layer's bias may come after its weight, and is put into the layer that this one replaces.
    for path, weight in found.items():
        model.set_submodule(path, NF4Linear(layers[path], weight))
    if not known:
        _keep(found, kept)
    free_memory(torch.device("cpu"))


def _checked_layer(layer: nn.Linear, tensor: Tensor, source: str, name: str) -> nn.Linear:
    if tensor.shape != layer.weight.shape:
        raise _other_shape(source, name, tensor, layer.weight)
    whole = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
    whole.weight = nn.Parameter(tensor.float(), requires_grad=False)
    return whole


def _other_shape(source: str, name: str, tensor: Tensor, target: Tensor) -> UserError:
    return UserError(
        f"{PRETRAINED_KEY}: {source}: {name} has shape {tuple(tensor.shape)}, expected {tuple(target.shape)}"
    )


def _locate(source: str, folder: Path) -> Path:
    """Return the file of a base's weights in four bits, by what its files are: names, sizes and times of change."""
    files = list_weights(fetch_folder(source, WEIGHTS))
    about = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return folder / FOUR_BITS / f"{compute_fingerprint([source, about])[:16]}.safetensors"


def _keep(found: dict[str, Quantised], file: Path) -> None:
    tensors = {f"{path}.{field}": one for path, weight in found.items() for field, one in weight._asdict().items()}
    try:
        file.parent.mkdir(exist_ok=True)
        with replacing(file) as temporary:
            save_file(tensors, temporary)
    except (OSError, SafetensorError) as error:
        # The disk may be full; the run needs no more than what it has.
        log.warning("weights in four bits aren't kept for the next start: %s", error)


def _read_kept(source: str, file: Path, layers: Collection[str]) -> dict[str, Quantised]:
    """Return the weights in a file that was kept; none where it isn't of these layers, or can't be read."""
    names = {f"{path}.{field}" for path in layers for field in Quantised._fields}
    if not file.is_file():
        return {}
    try:
        with safe_open(file, "pt") as opened:
            if names != {*opened.keys()}:
                return {}
            log.info("%s: its weights in four bits are read from %s", source, file)
            return {
                path: Quantised(*(opened.get_tensor(f"{path}.{one}") for one in Quantised._fields)) for path in layers
            }
    except (OSError, SafetensorError) as error:
        log.warning("%s can't be read, so the weights of %s are quantised again: %s", file, source, error)
        return {}


class _Forgotten:
    """Gives back the memory of whole weights now and then; small tensors that are kept fragment it."""

    def __init__(self) -> None:
        self._nbytes = 0

    def add(self, number: int) -> None:
        """Count the numbers of a weight that was quantised in 32 bits, and is no longer needed."""
        self._nbytes += 4 * number
        if self._nbytes > FREED_AT_ONCE:
            free_memory(torch.device("cpu"))
            self._nbytes = 0


class Frozen(NamedTuple):
    """The frozen layers of a base, by its ``adapters``, and the folder of prepared data with its weights in four bits.

    The modules ``besides`` are trained.
    """

    folder: Path
    adapters: LoraConfig
    besides: Collection[str] = ()


class _Watch:
    """Quantises a weight of a linear layer when transformers gives it to the layer, which keeps one on meta instead."""

    def __init__(self, source: str, folder: Path, besides: Collection[str]) -> None:
        self._source, self._file, self._besides = source, _locate(source, folder), besides
        self._parents: dict[nn.Module, tuple[nn.Module, str]] = {}
        self._root: Any = None
        self._layers: Collection[str] = ()
        self._known, self._found = dict[str, Quantised](), dict[str, Quantised]()
        self._forgotten = _Forgotten()

    def see_module(self, parent: nn.Module, name: str, module: nn.Module | None) -> None:
        """Remember where a module is: layers don't know their own names."""
        if module is not None:
            self._parents[module] = parent, name

    def see_parameter(self, layer: nn.Module, name: str, weight: nn.Parameter | None) -> nn.Parameter | None:
        """Return the quantised form of a weight that was read from a file; None leaves another parameter unchanged."""
        # transformers marks what it has read; without the mark, it draws the numbers afterwards.
        is_read = weight is not None and not weight.is_meta and getattr(weight, "_is_hf_initialized", False)
        if weight is None or not is_read or name != "weight" or type(layer) is not nn.Linear:
            return None
        root, path = self._locate_module(layer)
        if self._root is None:
            self._begin(root)
        if root is not self._root or path not in self._layers:
            return None
        self._found[path] = self._known[path] if self._known else quantise(weight)
        self._forgotten.add(weight.numel())
        kept: Any = nn.Parameter(weight.detach().to("meta"), requires_grad=False)
        kept._is_hf_initialized = True
        return kept  # type: ignore[no-any-return]

    def _locate_module(self, module: nn.Module) -> tuple[nn.Module, str]:
        names = list[str]()
        while module in self._parents:
            module, name = self._parents[module]
            names.append(name)
        return module, ".".join(reversed(names))

    def _begin(self, root: Any) -> None:
        """Find the layers that four bits keep, once the model has adapters; and those that are known."""
        tied = getattr(root, "all_tied_weights_keys", None) or {}
        left_out = {name.rpartition(".")[0] for pair in tied.items() for name in pair} | {*self._besides}
        head = root.get_output_embeddings()
        self._root = root
        self._layers = {name for name, one in list_nf4_layers(root).items() if name not in left_out and one is not head}
        self._known = _read_kept(self._source, self._file, self._layers)

    def put(self) -> None:
        """Put the weights in four bits into the model, and keep them for the next start."""
        if not self._found:
            return
        for path, weight in self._found.items():
            self._root.set_submodule(path, NF4Linear(self._root.get_submodule(path), weight))
        self._tell_others()
        # Of a base that lacks some, no file would be that of all layers.
        if not self._known and self._found.keys() == {*self._layers}:
            _keep(self._found, self._file)
        free_memory(torch.device("cpu"))

    def _tell_others(self) -> None:
        """Say so where much of the model is in other than linear layers, such as fused experts: that stays in fp32."""
        ends = {id(one.weight) for one in list_token_modules(self._root) if isinstance(one, nn.Embedding | nn.Linear)}
        number = sum(layer.in_features * layer.out_features for layer in map(self._root.get_submodule, self._found))
        others = sum(one.numel() for one in self._root.parameters() if one.is_floating_point() and id(one) not in ends)
        if others > number * LARGEST_REST:
            log.warning(
                "%s: %s million of its numbers aren't in linear layers, and stay in fp32; %s million are in four bits",
                *(self._source, f"{others / 1e6:,.1f}", f"{number / 1e6:,.1f}"),
            )


@contextmanager
def layers_in_nf4(source: str, frozen: Frozen | None) -> Iterator[None]:
    """Within this context, the model that transformers reads from ``source`` has its linear layers in four bits.

    So it is where ``frozen`` asks for them. They are quantised one at a time: the model is never whole in memory. One
    model is read within the context.
    """
    if frozen is None or frozen.adapters.base_dtype != "nf4" or not can_stream():
        yield
        return
    watch = _Watch(source, frozen.folder, frozen.besides)
    see_module: Any = watch.see_module
    see_parameter: Any = watch.see_parameter
    hooks = (
        register_module_module_registration_hook(see_module),
        register_module_parameter_registration_hook(see_parameter),
    )
    before = os.environ.get(READ_AHEAD)
    os.environ[READ_AHEAD] = "1"
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        os.environ.pop(READ_AHEAD)
        if before is not None:
            os.environ[READ_AHEAD] = before
    watch.put()
