"""The command ``vaak``: how errors and signals end it. Ctrl-C is handled before anything heavy is imported.

A line on the terminal announces the seconds that importing torch takes. Other packages with broken installations
don't end it.
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
"""Errors of a disk or of its network that is gone or doesn't answer, if they name a file."""


def main() -> None:
    """Run the command line; exits as ``guarded`` says."""

    def run() -> None:
        for word in sys.argv:
            # Python has these in place of bytes that the locale can't decode (PEP 383).
            if any("\udc80" <= character <= "\udcff" for character in word):
                shown = ascii(os.fsencode(word).decode("utf-8", "replace"))
                raise UserError(f"{shown}: this locale has no such characters; set LC_ALL=C.UTF-8 or PYTHONUTF8=1")
        if "torch" not in sys.modules and not any(isinstance(finder, TorchNotice) for finder in sys.meta_path):
            sys.meta_path.insert(0, TorchNotice())
        from vaak.cli.table import run_command_line

        run_command_line()

    guarded(run)


def guarded(function: Callable[[], Any]) -> None:
    """Call, flush and exit: 0, or 2 with a user's error on stderr, 130 after Ctrl-C, 1 with a traceback otherwise.

    A reader that closes the pipe (``| head``) is not an error.
    """
    join_slurm_step()
    # This comes before the seconds that importing torch takes.
    end_with_launcher()
    _open_closed_streams()
    _escape_what_has_no_bytes()
    try:
        with acknowledged(), shown_safely():
            _call(function)
    except SystemExit as leaving:
        if is_ending():
            end_soon()
        _leave_at_once(leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None))
        raise
    _leave_at_once(0)


def _leave_at_once(code: int) -> None:
    """End one of several processes here: everything it had to close is closed, and its workers end with it.

    In one of ten runs torch 2.13 with gloo aborts when C++ ends its threads after Python has exited ("terminate called
    without an active exception"), and torchrun then reports a finished run as a failure.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _call(function: Callable[[], Any]) -> None:
    try:
        _run(function)
        sys.stdout.flush()
    except UserError as error:
        if not isinstance(error, RemoteError):
            lost = isinstance(error.__cause__, FileNotFoundError) and not _working_folder_exists()
            _end(f"{error}; {DELETED}" if lost else str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        _write_to_nowhere()
    except SystemExit:
        _flush_output()
        raise
    except BaseException as error:
        # Panics of Rust (tokenizers, safetensors) derive from BaseException, but are errors like others.
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        said = _describe_error(error)
        if said is None:
            print(hide_secrets(traceback.format_exc()), end="", file=sys.stderr)
            sys.exit(1)
        _end(said)


def _flush_output() -> None:
    """Flush standard output; exit with 2 where that fails."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _write_to_nowhere()
    except OSError as error:
        _end(str(_describe_error(error) or error))


def _run(function: Callable[[], Any]) -> None:
    """Call; errors while Ctrl-C ends the process are attributed to it."""
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
    """A line about an error that is the system's, the terminal's or the installation's; None for a bug."""
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return _message_of_missing(error, error.name)
    if is_panic(error):
        said = (str(error).strip() or "it gave no reason").splitlines()[0]
        return f"a library written in Rust (tokenizers, safetensors) failed: {said}; a file that it read may be damaged"
    if _is_short_of_memory(error):
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        return f"memory ran out ({said}); end other processes, or take smaller batches, then run this again"
    return _message_of_system(error) if isinstance(error, OSError) else None


def _is_short_of_memory(error: BaseException) -> bool:
    """Return whether an error reports that memory ran out, without importing torch for it."""
    if isinstance(error, MemoryError) or "torch" not in sys.modules:
        return isinstance(error, MemoryError)
    from vaak.core.out_of_memory import is_out_of_memory

    return not isinstance(error, OSError) and is_out_of_memory(error)


