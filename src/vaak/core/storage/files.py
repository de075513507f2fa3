"""Files and folders that exist complete or not at all, and last through a power cut; copies and hashes of files."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import logging
import os
import re
import shutil
import socket
import stat
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from vaak.core.errors import UserError
from vaak.core.storage.links import open_in_place, open_parent, require_no_link

try:
    import fcntl
except ImportError:
    # Windows doesn't have it.
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("vaak")
Made = TypeVar("Made")


def write_bytes(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content`` in one rename; after a crash it holds the old content or the new.

    A device or a pipe is written to, never replaced; in a run, neither, nor a link.

    Raises OSError (disk full, no permission) with the old file untouched and nothing left next to it.
    """
    require_no_link(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        with naming(path), open(path, "wb") as stream:
            stream.write(content)
        return
    with replacing(path) as temporary, open_new(temporary) as stream:
        stream.write(content)


def open_new(path: Path) -> IO[bytes]:
    """Open a file to replace its content. Raises LinkError as ``open_in_place`` does."""
    return open(open_in_place(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb")


def open_to_append(path: Path, mode: str = "ab") -> IO[bytes]:
    """Open a file to add to it; with mode ``a+b``, to read it, too. Raises LinkError as ``open_in_place`` does."""
    access = os.O_RDWR if "+" in mode else os.O_WRONLY
    return open(open_in_place(path, access | os.O_CREAT | os.O_APPEND), mode)


def write_text(path: Path, content: str) -> None:
    """``write_bytes`` of UTF-8 text."""
    write_bytes(path, content.encode())


def write_json(path: Path, value: Any) -> None:
    """``write_text`` of readable JSON; floats keep every digit."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write a file to; on exit it is on the disk, and replaces ``path`` in one rename.

    After an error, the old file is untouched and nothing is left next to it.
    """
    require_no_link(path)
    temporary = name_temporary(path)
    remove_abandoned(path.parent)
    with naming(path):
        try:
            yield temporary
            sync_file(temporary)
            with open_parent(path) as (parent, name):
                # Another folder than it was written in has no such file.
                if parent is None:
                    os.replace(temporary, path)
                else:
                    os.replace(temporary.name, name, src_dir_fd=parent, dst_dir_fd=parent)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        sync_directory(path.parent)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Within this context, an OSError names ``path`` where it names no file (a full disk), or the temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(name_temporary(path))):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def replacing_folder(folder: Path, *, named: bool = False) -> Iterator[Path]:
    """Yield a new folder next to ``folder``, which takes its name on exit; an old one is renamed first, then deleted.

    ``named``: the new folder is one that the caller makes, already of that name, inside of a temporary one.
    After an error, the old folder is untouched and nothing is left next to it. Files in it are the caller's to flush.
    """
    temporary = name_temporary(folder)
    new = temporary / folder.name if named else temporary
    old = temporary.with_suffix(".old")
    shutil.rmtree(temporary, ignore_errors=True)
    remove_abandoned(folder.parent)
    temporary.mkdir(parents=True)
    try:
        yield new
        # before the renames: after a power cut, the name must not point to entries that were never written
        sync_directory(new)
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            # a folder can't be renamed over one with files, so the old one moves away first
            os.rename(folder, old)
        os.rename(new, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_directory(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def whole_folder(folder: Path, *, named: bool = False) -> Iterator[Path]:
    """``replacing_folder`` of one that isn't there or is empty; ``named`` is that of ``replacing_folder``.

    Raises UserError if ``folder`` has something in it, or can't be written.
    """
    folder = folder.absolute()
    remove_abandoned(folder.parent)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not an empty folder; choose another one.")
    made = folder
    try:
        with replacing_folder(folder, named=named) as made:
            yield made
    except OSError as error:
        raise UserError(f"Can't write {folder}: {error.strerror or error}.") from error
    except UserError as error:
        # A writer's, which knows the folder by where it is while it is written.
        if not named or str(made) not in str(error):
            raise
        raise UserError(str(error).replace(str(made), str(folder))) from error


def name_temporary(path: Path) -> Path:
    """Return the name under which this process writes what then is renamed to ``path``."""
    return path.with_name(f".{path.name}.{process_mark()}.tmp")


def process_mark() -> str:
    """Return the number of this process, and what stands for the machine (or container) that counts it."""
    return f"{os.getpid()}-{_machine_mark()}"


@functools.cache
def _machine_mark() -> str:
    """Return a short hash of this start of the machine and of what this process sees of its processes."""
    about = [socket.gethostname()]
    with contextlib.suppress(OSError):
        about += [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")]
    return compute_fingerprint(about)[:6]


ABANDONED_SECONDS = 86400.0
"""The age from which a temporary file of another machine is taken for one that nobody writes."""
MARKED = re.compile(r"[.-](\d+)-([0-9a-f]{6})[.-]")
_cleaned: set[tuple[int, Path]] = set()
"""The folders that a process has looked through for what others left: once each, as they may have many files."""


def is_abandoned(path: Path) -> bool:
    """Return whether a file has a ``process_mark`` in its name whose process has ended, here or long ago elsewhere."""
    found = MARKED.search(path.name)
    if found is None:
        return False
    try:
        if found[2] != _machine_mark():
            return time.time() - path.stat().st_mtime > ABANDONED_SECONDS
        os.kill(int(found[1]), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        # The process is someone else's, or the file is gone.
        return False
    return False


def remove_abandoned(folder: Path) -> None:
    """Delete what killed processes left half-written in a folder, the first time that this one writes there."""
    if (os.getpid(), folder) in _cleaned:
        return
    _cleaned.add((os.getpid(), folder))
    with contextlib.suppress(OSError):
        for path in folder.glob(".*"):
            if path.suffix in (".tmp", ".old") and is_abandoned(path):
                _remove(path)


def _remove(path: Path) -> None:
    """Delete a file or a folder, as far as that is possible; a link, not what it points to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def in_temporary_folder(make: Callable[[Path], Made]) -> Made:
    """Return the result of ``make`` in a temporary folder; its files are deleted with the result."""
    folder = Path(tempfile.mkdtemp(prefix="vaak-made-"))
    try:
        made = make(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    # The object reads these files later, so they stay as long as it does.
    weakref.finalize(made, shutil.rmtree, folder, ignore_errors=True)
    return made


@contextlib.contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """Yield a new folder for temporary files, which is deleted on exit; after a kill, by whoever needs the next one.

    Raises UserError if the disk has no space for one.
    """
    try:
        place = Path(tempfile.gettempdir())
        with contextlib.suppress(OSError):
            for left in place.glob(f"vaak-{purpose}-*-*"):
                # the folder of temporary files is shared: others' can't be judged or removed
                if os.stat(left).st_uid == os.getuid() and is_abandoned(left):
                    _remove(left)
        folder = Path(tempfile.mkdtemp(prefix=f"vaak-{purpose}-{process_mark()}-"))
    except OSError as error:
        raise UserError(
            f"temporary files can't be written ({error.strerror}): free space in {os.environ.get('TMPDIR', '/tmp')}, "
            "or set TMPDIR to another folder"
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_temporary(folder: Path) -> None:
    """Delete below a folder what killed processes left half-written; no other process may be writing there."""
    for path in [*folder.rglob(".*.tmp"), *folder.rglob(".*.old")]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


REMOVED, REPLACED = ".removed", ".replaced"
"""Endings of hidden folders: one that is being removed, and one that a new one is about to replace."""


def remove_leftovers(folder: Path) -> None:
    """Delete what a killed writer left half-written or half-removed; put back what it was about to replace."""
    for path in list(folder.glob(".*")):
        if path.suffix == REPLACED and not (original := folder / path.stem[1:]).exists():
            path.rename(original)
        elif path.suffix in (".tmp", REMOVED, REPLACED):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextlib.contextmanager
def usual_mode(path: Path) -> Iterator[None]:
    """Within this context, someone else writes ``path``; then it has the mode that the umask gives to a new file.

    Libraries that write to a temporary file and rename it (safetensors) leave 0600.
    """
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    yield
    path.chmod(mode)


CANT_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF)
"""Errors by which file systems (SMB, some FUSE mounts) report that they can't flush such a file, as in PostgreSQL."""
CANT_OPEN = (errno.EACCES, errno.EPERM, errno.EISDIR)
"""Errors of opening a folder for reading that may be written to all the same."""
not_flushed: dict[int, str] = {}
"""The warning that this process logged for each file system, by device, that can't flush files or folders."""


def flush(descriptor: int, path: Path) -> None:
    """Make what was written to an open file or folder last through a power cut.

    Where its file system can't, one warning is logged. Raises OSError for all other failures (EIO, ENOSPC, EDQUOT): the
    data may be lost.
    """
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in CANT_FLUSH:
            raise OSError(error.errno, error.strerror, str(path)) from error
        _say_not_flushed(path, error)


def _say_not_flushed(path: Path, error: OSError) -> None:
    """Warn, once for each file system, that it can't flush."""
    device = os.stat(path).st_dev
    if device not in not_flushed:
        not_flushed[device] = (
            f"{path} is on a file system that can't flush it to the disk ({error.strerror}): a crash of Vaak loses "
            "nothing there, a power cut may lose what was written last"
        )
        log.warning("%s", not_flushed[device])


def sync_file(path: Path) -> None:
    """``flush`` a file that was written and closed."""
    with open(path, "rb") as file:
        flush(file.fileno(), path)


def sync_directory(path: Path) -> None:
    """``flush`` a folder, so that the renames in it last, where the system can open one."""
    if os.name != "posix":
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno not in CANT_OPEN:
            raise
        _say_not_flushed(path, error)
        return
    try:
        flush(descriptor, path)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def unmade_after_errors(folder: Path, but: Collection[str] = ()) -> Iterator[None]:
    """Make a folder, and those above it; where the context ends with an error, remove those that are empty.

    Files of the names in ``but`` go with it.
    """
    new = list_missing_folders(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        remove_empty(new, but)
        raise


def list_missing_folders(folder: Path) -> list[Path]:
    """Return a folder and those above it that aren't there yet, the lowest first."""
    try:
        return [one for one in (folder, *folder.parents) if not one.exists()]
    except OSError:
        # One may not be looked into, or its name is too long.
        return []


def remove_empty(folders: Iterable[Path], but: Collection[str] = ()) -> None:
    """Remove folders, the lowest first, up to the first that holds more than files of the names in ``but``."""
    with contextlib.suppress(OSError):
        for folder in folders:
            if {path.name for path in folder.iterdir()} <= set(but):
                for path in folder.iterdir():
                    path.unlink()
            folder.rmdir()


def read_json(path: Path) -> Any:
    """Return the content of a JSON file. Raises OSError, or ValueError if it isn't JSON or is nested too deeply."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply") from error


def warn_unread(path: Path, why: object) -> None:
    """Warn, once in a process, of a file that is there and can't be read, so that what it says is missing."""
    _warn_once(path, str(getattr(why, "strerror", None) or why))


@functools.cache
def _warn_once(path: Path, why: str) -> None:
    log.warning("%s can't be read, and is left out: %s", path, why)


def require_file(path: Path) -> None:
    """Raises OSError for a device such as /dev/zero, which has no end, and for a folder."""
    mode = os.stat(path).st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise OSError(errno.EINVAL, "it is a device, not a file", str(path))
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))


def inside(name: str) -> str:
    """The path of a file below a folder, as a file of ours lists it. Raises ValueError for one that leads out of it."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(name)
    return name


def hash_file(path: Path) -> str:
    """Return the file's SHA-256 in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def compute_fingerprint(value: Any) -> str:
    """Return a short hash of a JSON value that does not depend on the order of keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


FICLONE = 0x40049409
"""Linux's request to share a file's blocks, of btrfs, XFS and others."""
COPIED_AT_ONCE = 2**22
"""Bytes."""


def copy_file(source: Path, target: Path) -> None:
    """Write the content of a file to another, new one; on the disk once where the file system can share blocks."""
    if not share_blocks(source, target):
        copy_bytes(source, target)


def copy_bytes(source: Path, target: Path) -> None:
    """Write the content of a file to another, new one, so that damage to the disk under one spares the other."""
    with open(source, "rb") as reading, open(target, "wb") as writing:
        shutil.copyfileobj(reading, writing, COPIED_AT_ONCE)


def share_blocks(source: Path, target: Path) -> bool:
    """Make a copy that shares the file's blocks until one of both is changed; return whether the file system can.

    Where it can't (ext4, most network storage), ``target`` isn't made.
    """
    if fcntl is None or sys.platform != "linux":
        return False
    try:
        with open(source, "rb") as reading, open(target, "wb") as writing:
            fcntl.ioctl(writing, FICLONE, reading.fileno())
    except OSError:
        target.unlink(missing_ok=True)
        return False
    return True
