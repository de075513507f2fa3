"""What counts as out of memory (real errors, where a CPU can make them), and what a reading says."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from vaak.core.errors import UserError
from vaak.engine.memory import (
    MemoryReading,
    free_memory,
    is_out_of_memory,
    read_memory,
    read_peak,
    reset_peak,
)

CPU = torch.device("cpu")
MEBIBYTE = 2**20

PROVOKED = """
import resource
import numpy, torch
from vaak.engine.memory import is_out_of_memory

resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
for provoke in (
    lambda: torch.empty(16 << 30, dtype=torch.uint8),
    lambda: torch.zeros(1, 1 << 16).expand(1 << 16, 1 << 16).contiguous(),
    lambda: bytearray(20 << 30),
    lambda: numpy.zeros(4 << 30) + 1,
):
    try:
        provoke()
    except BaseException as error:
        kind = next(kind for kind in (MemoryError, RuntimeError) if isinstance(error, kind))
        print(kind.__name__, is_out_of_memory(error), str(error)[:200].replace("\\n", " "))
    else:
        print("nothing was raised")
"""


@pytest.mark.slow
def test_real_errors_of_a_process_without_memory_are_known():
    done = subprocess.run([sys.executable, "-c", PROVOKED], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["RuntimeError", "True"],
        ["RuntimeError", "True"],
        ["MemoryError", "True"],
        ["MemoryError", "True"],  # NumPy's own kind
    ], done.stdout
    assert "can't allocate memory" in lines[0]


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.77 GiB",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "HIP out of memory. Tried to allocate 20.00 MiB",
        "MPS backend out of memory (MPS allocated: 18.50 GiB, other allocations: 448.00 KiB, max allowed: 18.72 GiB).",
        "Invalid buffer size: 25.00 GiB",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "cuFFT error: CUFFT_ALLOC_FAILED",
        "[enforce fail at alloc_cpu.cpp:116] data. DefaultCPUAllocator: not enough memory: you tried to allocate",
        "std::bad_alloc",
    ],
)
def test_what_devices_that_are_not_here_say_is_known(text):
    assert is_out_of_memory(RuntimeError(text))
    assert is_out_of_memory(torch.OutOfMemoryError(text))
    assert not is_out_of_memory(ValueError(text))


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("NCCL error: unhandled cuda error, Cuda failure 2 'out of memory'"),
        OSError(28, "No space left on device"),
        KeyboardInterrupt(),
    ],
)
def test_other_errors_are_not_taken_for_it(error):
    assert not is_out_of_memory(error)


def test_a_users_error_that_came_of_it_is_the_users():
    error = UserError("example 3 does not fit")
    error.__cause__ = MemoryError()
    assert not is_out_of_memory(error)


def test_a_reading_counts_the_worst_since_the_peak_was_reset():
    if sys.platform != "linux":
        pytest.skip("only Linux counts the peak of a process")
    free_memory(CPU)
    reset_peak(CPU)
    before, peak = read_memory(CPU), read_peak(CPU)
    block = torch.ones(200 * MEBIBYTE, dtype=torch.uint8)
    del block
    free_memory(CPU)
    after = read_memory(CPU)
    assert after.own - before.own > 150 * MEBIBYTE
    assert read_peak(CPU) - peak > 150 * MEBIBYTE
    reset_peak(CPU)
    assert after.own - read_memory(CPU).own > 150 * MEBIBYTE
    assert 0 < after.own < after.limit


@pytest.mark.slow
def test_freed_memory_that_glibc_keeps_is_given_back():
    if sys.platform != "linux":
        pytest.skip("of glibc")
    script = (
        "import torch; from vaak.engine.memory import keep_freed_memory\n"
        "from vaak.engine.memory import free_memory, read_memory, reset_peak\n"
        "cpu = torch.device('cpu'); keep_freed_memory(cpu)\n"
        "def own(): reset_peak(cpu); return read_memory(cpu).own >> 20\n"
        "block = torch.ones(300 << 20, dtype=torch.uint8); held = own(); del block; kept = own()\n"
        "free_memory(cpu); print(held - kept, kept - own())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    given_at_once, given_when_asked = map(int, done.stdout.split())
    assert given_at_once < 50
    assert given_when_asked > 250


def test_parts_of_a_reading():
    reading = MemoryReading(used=80, limit=100, own=60)
    assert (reading.pressure, reading.own_share) == (0.8, 0.75)
    assert MemoryReading(0, 100, 0).own_share == 0.0


class FakeCuda:
    """A GPU of 100 bytes. Others hold 20 of them; torch has reserved 50, allocated 10, and 45 at worst."""

    def mem_get_info(self, device):
        return 30, 100

    def memory_stats(self, device):
        return {"reserved_bytes.all.current": 50, "allocated_bytes.all.current": 10, "allocated_bytes.all.peak": 45}


def test_of_a_gpu_what_the_cache_only_keeps_is_not_used(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setattr(torch.cuda, "mem_get_info", fake.mem_get_info)
    monkeypatch.setattr(torch.cuda, "memory_stats", fake.memory_stats)
    assert read_memory(torch.device("cuda", 0)) == MemoryReading(used=20 + 45, limit=100, own=45)


def test_of_mps_what_the_driver_holds_is_used(monkeypatch):
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 30)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 120)
    assert read_memory(torch.device("mps")) == MemoryReading(used=30, limit=120, own=30)
    assert read_peak(torch.device("mps")) == 30
