"""The command ``vaak``, and its exit status after errors and signals.

Ctrl-C is handled before anything heavy is imported. Importing torch takes seconds, which a line on the terminal
announces. Broken installations of other packages don't stop the command.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import Distribution, EntryPoints
from typing import Any

from vaak.cli.streams import shown_safely
from vaak.core.console import clear
from vaak.core.errors import RemoteError, UserError, is_panic
from vaak.core.secrets import hide_secrets
from vaak.engine.interrupts import acknowledged, end_soon, end_with_launcher, is_ending
from vaak.runs.launching import join_slurm_step

CANT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
DELETED = "the working folder was deleted; go to another one (cd)"
LIMIT_ADVICE = {
    errno.EMFILE: "raise the limit of open files (ulimit -n 65536), or lower training.performance.num_workers",
    errno.ENFILE: "end other processes: the whole machine has too many files open",
    errno.EAGAIN: "raise the limit of processes (ulimit -u), or lower training.performance.num_workers",
    errno.ENOMEM: "end other processes, or give this one more memory",
    errno.ENOLCK: "the file system has no locks: mount it with them, or use another one",
}
"""Remedies for limits of the system, whichever file met them."""
FAILED = (errno.ESTALE, errno.EBUSY, errno.ETIMEDOUT, errno.ENOTCONN, errno.EREMOTEIO, errno.ENXIO, errno.ENODEV)
"""Errors of a disk or network that is gone or doesn't respond, where they name a file."""


def main() -> None:
    """Run the command line; the exit status is that of ``exit_on_error``."""

    def run() -> None:
        for word in sys.argv:
            # Python has these in place of bytes that the locale can't decode (PEP 383).
            if any("\udc80" <= character <= "\udcff" for character in word):
                shown = ascii(os.fsencode(word).decode("utf-8", "replace"))
                raise UserError(f"{shown}: this locale can't decode it; set LC_ALL=C.UTF-8 or PYTHONUTF8=1")
        if "torch" not in sys.modules and not any(isinstance(finder, TorchNotice) for finder in sys.meta_path):
            sys.meta_path.insert(0, TorchNotice())
        from vaak.cli.table import run_command_line

        run_command_line()

    exit_on_error(run)


def exit_on_error(function: Callable[[], Any]) -> None:
    """Call ``function`` and flush the output; exit on an error.

    The exit status is 2 for a user's error, which is printed to stderr, 130 after Ctrl-C, and 1, with a traceback, for
    any other error. A reader that closes the pipe (``| head``) is not an error.
    """
    join_slurm_step()
    # This comes before the seconds that importing torch takes.
    end_with_launcher()
    _open_closed_streams()
    _escape_unencodable()
    try:
        with acknowledged(), shown_safely():
            _call(function)
    except SystemExit as leaving:
        if is_ending():
            end_soon()
        _exit_at_once(leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None))
        raise
    _exit_at_once(0)


def _exit_at_once(code: int) -> None:
    """Exit with ``code``, without Python's own shutdown, if this is one of several processes.

    In one of ten runs torch 2.13 with gloo aborts when C++ ends its threads after Python has exited ("terminate called
    without an active exception"), and torchrun then reports a finished run as a failure. Everything is closed by now,
    and data loader workers end with their parent.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _call(function: Callable[[], Any]) -> None:
    """Call ``function``, and turn its errors into exit statuses."""
    try:
        _run(function)
        sys.stdout.flush()
    except UserError as error:
        if not isinstance(error, RemoteError):
            lost = isinstance(error.__cause__, FileNotFoundError) and not _working_folder_exists()
            _exit_with_message(f"{error}; {DELETED}" if lost else str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        _discard_output()
    except SystemExit:
        _flush_output()
        raise
    except BaseException as error:
        # Panics of Rust (tokenizers, safetensors) derive from BaseException, but are errors like others.
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        message = _describe_error(error)
        if message is None:
            print(hide_secrets(traceback.format_exc()), end="", file=sys.stderr)
            sys.exit(1)
        _exit_with_message(message)


def _flush_output() -> None:
    """Flush standard output; exit with status 2 if that fails."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
    except OSError as error:
        _exit_with_message(str(_describe_error(error) or error))


def _run(function: Callable[[], Any]) -> None:
    """Call ``function``; errors raised while Ctrl-C ends the process count as KeyboardInterrupt."""
    try:
        function()
    except SystemExit as leaving:
        # click answers a closed pipe by exiting with 1.
        if isinstance(leaving.__context__, BrokenPipeError):
            raise leaving.__context__ from None
        raise
    except Exception as error:
        if is_ending():
            raise KeyboardInterrupt from error
        raise
    finally:
        clear()


def _describe_error(error: BaseException) -> str | None:
    """Describe an error of the system, the terminal or the installation in a line; None for a bug."""
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return _describe_missing_package(error, error.name)
    if is_panic(error):
        reason = (str(error).strip() or "it gave no reason").splitlines()[0]
        return f"a library written in Rust (tokenizers, safetensors) failed: {reason}; a file it read may be damaged"
    if _is_short_of_memory(error):
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return f"memory ran out ({reason}); end other processes, or use smaller batches, then run this again"
    return _describe_system_error(error) if isinstance(error, OSError) else None


