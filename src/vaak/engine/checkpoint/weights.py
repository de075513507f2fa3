"""The weights of a model by name: taken from it, copied to the CPU or into a file, and put back bit by bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import save
from torch import nn

from vaak.core.errors import CheckpointError
from vaak.engine.distributed.sharding import on_main, part_of


def model_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by name; of tied tensors only the first name."""
    seen: set[int] = set()
    tensors = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor.detach()
    return tensors


def copy_to_cpu(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies that training can't change any more. From CUDA, all are copied at once, with a single wait."""
    devices = {tensor.device for tensor in tensors.values() if tensor.is_cuda}
    if not devices:
        return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    copies = {}
    for name, tensor in tensors.items():  # to page-locked memory: whole once the device was waited for
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        copies[name] = copy.copy_(tensor.detach(), non_blocking=True)
    for device in devices:
        torch.cuda.synchronize(device)
    return copies


def write_gathered(tensors: Mapping[str, torch.Tensor], path: Path | None) -> None:
    """Write tensors that are divided over ranks into a safetensors file: rank 0 has one of them at a time.

    Every rank calls it, those that write nothing without ``path``. Raises OSError, when all are gathered, where the
    file can't be written.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))  # as the library does: aligned
    entries, end = dict[str, object](), 0
    for name in order:
        one = tensors[name]
        places = [end, end := end + one.numel() * one.dtype.itemsize]
        entries[name] = {"dtype": _dtype_name(one.dtype), "shape": list(one.shape), "data_offsets": places}
    header = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    gathered = (on_main(tensors[name].detach()) for name in order)
    try:
        if path is not None:
            with path.open("xb") as file:
                file.write(len(header).to_bytes(8, "little") + header)
                for tensor in gathered:
                    assert tensor is not None
                    file.write(tensor.flatten().view(torch.uint8).numpy().data)
    finally:
        for _ in gathered:  # after an error, too: the others give their parts
            pass


@cache
def _dtype_name(dtype: torch.dtype) -> str:
    """The name of a type in the files, as the library gives it."""
    content = save({"x": torch.empty(0, dtype=dtype)})
    return str(json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["x"]["dtype"])


def load_weights(model: nn.Module, tensors: dict[str, torch.Tensor], source: Path | str) -> None:
    """Copy tensors into a model bit by bit. Raises CheckpointError listing everything that doesn't fit."""
    wanted = model_tensors(model)
    problems = [f"{name} is missing" for name in wanted if name not in tensors]
    problems += [f"{name} is not in the model" for name in tensors if name not in wanted]
    problems += [
        f"{name} has shape {tuple(tensors[name].shape)}, the model {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in tensors and tensors[name].shape != tensor.shape
    ]
    if problems:
        shown = "; ".join(problems[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        raise CheckpointError(f"{source} is from another model: {shown}")
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(part_of(tensors[name], tensor))
