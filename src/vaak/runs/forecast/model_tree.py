"""A model as a tree of its modules, a line each: those without parameters left out, equal blocks drawn once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class Branch:
    """A module, or ``repeats`` equal ones in a row: its own tensors, and the parameters in it that no line above had.

    ``same_as`` names the module of a line above that has this one's parameters.
    """

    depth: int
    name: str
    kind: str
    parameters: int
    tensors: dict[str, list[int]] = field(default_factory=dict)
    repeats: int = 1
    same_as: str | None = None


def model_tree(model: nn.Module) -> list[Branch]:
    """The lines of a model from its root down."""
    return list(_Walk().lines(model, "model", "", 0, 1))


class _Walk:
    """Goes down a model and remembers where each parameter was seen first."""

    def __init__(self) -> None:
        self.first_seen: dict[int, str] = {}

    def lines(self, module: nn.Module, name: str, path: str, depth: int, repeats: int) -> Iterator[Branch]:
        """The line of a module, then those below it.

        ``module`` is called ``name`` in the module around it and is at ``path`` in the model, ``depth`` levels below
        it; ``repeats`` equal modules stand in this one line.
        """
        kind, parameters = type(module).__name__, list(module.parameters())
        seen = {self.first_seen[id(parameter)] for parameter in parameters if id(parameter) in self.first_seen}
        number = sum(p.numel() for p in parameters if id(p) not in self.first_seen)
        own = {tensor_name: list(tensor.shape) for tensor_name, tensor in _own_tensors(module)}
        if parameters and not number:
            yield Branch(depth, name, kind, 0, own, repeats, " and ".join(sorted(seen)))
            return
        yield Branch(depth, name, kind, number * repeats, own, repeats)
        for parameter in module.parameters(recurse=False):
            self.first_seen.setdefault(id(parameter), path or name)
        for child_name, child, count in _children(module):
            yield from self.lines(child, child_name, f"{path}.{child_name}".lstrip("."), depth + 1, count)
        if not depth and getattr(module, "head", module) is None:  # as in vaak.nn.models
            embeddings = [key for key, child in module.named_children() if isinstance(child, nn.Embedding)]
            yield Branch(1, "head", "Linear", 0, same_as=embeddings[0])


def _children(module: nn.Module) -> Iterator[tuple[str, nn.Module, int]]:
    """The children that hold anything, those of a list that are equal and follow each other as one."""
    held = [(name, child) for name, child in module._modules.items() if child is not None and _holds_tensors(child)]
    start = 0
    while start < len(held):
        end = start + 1
        if isinstance(module, nn.ModuleList):
            like = _signature(held[start][1])
            while end < len(held) and _signature(held[end][1]) == like:
                end += 1
        name = held[start][0] if end == start + 1 else f"{held[start][0]}–{held[end - 1][0]}"
        yield name, held[start][1], end - start
        start = end


def _holds_tensors(module: nn.Module) -> bool:
    return any(True for _ in (*module.parameters(), *module.buffers()))


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(recurse=False)
    yield from module.named_buffers(recurse=False)


def _signature(module: nn.Module) -> Any:
    """What two modules have in common that are drawn alike."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return type(module), [(name, tuple(tensor.shape)) for name, tensor in tensors.items()]
