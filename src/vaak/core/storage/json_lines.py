"""Files with a JSON object a line, added as they come; what a kill leaves and what an editor leaves are told apart."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class JsonLines:
    """The objects of a file, each with the number of its line, and the lines that hold none.

    ``end`` is where the last whole line ends: what follows was being written when a process was killed.
    """

    objects: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    malformed: list[tuple[int, str]] = field(default_factory=list)
    end: int = 0


def read_json_lines(path: Path) -> JsonLines:
    """Return what a file holds. A torn last line isn't malformed, as its writer never acted on it."""
    return parse_json_lines(path.read_bytes())


def parse_json_lines(content: bytes) -> JsonLines:
    """Return what the content of a file holds.

    >>> found = parse_json_lines(b'{"step": 1}\\n[2]\\n{"st')
    >>> found.objects, found.malformed, found.end
    ([(1, {'step': 1})], [(2, '[2]')], 16)
    """
    found = JsonLines()
    for number, line in enumerate(content.split(b"\n"), 1):
        is_last = found.end + len(line) == len(content)
        try:
            value = json.loads(line.decode())
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            found.objects.append((number, value))
        elif line.strip() and not is_last:
            found.malformed.append((number, line.decode(errors="backslashreplace")))
        if isinstance(value, dict) or not is_last:
            found.end += len(line) + (not is_last)
    return found
