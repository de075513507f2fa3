"""An environment with the packages that Vaak's core or an extra requires, as links to those installed here."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

PROJECT: dict[str, Any] = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]


def link_required(folder: Path, extra: str | None = None) -> set[str]:
    """Link in a folder what the core and an extra require, and what that requires; return what isn't installed."""
    waiting = [Requirement(line) for line in PROJECT["dependencies"] + PROJECT["optional-dependencies"].get(extra, [])]
    seen, missing = set[str](), set[str]()
    while waiting:
        wanted = waiting.pop()
        if wanted.name in seen or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        seen.add(wanted.name)
        try:
            package = metadata.distribution(wanted.name)
        except metadata.PackageNotFoundError:
            missing.add(wanted.name)
            continue
        waiting += map(Requirement, package.requires or ())
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(str(package.locate_file(top)))
    return missing
