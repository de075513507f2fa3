"""Every device's generators, seeded by a key; and the switches that make kernels repeat themselves."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator

import numpy as np
import torch

from vaak.config.training import TrainingConfig


def seed_everything(key: int, device: torch.device) -> None:
    """Seed the generators of Python, NumPy, the CPU and this device.

    ``torch.manual_seed`` would touch every backend there is and take 80 microseconds; this takes a tenth.
    """
    random.seed(key)
    np.random.seed(key)
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        index = device.index if device.index is not None else torch.cuda.current_device()
        torch.cuda.default_generators[index].manual_seed(key)
    elif device.type == "mps":
        torch.mps.manual_seed(key)


@contextlib.contextmanager
def keeping_generators(device: torch.device) -> Iterator[None]:
    """Restore the state of all generators on exit."""
    python, numpy, torchs = random.getstate(), np.random.get_state(), torch.get_rng_state()
    place = (device,) if device.type == "cuda" else ()
    module = torch.get_device_module(device) if device.type in ("cuda", "mps") else None
    on_device = module.get_rng_state(*place) if module else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(torchs)
        if module:
            module.set_rng_state(on_device, *place)


def make_deterministic(config: TrainingConfig, device: torch.device) -> None:
    """Choose kernels that give the same bits every time: always on a CPU, on CUDA where the config asks for it."""
    torch.backends.cuda.matmul.allow_tf32 = config.performance.tf32
    torch.backends.cudnn.allow_tf32 = config.performance.tf32
    if config.performance.num_threads:
        torch.set_num_threads(config.performance.num_threads)
    if device.type == "cuda" and not config.deterministic:
        torch.set_deterministic_debug_mode("default")
        torch.backends.cudnn.deterministic = False
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # The same switch as use_deterministic_algorithms, which imports the whole compiler first.
    torch.set_deterministic_debug_mode("warn" if device.type == "mps" else "error")
    if config.performance.compile:
        torch.use_deterministic_algorithms(True, warn_only=device.type == "mps")
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True
    # Filling fresh memory with NaN finds reads of what was never written; no kernel here does that, and it costs time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
