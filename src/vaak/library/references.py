"""How a run finds a task again: by its file, which the run copies; by its package; or only by this program."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from vaak.config.components import adopt_module, what_is_missing
from vaak.config.tasks import TASKS, register_task
from vaak.core.task import Task


class Reference(NamedTuple):
    """What a configuration names a task by, and whether other programs find it by this."""

    name: str
    lasts: bool


def reference_of(task: Any) -> Reference:
    """How to name a task's class, or a task object that a module has as a variable.

    One that is in no file (of a notebook, of a function) is registered in this program under its name.
    """
    module = sys.modules.get(task.__module__ if isinstance(task, type) else getattr(task, "made_in", ""))
    name = _name_in(module, task)
    if module is not None and name is not None:
        full = f"{module.__name__}:{name}"
        for short, spec in TASKS.items():
            if spec.task == full:
                return Reference(short, True)
        if _is_installed(module):
            return Reference(full, True)
        file = Path(getattr(module, "__file__", None) or "")
        if file.is_file() and what_is_missing(f"{file}:{name}", file.parent) is None:
            adopt_module(module, file)
            return Reference(f"{file.resolve()}:{name}", True)
    short = task.__name__ if isinstance(task, type) else getattr(task, "name", type(task).__name__)
    register_task(short, task)
    return Reference(short, False)


def is_task(value: Any) -> bool:
    """Whether a value is a task's class, or a task."""
    return isinstance(value, Task) or (isinstance(value, type) and issubclass(value, Task))


def _name_in(module: ModuleType | None, task: Any) -> str | None:
    """The name that a module has for a task; None where it has none."""
    return next((name for name, value in vars(module or object).items() if value is task), None)


def _is_installed(module: ModuleType) -> bool:
    """Whether other programs import a module by its name."""
    root = module.__name__.partition(".")[0]
    if root == "__main__" or "." not in module.__name__ or root not in sys.modules:
        return False
    spec = importlib.util.find_spec(root)
    return spec is not None and "site-packages" in str(spec.origin)
