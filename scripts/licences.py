"""Writes docs/licences.md: the required packages, with the licence that each states in its metadata.

python scripts/licences.py
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "licences.md"
NOT_FOR_USERS = ("test", "dev", "docs")
"""Extras for those who work on Vaak itself."""
HEAD = """\
# Licences

Vaak is under the Apache License 2.0. It brings along one library of others: uPlot (MIT), which draws the
charts of `vaak report`. Packages that it requires are installed by pip under their own licences, as they state them in
their metadata. Written by `scripts/licences.py`; a test compares it.

The chat templates (`src/vaak/text/chat_templates`) are our own, but the words between their turns are those of the
published ones, since a model knows no others: of Llama 3 and 3.1 (Meta's Llama 3 and 3.1 Community License), Gemma
(Gemma Terms of Use), Qwen3 and Mistral (Apache-2.0), GLM (MIT). They come with the same terms as these models.

| package | for | licence |
|---|---|---|
"""
STATED_ELSEWHERE = {
    "espeakng-loader": "GPL-3.0-or-later (espeak-ng, a separate library that is loaded when it is used)",
    "liger-kernel": "BSD-2-Clause",
    "s3fs": "BSD",
    "trackio": "MIT",
}
"""Those that don't state it in their metadata, from their repositories; s3fs and trackio aren't installed for tests."""
SHORT = {
    **dict.fromkeys(("Apache Software License", "Apache 2.0", "Apache 2.0 License", "Apache"), "Apache-2.0"),
    **dict.fromkeys(("Apache License 2.0", "Apache License, Version 2.0", "Apache License v2.0"), "Apache-2.0"),
    **dict.fromkeys(("MIT License", "The MIT License (MIT)"), "MIT"),
    **dict.fromkeys(("BSD 3-Clause License", "new BSD", "3-Clause BSD License"), "BSD-3-Clause"),
    "BSD License": "BSD",
    "Python Software Foundation License": "PSF-2.0",
    "GNU Library or Lesser General Public License (LGPL)": "LGPL",
}
"""Texts in metadata that are long, or the same in other words."""


def requirements() -> dict[str, list[str]]:
    """Return each package that is required directly, with the extras that require it (of the core: ``core``)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, list[str]] = {}
    for extra, lines in {"core": project["dependencies"], **project["optional-dependencies"]}.items():
        for line in lines if extra not in NOT_FOR_USERS else ():
            found.setdefault(Requirement(line).name, []).append(extra)
    return found


def licence_of(package: str) -> str | None:
    """Return the licence that an installed package states; None where it isn't installed, or states none."""
    if package in STATED_ELSEWHERE:
        return STATED_ELSEWHERE[package]
    try:
        about = metadata.metadata(package)
    except metadata.PackageNotFoundError:
        return None
    stated = about.get_all("License-Expression") or [*_classifiers(about), *(about.get_all("License") or ())]
    first = stated[0].strip().partition("\n")[0].strip() if stated else ""
    return SHORT.get(first, first) or None


def _classifiers(about: metadata.PackageMetadata) -> Iterator[str]:
    for line in about.get_all("Classifier") or ():
        if line.startswith("License ::") and not line.endswith("OSI Approved"):
            yield line.rpartition(" :: ")[2]


def rows_of(page: str) -> dict[str, tuple[str, str]]:
    """Return the extras that need each package on a page, and its licence."""
    rows = re.findall(r"^\| (\S+) \| (.+?) \| (.+?) \|$", page, re.MULTILINE)
    return {name: (extras, licence) for name, extras, licence in rows[1:]}


def main() -> None:
    """Write the page; of packages that aren't installed, what it said before stays."""
    before = rows_of(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    lines = []
    for name, extras in sorted(requirements().items()):
        licence = licence_of(name) or before.get(name, ("", "unknown"))[1]
        lines.append(f"| {name} | {', '.join(extras)} | {licence} |\n")
    PAGE.write_text(HEAD + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
