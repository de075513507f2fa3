"""The conditions other than its state that a run's bits depend on: the machine, versions, and how it computes."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import vaak
from vaak.config.optimization import UPDATE_CONDITIONS
from vaak.config.training import TrainingConfig
from vaak.core.machine import code_version, installed_versions, nvidia_driver
from vaak.engine.optim.optimizers import update_condition
from vaak.engine.precision import Precision, uses_tf32

INSTRUCTIONS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "MKL_DEBUG_CPU_TYPE")
"""Environment variables that decide which of the processor's instructions libraries use; torch reports its choice."""

OF_NCCL = (
    *("NCCL_ALGO", "NCCL_PROTO", "NCCL_NTHREADS", "NCCL_BUFFSIZE", "NCCL_TUNER_PLUGIN", "NCCL_NVLS_ENABLE"),
    *("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_COLLNET_ENABLE"),
    *("NCCL_GRAPH_FILE", "NCCL_TOPO_FILE", "NCCL_CROSS_NIC", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE"),
)
"""Environment variables that decide the order in which GPUs add up gradients."""
MEANINGS = {
    "driver": "it compiles some kernels",
    "cudnn": "it may choose other kernels",
    **dict.fromkeys(("nccl", *OF_NCCL), "GPUs may add up gradients in another order"),
    **{name: one.meaning for name, one in UPDATE_CONDITIONS.items()},
}
"""The effect of changing a condition, if its name isn't clear enough."""


class Difference(NamedTuple):
    """A condition that changed; its value is None before it was added or after it was removed."""

    name: str
    before: Any
    now: Any


def conditions(config: TrainingConfig, precision: Precision, world_size: int) -> dict[str, Any]:
    """Return the conditions by name; if all are the same, the same state gives the same bits."""
    device, performance = precision.device, config.performance
    on_gpu, sums_exactly = device.type == "cuda", config.distributed.reduction == "exact"
    by_nccl = on_gpu and world_size > 1 and config.distributed.backend != "gloo" and not sums_exactly
    return {
        "vaak": vaak.__version__,
        "code": code_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "packages": {name: one for name, one in installed_versions().items() if name not in ("torch", "numpy")},
        "device": torch.cuda.get_device_name(device) if on_gpu else f"{device.type} {platform.machine()}",
        "driver": nvidia_driver() if on_gpu else None,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if by_nccl else None,
        "nccl settings": {name: os.environ[name] for name in OF_NCCL if name in os.environ} if by_nccl else {},
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "processor": _processor(),
        "instructions": {name: os.environ[name] for name in INSTRUCTIONS if name in os.environ},
        "threads": torch.get_num_threads(),
        "world_size": "any" if sums_exactly else world_size,
        "compile": performance.compile,
        "precision": precision.name,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "tf32": uses_tf32(config, device) and on_gpu,
        "fused": config.optimizer.fused is not False,
        # A condition of another update rule is None.
        **dict.fromkeys(UPDATE_CONDITIONS),
        **update_condition(config.optimizer, device),
        "gradient_checkpointing": performance.gradient_checkpointing,
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Return the conditions that changed, if ``before`` has them: checkpoints of earlier versions have fewer."""
    return [one for name, value in now.items() if name in before for one in _compare(name, before[name], value)]


def unknown(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of the conditions that ``before`` doesn't record."""
    return [name for name, value in now.items() if name not in before and value not in (None, {})]


def in_words(now: Mapping[str, Any]) -> str:
    """Return the conditions as one line."""
    shown = {name: f"{len(value)} known" if name == "packages" else value for name, value in now.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items() if value not in (None, {}))


def _compare(name: str, before: Any, now: Any) -> Iterator[Difference]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for part in sorted(before.keys() | now.keys()):
            yield from _compare(part, before.get(part), now.get(part))
    elif before != now:
        yield Difference(name, before, now)


@cache
def _processor() -> str | None:
    """Return the name of the processor, by which libraries choose kernels; None if the system doesn't tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
