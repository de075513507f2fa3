"""What the bits of a run depend on besides its state: the machine, versions, and how it computes."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import torch

import vaak
from vaak.config.training import TrainingConfig
from vaak.engine.devices.precision import Precision


def conditions(config: TrainingConfig, precision: Precision, world_size: int) -> dict[str, Any]:
    """The conditions by name; where all of them are the same, the same state gives the same bits."""
    device, performance = precision.device, config.performance
    on_gpu = device.type == "cuda"
    return {
        "vaak": vaak.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": torch.cuda.get_device_name(device) if on_gpu else f"{device.type} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "world_size": world_size,
        "compile": performance.compile,
        "precision": precision.name,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "tf32": performance.tf32 and on_gpu,
        "fused": config.optimizer.fused is not False,
        "gradient_checkpointing": performance.gradient_checkpointing,
    }
