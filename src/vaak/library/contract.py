"""``vaak.check``: the contract of ``vaak.testing`` in one call."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vaak.config.load import load_layers
from vaak.config.tasks import task_class
from vaak.core.errors import UserError
from vaak.core.storage.files import scratch_folder
from vaak.core.task import Task
from vaak.library.config import as_layers
from vaak.library.fit import is_task, make_reference
from vaak.runs.folder.user_code import require_trust
from vaak.testing import CHECKS, Case, Check, check_task


def check(task: Any, *, options: dict[str, Any] | None = None, checks: Sequence[Check] = CHECKS, **case: Any) -> None:
    """Hold a task to what the engine relies on (docs/testing.md), on its own data, which must be few.

    ``task`` is a class, an object, or a YAML file; a class has the ``options`` of its sections (``{"model": {...}}``).
    ``case`` are fields of ``vaak.testing.Case``: ``inputs`` for ``predict``, ``learning_rate``, ``counted``, ...
    Returns nothing. Raises AssertionError with a line for each check that the task doesn't pass.
    """
    with scratch_folder("check") as folder:
        check_task(Case(_maker(task, options or {}, folder), **case), checks)


def _maker(task: Any, options: dict[str, Any], folder: Path) -> Callable[[], Task]:
    """Return what makes the task, prepared, each time it is called."""
    if isinstance(task, Task):
        return lambda: copy.copy(task)
    if is_task(task):
        name, _ = make_reference(task)
        task = {"task": name}
    elif not isinstance(task, str | Path | dict):
        raise UserError(f"vaak.check was given a {type(task).__name__}; expected a vaak.Task, a YAML file or a dict")
    loaded = load_layers(as_layers([task, options, {"run_dir": str(folder)}]))
    require_trust(loaded)
    make = task_class(loaded.experiment.reference)

    def made() -> Task:
        found: Task = make(loaded.experiment, folder, loaded.folder)
        found.prepare()
        return found

    return made
