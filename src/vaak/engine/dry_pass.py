"""The cost of a forward and backward pass, found without doing it: with torch's fake tensors, which have shapes only.

    batch = ...                         # a real one, for its counts
    with numberless(device) as fake:
        model = ...                     # takes no memory
        take = dry_pass(fake, task, model, batch, precision, passes)

Every storage that an operation makes is counted while it lives, so the peak includes tensors saved for the backward
pass, temporary tensors, and gradients. It excludes allocator rounding and memory that libraries use internally.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from vaak.core.batch import Batch
from vaak.core.task import Task
from vaak.engine.flops import count_flops, main_unit
from vaak.engine.gradient import list_objectives
from vaak.engine.precision import Precision

NEEDS_NUMBERS = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.UnsupportedOperatorException,
)
"""The errors raised where shapes depend on numbers."""


@dataclass(frozen=True)
class DryPass:
    """Operations of one microbatch, by the ``count`` of its ``unit``; and its peak bytes in addition to the weights."""

    flops: int
    unit: str
    count: float
    peak_bytes: int


@contextlib.contextmanager
def numberless(device: torch.device) -> Iterator[fake_tensor.FakeTensorMode]:
    """Within this context, tensors are made for ``device`` and take no memory; a single number read from one is 0."""
    fake = fake_tensor.FakeTensorMode()
    with fake, torch.device(device), _Zeros(), _modules_stay():
        yield fake


@contextlib.contextmanager
def _modules_stay() -> Iterator[None]:
    """Within this context, modules are not moved (peft does, for one): torch can't move fake parameters.

    Nor are weights drawn from a truncated normal distribution, as ModernBERT's: torch draws until all are in it.
    """
    places: tuple[tuple[Any, str], ...] = ((nn.Module, "to"), (nn.init, "_no_grad_trunc_normal_"))
    # The second name is torch's own, which another version may lack.
    kept = [(owner, name, getattr(owner, name)) for owner, name in places if hasattr(owner, name)]
    for owner, name, _ in kept:
        setattr(owner, name, lambda given, *_, **__: given)
    try:
        yield
    finally:
        for owner, name, own in kept:
            setattr(owner, name, own)


def dry_pass(
    fake: fake_tensor.FakeTensorMode, task: Task, model: nn.Module, batch: Batch, precision: Precision, passes: int
) -> DryPass:
    """Return the cost of a microbatch, the last of ``passes`` whose gradients add up; inside ``numberless``.

    ``batch`` is a real microbatch of ``task``; ``model`` has fake weights of the mode ``fake``, and ``precision`` is
    that of the pass.

    Raises one of ``NEEDS_NUMBERS`` where that can't be told from shapes.
    """
    counts = batch.totals()
    unit = main_unit(counts)
    batch = replace(batch, tensors={name: fake.from_tensor(tensor) for name, tensor in batch.tensors.items()})
    batch = batch.to(precision.device)
    with _Selection(int(counts[unit])):
        flops = count_flops(task, model, batch, precision)
        # the count of flops restored the mode it had found
        model.train()
        with LiveStorages([*model.parameters(), *model.buffers(), *batch.tensors.values()]) as storages:
            for _ in range(passes):
                for objective in list_objectives(task, model):
                    with precision.autocast():
                        terms = objective.losses(model, batch)
                    torch.stack([term.total.float() for term in terms.values()]).sum().backward()
                    del terms
    return DryPass(flops, unit, counts[unit], storages.peak)


class LiveStorages(TorchDispatchMode):
    """Adds up the bytes of storages that operations make, for as long as they live; those of ``known`` don't count."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._counted = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tree_map_only(Tensor, self._count, result)
        return result

    def _count(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._counted:
            self._counted.add(storage._cdata)
            self.live += storage.nbytes()
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._forget, storage._cdata, storage.nbytes())
        return tensor

    def _forget(self, address: int, size: int) -> None:
        self._counted.discard(address)
        self.live -= size


class _Zeros(TorchFunctionMode):
    """``x.item()`` is 0, for models that draw a seed when they are made."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return 0 if func is Tensor.item else func(*args, **(kwargs or {}))


class _Selection(TorchFunctionMode):
    """``x[mask]`` picks as many places as the batch counts of its unit, for what a mask picks depends on numbers.

    ``x.numpy()`` is all 1: costs that a loss compares outside of torch, to choose one of results of the same shape.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__ and isinstance(args[1], Tensor) and args[1].dtype == torch.bool:
            places = args[0].flatten(0, args[1].ndim - 1)
            return places.index_select(0, torch.arange(min(self.number, len(places)), device=places.device))
        if func is Tensor.numpy:
            return np.ones(tuple(args[0].shape), str(args[0].dtype).removeprefix("torch."))
        return func(*args, **(kwargs or {}))
