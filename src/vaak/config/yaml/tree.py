"""A YAML as a tree in which every section and value knows where it was written, and mistakes with these places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

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


@dataclass
class Node:
    """A scalar, a list of nodes, or a mapping from text to nodes; ``place`` is None for what the user did not write."""

    value: Any
    place: YamlPlace | None = None

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.value, dict)


def from_plain(value: Any, place: YamlPlace | None = None) -> Node:
    """A tree of Python values in which every node has the same place."""
    if isinstance(value, dict):
        return Node({str(key): from_plain(child, place) for key, child in value.items()}, place)
    if isinstance(value, list | tuple):
        return Node([from_plain(child, place) for child in value], place)
    return Node(value, place)


def to_plain(node: Node) -> Any:
    """The Python values of a tree."""
    if isinstance(node.value, dict):
        return {key: to_plain(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [to_plain(child) for child in node.value]
    return node.value


def copy_tree(node: Node) -> Node:
    """A tree that shares nothing with the other but the places."""
    if isinstance(node.value, dict):
        return Node({key: copy_tree(child) for key, child in node.value.items()}, node.place)
    if isinstance(node.value, list):
        return Node([copy_tree(child) for child in node.value], node.place)
    return Node(node.value, node.place)


def split_key(key: str) -> tuple[str, ...]:
    return tuple(key.split("."))


def get_child(node: Node, key: str | int) -> Node | None:
    """The node under a mapping's key or at a list's index, or None."""
    if isinstance(node.value, dict):
        return node.value.get(str(key))
    if isinstance(node.value, list) and str(key).isdecimal() and int(key) < len(node.value):
        item: Node = node.value[int(key)]
        return item
    return None


def find(node: Node, path: Sequence[str | int]) -> Node | None:
    """Return the node at a path, or None."""
    for key in path:
        below = get_child(node, key)
        if below is None:
            return None
        node = below
    return node


def find_place(tree: Node, path: Sequence[str | int]) -> YamlPlace | None:
    """Return the line of a value, or of the nearest section around it that was written."""
    nodes = (find(tree, path[:length]) for length in range(len(path), -1, -1))
    return next((node.place for node in nodes if node is not None and node.place is not None), None)


def put(node: Node, path: Sequence[str], child: Node) -> Node | None:
    """Set the node at a path, making mappings on the way; returns a node in the way that isn't a mapping, if any."""
    for key in path[:-1]:
        if not node.is_mapping:
            return node
        node = node.value.setdefault(key, Node({}, child.place))
    if not node.is_mapping:
        return node
    node.value[path[-1]] = child
    return None


def take(node: Node, path: Sequence[str | int]) -> Node | None:
    """Remove and return the node at a path, with the mappings that this leaves empty; None if there is none."""
    key, rest = path[0], path[1:]
    below = get_child(node, key)
    if below is None:
        return None
    taken = take(below, rest) if rest else below
    if not rest or (taken is not None and below.value == {}):
        if isinstance(node.value, dict):
            del node.value[str(key)]
        else:
            del node.value[int(key)]
    return taken


def walk(node: Node, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Node]]:
    """Yield every node below this one with its path, a section before its contents."""
    children: Any = node.value.items() if node.is_mapping else ()
    if isinstance(node.value, list):
        children = enumerate(node.value)
    for key, child in children:
        yield (*path, str(key)), child
        yield from walk(child, (*path, str(key)))


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
