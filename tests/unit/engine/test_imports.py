"""No file of the engine needs itself by way of others, not even for its types: import-linter leaves those out."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import vaak.engine

FOLDER = Path(vaak.engine.__file__).parent


def imported(file: Path) -> set[str]:
    """The files of the engine that one imports anywhere, be it for type checking or inside a function."""
    names = {path.stem for path in FOLDER.glob("*.py")}
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "vaak.engine":
            found |= {alias.name for alias in node.names} & names
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vaak.engine."):
            found.add((node.module or "").split(".")[2])
    return found


def test_the_engine_has_no_circle_of_imports():
    files = {file.stem: imported(file) for file in FOLDER.glob("*.py") if file.stem != "__init__"}
    assert sum(map(len, files.values())) > 100
    list(TopologicalSorter(files).static_order())  # raises CycleError
