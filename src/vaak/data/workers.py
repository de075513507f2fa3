"""How the processes that load data start: as copies of this one (fork), or by being sent what they read.

A copy has everything at once and for nothing, but a copy of a process in which CUDA has started shares what CUDA's
threads held at that moment. A forkserver has imported torch and Vaak, and nothing else has happened in it; its copies
start as fast, and get the reader of the examples as bytes. Arrays that are mapped from files go as their file's path.

The program's main script is never imported by what is started here, as multiprocessing does otherwise: a script that
trains without ``if __name__ == "__main__"`` would train in each of them. So what the script itself defines can't be
sent.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import mmap
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.context import BaseContext, ForkServerContext, ForkServerProcess, SpawnContext, SpawnProcess
from multiprocessing.forkserver import ensure_running
from multiprocessing.queues import Queue
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from vaak.config.components import USER_MODULE_PREFIX, import_file
from vaak.config.training import PerformanceConfig
from vaak.core.errors import HostMemoryError, UserError
from vaak.core.interrupts import STOPPING

METHOD_OPTION = "training.performance.multiprocessing_context"
LARGEST_SENT = 64 * 2**20
"""Bytes that are sent to each worker where the choice is ours; each has a copy of them, which a fork shares."""
PRELOADED = ("vaak", "transformers", "tokenizers")
"""Packages that the forkserver imports once for all its workers, where what is sent is of them; never the user's."""
log = logging.getLogger("vaak")
_said: set[str] = set()
"""Why workers were forked although another way was safer: said once in a process."""


class Sent:
    """An object that other processes get as bytes; ``received`` is it, there.

    Raises NotSendableError if it can't be pickled, or takes more than ``limit`` bytes.
    """

    def __init__(self, content: object, limit: int | None = None) -> None:
        buffer = _Limited(limit)
        pickler = _Pickler(buffer)
        try:
            pickler.dump(content)
        except NotSendableError:
            raise
        except Exception as error:
            # Whatever a class of the user's raises.
            raise NotSendableError(f"{type(error).__name__}: {error}") from error
        self.files, self.modules = sorted(pickler.files), sorted(pickler.modules)
        self.content = buffer.getvalue()

    def received(self) -> Any:
        """Return the object, made in this process. Raises UserError if it can't be."""
        try:
            for file in self.files:
                import_file(file)
            return pickle.loads(self.content)
        except Exception as error:
            raise UserError(
                f"a process that loads data can't read what it was sent ({type(error).__name__}: {error}); set "
                f"{METHOD_OPTION}: fork"
            ) from error


class NotSendableError(Exception):
    """An object that can't be sent to another process; says why."""


class _Limited(io.BytesIO):
    def __init__(self, limit: int | None) -> None:
        super().__init__()
        self.limit = limit

    def write(self, content: Any) -> int:
        written = super().write(content)
        if self.limit is not None and self.tell() > self.limit:
            raise NotSendableError(f"it has more than {self.limit >> 20} MiB in memory, which each worker would copy")
        return written


class _Pickler(pickle.Pickler):
    """Pickles mapped arrays as their place in a file.

    It notes the users' files that the receiver imports first (``files``), and ``modules`` that take long to import.
    """

    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        self.files: set[Path] = set()
        self.modules: set[str] = set()

    def reducer_override(self, content: Any) -> Any:
        if isinstance(content, np.ndarray):
            return _place_in_file(content) or NotImplemented
        if isinstance(content, type | FunctionType):
            self._note_module(content.__module__, content.__qualname__)
        return NotImplemented

    def _note_module(self, module: str, name: str) -> None:
        """Note what the receiver needs of the module in which ``name`` is. Raises NotSendableError if it has none."""
        root = module.partition(".")[0]
        if module.startswith(USER_MODULE_PREFIX) and module in sys.modules:
            self.files.add(Path(str(sys.modules[module].__file__)))
        elif root in PRELOADED:
            self.modules.add(module)
        elif root == "__main__":
            where = "the script itself, which workers don't run; put it in a file that is imported"
            raise NotSendableError(f"{name} is defined in {where}")
        elif not _can_be_imported(root):
            raise NotSendableError(f"{name} is in the module {module}, which another process can't import")


def _can_be_imported(package: str) -> bool:
    """Return whether Python finds a package that is imported already: some programs make theirs in other ways."""
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    return any(finder.find_spec(package, None) is not None for finder in finders)


def _place_in_file(array: np.ndarray) -> tuple[Any, ...] | None:
    """Return how an array is mapped again that is, or is a view of, a file mapped for reading; None for another."""
    whole: Any = array
    while isinstance(whole, np.ndarray) and not isinstance(whole.base, mmap.mmap):
        whole = whole.base
    if not isinstance(whole, np.memmap) or whole.filename is None or whole.mode != "r" or array.dtype.hasobject:
        return None
    offset = whole.offset + array.ctypes.data - whole.ctypes.data
    return _mapped, (str(whole.filename), array.dtype, array.shape, array.strides, offset)


