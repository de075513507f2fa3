"""Decides which errors are of running out of memory, on all devices and the machine."""

from __future__ import annotations

import errno
import re

import torch

from vaak.core.errors import HostMemoryError

# Sources, in torch 2.13: CUDA, HIP, XPU and MPS ("MPS backend out of memory"); the CPU's allocator on Linux and
# macOS ("can't allocate"), on Windows ("not enough"); C++; MPS where one tensor is too large; CUDA's libraries.
OUT_OF_MEMORY_TEXTS = re.compile(
    r"out of memory"
    r"|DefaultCPUAllocator: (?:can't allocate|not enough) memory"
    r"|std::bad_alloc"
    r"|Invalid buffer size: "
    r"|\bCU(?:BLAS|DNN|FFT|SOLVER|SPARSE)_\w*ALLOC(?:ATION)?_FAILED\b",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, on any device, so that smaller chunks may fit.

    A failed collective (NCCL) isn't one, whatever its cause: the other ranks are lost by then.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(ValueError("out of memory"))
    (True, False)
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError | HostMemoryError):
        return True
    if isinstance(error, OSError):
        # A file that can't be mapped.
        return error.errno == errno.ENOMEM
    text = str(error)
    return isinstance(error, RuntimeError) and OUT_OF_MEMORY_TEXTS.search(text) is not None and "NCCL" not in text


OF_THE_MACHINE = (errno.EMFILE, errno.ENFILE)
"""No more files can be opened, whichever they are."""


def is_host_error(error: BaseException | None) -> bool:
    """Whether an error, or one that it was raised from, says that the machine has nothing left: memory, open files.

    Libraries that read files catch everything and raise their own.
    """
    while error is not None:
        if is_out_of_memory(error) or (isinstance(error, OSError) and error.errno in OF_THE_MACHINE):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


OF_INPUT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EINVAL)
"""Errors of the system that a path or a value causes, and another one avoids."""
OUTSIDE = re.compile(r"CUDA (?:error|driver)|NVML|NCCL|^DataLoader worker|hipError", re.IGNORECASE)


def is_from_outside(error: BaseException | None) -> bool:
    """Return whether an error, or one that it was raised from, comes of the machine: its disk, memory, driver, a kill.

    Such an error says nothing of the options under which it came: the same may work another time.
    """
    if is_host_error(error):
        return True
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None and error.errno not in OF_INPUT:
            return True
        if isinstance(error, RuntimeError) and OUTSIDE.search(str(error)):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False
