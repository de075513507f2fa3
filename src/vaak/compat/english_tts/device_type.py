"""The kinds of devices."""

from __future__ import annotations

from enum import StrEnum

import torch

from vaak.engine.distributed.launcher import pick_device


class DeviceType(StrEnum):
    """A kind of device, by the name that ``training.device`` and torch have for it."""

    CUDA = "cuda"
    MPS = "mps"
    CPU = "cpu"

    @classmethod
    def best(cls) -> DeviceType:
        """The fastest one that this machine has: what ``training.device: auto`` picks."""
        return cls(pick_device("auto").type)

    @property
    def device(self) -> torch.device:
        return torch.device(self.value)
