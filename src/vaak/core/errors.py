"""Mistakes a user can fix. The command line prints them without a traceback and exits with 2."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path


class UserError(Exception):
    """An error whose text says in one line what is wrong, where, and what to do about it."""


class OptionError(UserError):
    """An option whose value turns out wrong with the data; ``problem`` doesn't repeat its ``key``."""

    def __init__(self, key: str, problem: str) -> None:
        self.key, self.problem = key, problem
        super().__init__(f"{key}: {problem}")


class RemoteError(UserError):
    """An error of the main process, which reports it; the other processes only end."""


class CheckpointError(UserError):
    """A checkpoint that is damaged, missing, or from another model."""


class DataError(UserError):
    """Input data that can't be read or used; the message names the file and line."""


class FormatError(DataError):
    """Data that Vaak made, in a format that this version doesn't read.

    ``problem`` describes it, with the file; the message adds that its folder is to be deleted.
    """

    def __init__(self, path: Path, what: str, found: str, expected: str) -> None:
        self.problem = f"{path}: this version can't read these {what}: they are {found}, and it reads {expected}"
        super().__init__(f"{self.problem}; delete {path.parent} and run again")


class HostMemoryError(UserError):
    """The machine ran out of memory or open files while data were read; the data aren't at fault."""


class MissingPackageError(UserError):
    """An optional package isn't installed, or can't be imported; the data aren't at fault."""


class NonFiniteError(UserError):
    """A loss or a gradient is not a finite number; the weights are those of the previous step."""


PANIC = "pyo3_runtime"
"""The module of the exception that a panic in a Rust library raises: a BaseException, which means a bug there."""


class RustPanicError(ValueError):
    """A library that is written in Rust (tokenizers, safetensors) failed on its input."""


@contextlib.contextmanager
def catching_panics(quietly: bool = False) -> Iterator[None]:
    """Within this context, a panic of a library that is written in Rust is a RustPanicError, with its first line.

    Such a library also writes lines about it to standard error, past Python; ``quietly`` drops these, and delays
    everything else written there until the context ends.
    """
    with _held_back_errors() if quietly else contextlib.nullcontext(lambda: None) as drop:
        try:
            yield
        except BaseException as error:
            if not is_panic(error):
                raise
            drop()
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise RustPanicError(said) from error


def is_panic(error: BaseException) -> bool:
    """Return whether an exception is the panic of a library that is written in Rust."""
    return type(error).__module__ == PANIC


@contextlib.contextmanager
def _held_back_errors() -> Iterator[Callable[[], None]]:
    """Within this context, what is written to standard error waits for its end, and is lost if the yielded is called.

    Where it can't be held back, it isn't.
    """
    try:
        held, before = tempfile.TemporaryFile(), os.dup(2)  # noqa: SIM115
    except OSError:
        yield lambda: None
        return
    with held:
        os.dup2(held.fileno(), 2)
        try:
            yield lambda: os.ftruncate(held.fileno(), 0)
        finally:
            os.dup2(before, 2)
            os.close(before)
            held.seek(0)
            with contextlib.suppress(OSError):
                os.write(2, held.read())


@contextlib.contextmanager
def optional_import(what: str, extra: str) -> Iterator[None]:
    """Within this context, a failed import is a MissingPackageError, with what requires it and the extra to install."""
    try:
        yield
    except (ImportError, OSError) as error:
        reason = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise MissingPackageError(f"{what}{reason}: pip install 'vaak[{extra}]'") from error
