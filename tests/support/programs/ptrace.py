"""Stops a thread at its system calls, to kill its process there or to have the call fail. Linux on x86-64 alone.

The thread to be traced calls ``let_parent_trace``, and is not its process's first; the parent process then follows it
with ``trace``, from the thread that forked. ``reason_not_to`` says why this can't be done here, where it can't.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

TRACEME, GETREGS, SETREGS, SYSCALL, SETOPTIONS = 0, 12, 13, 24, 0x4200
SYSTEM_CALL_STOP, KILLED_WITH_TRACER = 1, 0x100000
ANY_THREAD = 0x40000000  # __WALL
ENTERED = signal.SIGTRAP | 0x80
O_CREAT = 0o100

NAMES = {
    0: "read",
    1: "write",
    2: "open",
    3: "close",
    4: "stat",
    5: "fstat",
    6: "lstat",
    8: "lseek",
    16: "ioctl",
    17: "pread64",
    18: "pwrite64",
    20: "writev",
    40: "sendfile",
    72: "fcntl",
    73: "flock",
    74: "fsync",
    75: "fdatasync",
    76: "truncate",
    77: "ftruncate",
    79: "getcwd",
    82: "rename",
    83: "mkdir",
    84: "rmdir",
    87: "unlink",
    89: "readlink",
    217: "getdents64",
    257: "openat",
    258: "mkdirat",
    262: "newfstatat",
    263: "unlinkat",
    264: "renameat",
    267: "readlinkat",
    285: "fallocate",
    316: "renameat2",
    326: "copy_file_range",
    332: "statx",
}
"""The calls that have to do with files; none of the others (memory, locks, clocks) leaves anything on a disk."""

WRITING = {
    *("write", "pwrite64", "writev", "sendfile", "fsync", "fdatasync", "truncate", "ftruncate", "fallocate"),
    *("copy_file_range", "mkdir", "mkdirat", "rename", "renameat", "renameat2"),
}


class Registers(ctypes.Structure):
    """The registers of a stopped thread, in the kernel's order (user_regs_struct)."""

    _fields_ = [
        (name, ctypes.c_ulonglong)
        for name in (
            *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
            *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
        )
    ]


@dataclass(frozen=True)
class Call:
    """The ``number``-th call to do with files, from 1 on, that a thread is about to make."""

    number: int
    name: str
    is_writing: bool


def _ptrace(request: int, thread: int, data: object = 0) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    pointer = ctypes.cast(ctypes.pointer(data), ctypes.c_void_p) if isinstance(data, ctypes.Structure) else data
    if libc.ptrace(request, thread, None, pointer) == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def reason_not_to() -> str | None:
    """Why threads can't be traced here; None where they can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "tracing system calls is written for Linux on x86-64"
    child = os.fork()
    if child == 0:
        try:
            _ptrace(TRACEME, 0)
        except OSError:
            os._exit(1)
        os._exit(0)
    return "the system permits no ptrace here" if os.waitpid(child, 0)[1] else None


def let_parent_trace(tell: int) -> None:
    """Stop this thread until its parent traces it, and write its number to the file descriptor ``tell``."""
    thread = threading.get_native_id()
    _ptrace(TRACEME, 0)
    os.write(tell, f"{thread}\n".encode())
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(ctypes.c_long(234), ctypes.c_long(os.getpid()), ctypes.c_long(thread), ctypes.c_long(signal.SIGSTOP))


def trace(process: int, thread: int, decide: Callable[[Call], str]) -> list[Call]:
    """Follow a thread of a child process to its end and return its calls.

    ``decide`` says what is to become of each: ``go``, ``kill`` (the whole process, before the call is made), or
    ``full`` (it isn't made, and fails as on a disk without space).
    """
    calls: list[Call] = []
    os.waitpid(thread, ANY_THREAD)
    _ptrace(SETOPTIONS, thread, SYSTEM_CALL_STOP | KILLED_WITH_TRACER)
    try:
        _follow(process, thread, decide, calls)
    except ProcessLookupError:  # its process ended while it was stopped
        os.waitpid(thread, ANY_THREAD)
    return calls


def _follow(process: int, thread: int, decide: Callable[[Call], str], calls: list[Call]) -> None:
    registers = Registers()
    while _goes_on_to_a_call(thread):
        _ptrace(GETREGS, thread, registers)
        call = _call_of(registers, len(calls) + 1)
        verdict = "go"
        if call is not None:
            calls.append(call)
            verdict = decide(call)
        if verdict == "kill":
            os.kill(process, signal.SIGKILL)
            continue
        if verdict == "full":
            registers.orig_rax = 2**64 - 1  # no call at all
            _ptrace(SETREGS, thread, registers)
        if not _goes_on_to_a_call(thread):  # to the return from this one
            break
        if verdict == "full":
            _ptrace(GETREGS, thread, registers)
            registers.rax = 2**64 - 28  # -ENOSPC
            _ptrace(SETREGS, thread, registers)


def _goes_on_to_a_call(thread: int) -> bool:
    """Let the thread run to where it next enters or leaves a system call; False where it ends."""
    pending = 0
    while True:
        with contextlib.suppress(ProcessLookupError):  # killed while it was stopped
            _ptrace(SYSCALL, thread, pending)
        status = os.waitpid(thread, ANY_THREAD)[1]
        if not os.WIFSTOPPED(status):
            return False
        if os.WSTOPSIG(status) == ENTERED:
            return True
        pending = 0 if os.WSTOPSIG(status) == signal.SIGSTOP else os.WSTOPSIG(status)


def _call_of(registers: Registers, number: int) -> Call | None:
    """The call that a thread has entered; None where it has nothing to do with files."""
    name = NAMES.get(registers.orig_rax)
    if name is None:
        return None
    flags = {"open": registers.rsi, "openat": registers.rdx}.get(name, 0)
    return Call(number, name, name in WRITING or bool(flags & O_CREAT))
