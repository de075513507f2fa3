"""The table of docs/resuming.md as Markdown: every option of every task with what changing it on resume does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from vaak.config.base import ResumeClass
from vaak.config.resume.table import Leaf, leaves
from vaak.config.tasks import TASKS

TOP = "top level"
SWITCHED = "\\*"
"""Marks an option that has another class where it changes between null or 0 and a value."""

_HEAD = "| section | class | options |\n|---|---|---|\n"


def resume_page() -> str:
    """The options that all tasks have, then those of each task: a row for each class of a section.

    Raises ValueError where an option has no class.
    """
    of_task = {task: {leaf.key: leaf for leaf in leaves(task)} for task in TASKS}
    shared = set.intersection(*(set(options) for options in of_task.values()))
    first = next(iter(of_task.values()))
    parts = ["### All tasks\n\n" + _HEAD + _rows(leaf for key, leaf in first.items() if key in shared)]
    for task, options in of_task.items():
        own = _rows(leaf for key, leaf in options.items() if key not in shared)
        parts.append(f"### {task}\n\n{_HEAD}{own}")
    return "\n".join(parts)


def _rows(options: Iterable[Leaf]) -> str:
    rows: dict[tuple[str, ResumeClass], list[str]] = {}
    for leaf in options:
        if leaf.rule is None:
            raise ValueError(f"{leaf.key} has no class: give it resume=, or its section a resume_class")
        section, _, name = leaf.key.rpartition(".")
        mark = SWITCHED if leaf.rule.switch != leaf.rule.always else ""
        rows.setdefault((section, leaf.rule.always), []).append(f"`{name}`{mark}")
    order = get_args(ResumeClass)
    sections = list(dict.fromkeys(section for section, _ in rows))
    ranked = sorted(rows, key=lambda row: (sections.index(row[0]), order.index(row[1])))
    return "".join(
        f"| {f'`{section}`' if section else TOP} | {kind} | {', '.join(rows[section, kind])} |\n"
        for section, kind in ranked
    )
