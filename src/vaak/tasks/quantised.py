"""A pretrained model whose linear layers are kept in four bits from the start, so that it is never whole in memory.

    file ──one tensor──▶ fp32 ──quantise──▶ 0.516 bytes a number     embeddings and head in bf16, all others in fp32

A layer's parameters are on the device meta until its tensors are read. What was quantised is kept next to the prepared
data, under a fingerprint of the base's files: the next start reads it from there and quantises nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._python_dispatch import _get_current_dispatch_mode

from vaak.core.errors import UserError
from vaak.core.storage.files import compute_fingerprint, replacing
from vaak.core.storage.model_formats import list_weights
from vaak.engine.snapshot import model_tensors
from vaak.nn.lora import NF4Linear, list_nf4_layers
from vaak.nn.nf4 import Quantised
from vaak.tasks.pretrained import (
    BASE_FOLDER,
    PRETRAINED_KEY,
    WEIGHTS,
    check_tensors,
    fetch_folder,
    iterate_tensors,
)

log = logging.getLogger("vaak")
Imported = Callable[[Iterator[tuple[str, Tensor]], list[str]], Iterable[tuple[str, Tensor]]]


def can_stream() -> bool:
    """Whether a model may be made on the device meta; not while it is made in parts, for several processes."""
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
    known = _read_kept(kept, layers) if kept.is_file() else {}
    if known:
        log.info("%s: its weights in four bits are read from %s", source, kept)
    skipped = {theirs(f"{name}.weight") for name in known}
    tensors = iterate_tensors(source, lambda name: name not in skipped)
    found = dict(known)
    for name, tensor in check_tensors(source, imported(tensors, list(left))):
        target, (path, _, field) = left.pop(name), name.rpartition(".")
        if path in layers and field == "weight":
            found[path] = NF4Linear(_checked_layer(layers[path], tensor, source, name)).kept[0]
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
    """The file of a base's weights in four bits, by what its files are: names, sizes and times of change."""
    files = list_weights(fetch_folder(source, WEIGHTS))
    about = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return folder / BASE_FOLDER / f"nf4-{compute_fingerprint([source, about])[:16]}.safetensors"


def _keep(found: dict[str, Quantised], file: Path) -> None:
    tensors = {f"{path}.{field}": one for path, weight in found.items() for field, one in weight._asdict().items()}
    try:
        file.parent.mkdir(exist_ok=True)
        with replacing(file) as temporary:
            save_file(tensors, temporary)
    except (OSError, SafetensorError) as error:
        # The disk may be full; the run needs no more than what it has.
        log.warning("weights in four bits aren't kept for the next start: %s", error)


def _read_kept(file: Path, layers: dict[str, nn.Linear]) -> dict[str, Quantised]:
    """The weights in a file that was kept; none where it isn't of these layers."""
    with safe_open(file, "pt") as opened:
        names = set(opened.keys())
        if names != {f"{path}.{field}" for path in layers for field in Quantised._fields}:
            return {}
        return {path: Quantised(*(opened.get_tensor(f"{path}.{one}") for one in Quantised._fields)) for path in layers}
