"""Who knows the folder of one task knows all."""

from __future__ import annotations

from pathlib import Path

import pytest

from vaak.config.tasks import TASKS

FOLDERS = Path(__file__).parents[3] / "src" / "vaak" / "tasks"
FILES = {"README.md", "spec.py", "config.py", "checks.py", "task.py", "data.py", "model.py", "metrics.py"}


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_the_same_files(task: str) -> None:
    assert {path.name for path in (FOLDERS / task).iterdir()} >= FILES


@pytest.mark.parametrize("task", TASKS)
def test_every_readme_has_what_goes_in_and_out_a_way_to_start_and_papers(task: str) -> None:
    text = " ".join((FOLDERS / task / "README.md").read_text(encoding="utf-8").split())
    missing = [
        wanted
        for wanted in ("| in | out |", "vaak train configs/", "Expected result:", "tart reading", "Papers")
        if wanted not in text
    ]
    assert not missing
