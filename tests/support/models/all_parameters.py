"""The optimizers of all of a model's trained parameters."""

from __future__ import annotations

from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from vaak.config.optimization import OptimizerConfig
from vaak.engine.optim.optimizers import build_parameter_optimizers, check_groups, trained_parameters


def build_optimizers(model: nn.Module, config: OptimizerConfig, folder: Path = Path()) -> list[Optimizer]:
    """Those that a task with a single objective has; a ``./file.py`` is looked for in ``folder``."""
    parameters = trained_parameters(model)
    if parameters:
        check_groups(parameters, config)
    return build_parameter_optimizers(parameters, config, folder)
