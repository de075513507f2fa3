"""Muon for the hidden layers' matrices (Jordan et al. 2024), with AdamW for embeddings, heads, norms and biases.

The matrices' rate is scaled by √max(1, rows / columns), Jordan's rule (torch's ``original``): ``lr`` then is the
spectral size of an update, alike at every width. AdamW's rate means something else, so it has its own, a third of
``lr`` unless given. Matrices of one shape are orthogonalised together (Newton-Schulz): fewer kernels are started than
by the rule of torch, and on a CPU the bits are the same. On a GPU those of several shapes are, padded with zeros, where
that costs less than starting more kernels. Differs: on a CPU without bf16 in hardware, it is done in fp32
(``muon_dtype``).

Where each rank has some rows of every matrix (``fsdp``), a rank orthogonalises some of the matrices:

    rank 0   a0 b0 c0 d0                  a0 a1 ─▶ A   b0 b1 ─▶ B                  A0 B0 C0 D0
                            ──exchange──▶                            ──exchange──▶
    rank 1   a1 b1 c1 d1                  c0 c1 ─▶ C   d0 d1 ─▶ D                  A1 B1 C1 D1

So each matrix is computed once, and travels twice. Source: Liu et al. 2025, "Muon is Scalable for LLM Training"
(arXiv:2502.16982), section 2.3. Differs: matrices are shared out evenly, by shape, where theirs are gathered by each
rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Annotated as Float
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from vaak.config.optimization import OptimizerConfig
from vaak.core.batch import send
from vaak.core.errors import UserError
from vaak.core.torch_internals import uncompiled
from vaak.engine.distributed.row_exchange import RowExchange
from vaak.engine.distributed.sharding import is_sharded, local
from vaak.engine.optim.optimizers import (
    NamedParameter,
    adam_rule,
    count_layers,
    evaluate_closure,
    has_fused_kernels,
    parameter_groups,
)
from vaak.engine.precision import muon_dtype


def muon_precision(device: torch.device) -> str:
    """Return the numbers in which Muon orthogonalises on a device, as text."""
    return str(muon_dtype(device)).removeprefix("torch.")


def muon(parameters: list[NamedParameter], config: OptimizerConfig) -> list[Optimizer]:
    """Muon for the hidden matrices, AdamW for the rest; either is left out where it has nothing to do."""
    if not hasattr(torch.optim, "Muon"):
        raise UserError(f"training.optimizer.type: muon needs torch 2.9 or newer; this is {torch.__version__}")
    matrices = [item for item in parameters if item.is_hidden_matrix]
    rest = [item for item in parameters if not item.is_hidden_matrix]
    num_layers = count_layers(parameters)
    optimizers: list[Optimizer] = []
    if matrices:
        groups = parameter_groups(matrices, config, config.lr, num_layers)
        # torch's own orthogonalises matrix by matrix; equal shapes are stacked here to launch fewer kernels
        rule = uncompiled(_stacked_muon(torch.optim.Muon))(
            groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov, adjust_lr_fn="original"
        )
        optimizers.append(rule)
    if rest:
        groups = parameter_groups(rest, config, config.adamw_lr or config.lr / 3, num_layers)
        optimizers.append(adam_rule(AdamW, groups, config, has_fused_kernels(AdamW, rest, config.fused)))
    return optimizers


MOST_STACKED = 2**27
"""Bytes of the matrices that are orthogonalised together, or of a single one that is larger."""


@cache
def _stacked_muon(rule: Any) -> Any:
    """Return torch's Muon, but with matrices of one shape updated together."""
    return type(rule.__name__, (rule,), {"__module__": rule.__module__, "step": _muon_step})


@torch.no_grad()
def _muon_step(self: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
    """Update the matrices that have a gradient; returns what ``closure`` does.

    Where they are divided over ranks, every rank calls it.
    """
    loss = evaluate_closure(closure)
    for group in self.param_groups:
        rounds: list[dict[tuple[Any, ...], list[Tensor]]] = [{}]
        size = 0
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter.grad)
            # each is copied into its stack, and so are its products: rounds bound that memory
            nbytes = local(parameter).numel() * parameter.grad.dtype.itemsize
            size += nbytes
            if size > MOST_STACKED and rounds[-1]:
                rounds.append({})
                size = nbytes
            shape = tuple(parameter.shape)
            if parameter.device.type != "cpu" and not is_sharded(parameter):
                # a tall matrix joins the wide ones; not on a CPU, which rounds products of a transposed one otherwise
                shape = (min(shape), max(shape))
            rounds[-1].setdefault((shape, parameter.device, parameter.grad.dtype), []).append(parameter)
        for stacks in rounds:
            for of_kind in _part_by_kind(stacks.values()):
                _update_stacks(of_kind, self.state, group)
    return loss


def _part_by_kind(stacks: Iterable[list[Tensor]]) -> Iterable[list[list[Tensor]]]:
    """Return the stacks of each device, those of whole matrices and of sharded ones apart; standing matrices first."""
    kinds: dict[Any, list[list[Tensor]]] = {}
    for stack in stacks:
        in_order = sorted(stack, key=lambda one: one.shape[0] <= one.shape[1])
        kinds.setdefault((stack[0].device, is_sharded(stack[0])), []).append(in_order)
    return kinds.values()


