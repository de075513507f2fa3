"""CUDA graphs of the mock device: operators noted while a graph is captured, and called again on the same tensors.

As on a GPU, a capture computes nothing: tensors written to are restored, and new ones are NaN until the first replay.
A replay writes to the tensors of the capture, and draws from the generator in its state at that time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Graph(TorchDispatchMode):
    """A graph; it is the mode that notes what is called between ``capture_begin`` and ``capture_end``."""

    captured = 0
    """Captures that have ended well, of all graphs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.kept: list[tuple[Tensor, Tensor]] = []
        self.own: set[int] = set()

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        assert capture_error_mode == "thread_local", "another thread's calls would end the capture"
        self.__enter__()  # type: ignore[no-untyped-call]

    def capture_end(self) -> None:
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for *_, made in self.calls:
                for one in made:
                    if one.is_floating_point():
                        one.fill_(torch.nan)
            for tensor, before in reversed(self.kept):
                tensor.copy_(before)
        type(self).captured += 1

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = operator._schema
        written = list(_written(schema, args, kwargs))
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        if any(one.device.type == "cpu" and one.ndim for one in given):
            raise RuntimeError(f"operation not permitted when stream is capturing: {schema.name}")
        for one in written:
            if one.untyped_storage()._cdata not in self.own:
                self.kept.append((one, one.clone()))
        found = operator(*args, **kwargs)
        is_view = any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns)
        if is_view or (not written and schema.name.partition("::")[2].startswith(("empty", "new_empty"))):
            self.own.update(
                one.untyped_storage()._cdata for one in tree_leaves(found) if isinstance(one, Tensor) and not is_view
            )
            return found
        if torch.Tag.inplace_view in operator.tags:
            # a shape is changed when an operator is called, not when its kernels run
            return found
        # by an alias, whose shape nothing changes
        made = [] if written else [one.detach() for one in tree_leaves(found) if isinstance(one, Tensor)]
        self.own.update(one.untyped_storage()._cdata for one in made)
        self.calls.append((operator, args, kwargs, made))
        return found

    def replay(self) -> None:
        """Compute everything again, each result where it was."""
        with torch.no_grad():
            for operator, args, kwargs, made in self.calls:
                found = [one for one in tree_leaves(operator(*args, **kwargs)) if isinstance(one, Tensor)]
                for one, new in zip(made, found, strict=bool(made)):
                    one.copy_(new)


def _written(schema: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    given = dict(zip((one.name for one in schema.arguments), args, strict=False)) | kwargs
    for one in schema.arguments:
        if one.alias_info is not None and one.alias_info.is_write:
            yield from (value for value in tree_leaves(given.get(one.name)) if isinstance(value, Tensor))
