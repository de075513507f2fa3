"""When two values are the same, and the message when they aren't."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


def same(first: Any, second: Any) -> bool:
    """Whether two values are equal to the last bit, NaN included: tensors, arrays, and what is built of them.

    Fields that a dataclass leaves out of comparisons (a time taken) may differ.
    """
    if type(first) is not type(second):
        return False
    if isinstance(first, Tensor):
        return first.dtype == second.dtype and first.shape == second.shape and _bits(first).equal(_bits(second))
    if isinstance(first, np.ndarray):
        alike = first.dtype == second.dtype and first.shape == second.shape
        return alike and (first.tobytes() == second.tobytes() if first.dtype != object else same([*first], [*second]))
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(same(value, second[key]) for key, value in first.items())
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if is_dataclass(first) and not isinstance(first, type):
        compared = [part.name for part in fields(first) if part.compare]
        return all(same(getattr(first, name), getattr(second, name)) for name in compared)
    if hasattr(first, "__dict__") and not callable(first):
        return same(vars(first), vars(second))
    return bool(first == second) or (first != first and second != second)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)


def demand(condition: bool, message: str) -> None:
    """Raise AssertionError with a message where a condition doesn't hold, also under ``python -O``."""
    if not condition:
        raise AssertionError(message)


def demand_close(found: Mapping[Any, Any], expected: Mapping[Any, Any], what: str, tolerance: float) -> None:
    """Demand equal names, and values that differ by ``tolerance`` at most, relative to the largest or absolute."""
    _demand_names(found, expected, what)
    for name, value in expected.items():
        first, second = (torch.as_tensor(one, dtype=torch.float64) for one in (found[name], value))
        demand(first.shape == second.shape, f"{what}: {name} has shape {tuple(first.shape)}, not {tuple(second.shape)}")
        if not first.numel():
            continue
        off = (first - second).abs().max().item()
        allowed = tolerance * max(1.0, second.abs().max().item())
        shown = f"{first.item():.10g} where {second.item():.10g} was expected" if first.numel() == 1 else "it differs"
        demand(off <= allowed, f"{what}: {name}: {shown} (off by {off:.3g}, allowed {allowed:.3g})")  # NaN fails, too


def demand_same(found: Mapping[Any, Any], expected: Mapping[Any, Any], what: str) -> None:
    """Demand equal names, and values that are equal to the bit."""
    _demand_names(found, expected, what)
    different = [name for name, value in expected.items() if not same(found[name], value)]
    demand(not different, f"{what}: {', '.join(map(str, different[:5]))} not equal to the bit")


def _demand_names(found: Mapping[Any, Any], expected: Mapping[Any, Any], what: str) -> None:
    """Demand equal names; the message lists those that only one side has."""
    missing, unexpected = (
        [name for name in one if name not in other] for one, other in ((expected, found), (found, expected))
    )
    demand(not missing and not unexpected, f"{what}: without {_listed(missing)}, but with {_listed(unexpected)}")


def _listed(names: list[Any]) -> str:
    return ", ".join(map(str, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "") or "none"