def _update_stacks(stacks: list[list[Tensor]], states: Mapping[Tensor, Any], group: dict[str, Any]) -> None:
    """Update matrices; those of a stack have one shape once tall ones are transposed. All but products is done at once.

    Where a stack has standing matrices, they come first. All are on one device, whole or sharded.
    """
    parameters = [one for stack in stacks for one in stack]
    gradients = [local(one.grad) for one in parameters if one.grad is not None]
    momenta, weights = [local(states[one]["momentum_buffer"]) for one in parameters], [local(one) for one in parameters]
    torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
    towards = torch._foreach_lerp(gradients, momenta, group["momentum"]) if group["nesterov"] else momenta
    torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
    parts, kind = _split(towards, [len(stack) for stack in stacks]), parameters[0].device.type
    # on a CPU, products of padded matrices are rounded otherwise, and starting one costs nothing
    if kind == "cpu" or is_sharded(parameters[0]):
        changes = _orthogonalise_apart(stacks, parts, group)
    else:
        changes = _orthogonalise_joined(stacks, parts, group, pads=kind == "cuda")
    of_scale: dict[float, tuple[list[Tensor], list[Tensor]]] = {}
    for parameter, weight, change in zip(parameters, weights, changes, strict=True):
        rows, columns = parameter.shape
        own, their = of_scale.setdefault(max(1.0, rows / columns) ** 0.5, ([], []))
        own.append(weight)
        their.append(change)
    for scale, (own, their) in of_scale.items():
        torch._foreach_add_(own, their, alpha=-group["lr"] * scale)


def _orthogonalise_apart(
    stacks: list[list[Tensor]], towards: list[list[Tensor]], group: dict[str, Any]
) -> list[Tensor]:
    """Return the orthogonalised change of each matrix, or of a rank's rows of it, each stack by itself."""
    exchanges = [RowExchange(stack[0]) if is_sharded(stack[0]) else None for stack in stacks]
    lying = [
        _stack_lying(parts) if exchange is None else _lay(exchange.whole(_stack_on(parts, exchange.device)))
        for parts, exchange in zip(towards, exchanges, strict=True)
    ]
    matrices = [one for x in lying for one in x.unbind()]
    norms = _split(torch._foreach_norm(matrices) if matrices else (), [len(x) for x in lying])
    changes: list[Tensor] = []
    for stack, exchange, x, of_stack in zip(stacks, exchanges, lying, norms, strict=True):
        if of_stack:
            x = _orthogonalise(x / torch.stack(of_stack).clamp(min=group["eps"])[:, None, None], group)
        rows, columns = stack[0].shape
        if rows > columns:
            x = x.mT
        x = x.to(local(stack[0]).dtype) if exchange is None else exchange.rows(x, len(stack)).to(local(stack[0]))
        changes += x.contiguous().unbind()
    return changes


MOST_PADDED = 2**22
"""Numbers of matrices that are padded to one shape: as many places are kept for them."""
MOST_ADDED = 2**32
"""Operations that padding may add to the products of the matrices that are orthogonalised together.

A GPU does as many in less time than it takes to start the twenty kernels of one more shape.
"""


def _orthogonalise_joined(
    stacks: list[list[Tensor]], towards: list[list[Tensor]], group: dict[str, Any], *, pads: bool
) -> list[Tensor]:
    """Return the orthogonalised change of each matrix, those of a stack together, in which standing ones come first.

    With ``pads``, several stacks are one, with zeros around the smaller matrices: these stay zeros in every product.
    """
    shapes = [(min(stack[0].shape), max(stack[0].shape)) for stack in stacks]
    changes: dict[int, list[Tensor]] = {}
    counts = [len(stack) for stack in stacks]
    alone = [[number] for number in range(len(stacks))]
    for joined in join_shapes(shapes, counts, group["ns_steps"]) if pads else alone:
        together = [one for number in joined for one in towards[number]]
        padding = _pad_into_one(together) if len(joined) > 1 else None
        x = _stack_lying(together) if padding is None else padding.pad(together)
        x = _orthogonalise(x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=group["eps"]), group)
        found = _lay_back(x, together) if padding is None else padding.cut(x, together)
        changes |= zip(joined, _split(found, [counts[number] for number in joined]), strict=True)
    return [one for number in range(len(stacks)) for one in changes[number]]


def _lay_back(x: Tensor, matrices: list[Tensor]) -> list[Tensor]:
    """Return ``x`` ``(matrix, row, column)`` as matrices of their shapes, of which the standing ones come first."""
    standing = sum(one.shape[0] > one.shape[1] for one in matrices)
    parts = [part for part in (x[:standing].mT, x[standing:]) if len(part)]
    # side by side in memory as weights are, or CUDA would add each by itself
    return [one for part in parts for one in part.to(matrices[0].dtype).contiguous().unbind()]


