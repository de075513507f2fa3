"""Muon for the hidden layers' matrices (Jordan et al. 2024), with AdamW for embeddings, heads, norms and biases.

The matrices' rate is scaled by √max(1, rows / columns), Jordan's rule (torch's ``original``): ``lr`` then is the
spectral size of an update, alike at every width. AdamW's rate means something else, so it has its own, a third of
``lr`` unless given. Matrices of one shape are orthogonalised together (Newton-Schulz): fewer kernels are started than
by the rule of torch, and the bits are the same. Differs: on a CPU without bf16 in hardware, it is done in fp32
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
from functools import cache
from itertools import islice
from typing import Annotated as Float
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from vaak.config.optimization import OptimizerConfig
from vaak.core.errors import UserError
from vaak.core.torch_internals import uncompiled
from vaak.engine.distributed.row_exchange import RowExchange
from vaak.engine.distributed.sharding import is_sharded, local
from vaak.engine.optim.optimizers import NamedParameter, adam_rule, count_layers, has_fused_kernels, parameter_groups
from vaak.engine.precision import muon_dtype


def muon_precision(device: torch.device) -> str:
    """The numbers in which Muon orthogonalises on a device, as text."""
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
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    for group in self.param_groups:
        rounds: list[dict[tuple[Any, ...], list[Tensor]]] = [{}]
        size = 0
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter.grad)
            # a copy of each in its stack, and of its products: so much memory is bounded, whatever the model's size
            nbytes = local(parameter).numel() * parameter.grad.dtype.itemsize
            size += nbytes
            if size > MOST_STACKED and rounds[-1]:
                rounds.append({})
                size = nbytes
            shape = tuple(parameter.shape)
            if parameter.device.type != "cpu" and not is_sharded(parameter):
                # one on end is one lying down; on a CPU the products of a transposed matrix are rounded otherwise
                shape = (min(shape), max(shape))
            rounds[-1].setdefault((shape, parameter.device, parameter.grad.dtype), []).append(parameter)
        for stacks in rounds:
            in_order = [sorted(stack, key=lambda one: one.shape[0] <= one.shape[1]) for stack in stacks.values()]
            if in_order:
                _update_stacks(in_order, self.state, group)
    return loss


def _update_stacks(stacks: list[list[Tensor]], states: Mapping[Tensor, Any], group: dict[str, Any]) -> None:
    """Update matrices; those of a stack have one shape once tall ones are transposed. All but products is done at once.

    Where a stack has standing matrices, they come first.
    """
    parameters = [one for stack in stacks for one in stack]
    gradients = [local(one.grad) for one in parameters if one.grad is not None]
    momenta, weights = [local(states[one]["momentum_buffer"]) for one in parameters], [local(one) for one in parameters]
    torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
    towards = torch._foreach_lerp(gradients, momenta, group["momentum"]) if group["nesterov"] else momenta
    torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
    sizes = [len(stack) for stack in stacks]
    exchanges = [RowExchange(stack[0]) if is_sharded(stack[0]) else None for stack in stacks]
    lying = [
        _stack_lying(parts) if exchange is None else _lay(exchange.whole(_stack_on(parts, exchange.device)))
        for parts, exchange in zip(_split(towards, sizes), exchanges, strict=True)
    ]
    matrices = [one for x in lying for one in x.unbind()]
    norms = _split(torch._foreach_norm(matrices) if matrices else (), [len(x) for x in lying])
    parts = zip(stacks, _split(weights, sizes), exchanges, lying, norms, strict=True)
    for stack, own, exchange, x, of_stack in parts:
        if of_stack:
            x = _orthogonalise(x / torch.stack(of_stack).clamp(min=group["eps"])[:, None, None], group)
        standing = sum(one.shape[0] > one.shape[1] for one in stack)
        if exchange is not None:
            rows = exchange.rows(x.mT if standing else x, len(stack)).to(own[0])
            _add_changes(own, rows, stack[0].shape, group)
            continue
        x = x.to(stack[0].dtype)
        for some, change in ((own[:standing], x[:standing].mT), (own[standing:], x[standing:])):
            if some:
                _add_changes(some, change, some[0].shape, group)


def _add_changes(weights: list[Tensor], changes: Tensor, shape: Sequence[int], group: dict[str, Any]) -> None:
    """Add changes ``(matrix, row, column)``, scaled by the ``shape`` of a whole matrix."""
    rows, columns = shape
    scale = group["lr"] * max(1.0, rows / columns) ** 0.5
    # side by side in memory as weights are, or CUDA would add each by itself
    torch._foreach_add_(weights, changes.contiguous().unbind(), alpha=-scale)


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
    """Return matrices of one shape as views that are no higher than wide."""
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
