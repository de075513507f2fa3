"""Processes with a GPU meet without waiting for it, and try at their start what they add up by."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from mock_cuda import MockDevice
from vaak.config.training import TrainingConfig
from vaak.core.errors import UserError
from vaak.engine.distributed.ranks import Ranks, _join, start_ranks

DEVICE = torch.device("cuda", 0)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process is the only one of a launch, whose groups end with the test."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def join() -> None:
    _join("cpu:gloo,cuda:gloo", DEVICE, timedelta(minutes=1))


def test_they_wait_for_each_other_and_not_for_the_gpu(gpu: MockDevice, alone: None):
    join()
    of_several = Ranks(DEVICE, 0, 2)
    of_several.wait()
    assert gpu.waits() == []
    dist.distributed_c10d._get_default_group().bound_device_id = DEVICE
    of_several.wait()
    assert [note.what for note in gpu.waits()] == ["barrier"], "as it would be with a device_id"


def test_what_cant_add_up_on_the_gpu_ends_at_the_start(gpu: MockDevice, alone: None, monkeypatch: pytest.MonkeyPatch):
    def refuse(tensor: torch.Tensor, *_: Any, **__: Any) -> None:
        assert tensor.device == DEVICE
        raise RuntimeError("NCCL error in: ProcessGroupNCCL.cpp: unhandled system error\nmore")

    monkeypatch.setattr(dist, "all_reduce", refuse)
    with pytest.raises(UserError, match=r"while they were starting \(NCCL error in: .* system error\); start all"):
        join()


def test_a_torch_without_nccl_is_named(gpu: MockDevice, alone: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    with pytest.raises(UserError, match=r"training\.distributed\.backend: this torch has no NCCL; set it to gloo"):
        start_ranks(TrainingConfig(device="cuda", gradient_accumulation_steps=2))
