"""How much memory training will take: what is kept between steps, by the optimizer's rule, and what a step needs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from vaak.config.optimization import UPDATE_RULES, two_moments
from vaak.config.training import TrainingConfig
from vaak.engine.optim.parameter_groups import NamedParameter, trained_parameters


@dataclass(frozen=True)
class AtRest:
    """Bytes that training holds whatever the batch: ``average`` is that of the weights (training.ema)."""

    weights: int
    gradients: int
    optimizer: int
    average: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.average


def at_rest(model: nn.Module, training: TrainingConfig) -> AtRest:
    """What the model takes with all that is kept for each of its trained parameters."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    trained = trained_parameters(model)
    numbers = sum(item.parameter.numel() for item in trained)
    return AtRest(
        weights=sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
        gradients=sum(item.parameter.numel() * item.parameter.element_size() for item in trained),
        optimizer=sum(_kept(item, training) * item.parameter.element_size() for item in trained),
        average=4 * numbers if training.ema is not None else 0,
    )


def _kept(item: NamedParameter, training: TrainingConfig) -> int:
    """How many numbers the optimizer keeps for a parameter; of a user's nothing is known, so as many as AdamW."""
    rule = UPDATE_RULES.get(training.optimizer.type)
    keeps = rule.keeps if rule is not None else two_moments
    return keeps(item.parameter.shape, item.is_hidden_matrix, training.optimizer)
