"""Code that a configuration names, and whose it is: what isn't the user's own runs only with ``--trust-code``.

Code is the user's own if the command line or the program names it, or a configuration of theirs. A configuration, or
a file of code, isn't theirs

- by its place, if it is that of a run: ``config.yml`` and ``sessions/0001.yml`` are the names under which runs keep
  theirs, wherever they were copied or moved to, and whatever else is in the folder; and so is any file next to
  a ``code/`` whose hashes a run has written;
- by its owner, if that is neither the user nor the system.

A configuration under another name is the user's: whoever trains by a file runs what it names, like a script.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vaak.config.components import source_file
from vaak.config.yaml.layers import is_called_as_a_runs
from vaak.config.yaml.tree import COMMAND_LINE, Node, YamlPlace, place_of

CODE, HASHES = "code", "SHA256.json"
"""Where a run has copies of users' files, and their hashes."""
_REFERENCE = re.compile(r"(\S.*\.py|[A-Za-z_][\w.]*):[A-Za-z_]\w*")


class NamedCode(NamedTuple):
    """A class or function from outside Vaak, by its option; ``doubt`` is why it isn't the user's own, if it isn't."""

    key: str
    reference: str
    doubt: str | None


def code_named_in(values: Mapping[str, Any], tree: Node, folder: Path) -> tuple[NamedCode, ...]:
    """All code that resolved values name. ``tree`` says where they were written; ``folder`` has relative files."""
    return tuple(
        NamedCode(".".join(path), reference, why_untrusted(place_of(tree, path), source_file(reference, folder)))
        for path, reference in _references(values)
        if ":" in reference
    )


def why_untrusted(place: YamlPlace | None, code: Path | None) -> str | None:
    """Return why code in a file or a package (None), named on this line, isn't the user's own; None if it is."""
    if place is None or place == COMMAND_LINE or not (written := Path(place.file)).is_file():
        return None  # by the command line, or by the program
    if is_called_as_a_runs(written):
        return f"{written} belongs to a run, by its name"
    if code is not None and code.parent.name == CODE and (code.parent / HASHES).exists():
        return f"{code.parent} belongs to a run"
    return next((doubt for file in (written, code) if file is not None and (doubt := _foreign_owner(file))), None)


def code_in_options(values: Any) -> set[str]:
    """Return what in options that aren't resolved may name a class: every text that is written like a reference.

    >>> sorted(code_in_options({"loss": {"main": "./own.py:Huber"}, "callbacks": ["pkg.mod:Watch", "a: b"]}))
    ['./own.py:Huber', 'pkg.mod:Watch']
    """
    if isinstance(values, str):
        return {values} if _REFERENCE.fullmatch(values) else set()
    inner = values.values() if isinstance(values, Mapping) else values if isinstance(values, list | tuple) else ()
    return set().union(*map(code_in_options, inner))


def _foreign_owner(file: Path) -> str | None:
    """Whose a file is, if neither this user's nor the system's (nor, under sudo, the caller's)."""
    if not hasattr(os, "getuid"):
        return None
    try:
        owner = file.stat().st_uid
    except OSError:
        return None
    if owner in (0, os.getuid()) or (os.getuid() == 0 and str(owner) == os.environ.get("SUDO_UID")):
        return None
    try:
        name = file.owner()
    except (KeyError, OSError):
        name = str(owner)
    return f"{file} belongs to the user {name}"


def _references(values: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every place that may name a class: the task, and each section with a ``type``."""
    if isinstance(values.get("task"), str):
        yield ("task",), values["task"]
    waiting: list[tuple[tuple[str, ...], Any]] = [((), values)]
    while waiting:
        path, value = waiting.pop(0)
        if isinstance(value, Mapping):
            if isinstance(value.get("type"), str):
                yield (*path, "type"), value["type"]
            waiting += [((*path, str(key)), one) for key, one in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [((*path, str(number)), one) for number, one in enumerate(value)]
