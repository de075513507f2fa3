"""What is in memory between steps: as much as the optimizers really keep."""

import pytest
import torch
from torch import nn

from all_parameters import build_optimizers
from vaak.config.optimization import OptimizerConfig
from vaak.config.training import EmaConfig, TrainingConfig
from vaak.runs.estimate import at_rest


def network():
    return nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 24), nn.LayerNorm(24), nn.Linear(24, 8))


@pytest.mark.parametrize(
    "optimizer",
    [
        OptimizerConfig(type="adamw"),
        OptimizerConfig(type="adam"),
        OptimizerConfig(type="lion", betas=(0.9, 0.99)),
        OptimizerConfig(type="sgd"),
        OptimizerConfig(type="sgd", momentum=0.0),
        OptimizerConfig(type="muon"),
        OptimizerConfig(type="adafactor"),
    ],
    ids=lambda optimizer: f"{optimizer.type}-{optimizer.momentum}",
)
def test_optimizers_keep_what_is_forecast(optimizer):
    model = network()
    kept = 0
    for part in build_optimizers(model, optimizer):
        model(torch.arange(20)).square().sum().backward()
        part.step()
        states = [value for state in part.state.values() for value in state.values()]
        kept += sum(value.nbytes for value in states if isinstance(value, torch.Tensor) and value.ndim)
    assert at_rest(model, TrainingConfig(optimizer=optimizer)).optimizer == kept


def test_all_that_is_kept():
    model = network()
    model.register_buffer("table", torch.zeros(100))
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    numbers = [sum(p.numel() for p in model[part:].parameters()) for part in (0, 1)]
    found = at_rest(model, TrainingConfig(ema=EmaConfig()))
    assert found.weights == 4 * (numbers[0] + 100)
    assert (found.gradients, found.optimizer, found.average) == (4 * numbers[1], 8 * numbers[1], 4 * numbers[1])
    assert found.total == found.weights + 16 * numbers[1]
    assert at_rest(model, TrainingConfig()).average == 0


def test_tied_weights_count_once():
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20, bias=False))
    model[1].weight = model[0].weight
    assert at_rest(model, TrainingConfig()).weights == 4 * 320
