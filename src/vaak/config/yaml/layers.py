"""The files of one configuration, each over those that it extends, the command line on top, merged into one tree.

The values of an upper layer win. A run's own files are recognised by their names: RUN/config.yml, and
RUN/sessions/0001.yml of each of its sessions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from vaak.config.trust import find_owning_run, judge_file, judge_run
from vaak.config.yaml.fields import (
    SectionType,
    applies,
    find_type,
    get_annotation,
    get_item_annotation,
    get_section,
    is_list,
    is_users_type,
    names_class,
    types_reading,
)
from vaak.config.yaml.recipes import find_bundled_files, recipe_named, recipes_folder
from vaak.config.yaml.text import read_value, read_yaml
from vaak.config.yaml.tree import (
    COMMAND_LINE,
    ConfigError,
    Placed,
    PlacedDict,
    PlacedList,
    Problem,
    YamlPlace,
    entries,
    find,
    put,
    split_key,
    take,
)
from vaak.core.names import from_home

ACCELERATES = {"compute_environment", "distributed_type"}
"""Keys of every file that ``accelerate config`` writes."""


class Layers:
    """Reads files with what they extend, each file once; ``trees`` has the lowest first."""

    def __init__(self) -> None:
        self.trees: list[PlacedDict] = []
        self.problems: list[Problem] = []
        self._read: set[str] = set()

    def add_file(
        self, path: Path | str, chain: tuple[str, ...] = (), asked_at: Placed | None = None, run: Path | None = None
    ) -> None:
        """Add a file over the ones it extends; a base that several files share is read once, below them.

        ``asked_at`` is what names it in a file, whose doubt it inherits; ``run`` is the run that it is opened with.
        """
        file, real = os.path.normpath(path), os.path.realpath(path)
        place = asked_at.place if asked_at else None
        if real in chain:
            self.problems.append(Problem(place, "extends", f"forms a cycle back to {file}"))
            return
        # A base is read once, below all that extend it; a file without a chain is one that the user asks for, on top.
        if real in self._read and chain:
            return
        self._read.add(real)
        doubt = judge_file(Path(file), place.doubt if place else None) if run is None else judge_run(run, Path(file))
        try:
            tree = read_yaml(file, doubt)
        except ConfigError as error:
            if asked_at is not None and not Path(file).exists():
                self.problems.append(Problem(asked_at.place, "extends", f"{file} does not exist"))
            else:
                self.problems += error.problems
            return
        if tree.keys() >= ACCELERATES:
            said = f"give it to accelerate: accelerate launch --config_file {file} train.py --config FILE"
            self.problems.append(Problem(YamlPlace(file), "", f"this is accelerate's own configuration; {said}"))
            return
        if Path(real).is_relative_to(recipes_folder()):
            find_bundled_files(tree)
        self._add_bases(tree, file, (*chain, real))
        self.trees.append(tree)

    def _add_bases(self, tree: PlacedDict, file: str, chain: tuple[str, ...]) -> None:
        base = take(tree, ("extends",))
        if base is None or base.value is None:
            return
        for item in [one for _, one in entries(base.value)] if isinstance(base.value, list) else [base]:
            if not isinstance(item.value, str):
                self.problems.append(Problem(item.place, "extends", "expected the path of a YAML file"))
                continue
            self.add_file(file_or_recipe(item.value, Path(file).parent), chain, item)

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
        path = split_key(key)
        try:
            given = Placed(read_value(value, key), COMMAND_LINE)
        except ConfigError as error:
            self.problems += error.problems
            return
        # All options are one layer, but a new one begins where a section meets its bare value.
        top = self.trees[-1] if self.trees and self.trees[-1].place == COMMAND_LINE else None
        if top is not None:
            there = find(top, path)
            if (there is None or not isinstance(there.value, dict)) and put(top, path, given) is None:
                return
        self.trees.append(PlacedDict(place=COMMAND_LINE))
        put(self.trees[-1], path, given)


def file_or_recipe(name: str, folder: Path = Path()) -> Path:
    """Return the file of a name seen from a folder, or, where there is none, the recipe that is called so."""
    file = folder / from_home(name)
    return file if os.path.exists(file) else recipe_named(name) or file


def read_layers(
    files: Sequence[Path | str], overrides: Sequence[str], of_run: Mapping[Path, Path] | None = None
) -> list[PlacedDict]:
    """The trees of files and overrides, the lowest first; ``of_run`` has the run of each file that is opened with one.

    Raises ConfigError with every file that can't be read and every invalid override.
    """
    layers = Layers()
    if not files:
        layers.problems.append(Problem(None, "", "no configuration file given"))
    for file in files:
        layers.add_file(file_or_recipe(str(file)), run=(of_run or {}).get(Path(file)))
    for text in overrides:
        layers.add_override(text)
    if layers.problems:
        raise ConfigError(layers.problems)
    return layers.trees


def get_folder(place: YamlPlace | None) -> Path:
    """Return the folder that relative names at this place refer to: the file's, or the current one."""
    if place is None or place == COMMAND_LINE:
        return Path()
    return find_owning_run(Path(place.file)) or Path(place.file).parent


