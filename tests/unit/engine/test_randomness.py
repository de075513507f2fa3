"""Seeding reaches every generator and repeats itself; kernels are deterministic on a CPU."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from vaak.config.training import PerformanceConfig, TrainingConfig
from vaak.engine.precision import make_deterministic, seed_everything

CPU = torch.device("cpu")


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(()))


def test_every_generator_is_seeded():
    seed_everything(7, CPU)
    first = draws()
    assert all(one != other for one, other in zip(first, draws(), strict=True))
    seed_everything(7, CPU)
    assert draws() == first
    assert first[2] == float(torch.rand((), generator=torch.Generator().manual_seed(7)))
    seed_everything(8, CPU)
    assert draws() != first


@pytest.fixture
def restored() -> Iterator[None]:
    deterministic, tf32 = torch.are_deterministic_algorithms_enabled(), torch.backends.cuda.matmul.allow_tf32
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(
    ("device", "asked", "expected"),
    [("cpu", False, True), ("cpu", True, True), ("cuda", False, False), ("cuda", True, True)],
)
def test_kernels_are_deterministic_on_a_cpu_and_elsewhere_where_asked(device: str, asked: bool, expected: bool):
    make_deterministic(TrainingConfig(deterministic=asked), torch.device(device))
    assert torch.are_deterministic_algorithms_enabled() is expected
    if expected:
        assert not torch.backends.cudnn.benchmark
        deterministic: Any = torch.utils.deterministic
        assert not deterministic.fill_uninitialized_memory


@pytest.mark.usefixtures("restored")
def test_tf32_and_threads_are_as_configured():
    for wanted in (True, False):
        make_deterministic(TrainingConfig(performance=PerformanceConfig(tf32=wanted, num_threads=1)), CPU)
        assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is wanted
        assert torch.get_num_threads() == 1


def test_cudnn_repeats_itself_where_kernels_are_deterministic(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    make_deterministic(TrainingConfig(), torch.device("cpu"))
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic) == (False, True)
