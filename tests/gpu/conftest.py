"""A CUDA device for the tests of this folder: the one that is there, or one that computes on the CPU."""

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
def gpu(request: pytest.FixtureRequest) -> Iterator[MockDevice]:
    """A CUDA device, for one test."""
    there = torch.cuda.is_available()
    with mock_cuda.real() if there else mock_cuda.plugged_in(request.getfixturevalue("device_library")) as device:
        yield device
