"""Weights in the format of ``torch.distributed.checkpoint`` (DCP), which torchtitan and others write.

    FOLDER/.metadata         a pickle: of each tensor its shape, and of each part of it the file, the place and the size
           __0_0.distcp …    the parts, each as torch.save writes a tensor

torch reads ``.metadata`` by unpickling it, which runs what it says. Here it is only parsed: its objects become records
of names and values, and nothing that it names is imported or called. Parts are read with ``weights_only``.
"""

from __future__ import annotations

import io
import logging
import math
import pickletools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, starmap
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vaak.core.errors import CheckpointError
from vaak.core.storage.files import inside

log = logging.getLogger("vaak")
METADATA = ".metadata"
OF_TRAINERS = ("optimizer", "optim", "optimizers", "lr_scheduler", "scheduler", "dataloader", "train_state")
"""First parts of the names under which trainers keep what isn't of the model."""
LARGEST_METADATA_BYTES = 1 << 30
"""Bytes of the largest ``.metadata`` that is read; that of a tensor's part takes about a hundred."""


def is_dcp(path: Path) -> bool:
    """Return whether a folder is a checkpoint in this format."""
    return (path / METADATA).is_file()


def write_dcp(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Write tensors by their names, in one file."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.metadata import StorageMeta
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = FileSystemWriter(folder)
    # It would have the folder's path, and say nothing that is read.
    writer.storage_meta = StorageMeta  # type: ignore[method-assign]
    with warnings.catch_warnings():
        # That there is only one process, which is meant.
        warnings.simplefilter("ignore", UserWarning)
        save(dict(tensors), storage_writer=writer, no_dist=True)


def read_dcp(folder: Path) -> dict[str, Tensor]:
    """Return the model's tensors of a checkpoint, whole, whatever number of processes wrote them.

    What trainers keep next to a model (moments, schedules) is left out, with a line. Raises CheckpointError for one
    that is damaged, compressed, or holds anything else than tensors.
    """
    try:
        if (folder / METADATA).stat().st_size > LARGEST_METADATA_BYTES:
            raise CheckpointError(f"{folder / METADATA} is larger than {LARGEST_METADATA_BYTES} bytes: it isn't read")
        about = parse_pickle((folder / METADATA).read_bytes()).state
        parts = {
            (key.state["fqn"], tuple(key.state["offset"].arguments[0] if key.state.get("offset") else ())): place.state
            for key, place in about["storage_data"].items()
        }
        found: dict[str, Tensor] = {}
        left_out: list[str] = []
        for name, kind in about["state_dict_metadata"].items():
            if name.partition(".")[0] in OF_TRAINERS:
                left_out.append(name)
            elif kind.name != "TensorStorageMetadata":
                raise CheckpointError(f"{folder}: {name} is a {kind.name} and not a tensor; export the model alone")
            else:
                found[name] = _read_tensor(folder, name, kind.state, parts)
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or str(error).splitlines()[0][:200] or type(error).__name__
        raise CheckpointError(f"{folder} can't be read as a checkpoint of torch.distributed: {why}") from error
    if left_out:
        log.warning("%s: %d entries of the optimizer and the trainer are left out", folder, len(left_out))
    return found


def _read_tensor(folder: Path, name: str, about: Mapping[str, Any], parts: Mapping[Any, Any]) -> Tensor:
    """Return a tensor, put together of its parts."""
    shape, whole = tuple(about["size"].arguments[0]), None
    boxes = [
        (tuple(chunk.state["offsets"].arguments[0]), tuple(chunk.state["sizes"].arguments[0]))
        for chunk in about["chunks"]
    ]
    if not _fill_exactly(shape, boxes):
        raise CheckpointError(f"{folder}: parts of {name} are missing, or overlap")
    for offsets, sizes in boxes:
        # Older versions write no offset for a tensor in one part.
        place = parts.get((name, offsets)) or parts[name, ()]
        if place.get("transform_descriptors"):
            raise CheckpointError(f"{folder}: {name} is compressed, which isn't read; save it without extensions")
        with open(folder / inside(place["relative_path"]), "rb") as file:
            file.seek(place["offset"])
            part = _load_part(file.read(place["length"]), f"{folder}: a part of {name}")
        if not isinstance(part, Tensor) or tuple(part.shape) != sizes:
            raise CheckpointError(f"{folder}: a part of {name} isn't of the shape {sizes}")
        whole = torch.empty(shape, dtype=part.dtype) if whole is None else whole
        whole[tuple(slice(begin, begin + size) for begin, size in zip(offsets, sizes, strict=True))] = part
    if whole is None:
        raise CheckpointError(f"{folder}: {name} has no part")
    return whole


def _fill_exactly(shape: tuple[int, ...], boxes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> bool:
    """Return whether boxes, each by its offsets and sizes, have every place of a shape, and none twice.

    >>> _fill_exactly((4, 2), [((0, 0), (3, 2)), ((3, 0), (1, 2))]), _fill_exactly((4,), [((0,), (2,)), ((1,), (2,))])
    (True, False)
    """
    ranges = [[(begin, begin + size) for begin, size in zip(*box, strict=True)] for box in boxes]
    are_inside = all(
        0 <= begin <= end <= length for box in ranges for (begin, end), length in zip(box, shape, strict=True)
    )
    filled = sum(math.prod(sizes) for _, sizes in boxes)
    return are_inside and filled == math.prod(shape) and not any(starmap(_overlap, combinations(ranges, 2)))


def _overlap(box: list[tuple[int, int]], other: list[tuple[int, int]]) -> bool:
    return all(max(one[0], two[0]) < min(one[1], two[1]) for one, two in zip(box, other, strict=True))


def _load_part(content: bytes, what: str) -> Any:
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        # torch raises pickle's own kind for what isn't a tensor.
        raise CheckpointError(f"{what} is damaged, or not a tensor") from error


@dataclass(eq=False)
class Parsed:
    """An object that a pickle describes: the class or function it names, what that would be called with, its state."""

    module: str
    name: str
    arguments: tuple[Any, ...] = ()
    state: dict[str, Any] = field(default_factory=dict)


_MARK = object()
_VALUES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "INT", "LONG", "BINFLOAT", "FLOAT"),
    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE", "SHORT_BINBYTES", "BINBYTES"),
}
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": set,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "MARK": lambda: _MARK,
}


