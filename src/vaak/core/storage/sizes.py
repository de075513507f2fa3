"""The sizes of a folder's files, recorded when they are made: a truncated file is found at once.

A size costs a look at the directory, where a hash of all that training reads would cost hours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path


def sizes_of(folder: Path, leave_out: Collection[str] = ()) -> dict[str, int]:
    """The bytes of every file below a folder, by its path there; except hidden ones and those with these names."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    named = {path.relative_to(folder): path.stat().st_size for path in files if path.name not in leave_out}
    return {path.as_posix(): size for path, size in named.items() if not any(part[0] == "." for part in path.parts)}


def damage_in(folder: Path, sizes: Mapping[str, int]) -> str | None:
    """What is wrong with the first file that is missing or has another size, with its path; None where all are right.

    Raises OSError where the folder can't be read.
    """
    for name, size in sizes.items():
        path = folder / name
        try:
            found = path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return f"{path}: this file is missing"
        if found != size:
            return f"{path}: this file has {found} bytes where {size} were written"
    return None
