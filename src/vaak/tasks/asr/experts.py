"""A model whose layers have experts, which a gate chooses for each utterance by what the base makes of it.

    audio ──base──▶ states ──mean──▶ gate ──▶ experts of each row ──▶ the base with their changes ──▶ outputs

The same for every encoder: a model says how it encodes, ``Routing`` does the rest (vaak.nn.lora_experts).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor, nn

from vaak.nn.lora import DTYPES, keep_frozen_weights_in, linear_layers, require_layers
from vaak.nn.lora_experts import Choice, Gate, LoraExperts, Routing, add_experts, choices_by, top_k_weights
from vaak.nn.lora_targets import fit_targets
from vaak.nn.speech.masks import exact, length_mask, masked
from vaak.tasks.asr.config import ExpertsConfig


class Routed(NamedTuple):
    """The ``gate``'s logits, the ``weights`` that follow, both ``(row, expert)``, and by these the ``choices``."""

    gate: Tensor
    weights: Tensor
    choices: tuple[Choice, ...]


def mean_state(states: Tensor, lengths: Tensor | None) -> Tensor:
    """The mean ``(row, width)`` of states ``(row, position, width)``, of which ``lengths`` ``(row,)`` are real, or all.

    It is what the gate reads, and an utterance's embedding.
    """
    if lengths is None:
        return states.mean(1)
    return masked(exact(states), length_mask(lengths, states.shape[1])).sum(1) / lengths[:, None]


class WithExperts(nn.Module):
    """A model that may have experts; without any, ``gate`` and ``experts`` are None."""

    def __init__(self) -> None:
        super().__init__()
        self.experts: ExpertsConfig | None = None
        self.gate: Gate | None = None
        self.routing = Routing()

    def add_experts(
        self, base: nn.Module, options: ExpertsConfig | None, width: int, also_trained: Iterable[str] = ()
    ) -> list[str]:
        """Freeze ``base``, give its layers experts, and the model their gate; return the names of those layers.

        The gate reads vectors of ``width``. Modules of ``base`` that are ``also_trained`` are as they were. All is
        drawn from torch's default generator. Raises UserError if a name of ``options.targets`` is that of no layer.
        """
        if options is None:
            return []
        linear = linear_layers(base, also_trained)
        options = fit_targets(options, linear)
        require_layers("model.experts", linear, options)
        sizes = options.num_experts, options.rank, options.scale
        self.experts, self.routing = options, add_experts(base, options.targets, *sizes, options.dropout, also_trained)
        layers = [name for name, one in base.named_modules() if isinstance(one, LoraExperts)]
        keep_frozen_weights_in(DTYPES[options.base_dtype], base)
        self.gate = Gate(width, options.num_experts, options.gate_width, options.balancing_bias)
        return layers

    def route(self, gate_input: Tensor) -> Routed:
        """How rows are routed by what the gate reads of them, ``(row, width)``."""
        assert self.gate is not None
        assert self.experts is not None
        logits: Tensor = self.gate(gate_input)
        weights = top_k_weights(logits, self.experts.top_k, self.gate.bias)
        return Routed(logits, weights, choices_by(weights))
