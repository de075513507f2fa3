"""What the bits of a run depend on besides its state: the machine, versions, and how it computes."""

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
from vaak.config.training import TrainingConfig
from vaak.core.versions import code_version, installed_versions
from vaak.engine.devices.precision import Precision

INSTRUCTIONS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "MKL_DEBUG_CPU_TYPE")
"""Environment variables by which libraries choose among the processor's instructions; torch says what it chose."""


class Difference(NamedTuple):
    """A condition that isn't what it was; None is one that wasn't there, or isn't any more."""

    name: str
    before: Any
    now: Any


def conditions(config: TrainingConfig, precision: Precision, world_size: int) -> dict[str, Any]:
    """The conditions by name; where all of them are the same, the same state gives the same bits."""
    device, performance = precision.device, config.performance
    on_gpu = device.type == "cuda"
    return {
        "vaak": vaak.__version__,
        "code": code_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "packages": {name: one for name, one in installed_versions().items() if name not in ("torch", "numpy")},
        "device": torch.cuda.get_device_name(device) if on_gpu else f"{device.type} {platform.machine()}",
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "processor": _processor(),
        "instructions": {name: os.environ[name] for name in INSTRUCTIONS if name in os.environ},
        "threads": torch.get_num_threads(),
        "world_size": world_size,
        "compile": performance.compile,
        "precision": precision.name,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "tf32": performance.tf32 and on_gpu,
        "fused": config.optimizer.fused is not False,
        "gradient_checkpointing": performance.gradient_checkpointing,
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """The conditions that changed, as far as ``before`` has them: a checkpoint of an earlier version has fewer."""
    return [one for name, value in now.items() if name in before for one in _compared(name, before[name], value)]


def unknown(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The names of the conditions that ``before`` doesn't say."""
    return [name for name in now if name not in before]


def in_words(now: Mapping[str, Any]) -> str:
    """The conditions in one line."""
    shown = {name: f"{len(value)} known" if name == "packages" else value for name, value in now.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items() if value not in (None, {}))


def _compared(name: str, before: Any, now: Any) -> Iterator[Difference]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for part in sorted(before.keys() | now.keys()):
            yield from _compared(part, before.get(part), now.get(part))
    elif before != now:
        yield Difference(name, before, now)


@cache
def _processor() -> str | None:
    """The name of the processor: libraries choose their kernels by it. None where the system doesn't say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
