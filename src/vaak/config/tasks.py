"""The tasks that a YAML can name: those of Vaak, of installed packages, and a user's own.

A task is a folder of ``vaak.tasks`` with a ``spec.py`` that holds its SPEC; or a class that an installed package offers
as an entry point of the group ``vaak.tasks``; or a user's own class, ``./file.py:Name`` or ``package.module:Name``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from vaak.config.components import resolve_class
from vaak.config.task_spec import TaskSpec, load_name
from vaak.core.errors import UserError

TASKS_PACKAGE = "vaak.tasks"
ENTRY_POINTS = "vaak.tasks"


class Tasks(Mapping[str, TaskSpec]):
    """The tasks that have a name, in the order of their names; each one's spec is imported when it is asked for."""

    def __getitem__(self, name: str) -> TaskSpec:
        return spec_of(name) if name in self._names else self._missing(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _missing(self, name: str) -> TaskSpec:
        raise KeyError(name)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(sorted({*built_in(), *installed()}))


@cache
def built_in() -> frozenset[str]:
    """The tasks of Vaak: the folders of ``vaak.tasks`` that have a spec."""
    package = importlib.import_module(TASKS_PACKAGE)
    folders = [(module.name, Path(folder)) for folder in package.__path__ for module in pkgutil.iter_modules([folder])]
    return frozenset(name for name, folder in folders if (folder / name / "spec.py").is_file())


@cache
def installed() -> Mapping[str, EntryPoint]:
    """The tasks of other packages that are installed."""
    return {point.name: point for point in entry_points(group=ENTRY_POINTS) if point.name not in built_in()}


TASKS = Tasks()


@cache
def spec_of(task: str) -> TaskSpec:
    """The spec of a task by its name or, absolute, by its class; of a class, its file or package is imported.

    Raises UserError where a class has none.
    """
    if task in built_in():
        spec: TaskSpec = load_name(f"{TASKS_PACKAGE}.{task}.spec:SPEC")
        return spec
    found = getattr(task_class(task), "SPEC", None)
    if not isinstance(found, TaskSpec):
        raise UserError(f"{task} is not a task: it has no SPEC; make it a subclass of vaak.Task")
    return found


def task_class(task: str) -> Any:
    """The class that trains a task, by its name or, absolute, by its class. Raises UserError if it doesn't exist."""
    if task in built_in():
        return load_name(str(spec_of(task).task))
    if task in installed():
        return installed()[task].load()
    return resolve_class(task, {}, Path("/"))


def tasks_recognised(keys: set[str]) -> list[str]:
    """The tasks that have one of these dotted keys as their own; if none has, those that share one."""
    own = [name for name, spec in TASKS.items() if keys & set(spec.recognised_by)]
    return own or [name for name, spec in TASKS.items() if keys & set(spec.also_recognised_by)]
