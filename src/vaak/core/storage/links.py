"""Files of a run are written where they seem to be, never through a link, a pipe or a device in their place.

A run may come from anyone, with all that is in its folder: a ``train.log`` that leads to a file of the reader's, a
``pictures`` that leads to another folder. Two things hold that back:

- ``require_own_files`` looks through a run before anything of it is opened, and names what leads out of it.
- From then on its folder is one of the ``guarded``: whatever is opened for writing below it is opened from folder to
  folder, by descriptors, following no link. So a folder that becomes a link meanwhile is refused, too.

A folder that is itself reached through a link (``runs`` on another disk) is the user's doing. Links that Vaak makes are
made by ``make_link``, or vouched for by who calls ``require_own_files``, and lead where they led then.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from vaak.core.errors import UserError

_guarded: set[str] = set()
"""Absolute paths of folders below which no link is followed to write."""
_own_links: dict[str, str] = {}
"""Absolute paths of our own links, and where each leads."""

NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)  # to open a pipe waits for its reader
A_FOLDER = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_PATH", 0) | getattr(os, "O_CLOEXEC", 0)
BY_DESCRIPTOR = os.open in os.supports_dir_fd and os.rename in os.supports_dir_fd


class LinkError(UserError):
    """A file of a run that is a link, a pipe or a device, or has another name elsewhere."""


def require_own_files(folder: Path, is_ours: Callable[[Path], bool] = lambda link: False, *, deep: bool = True) -> None:
    """Raise LinkError if something in a folder leads out of it, or is neither a file nor a folder.

    ``is_ours`` is called with each link that leads out, and may vouch for it. From now on, nothing is written through
    other links below the folder, even new ones. Subfolders are examined only if ``deep``.
    """
    guard(folder)
    real = os.path.realpath(folder)
    for entry in _entries(folder, deep):
        if entry.is_symlink():
            aim = os.path.realpath(entry.path)
            if os.path.commonpath((real, aim)) == real:
                continue
            if not is_ours(Path(entry.path)):
                raise LinkError(_about_link(entry.path))
            _note_own(Path(entry.path), os.readlink(entry.path))
        elif not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)):
            raise LinkError(_about_special(entry.path))


def guard(folder: Path) -> None:
    """Write nothing through links below a folder from now on."""
    _guarded.update((os.path.abspath(folder), os.path.realpath(folder)))


def make_link(link: Path, folder: Path) -> None:
    """Make a link to a folder and vouch for it: files in the folder may be written through the link."""
    aim = str(folder.resolve())
    link.symlink_to(aim, target_is_directory=True)
    _note_own(link, aim)


def _note_own(link: Path, aim: str) -> None:
    for folder in (os.path.abspath(link.parent), os.path.realpath(link.parent)):
        _own_links[os.path.join(folder, link.name)] = aim


def require_no_link(path: Path) -> None:
    """Raise LinkError if a path in a guarded folder would be written through a link, or isn't a file."""
    if _from_root(path) is not None:
        with open_parent(path) as (parent, name):
            _require_plain(path, parent, name)


def open_in_place(path: Path, flags: int) -> int:
    """Open a file in place for writing; return its descriptor. A new file gets the usual mode.

    Raises LinkError if it is a link, a pipe, a device, or a file that has another name, too.
    """
    with open_parent(path) as (parent, name):
        _require_plain(path, parent, name)
        try:
            descriptor = os.open(name, flags & ~os.O_TRUNC | NO_FOLLOW | NO_WAIT, 0o666, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):
                # It became one just now.
                raise LinkError(_about_link(str(path))) from error
            error.filename = str(path)
            raise
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
        return descriptor
    os.close(descriptor)
    raise LinkError(_about_special(str(path)) if not stat.S_ISREG(found.st_mode) else _about_hard_link(path))


@contextlib.contextmanager
def open_parent(path: Path) -> Iterator[tuple[int | None, str]]:
    """Yield what opens a file by its name alone: a descriptor of its folder, and the name.

    Below a guarded folder no link is followed on the way; elsewhere, and where the system has no such descriptors, the
    descriptor is None and the name is the path. Raises LinkError if a folder on the way is a link.
    """
    found = _from_root(path) if BY_DESCRIPTOR else None
    if found is None:
        yield None, str(path)
        return
    place, names = found
    descriptor = os.open(place, os.O_RDONLY | A_FOLDER)
    try:
        for name in names:
            place = f"{place}{os.sep}{name}"
            # opened relative to its parent: a link put on the way in between is not followed
            inner = _open_folder(place, name, descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor, path.name
    finally:
        os.close(descriptor)


def _open_folder(place: str, name: str, parent: int) -> int:
    try:
        return os.open(name, os.O_RDONLY | A_FOLDER | NO_FOLLOW, dir_fd=parent)
    except OSError as error:
        error.filename = place
        if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
            raise
        try:
            aim = os.readlink(name, dir_fd=parent)
        except OSError:
            # It is a file.
            raise error from None
        if _own_links.get(place) != aim:
            raise LinkError(_about_link(place)) from error
        return os.open(name, os.O_RDONLY | A_FOLDER, dir_fd=parent)


def _from_root(path: Path) -> tuple[str, list[str]] | None:
    """The highest guarded folder that a path is below, and the folders from there on; None if it is below none."""
    if not _guarded:
        return None
    names = os.path.abspath(path).split(os.sep)[:-1]
    root = ""
    for number, name in enumerate(names):
        root = f"{root}{os.sep}{name}" if number else name
        if root in _guarded:
            return root, names[number + 1 :]
    return None


def _require_plain(path: Path, parent: int | None, name: str) -> None:
    """Raise LinkError if there is something under a name that isn't a file or a folder."""
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except OSError:
        # It is new, or can't be opened either.
        return
    if stat.S_ISLNK(mode):
        raise LinkError(_about_link(str(path)))
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise LinkError(_about_special(str(path)))


def _entries(folder: str | Path, deep: bool) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a folder and of its subfolders, without following links."""
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError:
        # It went while we looked, or may not be looked into: then nothing of it is read.
        return
    for entry in entries:
        yield entry
        if deep and entry.is_dir(follow_symlinks=False):
            yield from _entries(entry.path, deep)


def _about_link(path: str) -> str:
    try:
        aim = os.readlink(path)
    except OSError:
        aim = "somewhere else"
    return (
        f"{path} is a link to {aim}: a run's files are read and written only in the run, not through links; "
        f"remove it (rm {shlex.quote(path)}), or put a copy of what it leads to in its place"
    )


def _about_special(path: str) -> str:
    return f"{path} is a pipe, a socket or a device, where a file of a run belongs; remove it (rm {shlex.quote(path)})"


def _about_hard_link(path: Path) -> str:
    quoted, copy = shlex.quote(str(path)), shlex.quote(f"{path}.copy")
    return (
        f"{path} is a file that also has another name elsewhere (a hard link), and writing would change it there, too; "
        f"give the run its own: cp {quoted} {copy} && mv {copy} {quoted}"
    )
