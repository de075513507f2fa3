"""What is in memory between steps: as much as the optimizers really keep."""

import pytest
import torch
from torch import nn

from all_parameters import build_optimizers
from vaak.config.optimization import OptimizerConfig
from vaak.config.training import DistributedConfig, EmaConfig, TrainingConfig
from vaak.core.task import Task
from vaak.engine.forecast import at_rest
from vaak.runs.preflight.estimate import Gathered, ModelEstimate


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
        OptimizerConfig(type="adamw_8bit"),
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
    exact = at_rest(model, TrainingConfig(distributed=DistributedConfig(reduction="exact")))
    assert exact.total == exact.weights + 20 * numbers[1]


def test_tied_weights_count_once():
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20, bias=False))
    model[1].weight = model[0].weight
    assert at_rest(model, TrainingConfig()).weights == 4 * 320


def test_on_several_gpus():
    """A model of 4 blocks, of which the last layer is in none: 8 processes hold an eighth, and gather two blocks."""
    model = nn.Sequential(nn.ModuleList(nn.Sequential(nn.Linear(8, 8)) for _ in range(4)), nn.Linear(8, 4))
    block, outside = 8 * 8 + 8, 8 * 4 + 4
    gathered = Gathered.of(model, Task(), "bf16")
    assert gathered == Gathered(outside, block, size=2)
    rest = at_rest(model, TrainingConfig())
    estimate = ModelEstimate([], 0, 0, 0, None, "", rest, gathered, 0, "cpu", "bf16")
    total = 16 * (4 * block + outside)
    assert estimate.estimate_on_each(1) == {"ddp": total, "zero1": total, "fsdp": total}
    assert estimate.estimate_on_each(8) == {
        "ddp": total,
        "zero1": total // 2 + total // 16,
        "fsdp": total // 8 + 4 * outside + 8 * block + 4 * block // 8,
    }