def parse_pickle(content: bytes) -> Any:
    """Return what a pickle holds, with a ``Parsed`` in the place of each object: nothing it names is imported or run.

    Raises ValueError for what isn't a pickle, or has other instructions than those of plain objects.

    >>> found = parse_pickle(b"cos\\nsystem\\n(Vecho\\ntR.")
    >>> found.module, found.name, found.arguments
    ('os', 'system', ('echo',))
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    for code, argument, _ in pickletools.genops(content):
        name = code.name
        if name in _VALUES:
            stack.append(argument)
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[int(str(argument))] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[int(str(argument))])
        elif name == "STOP":
            return stack.pop()
        elif name not in ("PROTO", "FRAME"):
            _apply(name, argument, stack)
    raise ValueError("it has no end")


def _apply(name: str, argument: Any, stack: list[Any]) -> None:
    """Change the stack as an instruction that builds something does. Raises ValueError for every other one."""
    if name == "GLOBAL":
        module, _, called = str(argument).partition(" ")
        stack.append(Parsed(module, called))
    elif name == "STACK_GLOBAL":
        called = stack.pop()
        stack.append(Parsed(stack.pop(), called))
    elif name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"):
        items = _pop_to_mark(stack) if name == "TUPLE" else [stack.pop() for _ in range(int(name[-1]))][::-1]
        stack.append(tuple(items))
    elif name in ("REDUCE", "NEWOBJ"):
        arguments, kind = stack.pop(), stack.pop()
        stack.append(Parsed(kind.module, kind.name, tuple(arguments)))
    elif name == "BUILD":
        state = stack.pop()
        stack[-1].state.update(state if isinstance(state, dict) else {})
    else:
        _fill(name, stack)


def _fill(name: str, stack: list[Any]) -> None:
    """Add to the list, dictionary or set on the stack what is above it there."""
    if name == "APPEND":
        item = stack.pop()
        stack[-1].append(item)
    elif name == "APPENDS":
        items = _pop_to_mark(stack)
        stack[-1].extend(items)
    elif name == "SETITEM":
        value, key = stack.pop(), stack.pop()
        stack[-1][key] = value
    elif name == "SETITEMS":
        items = _pop_to_mark(stack)
        stack[-1].update(zip(items[::2], items[1::2], strict=True))
    elif name == "ADDITEMS":
        items = _pop_to_mark(stack)
        stack[-1].update(items)
    else:
        raise ValueError(f"it has the instruction {name}, which metadata don't need")


def _pop_to_mark(stack: list[Any]) -> list[Any]:
    items: list[Any] = []
    while (item := stack.pop()) is not _MARK:
        items.append(item)
    return items[::-1]
