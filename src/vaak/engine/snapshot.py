"""A run's state as tensors by name: taken from it, copied to the CPU, laid out in files, and put back bit by bit.

The package ``checkpoint`` decides when, and writes it to disk.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save
from torch import nn

from vaak.core.errors import CheckpointError
from vaak.engine.distributed.sharding import slice_for_rank

Key = TypeVar("Key", bound=Hashable)
ALWAYS_WRITTEN = ("model", "optimizer")
TENSORS = (*ALWAYS_WRITTEN, "average", "loss")
"""The parts of a snapshot that are named tensors: each is a file, NAME.safetensors."""
FROZEN = "frozen.safetensors"
"""The file of those parameters that no optimizer trains."""


def model_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by name; of tied tensors only the first name."""
    seen: set[int] = set()
    tensors = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor.detach()
    return tensors


def copy_to_cpu(tensors: Mapping[Key, torch.Tensor]) -> dict[Key, torch.Tensor]:
    """Return contiguous copies, in pageable memory, that training can't change any more.

    From CUDA they are staged in pieces: while the device fills one of two page-locked buffers, the host copies the
    content of the other to its place. The program waits once for each buffer that was filled.
    """
    copies = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype)
        if tensor.is_cuda
        else tensor.detach().to("cpu", copy=True).contiguous()
        for name, tensor in tensors.items()
    }
    for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
        _stage([(copies[name], tensor) for name, tensor in tensors.items() if tensor.device == device], device)
    return copies


STAGING_BYTES = 64 * 2**20
"""Size of a staging buffer. It takes milliseconds to fill; to start a copy and to wait for it takes microseconds.

A power of two, to which torch would round it up. Once freed, torch keeps page-locked memory for whoever asks next: the
next snapshot has the same buffers, without the time that it takes to page-lock them.
"""


def _stage(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], device: torch.device) -> None:
    """Copy the second tensor of each pair, all of them on ``device``, into the first, by two staging buffers."""
    # The tensors were last written in the current stream.
    stream = torch.cuda.current_stream(device)
    size = min(STAGING_BYTES, sum(copy.nbytes for copy, _ in pairs))
    buffer, other = _StagingBuffer(size), _StagingBuffer(size)
    for copy, tensor in pairs:
        place, source = _view_bytes(copy), _view_bytes(tensor)
        while len(place):
            count = buffer.fill(place, source, stream)
            place, source = place[count:], source[count:]
            if buffer.is_full:
                buffer, other = other, buffer
                # While the device fills the other.
                buffer.empty()
        # The source may be a copy of a tensor that isn't contiguous: it goes before the next one is made.
        del source
    other.empty()
    buffer.empty()


class _StagingBuffer:
    """Page-locked memory that the device fills and the host empties. Several tensors may share it."""

    def __init__(self, size: int) -> None:
        self._memory = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        self._used, self._pieces = 0, list[tuple[torch.Tensor, torch.Tensor]]()
        self._filled = torch.cuda.Event()

    @property
    def is_full(self) -> bool:
        return self._used == len(self._memory)

    def fill(self, place: torch.Tensor, source: torch.Tensor, stream: torch.cuda.Stream) -> int:
        """Have the device copy bytes of ``source``, as many as fit; return their number.

        ``place`` is where they are to be in the end.
        """
        staged = self._memory[self._used : self._used + len(source)]
        staged.copy_(source[: len(staged)], non_blocking=True)
        self._pieces.append((place[: len(staged)], staged))
        self._used += len(staged)
        self._filled.record(stream)
        return len(staged)

    def empty(self) -> None:
        """Copy its contents to their places, once the device has filled it."""
        if self._pieces:
            self._filled.synchronize()
        for place, staged in self._pieces:
            place.copy_(staged)
        self._used, self._pieces = 0, []


def _view_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, of any type and shape, in the order of a contiguous one; of such a one, a view."""
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # reshape(-1) leaves a single number its stride.
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


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
        # The largest types come first, so all are aligned.
        order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
        entries, end = dict[str, object](), 0
        for one in order:
            tensor = tensors[one]
            places = [end, end := end + tensor.numel() * tensor.dtype.itemsize]
            entries[one] = {"dtype": _dtype_name(tensor.dtype), "shape": list(tensor.shape), "data_offsets": places}
        header = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
        return cls(name, tuple(order), header + b" " * (-len(header) % 8), end)

    def write(self, folder: Path, chunks: Iterator[torch.Tensor]) -> None:
        """Write the file from the next of ``chunks``. Raises OSError if it can't be written."""
        with (folder / self.name).open("xb") as file:
            file.write(len(self.header).to_bytes(8, "little") + self.header)
            left = self.nbytes
            while left:
                chunk = next(chunks)
                file.write(chunk.flatten().view(torch.uint8).numpy().data)
                left -= chunk.nbytes


@cache
def _dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a type in the files, as the library gives it."""
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
            tensor.copy_(slice_for_rank(tensors[name], tensor))


@dataclass
class Snapshot:
    """Everything of a run's state, copied to the CPU at one step's boundary.

    ``frozen`` names parameters of the model that are never trained; ``base_is_enough`` where the model as its task
    makes it has their values, too. Where ranks have parts of the tensors, these are in ``chunks``, to be read once, and
    fill ``files`` in turn.
    """

    step: int
    model: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    average: dict[str, torch.Tensor] = field(default_factory=dict)
    loss: dict[str, torch.Tensor] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    base_is_enough: bool = True
    files: tuple[FileLayout, ...] = ()
    chunks: Iterator[torch.Tensor] = field(default_factory=lambda: iter(()))


def tensor_files(
    parts: Mapping[str, dict[str, torch.Tensor]], frozen: frozenset[str]
) -> dict[str, dict[str, torch.Tensor]]:
    """Return the tensors of a state's parts by the file that they are in."""
    found = {f"{part}.safetensors": own for part, own in parts.items() if part in ALWAYS_WRITTEN or own}
    model = parts["model"]
    if never := {name: tensor for name, tensor in model.items() if name in frozen}:
        found[FROZEN] = never
        found["model.safetensors"] = {name: one for name, one in model.items() if name not in never}
    return found
