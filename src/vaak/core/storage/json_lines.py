"""Append-only files of one JSON object per line; traces of a kill and of an editor are told apart."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from vaak.core.storage.files import flush, naming
from vaak.core.storage.links import open_in_place


@dataclass
class JsonLines:
    """The objects of a file, each with the number of its line, and the lines that hold none.

    ``end`` is where the last whole line ends: bytes after it were being written when a process was killed.
    """

    objects: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    malformed: list[tuple[int, str]] = field(default_factory=list)
    end: int = 0


def read_json_lines(path: Path) -> JsonLines:
    """Parse a file of JSON lines. A torn last line isn't malformed, as its writer never acted on it."""
    return parse_json_lines(path.read_bytes())


def parse_json_lines(content: bytes) -> JsonLines:
    """Parse the content of a file of JSON lines.

    >>> found = parse_json_lines(b'{"step": 1}\\n[2]\\n{"st')
    >>> found.objects, found.malformed, found.end
    ([(1, {'step': 1})], [(2, '[2]')], 16)
    """
    found = JsonLines()
    for number, (line, value) in enumerate(iterate_lines(io.BytesIO(content)), 1):
        if value is not None:
            found.objects.append((number, value))
        elif line.strip():
            found.malformed.append((number, line.removesuffix(b"\n").decode(errors="backslashreplace")))
        found.end += len(line)
    return found


def iterate_lines(lines: Iterable[bytes]) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Yield each of the lines, as an open file gives them, and its object; None if it holds none.

    A torn last line is left out.
    """
    for line in lines:
        try:
            value = json.loads(line.decode())
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            yield line, value
        elif line.endswith(b"\n"):
            yield line, None


TAIL_BYTES = 1 << 16


def append_json_lines(path: Path, values: Iterable[Mapping[str, Any]], *, flushed: bool = False) -> int:
    """Add a line for each value to a file, which is made if it isn't there; a torn last line gives way.

    Returns the number of bytes added.

    If ``flushed``, they are on the disk when this returns. After an error the file is as before, so a disk that fills
    in the middle of a line leaves no part of it.
    """
    lines = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values).encode()
    descriptor = open_in_place(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    with naming(path), open(descriptor, "a+b", buffering=0) as file:
        # A buffer would write the rest when it is closed.
        end = _cut_torn_line(file)
        try:
            left = memoryview(lines)
            while left:
                left = left[file.write(left) :]
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), end)
            raise
        if flushed:
            flush(file.fileno(), path)
    return len(lines)


def _cut_torn_line(file: FileIO) -> int:
    """Have a file end with a whole line, or be empty; return its size."""
    size = file.seek(0, os.SEEK_END)
    tail, begin = b"\n", size
    while begin and (begin == size or b"\n" not in tail):
        # The last byte tells, as a rule.
        begin = max(0, begin - (1 if begin == size else TAIL_BYTES))
        file.seek(begin)
        tail = file.read(size - begin)
        if tail == b"\n":
            break
    if not size or tail.endswith(b"\n"):
        return size
    torn = tail.rpartition(b"\n")[2]
    if parse_json_lines(torn).objects:
        # Whole, but for its end: an editor's doing.
        file.write(b"\n")
        return size + 1
    os.ftruncate(file.fileno(), size - len(torn))
    return size - len(torn)
