"""No file of the engine needs itself by way of others, not even for its types: import-linter leaves those out."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import vaak.engine

FOLDER = Path(vaak.engine.__file__).parent


def imported(file: Path) -> set[str]:
    """The modules of the engine that one imports anywhere, be it for type checking or inside a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vaak.engine"):
            module = str(node.module)
            names = {f"{module}.{alias.name}" for alias in node.names} & MODULES
            found |= names or {module}
    return found & MODULES


def name_of(file: Path) -> str:
    return ".".join(("vaak.engine", *file.relative_to(FOLDER).with_suffix("").parts))


MODULES = {name_of(file) for file in FOLDER.rglob("*.py") if file.stem != "__init__"}


def test_the_engine_has_no_circle_of_imports():
    files = {name_of(file): imported(file) for file in FOLDER.rglob("*.py") if file.stem != "__init__"}
    assert sum(map(len, files.values())) > 50
    list(TopologicalSorter(files).static_order())  # raises CycleError
