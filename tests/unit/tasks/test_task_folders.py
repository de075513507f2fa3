"""All task folders are laid out alike, and no task is named outside of its folder."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vaak.audio.config import AugmentationConfig
from vaak.config.tasks import TASKS, list_pipelines, load_name
from vaak.tasks.speech_task import SpeechTask
from vaak.tasks.text_task import TextTask

FOLDERS = Path(__file__).parents[3] / "src" / "vaak" / "tasks"
FILES = {"README.md", "spec.py", "config.py", "task.py", "data.py", "model.py", "metrics.py"}


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


def test_every_task_says_by_which_keys_it_is_recognised_and_knows_which_read_audio() -> None:
    recognised = {name: load_name(f"vaak.tasks.{name}:RECOGNISED_BY") for name in TASKS}
    assert {name: row.reads_audio for name, row in recognised.items()} == {
        name: spec.audio is not None for name, spec in TASKS.items()
    }
    augmentations = {f"data.augmentation.{name}" for name in AugmentationConfig.model_fields}
    assert augmentations <= set(recognised["diarization"].own)


def test_recognising_a_task_imports_no_other() -> None:
    code = (
        "import sys; from vaak.config.load import load; load([sys.argv[1]])\n"
        "print(sorted(name for name in sys.modules if name.startswith('vaak.tasks.') and name.endswith('.spec')))"
    )
    file = FOLDERS.parents[2] / "configs" / "quickstart.yml"
    done = subprocess.run([sys.executable, "-c", code, file], capture_output=True, text=True, check=True)
    assert done.stdout == "['vaak.tasks.lm.spec']\n"


@pytest.mark.parametrize("task", sorted({*TASKS} - {"multitask"}))
def test_every_task_reads_text_or_audio_and_begins_with_what_these_have_in_common(task: str) -> None:
    for reference in (TASKS[task].task, *TASKS[task].task_where.values()):
        made = load_name(str(reference))
        assert issubclass(made, TextTask) != issubclass(made, SpeechTask)
    assert (FOLDERS / task / "predict.py").exists()


OUTSIDE = [
    path
    for path in sorted(FOLDERS.parent.rglob("*.py"))
    if path.parent == FOLDERS or path.relative_to(FOLDERS.parent).parts[0] not in ("tasks", "compat")
]
"""All modules outside the tasks' folders. Those shared by several tasks are next to them, and name none either."""
EXTRAS = "optional_import"
"""Its second argument is the name of a package's extra, which may be a task's, too."""
ALLOWED = {("cli/export.py", "vocoder"), ("core/extras.py", "asr"), ("tasks/__init__.py", "lm")}
"""An option of ``vaak export``, which the formats declare that take it; an extra that is advised for a package that
several have; and the task of a YAML that points to none."""
OF_STRANGERS = {
    ("config/tasks.py", 'getattr(task, "'),
    ("library/fit.py", 'getattr(task, "'),
    ("library/trained_run.py", 'getattr(self.task, "'),
    ("runs/use.py", 'getattr(task, "'),
}
"""Where a user's class or object is looked at before it is known to be a task, or for a tokenizer it may have."""
LOSSES = {"cross_entropy", "orpo"}
"""Metrics that are losses, too, which the configuration knows by name."""


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def strings(node: ast.AST) -> Iterator[str]:
    """The constants of a syntax tree, without the names of extras."""
    unread = [node]
    while unread:
        one = unread.pop()
        if isinstance(one, ast.Call) and getattr(one.func, "id", "") == EXTRAS:
            continue
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value
        unread.extend(ast.iter_child_nodes(one))


def test_nothing_outside_the_tasks_knows_one_by_its_name() -> None:
    """``vaak lm-eval`` asked whether a run's task is "lm", and seven commands likewise: a spec declares it.

    A table of learning rates had a row for each task; the table of commands, a help and two errors named the pipeline
    of one.
    """
    pipelines = re.compile(rf"\b({'|'.join(map(re.escape, list_pipelines()))})\b")
    found = {
        (path.relative_to(FOLDERS.parent).as_posix(), text)
        for path in OUTSIDE
        for text in strings(parse(path))
        if text in TASKS or pipelines.search(text)
    }
    assert found == ALLOWED


def test_nothing_outside_the_tasks_tries_whether_a_task_has_a_method() -> None:
    """Whether a run has a vocoder, embeddings or words was tried by ``hasattr``: a spec declares it (``uses``)."""
    of_tasks = re.compile(r"\b(hasattr|getattr)\((\w+\.)*(task|own), \"|isinstance\((\w+\.)*task, [A-Z]\w+Task\b")
    found = {
        (path.relative_to(FOLDERS.parent).as_posix(), match[0])
        for path in [*OUTSIDE, *FOLDERS.glob("*/**/*.py")]
        for match in of_tasks.finditer(path.read_text(encoding="utf-8"))
    }
    assert found == OF_STRANGERS


def test_nothing_outside_the_tasks_asks_for_a_metric_by_its_name() -> None:
    """The report asked whether a figure is "der", and gave that of experts as "val_wer"."""
    names = {metric.name for task in TASKS for metric in load_name(f"vaak.tasks.{task}:METRICS")} - LOSSES
    found = [
        (path.relative_to(FOLDERS.parent).as_posix(), text)
        for path in OUTSIDE
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Compare) or getattr(getattr(node, "func", None), "id", "") == "format_metric"
        for text in strings(node)
        if text.removeprefix("val_") in names
    ]
    assert found == []
