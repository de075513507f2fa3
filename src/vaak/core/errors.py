"""Mistakes a user can fix. The command line prints them without a traceback and exits with 2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
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
    """Made data of a format that this version doesn't read.

    ``problem`` says so, with the file; the message adds that its folder is to be deleted.
    """

    def __init__(self, path: Path, what: str, found: str, expected: str) -> None:
        self.problem = f"{path}: this version can't read these {what}: they are {found}, and it reads {expected}"
        super().__init__(f"{self.problem}; delete {path.parent} and run again")


class HostMemoryError(UserError):
    """The machine ran out of memory or open files while data were read; the data aren't at fault."""


class NonFiniteError(UserError):
    """A loss or a gradient is not a finite number; the weights are those of the previous step."""


@contextlib.contextmanager
def optional_import(what: str, extra: str) -> Iterator[None]:
    """Within this context, what can't be imported is a UserError: what requires it, and the extra to install."""
    try:
        yield
    except (ImportError, OSError) as error:
        reason = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise UserError(f"{what}{reason}: pip install 'vaak[{extra}]'") from error
