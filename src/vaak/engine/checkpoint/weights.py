"""The weights of a model by name: taken from it, copied to the CPU, laid out in a file, and put back bit by bit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import save
from torch import nn

from vaak.core.errors import CheckpointError
from vaak.engine.distributed.sharding import part_of


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


@dataclass(frozen=True)
class FileLayout:
    """A safetensors file, written from tensors that come one after another in ``order``, whole or in parts."""

    name: str
    order: tuple[str, ...]
    header: bytes
    nbytes: int

    @classmethod
    def of(cls, name: str, tensors: Mapping[str, torch.Tensor]) -> FileLayout:
        """The layout that the library gives a file of these tensors; of divided ones, their whole shapes count."""
        order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))  # aligned
        entries, end = dict[str, object](), 0
        for one in order:
            tensor = tensors[one]
            places = [end, end := end + tensor.numel() * tensor.dtype.itemsize]
            entries[one] = {"dtype": _dtype_name(tensor.dtype), "shape": list(tensor.shape), "data_offsets": places}
        header = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
        return cls(name, tuple(order), header + b" " * (-len(header) % 8), end)

    def write(self, folder: Path, chunks: Iterator[torch.Tensor]) -> None:
        """Write the file from the next of ``chunks``. Raises OSError where it can't be written."""
        with (folder / self.name).open("xb") as file:
            file.write(len(self.header).to_bytes(8, "little") + self.header)
            left = self.nbytes
            while left:
                chunk = next(chunks)
                file.write(chunk.flatten().view(torch.uint8).numpy().data)
                left -= chunk.nbytes


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
