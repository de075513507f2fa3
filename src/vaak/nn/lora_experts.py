"""Mixtures of low-rank adapters of frozen linear layers, of which a gate chooses some for each example.

    y = W x + Σ_e w_e · scale · B_e A_e x        w_e is 0 for all but top_k experts of an example

Only the chosen experts are computed, each on its own examples. An example is a row of a batch, with all its frames or
tokens.

Sources: Fedus et al. 2021, "Switch Transformers" (one expert, weighed by its probability, and the load-balancing loss);
Jiang et al. 2024, "Mixtral of Experts" (several, whose weights add up to 1); Wang et al. 2024, "Auxiliary-Loss-Free
Load Balancing Strategy for Mixture-of-Experts" (the bias); Qiu et al. 2025, "Demons in the Detail: On Implementing Load
Balancing Loss for Training Specialized Mixture-of-Expert Models" (balance over all of a step, instead of each
microbatch, which forbids experts to specialise).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vaak.core.batch import read_together, send
from vaak.nn.feed_forward import balance
from vaak.nn.lora_targets import is_target

USE = "expert_use"
"""Name of a term, with an expert's number after a slash: how often it was chosen."""


class Choice(NamedTuple):
    """An expert, the rows that chose it, and their weights of it, each ``(chosen,)``."""

    expert: int
    rows: Tensor
    weights: Tensor


def choices_by(weights: Tensor) -> tuple[Choice, ...]:
    """Return the experts that any row chose, by weights ``(row, expert)``; a GPU is waited for once."""
    (read,) = read_together(weights)
    found = [(expert, column.nonzero()[:, 0]) for expert, column in enumerate(read.unbind(1))]
    rows_by_expert = [(expert, send(rows, weights.device)) for expert, rows in found if len(rows)]
    return tuple(Choice(expert, rows, weights[rows, expert]) for expert, rows in rows_by_expert)


class Routing:
    """Which experts change which rows of the batch that is being computed; the layers of a model share one."""

    def __init__(self) -> None:
        self.choices: tuple[Choice, ...] = ()

    @contextmanager
    def of(self, choices: tuple[Choice, ...]) -> Iterator[None]:
        """Within, rows are changed by the experts that they chose; without any: not at all."""
        before, self.choices = self.choices, choices
        try:
            yield
        finally:
            self.choices = before


class LoraExperts(nn.Module):
    """A linear layer, frozen, with low-rank adapters by experts."""

    def __init__(
        self, base: nn.Linear, num_experts: int, rank: int, scale: float, dropout: float, routing: Routing
    ) -> None:
        """``num_experts`` adapters of ``rank``, multiplied by ``scale``; each is nothing at first.

        ``base`` is frozen. ``dropout`` is before the adapters; ``routing`` says whose they are.
        """
        super().__init__()
        self.base, self.routing, self.scale = base.requires_grad_(False), routing, scale
        self.dropout = nn.Dropout(dropout)
        kind: dict[str, Any] = {"dtype": base.weight.dtype, "device": base.weight.device}
        self.lora_a = nn.Parameter(torch.empty(num_experts, rank, base.in_features, **kind))
        self.lora_b = nn.Parameter(torch.zeros(num_experts, base.out_features, rank, **kind))
        for expert in self.lora_a:
            # peft initialises the same way.
            nn.init.kaiming_uniform_(expert, a=math.sqrt(5))

    def forward(self, inputs: Tensor) -> Tensor:
        """``(row, …, out)`` of ``(row, …, in)``."""
        outputs: Tensor = self.base(inputs)
        for expert, rows, weights in self.routing.choices:
            low = nn.functional.linear(self.dropout(inputs[rows]), self.lora_a[expert])
            change = nn.functional.linear(low, self.lora_b[expert])
            factors = (self.scale * weights).view(-1, *[1] * (inputs.ndim - 1))
            outputs = outputs.index_add(0, rows, (factors * change).to(outputs.dtype))
        return outputs