def _message_of_missing(error: ModuleNotFoundError, name: str) -> str | None:
    """A line about a package that isn't installed; None for one that nothing asks for."""
    from vaak.core.extras import find_extra, how_to_install

    if find_extra(name) is None:
        return None
    # vaak.tasks.asr.whisper.model asks for the extra asr.
    frames = traceback.walk_tb(error.__traceback__)
    asking = {part for frame, _ in frames for part in str(frame.f_globals.get("__name__")).split(".")}
    return f"this requires {name}, which is not installed: {how_to_install(name, asking)}"


def _message_of_system(error: OSError) -> str | None:
    """A line about a system error that concerns a file or a limit; None for any other."""
    if isinstance(error, FileNotFoundError) and not _working_folder_exists():
        return DELETED
    if error.errno in CANT_WRITE:
        where = _shown(error.filename) if error.filename else "standard output or the disk"
        return f"{where} can't be written: {error.strerror}; free some space or write elsewhere, then run this again"
    if error.errno in LIMIT_ADVICE:
        return f"{_shown(error.filename or 'this')}: {error.strerror}; {LIMIT_ADVICE[error.errno]}"
    if error.errno is None or error.filename is None:
        return None
    remedy = "check the path and its permissions"
    if error.errno in FAILED:
        remedy = "the disk, or its network, doesn't answer properly: check it, then run this again"
    return f"{_shown(error.filename)}: {error.strerror}; {remedy}"


def _shown(path: Any) -> str:
    """A path for a message, its middle left out where it is long."""
    shown = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else str(path)
    return shown if len(shown) <= 160 else f"{shown[:80]}…{shown[-40:]}"


def _working_folder_exists() -> bool:
    """Return whether the working folder still exists."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _end(message: str) -> None:
    """Print a message and exit with 2; where even standard error can't be written, the code says it."""
    try:
        print(hide_secrets(message), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        os._exit(2)
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        # What was printed can't be written.
        _write_to_nowhere()
    sys.exit(2)


def _open_closed_streams() -> None:
    """Open streams that the caller closed (``>&-``) to nowhere: otherwise the next file opened takes their place."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free number: this one.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            mode = "r" if descriptor == 0 else "w"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _escape_what_has_no_bytes() -> None:
    """Have characters that the encoding of a stream lacks (PYTHONIOENCODING=ascii) printed as \\u0915: no error."""
    for stream in (sys.stdout, sys.stderr):
        has_all = getattr(stream, "encoding", None) == "utf-8" and stream.errors != "strict"
        if hasattr(stream, "reconfigure") and not has_all:
            with contextlib.suppress(OSError, ValueError):
                stream.reconfigure(errors="backslashreplace")


def _write_to_nowhere() -> None:
    """Redirect standard output to nowhere, so that Python's last flush at exit finds an open file."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class TorchNotice:
    """A finder of modules that finds none: the first in line, it announces once that torch is being imported."""

    def find_spec(self, name: str, *others: Any) -> None:
        if name == "torch":
            sys.meta_path.remove(self)
            if sys.stderr.isatty() and os.environ.get("RANK", "0") == "0":
                with contextlib.suppress(OSError):
                    print("loading torch …", file=sys.stderr, flush=True)


def overlook_broken_packages() -> None:
    """Read a malformed ``entry_points.txt`` as one without entry points, with a warning; plugins of pydantic are off.

    pydantic, torch and others read those of all that is installed when they are imported, and fail at the first.
    """
    read: Callable[[Any], EntryPoints] = Distribution.entry_points.fget  # type: ignore[attr-defined]
    named: set[str] = set()

    def entry_points(distribution: Any) -> EntryPoints:
        try:
            return read(distribution)
        except (TypeError, ValueError):
            from multiprocessing import parent_process

            where = str(getattr(distribution, "_path", distribution))
            # Said once for the package, and not again by every worker and rank.
            if where not in named and parent_process() is None and os.environ.get("RANK", "0") == "0":
                named.add(where)
                problem = f"{where}/entry_points.txt is malformed, so nothing of it is used"
                print(f"warning: {problem}; reinstall this package, or remove it", file=sys.stderr, flush=True)
            return EntryPoints()

    Distribution.entry_points = property(entry_points)  # type: ignore[assignment, method-assign]
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


# At import, since processes that are spawned import this module and call nothing in it.
overlook_broken_packages()
