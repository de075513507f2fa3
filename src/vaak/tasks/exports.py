"""The formats that a run can be exported in."""

from __future__ import annotations

from vaak.core.errors import UserError
from vaak.core.task import Task

FORMATS = ("hf", "onnx", "peft", "mixture")


def formats_of(task: Task) -> list[str]:
    """The formats that a task writes this run in."""
    refused = task.refused_exports()
    return [name for name in FORMATS if hasattr(task, f"export_{name}") and name not in refused]


def demand_format(task: Task, name: str) -> None:
    """Raises UserError, with the reason and what to use instead, where a task doesn't write this run in a format."""
    formats = formats_of(task)
    if name in formats:
        return
    instead = f"use --format {' or '.join(formats)}" if formats else "there is no other format for this run"
    raise UserError(f"--format {name}: {why_not(task, name)}; {instead}")


def why_not(task: Task, name: str) -> str:
    """Why a task doesn't write this run in a format."""
    kind = getattr(getattr(task, "experiment", None), "task", type(task).__name__)
    return task.refused_exports().get(name, f"a run of task {kind} can't be exported so")
