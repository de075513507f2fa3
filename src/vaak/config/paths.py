"""Paths in a YAML are seen from the YAML's folder, as ``extends`` and ``./file.py:Name`` are.

    written in                      seen from
    a YAML of the user's            its folder; the working folder, with a warning, where only that has the file
    a recipe of Vaak's              the working folder
    RUN/config.yml                  the working folder; the folder in which the run was started, where only that has it
    the command line, Python        the working folder

What a run writes (``run_dir``, ``save_dir``, ``cache_dir``, …) is in the working folder, and so are runs that a YAML
names. The value in the tree becomes a path from the working folder, which messages then name.
"""

from __future__ import annotations

import functools
import glob
import json
import os
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vaak.config.base import PathRead
from vaak.config.trust import TUNED, find_owning_run
from vaak.config.yaml.fields import SectionType, sections_in
from vaak.config.yaml.recipes import recipes_folder
from vaak.config.yaml.tree import PlacedDict, PlacedList, Problem, YamlPlace
from vaak.core.names import from_home

ENVIRONMENT = "environment.json"
"""The file in which a run records where it was started, as ``folder``."""


def settle_paths(tree: PlacedDict, kind: SectionType) -> list[Problem]:
    """Rewrite each path in the tree as seen from the working folder; return remarks on them."""
    return [remark for found in sections_in(tree, kind) for remark in rewrite_paths(*found)]


def rewrite_paths(path: tuple[str, ...], section: PlacedDict, kind: SectionType) -> Iterator[Problem]:
    """Rewrite the paths of one section, which is at ``path`` in the tree; yield remarks on them."""
    for name, holder, key, read in _paths_in(section, kind):
        place = holder.places[key] if isinstance(holder, PlacedList) else holder.places.get(key)
        if isinstance(holder[key], str) and place is not None:
            holder[key], message = _settle(holder[key], place, read)
            if message is not None:
                yield Problem(place, ".".join((*path, name)), message)


def rebase_paths(tree: PlacedDict, kind: SectionType, folder: Path) -> None:
    """Have the tree's paths be seen from a ``folder``, where they name something in the working folder."""
    for _, section, section_type in sections_in(tree, kind):
        for _, holder, key, _ in _paths_in(section, section_type):
            value = holder[key]
            if isinstance(value, str) and not os.path.isabs(from_home(value)) and _exists(value):
                holder[key] = os.path.relpath(value, folder)


def list_read_paths(tree: PlacedDict, kind: SectionType) -> Iterator[tuple[str, str]]:
    """Yield the dotted name and the value of each option of a tree that names a file or folder to read."""
    for path, section, section_type in sections_in(tree, kind):
        for name, holder, key, _ in _paths_in(section, section_type):
            if isinstance(holder[key], str):
                yield ".".join((*path, name)), holder[key]


def _paths_in(section: PlacedDict, kind: SectionType) -> Iterator[tuple[str, Any, Any, PathRead]]:
    """Each path that a section's options read: the option's name, and the section or list with the path's key in it."""
    reads = paths_read(kind)
    for name, value in section.items():
        if name in reads and not _is_within_corpus(section, name):
            if isinstance(value, PlacedList):
                places = (index for index, one in enumerate(value) if reads[name].is_path(one))
                yield from ((name, value, index, reads[name]) for index in places)
            elif reads[name].is_path(value):
                yield name, section, name, reads[name]


@functools.cache
def paths_read(kind: SectionType) -> dict[str, PathRead]:
    """Return the options of a section that read a path, with their declarations of it."""
    marks = {name: [*field.metadata, *_marks(field.annotation)] for name, field in kind.model_fields.items()}
    found = {name: next((mark for mark in those if isinstance(mark, PathRead)), None) for name, those in marks.items()}
    return {name: read for name, read in found.items() if read is not None}


def _marks(annotation: Any) -> Iterator[Any]:
    """Yield the metadata of an annotation and its parts."""
    yield from getattr(annotation, "__metadata__", ())
    for part in typing.get_args(annotation):
        yield from _marks(part)


def _is_within_corpus(section: PlacedDict, name: str) -> bool:
    """Return whether a data set's own names are those of files below its ``corpus_dir``."""
    return name in ("train", "valid", "test") and section.get("corpus_dir") is not None


def _settle(value: str, place: YamlPlace, read: PathRead) -> tuple[str, str | None]:
    """Return a path as one from the working folder, and what to say about it."""
    # An address (https://…) isn't a path on this machine.
    if not value or "://" in value:
        return value, None
    # Paths from the command line or Python are seen from the working folder already.
    if os.path.isabs(from_home(value)) or not os.path.isfile(place.file):
        return value, None
    written_in = Path(place.file)
    if (run := _find_run(written_in)) is not None:
        folder = _started_in(run)
        is_there = folder is not None and not _exists(value) and _exists(folder / value)
        return os.path.relpath(folder / value) if folder is not None and is_there else value, None
    folder = written_in.parent
    if written_in.resolve().is_relative_to(recipes_folder()) or os.path.samefile(folder, os.curdir):
        return value, None
    seen = os.path.normpath(folder / value)
    if _exists(seen):
        is_other = _exists(value) and not (os.path.exists(value) and os.path.samefile(seen, value))
        about = f"{seen} is read, as seen from this file; {value} in the working folder is another"
        return seen, about if is_other else None
    if not _exists(value):
        return value if read.or_name else seen, None
    if _is_of_a_run(Path(value)):
        return value, None
    better = os.path.relpath(value, folder)
    return value, f"{seen} does not exist, but {value} in the working folder, which is read: write {better}"


def _exists(path: Path | str) -> bool:
    """Return whether a file, a folder or a pattern's match exists, or the archive that a path leads into."""
    if os.path.exists(path) or any(map(os.path.isfile, Path(path).parents)):
        return True
    return glob.has_magic(str(path)) and next(glob.iglob(str(path), recursive=True), None) is not None


def _find_run(file: Path) -> Path | None:
    """Return the run that wrote a configuration; None for a user's file."""
    return file.parent if file.name == TUNED else find_owning_run(file)


def _started_in(run: Path) -> Path | None:
    """Return the folder in which a run was started, as it wrote; None if it didn't."""
    try:
        folder = json.loads((run / ENVIRONMENT).read_text(encoding="utf-8")).get("folder")
    except (OSError, ValueError, AttributeError):
        return None
    return Path(folder) if isinstance(folder, str) and os.path.isdir(folder) else None


def _is_of_a_run(path: Path) -> bool:
    """Return whether a path is a run, or a checkpoint of one."""
    return any((folder / "config.yml").is_file() for folder in (path, *path.parents[:2]))
