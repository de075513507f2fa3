"""A task is one folder: without it, all else imports, loads its configurations and keeps its contract."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vaak
from vaak.config.tasks import TASKS, built_in

SOURCE = Path(vaak.__file__).parent
ROOT = SOURCE.parents[1]
GOES_WITH = {
    "lm": ("compat/hindi_lm", "cli/tasks/generate.py"),
    "seq2seq": ("cli/tasks/translate.py",),
    "tts": ("cli/tasks/speak.py",),
    "asr": ("cli/tasks/transcribe.py",),
    "classification": ("cli/tasks/classify.py",),
    "multitask": ("compat/research_kit.py",),
    "diarization": ("cli/tasks/diarize.py",),
}
"""What stands above a task for its sake alone: its commands, and the names of the system that it replaces."""

CASE_USES = {"classification": ("multitask",)}
"""The tasks whose case of the contract trains a task: several at once are two classifiers there."""

CHECK = """
import importlib, pkgutil, sys
from pathlib import Path
import vaak
for module in pkgutil.walk_packages(vaak.__path__, "vaak."):
    importlib.import_module(module.name)
from vaak.config.tasks import TASKS, task_class
from vaak.config.load import load
from vaak.config.yaml.text import read_yaml
from vaak.core.errors import UserError
gone, loaded = sys.argv[1], 0
assert gone not in TASKS and len(TASKS) == int(sys.argv[2])
for name in TASKS:
    task_class(name)
for file in sorted(Path(sys.argv[3]).rglob("*.yml")):
    if "pipelines" in file.parts:  # options of a pipeline
        continue
    try:
        loaded += load([file]).experiment.task in TASKS
    except UserError as error:
        assert "task: " in str(error) or "the task " in str(error) or "is audio" in str(error), error
print(loaded)
"""


@pytest.fixture
def without(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """An environment whose Vaak lacks one task."""
    gone = request.param
    shutil.copytree(SOURCE, tmp_path / "vaak", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (f"tasks/{gone}", *GOES_WITH.get(gone, ())):
        path = tmp_path / "vaak" / folder
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return {**os.environ, "PYTHONPATH": str(tmp_path), "VAAK_DATA": str(tmp_path), "GONE": gone}


@pytest.mark.parametrize("gone", TASKS)
def test_nothing_of_the_rest_imports_it(gone: str):
    """No other module imports it at its top level; the tests below cover tables and imports within functions."""
    own = [SOURCE / path for path in (f"tasks/{gone}", *GOES_WITH.get(gone, ()))]
    others = [path for path in SOURCE.rglob("*.py") if not any(path.is_relative_to(one) for one in own)]
    assert len(others) > 300
    for path in others:
        imports = re.findall(r"^(?:from|import) (vaak\.tasks\.\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert f"vaak.tasks.{gone}" not in imports, path


@pytest.mark.slow
@pytest.mark.parametrize("without", TASKS, indirect=True)
def test_the_rest_imports_and_loads_its_configurations(without: dict[str, str]):
    gone = without["GONE"]
    command = [sys.executable, "-c", CHECK, gone, str(len(built_in()) - 1), str(ROOT / "configs")]
    done = subprocess.run(command, env=without, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 5


@pytest.mark.slow
@pytest.mark.parametrize("without", TASKS, indirect=True)
def test_the_rest_keeps_its_contract(without: dict[str, str]):
    gone = without["GONE"]
    others = " or ".join(f"{name}-check" for name in TASKS if name not in (gone, *CASE_USES.get(gone, ())))
    wanted = f"({others}) and (check_resume or check_saved or check_metrics)"  # training, predicting, evaluating
    command = [sys.executable, "-m", "pytest", "-q", "-x", "tests/contract", "-k", wanted, "-p", "no:cacheprovider"]
    done = subprocess.run(command, env=without, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-2000:]
