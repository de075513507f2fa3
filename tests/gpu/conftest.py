"""A CUDA device for the tests of this folder, on a machine without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import mock_cuda
from mock_cuda import MockDevice
from vaak.core.storage.lock import locked


@pytest.fixture(scope="session")
def device_library(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled device; it is made once for each torch, and kept in pytest's cache, if there is one."""
    if torch.backends.cuda.is_built():
        pytest.skip("this torch is built with CUDA")
    cache = getattr(pytestconfig, "cache", None)  # absent with -p no:cacheprovider
    folder = Path(cache.mkdir("mock_cuda")) if cache else tmp_path_factory.mktemp("mock_cuda")
    try:
        with locked(folder / "lock"):
            return mock_cuda.build(folder)
    except FileNotFoundError as error:
        pytest.skip(f"the mock device can't be built: {error}")


@pytest.fixture
def gpu(device_library: Path) -> Iterator[MockDevice]:
    """A CUDA device, for one test."""
    with mock_cuda.plugged_in(device_library) as device:
        yield device
