"""Files made for a test; what a folder holds, to compare it with another, or with itself at another time."""

from __future__ import annotations

from pathlib import Path


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below a folder, by its path there.

    Without locks, which name their last holder and since when. Where a file names the folder it says FOLDER, so that
    folders in other places compare equal.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {
        path.relative_to(folder).as_posix(): path.read_bytes().replace(str(folder).encode(), b"FOLDER")
        for path in files
    }


def write(path: Path, content: str | bytes) -> str:
    """Write a file; returns its path as configurations give it."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)
