"""What tests of the library share: a registry that each test leaves unchanged, and a module with a task."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from vaak.config import tasks

VOWELS = Path(__file__).with_name("vowels.py.txt")


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "REGISTERED_TASKS", {})


@pytest.fixture
def vowels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A user's module in a separate file, imported; the current folder is the file's."""
    monkeypatch.chdir(tmp_path)
    name = f"vowels_{tmp_path.name}"
    file = tmp_path / f"{name}.py"
    file.write_text(VOWELS.read_text(encoding="utf-8"), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def vaak_command(vaak: Callable[..., tuple[int, str, str]]) -> Callable[..., tuple[int, str, str]]:
    """The fixture ``vaak``, which runs a command, under a name that isn't the package's."""
    return vaak
