"""Code that a configuration names, and its owner: code that isn't the user's runs only with ``--trust-code``.

Code is the user's own if the command line or the program names it, or a configuration of theirs. Which file is theirs,
and what it brings in, ``vaak.config.trust`` decides; each line of it has its doubt.

A configuration under another name than a run's is the user's: whoever trains by a file runs what it names, like
a script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vaak.config.components import is_reference, is_vaaks_task, source_file
from vaak.config.trust import Doubt, judge_code
from vaak.config.yaml.tree import COMMAND_LINE, PlacedDict, YamlPlace, find, find_place, walk


class NamedCode(NamedTuple):
    """A class or function from outside Vaak, by its option; ``doubt`` is why it isn't the user's own, if it isn't."""

    key: str
    reference: str
    doubt: Doubt | None


def code_named_in(values: Mapping[str, Any], tree: PlacedDict, folder: Path) -> tuple[NamedCode, ...]:
    """All code that resolved values name. ``tree`` says where they were written; ``folder`` has relative files."""
    return tuple(
        NamedCode(".".join(path), reference, _find_line_doubt(tree, path, source_file(reference, folder)))
        for path, reference in _references(values)
        if ":" in reference and not (path == ("task",) and is_vaaks_task(reference))
    )


def find_doubt(place: YamlPlace | None, code: Path | None) -> Doubt | None:
    """Return why code in a file or a package (None), named on this line, isn't the user's own; None if it is."""
    if place is None or place == COMMAND_LINE or not Path(place.file).is_file():
        # It comes from the command line, or from the program.
        return None
    return judge_code(place.doubt, code)


def _find_line_doubt(tree: PlacedDict, path: Sequence[str], code: Path | None) -> Doubt | None:
    """Return why a value's line isn't trusted; for a value moved since it was read, any doubt about its section."""
    if find(tree, path) is None:
        known = [part for part in (find(tree, path[:length]) for length in range(len(path), 0, -1)) if part is not None]
        lines = [one.place for one in (known[0], *(one for _, one in walk(known[0].value)))] if known else []
        if doubtful := next((place for place in lines if place is not None and place.doubt is not None), None):
            return find_doubt(doubtful, code)
    return find_doubt(find_place(tree, path), code)


def code_in_options(values: Any) -> set[str]:
    """Return every text in unresolved options that may name a class: those written like a reference.

    Files that they extend are among them, since these may name any.

    >>> sorted(code_in_options({"loss": {"main": "./own.py:Huber"}, "callbacks": ["pkg.mod:Watch", "a: b"]}))
    ['./own.py:Huber', 'pkg.mod:Watch']
    """
    if isinstance(values, str):
        return {values} if is_reference(values) else set()
    if isinstance(values, Mapping):
        extended = [values["extends"]] if isinstance(values.get("extends"), str) else values.get("extends") or ()
        found = {one for one in extended if isinstance(one, str)}
        return found.union(*map(code_in_options, values), *map(code_in_options, values.values()))
    return set().union(*map(code_in_options, values if isinstance(values, list | tuple) else ()))


def _references(values: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every place that may name a class: the task, and each section with a ``type``."""
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