@dataclass(frozen=True)
class Padding:
    """The places of matrices of several shapes in a stack of one shape, with zeros around them.

    ``taken`` are the places in the matrices, one after another, that the stack's numbers come from, the place after the
    last for a zero; ``put`` are those in the stack.
    """

    shape: tuple[int, int, int]
    taken: Tensor
    put: Tensor

    def pad(self, matrices: list[Tensor]) -> Tensor:
        """Return the matrices as one stack, lying down, in the numbers of Muon's products."""
        flat = matrices[0].new_zeros(len(self.put) + 1, dtype=muon_dtype(matrices[0].device))
        parts = flat[:-1].split([one.numel() for one in matrices])
        torch._foreach_copy_([part.view(one.shape) for part, one in zip(parts, matrices, strict=True)], matrices)
        return flat.index_select(0, self.taken).view(self.shape)

    def cut(self, x: Tensor, matrices: list[Tensor]) -> list[Tensor]:
        """Return the matrices that a stack has been made of, as they stood, side by side in memory."""
        flat = x.flatten().index_select(0, self.put).to(matrices[0].dtype)
        parts = flat.split([one.numel() for one in matrices])
        return [part.view(one.shape) for part, one in zip(parts, matrices, strict=True)]


def _pad_into_one(matrices: list[Tensor]) -> Padding:
    return _make_padding(tuple(tuple(one.shape) for one in matrices), matrices[0].device)


@cache
def _make_padding(shapes: tuple[tuple[int, int], ...], device: torch.device) -> Padding:
    """Return the padding of matrices of these shapes to one, made on the CPU once."""
    height, width = (max(side(shape) for shape in shapes) for side in (min, max))
    size = sum(rows * columns for rows, columns in shapes)
    taken, put = torch.full((len(shapes), height, width), size, dtype=torch.int32), torch.empty(size, dtype=torch.int32)
    begin = 0
    places = torch.arange(taken.numel(), dtype=torch.int32).view(taken.shape)
    for number, (rows, columns) in enumerate(shapes):
        own = torch.arange(begin, begin + rows * columns, dtype=torch.int32).view(rows, columns)
        own = own.mT if rows > columns else own
        taken[number, : own.shape[0], : own.shape[1]] = own
        put[own.flatten().long()] = places[number, : own.shape[0], : own.shape[1]].flatten()
        begin += rows * columns
    return Padding(tuple(taken.shape), send(taken.flatten(), device), send(put, device))  # type: ignore[arg-type]


def join_shapes(shapes: Sequence[tuple[int, int]], counts: Sequence[int], num_steps: int) -> list[list[int]]:
    """Return which shapes ``(rows, columns)``, of ``counts`` matrices each, are padded to one, by their numbers.

    >>> join_shapes([(96, 96), (4096, 4096), (96, 256)], [8, 1, 4], 5)
    [[0, 2], [1]]
    """

    def cost(count: int, rows: int, columns: int) -> int:
        return count * num_steps * 2 * (2 * rows * rows * columns + rows**3)

    found: list[list[int]] = []
    for number in sorted(range(len(shapes)), key=lambda number: shapes[number]):
        joined = [*(found[-1] if found else []), number]
        rows, columns = (max(shapes[one][side] for one in joined) for side in (0, 1))
        count = sum(counts[one] for one in joined)
        added = cost(count, rows, columns) - sum(cost(counts[one], *shapes[one]) for one in joined)
        if found and added <= MOST_ADDED and count * rows * columns <= MOST_PADDED:
            found[-1] = joined
        else:
            found.append([number])
    return found


def _orthogonalise(x: Float[Tensor, "matrix row column"], group: dict[str, Any]) -> Float[Tensor, "matrix row column"]:
    """Return matrices of norm 1, no higher than wide, with their singular values moved towards 1."""
    # Newton-Schulz: X ← aX + b(XXᵀ)X + c(XXᵀ)²X. In 16 bits where they are quicker, since it needn't be exact; and
    # lying down, so that the product XXᵀ is the smaller one.
    a, b, c = group["ns_coefficients"]
    for _ in range(group["ns_steps"]):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _stack_on(rows: list[Tensor], device: torch.device) -> Tensor:
    return torch.stack(rows).to(device, muon_dtype(device))


def _lay(x: Tensor) -> Tensor:
    """Return matrices of one shape as views that are at least as wide as high."""
    return x.mT if x.shape[1] > x.shape[2] else x


def _stack_lying(matrices: list[Tensor]) -> Tensor:
    """Return matrices as ``(matrix, row, column)`` with no more rows than columns, in the numbers of Muon's products.

    Where all stand, a transposed view: on a CPU its products are rounded as those of a single transposed matrix.
    """
    dtype, is_standing = muon_dtype(matrices[0].device), [one.shape[0] > one.shape[1] for one in matrices]
    if all(is_standing):
        return torch.stack(matrices).to(dtype).mT
    return torch.stack([one.mT if stands else one for one, stands in zip(matrices, is_standing, strict=True)]).to(dtype)


def _split(values: Sequence[Tensor], sizes: Iterable[int]) -> list[list[Tensor]]:
    """Return the values in lists of these sizes."""
    left = iter(values)
    return [list(islice(left, size)) for size in sizes]
