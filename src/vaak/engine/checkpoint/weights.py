"""The weights of a model by name: taken from it, copied to the CPU, and put back bit by bit."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from vaak.core.errors import CheckpointError
from vaak.engine.distributed.sharding import is_sharded, on_main, part_of


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
    """Return copies that training can't change any more. From CUDA, all are copied at once, with a single wait.

    Those that are divided over ranks are gathered one after another, and only rank 0 keeps a copy.
    """
    if any(map(is_sharded, tensors.values())):
        gathered = {name: on_main(tensor.detach()) for name, tensor in tensors.items()}
        return {name: tensor for name, tensor in gathered.items() if tensor is not None}
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
