"""Versions of what computes: Vaak's commit, and installed packages. Asked once in a process."""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
from functools import cache
from pathlib import Path

import vaak

COMPUTING = (
    *("accelerate", "datasets", "espeakng-loader", "hdbscan", "jiwer", "lhotse", "lilcom", "num2words", "numpy"),
    *(
        "onnxruntime",
        "peft",
        "pocketsphinx",
        "sacrebleu",
        "scikit-learn",
        "scipy",
        "sentencepiece",
        "soundfile",
        "soxr",
    ),
    *("soxr", "tokenizers", "torch", "transformers", "umap-learn"),
)
"""The packages whose code may have a part in a run's numbers: in its data, its model, or its evaluation."""


@cache
def installed_versions() -> dict[str, str]:
    """The versions of those of ``COMPUTING`` that are installed, whether or not this run has used them.

    Which ones a run uses isn't known before it ends: some are imported late, and by workers alone.
    """
    versions = {name: _version(name) for name in COMPUTING}
    return {name: version for name, version in versions.items() if version is not None}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def commit() -> str | None:
    """The commit of Vaak's own checkout, with ``+`` where it has changes; None for an installed package."""
    folder = Path(vaak.__file__).parent
    try:
        described = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return described.stdout.strip() or None


@cache
def code_version() -> str:
    """What Vaak's code is, by a name that another code doesn't have: its commit, or a hash of its files."""
    found = commit()
    if found is not None and not found.endswith("+"):
        return found[:12]
    folder, digest = Path(vaak.__file__).parent, hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"{file.relative_to(folder).as_posix()}\0".encode() + file.read_bytes())
    return f"{(found or '')[:12]}{'+' if found else ''}{digest.hexdigest()[:12]}"