def _mapped(path: str, dtype: np.dtype, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> np.ndarray:
    whole = np.asarray(np.memmap(path, np.uint8, "r"))
    return np.ndarray(shape, dtype, whole.data, offset, strides)


class _Received(torch.utils.data.Dataset[Any]):
    """A dataset that is unpickled when its first item is asked for, in the process that has been sent it."""

    def __init__(self, sent: Sent) -> None:
        self.sent = sent
        self.dataset: Any = None

    def __getitem__(self, place: Any) -> Any:
        if self.dataset is None:
            try:
                self.dataset = self.sent.received()
            except UserError as error:
                return error
        return self.dataset[place]


def choose_start_method(dataset: Any, name: str, options: PerformanceConfig) -> tuple[BaseContext, Any]:
    """Return by which context workers are started, and what they read with instead of ``dataset``.

    Left open, that is fork, or forkserver once CUDA has started in this process, if the dataset can be sent. Why it
    can't is logged, with its ``name``. Raises UserError if the options name a way that doesn't work.
    """
    methods = multiprocessing.get_all_start_methods()
    named = options.multiprocessing_context
    if named is not None and named not in methods:
        raise UserError(f"{METHOD_OPTION}: this system has no {named}; choose from {', '.join(methods)}")
    method = named or _by_default()
    if method != "fork":
        try:
            # Who names the method accepts any size; by default, data too large to be sent soon are forked instead.
            sent = Sent(dataset, None if named else LARGEST_SENT)
        except NotSendableError as error:
            if named or "fork" not in methods:
                remedy = "training.performance.num_workers: 0"
                remedy = f"{METHOD_OPTION}: fork, or {remedy}" if "fork" in methods else remedy
                raise UserError(
                    f"{METHOD_OPTION}: {method}: {name} can't be sent to the processes that load data: {error}; "
                    f"set {remedy}"
                ) from error
            line = f"processes that load data are forked, though {method} is safer here: {name} can't be sent: {error}"
            if line not in _said:
                _said.add(line)
                log.info("%s", line)
        else:
            if method == "forkserver":
                _start_server(sent.modules)
            return _CONTEXTS[method], _Received(sent)
    return multiprocessing.get_context("fork"), dataset


def name_limit(error: BaseException) -> str | None:
    """Return the limit of the system that processes which load data have met, and what to do; None for another error.

    The texts are those of torch and of multiprocessing, which have no kinds of errors for it.
    """
    text, remedy = str(error), "or lower training.performance.num_workers (0: no such processes)"
    number = getattr(error, "errno", None)
    if number in (errno.EMFILE, errno.ENFILE) or any(one in text for one in TOO_MANY_FILES):
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return (
            f"processes that load data have too many files open (the limit is {files}): raise it (ulimit -n), {remedy}"
        )
    if number == errno.EAGAIN:
        return f"no more processes that load data can be started: raise the limit (ulimit -u, a container's), {remedy}"
    # A semaphore, which has no name.
    no_file = isinstance(error, OSError) and error.filename is None
    if (no_file and number in (errno.ENOSPC, errno.EROFS, errno.EACCES)) or any(one in text for one in SHARED_MEMORY):
        size = ""
        with contextlib.suppress(OSError):
            disk = os.statvfs("/dev/shm")
            size = f" (/dev/shm has {disk.f_blocks * disk.f_frsize >> 20} MiB)"
        return (
            f"processes that load data have no shared memory left for their batches{size}: give more of it "
            f"(docker run --shm-size 8g), {remedy}"
        )
    return None


TOO_MANY_FILES = ("Too many open files", "items of ancillary data")
SHARED_MEMORY = ("Bus error", "shared memory", "</torch_")


def send_what_fails() -> None:
    """Have a worker send the error in place of a batch that can't be sent.

    The thread that sends batches would only print a traceback, and the run wait for the batch without end.
    """

    def send_error(queue: Any, error: BaseException, content: Any) -> None:
        said = name_limit(error)
        if not isinstance(content, tuple):
            # It was half-written: the queue can't carry an error any more.
            os._exit(1)
        reason = f"a batch can't be sent by the process that read it ({type(error).__name__}: {error})"
        queue.put((content[0], HostMemoryError(said or f"{reason}; set training.performance.num_workers: 0")))

    Queue._on_queue_feeder_error = send_error  # type: ignore[attr-defined]


def start_early(dataset: Any, options: PerformanceConfig) -> None:
    """Let the forkserver of ``choose_start_method`` import what workers need while this process builds a GPU model."""
    named = options.multiprocessing_context
    if named == "forkserver" or (named is None and sys.platform == "linux"):
        with contextlib.suppress(NotSendableError):
            # choose_start_method says why it can't be sent.
            _start_server(Sent(dataset, LARGEST_SENT).modules)


def _by_default() -> str:
    """Return the way that is safe here, whatever this version of Python takes by default."""
    if sys.platform != "linux":
        return "spawn"
    return "forkserver" if torch.cuda.is_initialized() else "fork"


def _start_server(modules: Sequence[str]) -> None:
    """Have the forkserver start, if it hasn't, and import these modules, while this process does something else.

    What stops a run (a scheduler's SIGTERM, a closed terminal), which workers don't end by, doesn't end it either. It
    ends with the last of those it serves.
    """
    _CONTEXTS["forkserver"].set_forkserver_preload(["vaak.data.loader", *modules])
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set(STOPPING) - {signal.SIGINT, signal.SIGTERM})
    try:
        # The tracker starts before SIGTERM is blocked, because it unblocks that signal.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
        with _without_main():
            ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_main_is_hidden = threading.Lock()


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Within this context, multiprocessing finds no main script that it could have another process import."""
    with _main_is_hidden:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


class _ForkServerProcess(ForkServerProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 (multiprocessing's name)
        with _without_main():
            return ForkServerProcess._Popen(process_obj)


class _SpawnProcess(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 (multiprocessing's name)
        with _without_main():
            return SpawnProcess._Popen(process_obj)


class _ForkServer(ForkServerContext):
    Process = _ForkServerProcess


class _Spawn(SpawnContext):
    Process = _SpawnProcess


_CONTEXTS: dict[str, BaseContext] = {"forkserver": _ForkServer(), "spawn": _Spawn()}
