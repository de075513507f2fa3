"""The values of a YAML with the places where they were written, and mistakes with these places.

A mapping is a dict and a list is a list; each has the places of what it holds as well, so that a value that is moved,
replaced or merged takes its place along. Code that validates or writes them sees plain values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vaak.config.trust import Doubt
from vaak.core.errors import UserError


@dataclass(frozen=True)
class YamlPlace:
    """A line of a file, or the command line; ``key`` is what was written there, if that is not what it became.

    ``doubt`` is why the file isn't the user's own, if it isn't.
    """

    file: str
    line: int | None = None
    key: str = field(default="", compare=False)
    doubt: Doubt | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


COMMAND_LINE = YamlPlace("command line")


class Placed(NamedTuple):
    """A value, and where it was written; ``place`` is None for what the user did not write."""

    value: Any
    place: YamlPlace | None = None


class PlacedDict(dict[str, Any]):
    """A mapping of YAML; a key that isn't in ``places`` was not written by the user.

    ``place`` is that of a whole file or command line; an inner value has its place there.
    """

    def __init__(self, items: Mapping[str, Placed] | None = None, place: YamlPlace | None = None) -> None:
        items = items or {}
        super().__init__({key: value for key, (value, _) in items.items()})
        self.places = {key: place for key, (_, place) in items.items()}
        self.place = place


class PlacedList(list[Any]):
    """A list of YAML, with the place of each item."""

    def __init__(self, items: Iterable[Placed]) -> None:
        items = [*items]
        super().__init__(value for value, _ in items)
        self.places = [place for _, place in items]


def entries(value: Any) -> Iterator[tuple[str, Placed]]:
    """Yield the values of a mapping or a list, with their keys or indices; nothing for a scalar."""
    if isinstance(value, PlacedDict):
        for key, child in value.items():
            yield key, Placed(child, value.places.get(key))
    elif isinstance(value, PlacedList):
        for index, (child, place) in enumerate(zip(value, value.places, strict=True)):
            yield str(index), Placed(child, place)


def place_all(value: Any, place: YamlPlace | None = None) -> Any:
    """Python values as ones of YAML that have all the same place."""
    if isinstance(value, dict):
        return PlacedDict({str(key): Placed(place_all(child, place), place) for key, child in value.items()}, place)
    if isinstance(value, list | tuple):
        return PlacedList(Placed(place_all(child, place), place) for child in value)
    return value


def copy_tree(value: Any) -> Any:
    """Values that share nothing with the others but the places."""
    copies = {key: Placed(copy_tree(child), place) for key, (child, place) in entries(value)}
    if isinstance(value, PlacedDict):
        return PlacedDict(copies, value.place)
    return PlacedList(copies.values()) if isinstance(value, PlacedList) else value


def split_key(key: str) -> tuple[str, ...]:
    return tuple(key.split("."))


def find(tree: PlacedDict, path: Sequence[str | int]) -> Placed | None:
    """Return the value at a path, which may be null; None if nothing is."""
    value: Any = tree
    place = tree.place
    for key in path:
        if isinstance(value, PlacedDict) and str(key) in value:
            value, place = value[str(key)], value.places.get(str(key))
        elif isinstance(value, PlacedList) and str(key).isdecimal() and int(key) < len(value):
            value, place = value[int(key)], value.places[int(key)]
        else:
            return None
    return Placed(value, place)


def find_place(tree: PlacedDict, path: Sequence[str | int]) -> YamlPlace | None:
    """Return the line of a value, or of the nearest section around it that was written."""
    found = (find(tree, path[:length]) for length in range(len(path), -1, -1))
    return next((one.place for one in found if one is not None and one.place is not None), None)


def put(tree: PlacedDict, path: Sequence[str], child: Placed) -> Placed | None:
    """Set the value at a path, making mappings on the way; return the value in the way that isn't a mapping, if any."""
    section = tree
    for key in path[:-1]:
        if key not in section:
            section[key], section.places[key] = PlacedDict(), child.place
        below = section[key]
        if not isinstance(below, PlacedDict):
            return Placed(below, section.places.get(key))
        section = below
    section[path[-1]], section.places[path[-1]] = child
    return None


def replace(tree: PlacedDict, path: Sequence[str | int], value: Any) -> None:
    """Put another value in place of the one at a path; where that was written stays."""
    above = find(tree, path[:-1])
    if above is not None:
        above.value[path[-1] if isinstance(above.value, dict) else int(path[-1])] = value


def take(tree: PlacedDict, path: Sequence[str]) -> Placed | None:
    """Remove and return the value at a path, with the mappings that this leaves empty; None if there is none."""
    key, *rest = path
    if key not in tree:
        return None
    below = tree[key]
    taken = Placed(below, tree.places.get(key))
    if rest:
        inside = take(below, rest) if isinstance(below, PlacedDict) else None
        if inside is None or below:
            return inside
        taken = inside
    del tree[key]
    tree.places.pop(key, None)
    return taken


def walk(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Placed]]:
    """Yield every value inside of this one with its path, a section before its contents."""
    for key, child in entries(value):
        yield (*path, key), child
        yield from walk(child.value, (*path, key))


@dataclass(frozen=True)
class Problem:
    """One mistake: where it stands, the dotted key (empty for the file itself), and what is wrong."""

    place: YamlPlace | None
    key: str
    message: str

    def __str__(self) -> str:
        key = (self.place.key if self.place else "") or self.key
        return ": ".join(str(part) for part in (self.place, key, self.message) if part)


class ConfigError(UserError):
    """All mistakes of a configuration, one line each: ``file:line: key: problem``."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted({str(problem): problem for problem in problems}.values(), key=_reading_order)
        super().__init__("\n".join(map(str, self.problems)))


def _reading_order(problem: Problem) -> tuple[bool, str, int]:
    place = problem.place
    if place is None:
        return (False, "", 0)
    return (place == COMMAND_LINE, place.file, place.line or 0)