class Merger:
    """Merges trees in order; ``dropped`` says which of the user's options a later ``type`` made invalid."""

    def __init__(self) -> None:
        self.dropped: list[Problem] = []

    def over(self, upper: Placed, lower: Placed, annotation: Any, path: str = "") -> Placed:
        """``lower`` with ``upper`` laid over it: sections key by key, lists and values as a whole.

        A mapping with places as keys (``betas.0``, ``callbacks.1.patience``) replaces these items of a list.
        """
        if not isinstance(upper.value, PlacedDict):
            return upper
        if isinstance(lower.value, PlacedList) and is_list(annotation):
            items = self._items(upper.value, lower.value, annotation, path)
            return upper if items is None else Placed(items, upper.place)
        if not isinstance(lower.value, PlacedDict):
            return upper
        section = get_section(annotation)
        kept = self._still_read(upper.value, lower.value, section, path) if section else dict(entries(lower.value))
        for key, child in entries(upper.value):
            below, name = kept.get(key), f"{path}.{key}".lstrip(".")
            kept[key] = child if below is None else self.over(child, below, get_annotation(section, key), name)
        place = upper.place or lower.place
        return Placed(PlacedDict(kept, place), place)

    def _items(self, upper: PlacedDict, lower: PlacedList, annotation: Any, path: str) -> PlacedList | None:
        """Return the list with some items replaced or added at its end; None if a key is not an index of it."""
        items = [one for _, one in entries(lower)]
        if not all(key.isdecimal() for key in upper):
            return None
        for index, child in sorted(((int(key), one) for key, one in entries(upper)), key=lambda pair: pair[0]):
            if index > len(items):
                # A gap between the last item and this one.
                return None
            below = items[index : index + 1]
            over = self.over(child, below[0], get_item_annotation(annotation), f"{path}.{index}") if below else child
            items[index : index + 1] = [over]
        return PlacedList(items)

    def _still_read(self, upper: PlacedDict, lower: PlacedDict, section: SectionType, path: str) -> dict[str, Placed]:
        """Return the lower section's entries that still apply when the upper one names another type."""
        new_type, place = upper.get("type"), upper.places.get("type")
        old_type = find_type(lower, section)
        if "type" not in upper or new_type == old_type:
            return dict(entries(lower))
        kept, was_users = {}, is_users_type(section, old_type)
        for key, child in entries(lower):
            known = key in section.model_fields or not names_class(section)
            its_own = was_users and bool(types_reading(section, key))
            if key == "type" or (known and not its_own and applies(section, key, new_type)):
                kept[key] = child
            elif child.place is not None:
                message = f"not used: {place} makes the type {new_type}, which does not read it"
                self.dropped.append(Problem(child.place, f"{path}.{key}".lstrip("."), message))
        return kept


def fill_items(items: PlacedDict, field: FieldInfo) -> Any:
    """Items given by place (``betas.0``), without a list below them, over the default list of their option."""
    default = PlacedList(Placed(one) for one in (field.default if isinstance(field.default, tuple) else ()))
    return Merger().over(Placed(items), Placed(default), field.annotation).value


def merge_all(layers: Iterable[PlacedDict], annotation: Any) -> tuple[PlacedDict, list[Problem]]:
    """Return all layers, the first lowest, and which of the user's options were dropped on the way."""
    merger = Merger()
    tree = Placed(PlacedDict())
    for layer in layers:
        tree = merger.over(Placed(layer, layer.place), tree, annotation)
    return tree.value, merger.dropped
