"""The files of one configuration in the order in which they override each other, and the command line on top."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from vaak.config.resolve.run_files import run_of_configuration
from vaak.config.yaml.errors import ConfigError, Problem
from vaak.config.yaml.reader import read_value, read_yaml
from vaak.config.yaml.tree import COMMAND_LINE, Node, YamlPlace, find, put, split_key

ACCELERATES = {"compute_environment", "distributed_type"}
"""Keys of every file that ``accelerate config`` writes."""


class Layers:
    """Reads files with what they extend, each file once; ``trees`` has the lowest first."""

    def __init__(self) -> None:
        self.trees: list[Node] = []
        self.problems: list[Problem] = []
        self._read: set[str] = set()

    def add_file(self, path: Path | str, chain: tuple[str, ...] = (), asked_at: Node | None = None) -> None:
        """Add a file over the ones it extends; a base that several files share is read once, below them."""
        file, real = os.path.normpath(path), os.path.realpath(path)
        if real in chain:
            place = asked_at.place if asked_at else None
            self.problems.append(Problem(place, "extends", f"forms a cycle back to {file}"))
            return
        if real in self._read and chain:
            return
        self._read.add(real)
        try:
            tree = read_yaml(file)
        except ConfigError as error:
            if asked_at is not None and not Path(file).exists():
                self.problems.append(Problem(asked_at.place, "extends", f"{file} does not exist"))
            else:
                self.problems += error.problems
            return
        if tree.value.keys() >= ACCELERATES:
            said = f"give it to accelerate: accelerate launch --config_file {file} train.py --config FILE"
            self.problems.append(Problem(YamlPlace(file), "", f"this is accelerate's own configuration; {said}"))
            return
        self._add_bases(tree, file, (*chain, real))
        self.trees.append(tree)

    def _add_bases(self, tree: Node, file: str, chain: tuple[str, ...]) -> None:
        base = tree.value.pop("extends", None)
        if base is None or base.value is None:
            return
        for item in base.value if isinstance(base.value, list) else [base]:
            if not isinstance(item.value, str):
                self.problems.append(Problem(item.place, "extends", "expected the path of a YAML file"))
                continue
            self.add_file(Path(file).parent / item.value, chain, item)

    def add_override(self, text: str) -> None:
        """Add ``key.path=value`` from the command line; the value is read as YAML."""
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key or not all(split_key(key)):
            self.problems.append(Problem(COMMAND_LINE, "", f"{text!r} is not of the form key.path=value"))
            return
        if key == "extends":
            self.problems.append(Problem(COMMAND_LINE, key, "belongs in a file; give several files here instead"))
            return
        try:
            node = read_value(value, key)
        except ConfigError as error:
            self.problems += error.problems
            return
        self._lay_on_top(split_key(key), node)

    def _lay_on_top(self, path: tuple[str, ...], node: Node) -> None:
        """Options of the command line are one layer, but a new one begins where a section meets its bare value."""
        top = self.trees[-1] if self.trees and self.trees[-1].place == COMMAND_LINE else None
        if top is not None:
            there = find(top, path)
            if (there is None or not there.is_mapping) and put(top, path, node) is None:
                return
        top = Node({}, COMMAND_LINE)
        put(top, path, node)
        self.trees.append(top)


def read_layers(files: Sequence[Path | str], overrides: Sequence[str]) -> list[Node]:
    """The trees of files and overrides, the lowest first.

    Raises ConfigError with every file that can't be read and every invalid override.
    """
    layers = Layers()
    if not files:
        layers.problems.append(Problem(None, "", "no configuration file given"))
    for file in files:
        layers.add_file(file)
    for text in overrides:
        layers.add_override(text)
    if layers.problems:
        raise ConfigError(layers.problems)
    return layers.trees


def folder_of(place: YamlPlace | None) -> Path:
    """The folder that relative names at this place refer to: the file's, or the current one."""
    if place is None or place == COMMAND_LINE:
        return Path()
    return run_of_configuration(Path(place.file)) or Path(place.file).parent