class Gate(nn.Module):
    """Scores of experts for what an example is like; and their ``bias``, which balances how often they are chosen."""

    bias: Tensor | None

    def __init__(self, width: int, num_experts: int, hidden: int, bias_rate: float = 0.0) -> None:
        """``width`` is that of an example's vector, ``hidden`` that of the layer between.

        ``bias_rate`` is the change of the bias of each of ``num_experts`` per step; at 0 experts have no bias.
        """
        super().__init__()
        self.bias_rate = bias_rate
        self.register_buffer("bias", torch.zeros(num_experts) if bias_rate else None)
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, num_experts)
        )

    def forward(self, vectors: Tensor) -> Tensor:
        """Logits ``(row, expert)`` of vectors ``(row, width)``."""
        logits: Tensor = self.layers(vectors)
        return logits

    def follow_step(self, sums: Mapping[str, Tensor]) -> None:
        """Raise the bias of experts that were chosen less than the mean in a step, and lower that of the others.

        ``sums`` are those of the step's terms over all ranks. Source: Wang et al. 2024, algorithm 1.
        """
        if self.bias is not None:
            use = torch.stack([sums[f"{USE}/{expert}"] for expert in range(len(self.bias))])
            balance(self.bias, use, self.bias_rate)


def add_experts(
    model: nn.Module,
    targets: Sequence[str],
    num_experts: int,
    rank: int,
    scale: float,
    dropout: float,
    also_trained: Iterable[str] = (),
) -> Routing:
    """Freeze a model and give its linear layers whose names end in ``targets`` experts, in place; their routing.

    ``num_experts``, ``rank``, ``scale`` and ``dropout`` are as in ``LoraExperts``. Without such a layer, only
    the choice of trained weights changes. The modules ``also_trained`` are trained, and have no experts.
    """
    model.requires_grad_(False)
    whole = {module for name in also_trained for module in model.get_submodule(name).modules()}
    routing = Routing()
    for name, layer in list(model.named_modules()):
        parent, _, own = name.rpartition(".")
        if isinstance(layer, nn.Linear) and is_target(name, targets) and layer not in whole:
            setattr(model.get_submodule(parent), own, LoraExperts(layer, num_experts, rank, scale, dropout, routing))
    for module in whole:
        module.requires_grad_(True)
    return routing


def top_k_weights(logits: Tensor, top_k: int, bias: Tensor | None = None) -> Tensor:
    """Return the weights of experts ``(row, expert)``: probabilities of the ``top_k`` of logits, 0 for the others.

    One keeps its probability, so that the gate learns from the task's loss; several add up to 1. Of equal ones the
    first are chosen. A ``bias`` ``(expert,)`` is added to probabilities for the choice, and not to the weights.

    >>> top_k_weights(torch.tensor([[0.0, 1.0, 1.0]]), 2)
    tensor([[0.0000, 0.5000, 0.5000]])
    """
    probabilities = logits.softmax(-1)
    scores = logits if bias is None else probabilities + bias
    order = scores.argsort(dim=-1, descending=True, stable=True)[:, :top_k]
    weights = torch.zeros_like(probabilities).scatter(1, order, probabilities.gather(1, order))
    return weights if top_k == 1 else weights / weights.sum(-1, keepdim=True)


def count_uses(weights: Tensor) -> dict[str, Tensor]:
    """Return how many rows of ``weights`` ``(row, expert)`` chose each expert, named as ``Gate.follow_step`` reads."""
    return {f"{USE}/{expert}": times for expert, times in enumerate((weights > 0).sum(0).float().unbind())}


def load_balancing(logits: Tensor, uses: Mapping[str, Tensor]) -> Tensor:
    """Return the part of rows in ``N Σ_e f_e P_e``, times the number of rows of the step.

        f_e = choices of expert e in the step / choices of all N experts        no gradient
        P_e = Σ over the rows of the step of the probability of e / rows        1 where all are used alike

    ``logits`` are ``(row, expert)``; ``uses`` are those of ``count_uses``, of the whole step. As f_e is the same for
    all rows, this is a sum over rows: microbatches, chunks and ranks add up to the loss and gradient of one batch.

    Source: Fedus et al. 2021, equation 4. Differs: over the step instead of each batch, as Qiu et al. 2025.
    """
    counts = torch.stack([uses[f"{USE}/{expert}"] for expert in range(logits.shape[1])])
    probabilities = logits.softmax(-1).sum(0)
    return logits.shape[1] * ((counts / counts.sum()).to(probabilities.dtype) * probabilities).sum()