def _is_short_of_memory(error: BaseException) -> bool:
    """Return whether an error reports that memory ran out, without importing torch for it."""
    if isinstance(error, MemoryError) or "torch" not in sys.modules:
        return isinstance(error, MemoryError)
    from vaak.core.out_of_memory import is_out_of_memory

    return not isinstance(error, OSError) and is_out_of_memory(error)


def _describe_missing_package(error: ModuleNotFoundError, name: str) -> str | None:
    """Describe a package that isn't installed, and how to install it; None for one that belongs to no extra of Vaak."""
    from vaak.core.extras import find_extra, get_install_command

    if find_extra(name) is None:
        return None
    # The importing module decides between extras that have the package: vaak.tasks.asr.whisper.model suggests asr.
    frames = traceback.walk_tb(error.__traceback__)
    importing = {part for frame, _ in frames for part in str(frame.f_globals.get("__name__")).split(".")}
    return f"this requires {name}, which is not installed: {get_install_command(name, importing)}"


def _describe_system_error(error: OSError) -> str | None:
    """Describe a system error that concerns a file or a limit in a line; None for any other."""
    if isinstance(error, FileNotFoundError) and not _working_folder_exists():
        return DELETED
    if error.errno in CANT_WRITE:
        where = _shorten_path(error.filename) if error.filename else "standard output or the disk"
        return f"{where} can't be written: {error.strerror}; free some space or write elsewhere, then run this again"
    if error.errno in LIMIT_ADVICE:
        return f"{_shorten_path(error.filename or 'this')}: {error.strerror}; {LIMIT_ADVICE[error.errno]}"
    if error.errno is None or error.filename is None:
        return None
    remedy = "check the path and its permissions"
    if error.errno in FAILED:
        remedy = "the disk or its network does not respond properly: check it, then run this again"
    return f"{_shorten_path(error.filename)}: {error.strerror}; {remedy}"


def _shorten_path(path: Any) -> str:
    """Return a path for a message, without its middle if it is longer than 160 characters."""
    shown = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else str(path)
    return shown if len(shown) <= 160 else f"{shown[:80]}…{shown[-40:]}"


def _working_folder_exists() -> bool:
    """Return whether the working folder still exists."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _exit_with_message(message: str) -> None:
    """Print a message to standard error and exit with status 2, also if standard error can't be written."""
    try:
        print(hide_secrets(message), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        os._exit(2)
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        # Python's own flush at exit would fail again, and change the status.
        _discard_output()
    sys.exit(2)


def _open_closed_streams() -> None:
    """Open streams that the caller closed (``>&-``) as /dev/null; the next file opened would take their descriptor."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            # open() returns the lowest free descriptor, which is this one.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            mode = "r" if descriptor == 0 else "w"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _escape_unencodable() -> None:
    """Print characters that a stream's encoding lacks (PYTHONIOENCODING=ascii) as \\u0915, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        has_all = getattr(stream, "encoding", None) == "utf-8" and stream.errors != "strict"
        if hasattr(stream, "reconfigure") and not has_all:
            with contextlib.suppress(OSError, ValueError):
                stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Redirect standard output to /dev/null, so that Python's last flush at exit succeeds."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class TorchNotice:
    """An import hook that announces once that torch is being imported; it finds no module itself."""

    def find_spec(self, name: str, *others: Any) -> None:
        if name == "torch":
            sys.meta_path.remove(self)
            if sys.stderr.isatty() and os.environ.get("RANK", "0") == "0":
                with contextlib.suppress(OSError):
                    print("loading torch …", file=sys.stderr, flush=True)


def ignore_broken_entry_points() -> None:
    """Treat a malformed ``entry_points.txt`` of any package as empty, with a warning; disable pydantic's plugins.

    pydantic, torch and others read the entry points of all installed packages on import, and fail at the first
    malformed one.
    """
    read: Callable[[Any], EntryPoints] = Distribution.entry_points.fget  # type: ignore[attr-defined]
    warned: set[str] = set()

    def entry_points(distribution: Any) -> EntryPoints:
        try:
            return read(distribution)
        except (TypeError, ValueError):
            from multiprocessing import parent_process

            where = str(getattr(distribution, "_path", distribution))
            # Once for each package, not in every worker and rank.
            if where not in warned and parent_process() is None and os.environ.get("RANK", "0") == "0":
                warned.add(where)
                problem = f"{where}/entry_points.txt is malformed and is ignored"
                print(f"warning: {problem}; reinstall or remove this package", file=sys.stderr, flush=True)
            return EntryPoints()

    Distribution.entry_points = property(entry_points)  # type: ignore[assignment, method-assign]
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


# At import: spawned processes import this module without calling main().
ignore_broken_entry_points()
