"""Lists and torch's datasets as datasets of Vaak: lengths and fingerprint are found by reading them once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from vaak.core.batch import Batch
from vaak.core.errors import UserError
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.task import Dataset
from vaak.data.reader import seed_generators
from vaak.engine.devices.randomness import keeping_generators
from vaak.library.collate import Collate, as_batch, length_of


class Examples(Dataset):
    """The examples of a list or of a map-style dataset of torch's (``len(data)``, ``data[index]``)."""

    def __init__(self, data: Any, name: str, collate: Collate, length: Callable[[Any], float] = length_of) -> None:
        """``length`` measures an example. Raises UserError for what has no length or no examples."""
        if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
            raise UserError(
                f"the data of {name} are a {type(data).__name__}; expected a list, a torch Dataset with a length, or a "
                "vaak.Dataset"
            )
        if not len(data):
            raise UserError(f"the data of {name} have no examples")
        self.data, self.name, self._collate = data, name, collate
        self.draws_globally = not isinstance(data, list | tuple)
        self.lengths, self.fingerprint = self._measured(length)

    def example(self, index: int, rng: np.random.Generator) -> Any:
        return self.data[index]

    def collate(self, rows: list[list[Any]]) -> Batch:
        return as_batch(self._collate([example for row in rows for example in row]), f"collate of {self.name}")

    def describe(self, index: int) -> str:
        return f"example {index} of {self.name}"

    def _measured(self, length: Callable[[Any], float]) -> tuple[np.ndarray, str]:
        """The length of each example, and a hash of them all."""
        lengths, content = [], hashlib.sha256()
        with keeping_generators(torch.device("cpu")):
            for index in range(len(self.data)):
                if self.draws_globally:
                    seed_generators(draw_key(Purpose.FINGERPRINT, index))
                example = self.data[index]
                lengths.append(length(example))
                add_to_hash(content, example)
        return np.array(lengths), content.hexdigest()[:16]


def as_dataset(data: Any, name: str, collate: Collate, length: Callable[[Any], float] = length_of) -> Dataset:
    """The dataset itself where it is Vaak's; else one of its examples."""
    return data if isinstance(data, Dataset) else Examples(data, name, collate, length)


def add_to_hash(content: Any, value: Any) -> None:
    """Add a value's content to a hash, the same in every process: tensors by their bytes, all else by its parts.

    Raises UserError for an object whose parts can't be seen.
    """
    if isinstance(value, torch.Tensor):
        raw = value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
        _add(content, f"{value.dtype}{tuple(value.shape)}".encode(), raw)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        _add(content, f"{value.dtype}{value.shape}".encode(), np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        _add(content, f"mapping {len(value)}".encode())
        for key, part in value.items():
            add_to_hash(content, key)
            add_to_hash(content, part)
    elif isinstance(value, list | tuple | np.ndarray):
        _add(content, f"{type(value).__name__} {len(value)}".encode())
        for part in value:
            add_to_hash(content, part)
    elif value is None or isinstance(value, str | bytes | int | float | complex | bool | np.generic):
        _add(content, repr(value).encode())
    elif hasattr(value, "__dict__"):
        _add(content, type(value).__qualname__.encode())
        add_to_hash(content, vars(value))
    else:
        raise UserError(
            f"examples hold a {type(value).__name__}, which can't be hashed; give a vaak.Dataset with a fingerprint"
        )


def _add(content: Any, *parts: bytes) -> None:
    """Each part with its length before it, so that no two contents look alike."""
    for part in parts:
        content.update(len(part).to_bytes(8, "little") + part)
