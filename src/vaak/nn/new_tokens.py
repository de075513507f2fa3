"""Rows of tokens that a pretrained model lacks: how they begin, and how they are trained where all else is frozen.

    embedding   [ rows of the base, frozen ][ new rows ]          the output layer has the same rows, tied or not
    weight      index_copy(base, the new rows' ids, new rows)     made when it is read

A new row begins as the mean of the base's, or as that of a token which is named. Under low-rank adapters the new rows
alone are parameters, as ``trainable_token_indices`` of peft has them; the frozen weight keeps its name and its bits.

Source: Hewitt 2021, "Initializing New Word Embeddings for Pretrained Language Models" (the mean).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vaak.core.errors import UserError

ORIGINAL = ".parametrizations.weight.original"
"""How the name of a weight with new rows ends, without ``.weight``."""
ROWS_KEY = ".parametrizations.weight.0.rows"
"""How the name of its new rows ends."""


class NewRows(nn.Module):
    """The rows of a weight that tokens ``ids`` have, which are trained while the others are frozen."""

    is_embedding = True

    def __init__(self, weight: Tensor, ids: range) -> None:
        """Begin with the rows that ``weight`` ``(token, …)`` has there."""
        super().__init__()
        self.ids = ids
        rows = weight.detach()[ids.start : ids.stop].clone()
        # The frozen weight may be in bf16, in which small updates would be lost.
        self.rows = nn.Parameter(rows.to(torch.promote_types(rows.dtype, torch.float32)))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the whole weight ``(token, …)``."""
        index = torch.arange(self.ids.start, self.ids.stop, device=weight.device)
        return weight.index_copy(0, index, self.rows.to(weight.dtype))


@torch.no_grad()
def begin_new_rows(modules: Iterable[nn.Module | None], ids: range, like: int | None = None) -> None:
    """Set the rows of tokens ``ids`` in embeddings and output layers to the mean of those before, or to one of them.

    That one is of the token ``like``.
    """
    for module in modules if ids else ():
        for weight in (getattr(module, "weight", None), getattr(module, "bias", None)):
            if weight is not None:
                weight[ids.start : ids.stop] = weight[: ids.start].mean(0) if like is None else weight[like]


def train_new_rows(modules: Iterable[nn.Module | None], ids: range) -> None:
    """Train the rows of tokens ``ids`` in embeddings and output layers, whose weights are frozen; in place.

    Tied ones stay so. Raises UserError for an output layer with low-rank adapters.
    """
    shared: dict[int, NewRows] = {}
    for module in modules if ids else ():
        if module is None:
            continue
        if hasattr(module, "lora_A"):
            raise UserError(
                "model.lora.targets: the output layer can't be adapted while tokens are added to the base: it learns "
                "their rows; leave it out"
            )
        weight: Any = module.weight
        rows = shared.setdefault(id(weight), NewRows(weight, ids))
        parametrize.register_parametrization(module, "weight", rows)


def get_stored_weight(module: nn.Module) -> Tensor:
    """Return the stored weight of a module; with new rows, the weight that they are to be put in."""
    one: Any = module
    stored: Tensor = one.parametrizations.weight.original if _find_rows(module) is not None else one.weight
    return stored


def iterate_new_rows(model: nn.Module) -> Iterator[tuple[str, NewRows]]:
    """Yield the names of modules with new rows, and these; tied ones once."""
    seen = set[int]()
    for name, module in model.named_modules():
        rows = _find_rows(module)
        if rows is not None and id(rows) not in seen:
            seen.add(id(rows))
            yield name, rows


def _find_rows(module: nn.Module) -> NewRows | None:
    if not parametrize.is_parametrized(module, "weight"):
        return None
    first = module.parametrizations["weight"][0]  # type: ignore[index]
    return first if isinstance(first, NewRows) else None


@torch.no_grad()
def merge_new_rows(model: nn.Module) -> None:
    """Put new rows into the weights that they belong to, in place; tied ones stay so."""
    owners: dict[int, list[nn.Module]] = {}
    for module in list(model.modules()):
        if (rows := _find_rows(module)) is not None:
            owners.setdefault(id(rows), []).append(module)
    for tied in owners.values():
        weight: Any = tied[0].weight
        merged = nn.Parameter(weight.detach().clone(), requires_grad=False)
        for module in tied:
            # Not remove_parametrizations, which changes the class: that of the model of which this one is a copy, too.
            del module.parametrizations
            module.__class__ = type(module).__bases__[0]
            module.weight = merged


@torch.no_grad()
def take_new_rows(model: nn.Module, names: Iterable[str]) -> None:
    """Set those of a model's new rows that ``names`` has, of its parameters, to the rows that they stand in for."""
    wanted = set(names)
    for name, rows in iterate_new_rows(model):
        if f"{name}{ROWS_KEY}" in wanted:
            rows.rows.copy_(get_stored_weight(model.get_submodule(name))[rows.ids.start : rows.ids.stop])
