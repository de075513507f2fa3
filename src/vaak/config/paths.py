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

import glob
import json
import os
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vaak.config.base import PathRead
from vaak.config.trust import TUNED, run_of_configuration
from vaak.config.validate import sections_in
from vaak.config.yaml.fields import SectionType
from vaak.config.yaml.recipes import recipes_folder
from vaak.config.yaml.tree import Node, Problem
from vaak.core.names import from_home

ENVIRONMENT = "environment.json"
"""The file in which a run records where it was started, as ``folder``."""


def settle_paths(tree: Node, kind: SectionType) -> list[Problem]:
    """Rewrite each path in the tree as seen from the working folder; return remarks on them."""
    found = [(key, node, _settle(node, read)) for key, node, read in _paths_in(tree, kind)]
    return [Problem(node.place, key, message) for key, node, message in found if message is not None]


def rebase_paths(tree: Node, kind: SectionType, folder: Path) -> None:
    """Have the tree's paths be seen from a ``folder``, where they name something in the working folder."""
    for _, node, _ in _paths_in(tree, kind):
        if isinstance(node.value, str) and not os.path.isabs(from_home(node.value)) and _exists(node.value):
            node.value = os.path.relpath(node.value, folder)


def _paths_in(tree: Node, kind: SectionType) -> Iterator[tuple[str, Node, PathRead]]:
    """Each path that the tree's options read, with the option's key."""
    for path, section, section_type in [*sections_in(tree, kind)]:
        for name, child in section.value.items():
            read = _path_read(section_type, name)
            if read is not None and not _is_within_corpus(section, name):
                for node in child.value if isinstance(child.value, list) else [child]:
                    yield f"{path}.{name}".lstrip("."), node, read


def _path_read(section: SectionType, name: str) -> PathRead | None:
    """An option's declaration of the path that it reads; None where it reads none."""
    field = section.model_fields.get(name)
    marks = [] if field is None else [*field.metadata, *_marks(field.annotation)]
    return next((mark for mark in marks if isinstance(mark, PathRead)), None)


def _marks(annotation: Any) -> Iterator[Any]:
    """Yield the metadata of an annotation and its parts."""
    yield from getattr(annotation, "__metadata__", ())
    for part in typing.get_args(annotation):
        yield from _marks(part)


def _is_within_corpus(section: Node, name: str) -> bool:
    """Whether a data set's own names are those of files below its ``corpus_dir``."""
    folder = section.value.get("corpus_dir")
    return name in ("train", "valid", "test") and folder is not None and folder.value is not None


def _settle(node: Node, read: PathRead) -> str | None:
    """Have a node's path be one from the working folder; return what to say about it."""
    value = node.value
    # An address (https://…) isn't a path on this machine.
    if not isinstance(value, str) or not value or "://" in value or node.place is None:
        return None
    # Paths from the command line or Python are seen from the working folder already.
    if os.path.isabs(from_home(value)) or not os.path.isfile(node.place.file):
        return None
    written_in = Path(node.place.file)
    if (run := _find_run(written_in)) is not None:
        folder = _started_in(run)
        if folder is not None and not _exists(value) and _exists(folder / value):
            node.value = os.path.relpath(folder / value)
        return None
    folder = written_in.parent
    if written_in.resolve().is_relative_to(recipes_folder()) or os.path.samefile(folder, os.curdir):
        return None
    seen = os.path.normpath(folder / value)
    if _exists(seen):
        node.value = seen
        is_other = _exists(value) and not (os.path.exists(value) and os.path.samefile(seen, value))
        return f"{seen} is read, as seen from this file; {value} in the working folder is another" if is_other else None
    if not _exists(value):
        node.value = value if read.or_name else seen
    elif not _is_of_a_run(Path(value)):
        better = os.path.relpath(value, folder)
        return f"{seen} does not exist, but {value} in the working folder, which is read: write {better}"
    return None


def _exists(path: Path | str) -> bool:
    """Whether a file, a folder or a pattern's match exists, or the archive that a path leads into."""
    if os.path.exists(path) or any(map(os.path.isfile, Path(path).parents)):
        return True
    return glob.has_magic(str(path)) and next(glob.iglob(str(path), recursive=True), None) is not None


def _find_run(file: Path) -> Path | None:
    """The run that wrote a configuration; None for a user's file."""
    return file.parent if file.name == TUNED else run_of_configuration(file)


def _started_in(run: Path) -> Path | None:
    """The folder in which a run was started, as it wrote; None where it didn't."""
    try:
        folder = json.loads((run / ENVIRONMENT).read_text(encoding="utf-8")).get("folder")
    except (OSError, ValueError, AttributeError):
        return None
    return Path(folder) if isinstance(folder, str) and os.path.isdir(folder) else None


def _is_of_a_run(path: Path) -> bool:
    """Whether a path is a run, or a checkpoint of one."""
    return any((folder / "config.yml").is_file() for folder in (path, *path.parents[:2]))
