"""Runs ``vaak`` commands as separate processes, without the seconds that importing torch takes each time.

It imports once, then forks a process for each request, a line of JSON on standard input. On standard output it answers
``started NUMBER PID`` and, in time, ``ended NUMBER STATUS`` (negative: a signal). A command is the one that users call,
or a script that Python runs, with its own session, working folder, environment and streams. ``null``, or the end of
standard input, ends all of them.
It ends as Python does, but without taking down the modules, which would take a third of a second each time.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import all_rooms  # noqa: F401 # a script that is run may import from them
from vaak.cli.main import main

IMPORTED = (
    *("torch._dynamo", "torch.utils.data", "torch.utils.tensorboard"),  # the first optimizer imports dynamo
    *("vaak.cli.output", "vaak.cli.table", "vaak.runs.evaluate", "vaak.runs.start", "vaak.text.grammar.translation"),
    *("vaak.tasks.asr.stages.pipeline", "transformers.models.whisper.modeling_whisper"),
    *("lhotse.features.kaldi", "matplotlib.backends.backend_agg", "matplotlib.figure", "scipy.cluster.hierarchy"),
)
"""Modules that commands import."""


def serve() -> None:
    """Answer requests until it is told to stop."""
    atexit.register(end_here)  # before all that is imported, and so called after what that registers
    for name in IMPORTED:
        importlib.import_module(name)
    from vaak.config.experiment import experiment_type
    from vaak.config.tasks import TASKS, task_class

    for task in TASKS:
        task_class(task)
        experiment_type(task)
    gc.freeze()  # a fork that ends then leaves its shared pages unchanged
    numbers: dict[int, int] = {}
    while True:
        if select.select([sys.stdin], [], [], 0.005)[0]:
            line = sys.stdin.readline()
            asked = json.loads(line or "null")
            if asked is None:
                break
            number, request = asked
            pid = os.fork()
            if pid == 0:
                become(request)
            numbers[pid] = number
            print("started", number, pid, flush=True)
        while numbers and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            print("ended", numbers.pop(ended[0]), os.waitstatus_to_exitcode(ended[1]), flush=True)
    for pid in numbers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


status = 0
"""That this process ends with."""


def end_here() -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _deleted_folder() -> None:
    os.mkdir("deleted")
    os.chdir("deleted")
    os.rmdir("../deleted")


def _without_privileges() -> None:
    """From here on, root is refused what the modes of files refuse, as every other user is."""
    header = struct.pack("Ii", 0x20080522, 0)
    ctypes.CDLL(None, use_errno=True).capset(header, bytes(24))


def _full(descriptor: int) -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), descriptor)


def _float64() -> None:
    import torch

    torch.set_default_dtype(torch.float64)


def _without_pictures() -> None:
    """Evaluations draw nothing, and a run ends without samples: this takes longer than all else in a small run."""
    from vaak.engine.evaluation import Pictures
    from vaak.runs import start

    setattr(Pictures, "show", lambda self, step, draw, best=None: None)  # noqa: B010 (mypy refuses the assignment)
    start.shown_samples = lambda task, model: []


def _few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))


def _little_shared_memory() -> None:
    """As in a container: /dev/shm is a separate disk of 64 KiB; it takes root."""
    libc = ctypes.CDLL(None, use_errno=True)
    private, new_namespace = 0x44000, 0x20000
    done = libc.unshare(new_namespace) or libc.mount(b"none", b"/", None, private, None)
    if done or libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=64k"):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _as_under_nohup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _storage_fault() -> None:
    import storage_faults

    storage_faults.install()


CIRCUMSTANCES: dict[str, Callable[[], object]] = {
    "deleted folder": _deleted_folder,
    "without privileges": _without_privileges,
    "full stdout": lambda: _full(1),
    "full stderr": lambda: _full(2),
    "float64": _float64,
    "without pictures": _without_pictures,
    "storage fault": _storage_fault,
    "few files": _few_files,
    "little shared memory": _little_shared_memory,
    "as under nohup": _as_under_nohup,
}
"""Environments in which a command may start."""


def become(request: dict[str, Any]) -> NoReturn:
    """Turn this process into the command that was asked for."""
    os.setsid()
    for stream, descriptor, flags in (
        (os.devnull, 0, os.O_RDONLY),
        (request["output"], 1, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
        (request["errors"], 2, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        os.dup2(os.open(stream, flags, 0o644), descriptor)
    if request["script"] is None:  # which may be about what reaches the disk; no test of a command takes the power away
        setattr(os, "fsync", os.fstat)  # noqa: B010 (mypy refuses the assignment)
    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    for circumstance in request["circumstances"]:
        CIRCUMSTANCES[circumstance]()
    if request["file_size_limit"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_size_limit"],) * 2)
    script = request["script"]
    if script is not None:
        sys.path.insert(0, os.path.dirname(script))  # as Python does
    sys.argv = [script or "vaak", *request["arguments"]]
    global status
    status = 1
    try:
        if script is None:
            main()
        else:
            runpy.run_path(script, run_name="__main__")
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        raise
    sys.exit(0)


if __name__ == "__main__":
    serve()
