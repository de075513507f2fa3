"""How checkpoints are named, and which folders are some. Doesn't import torch, so that listing runs is fast."""

from __future__ import annotations

import re
from pathlib import Path

MANIFEST = "MANIFEST.json"
STEP_FOLDER = re.compile(r"step-(\d{8,})")


def step_folder(step: int) -> str:
    """Name of the checkpoint of a step; names sort as steps do."""
    return f"step-{step:08d}"


def step_of(path: Path) -> int | None:
    """The step of the checkpoint with this name, None for a name that isn't a checkpoint's (a user's copy of one).

    >>> step_of(Path("step-00001000")), step_of(Path("step-00001000-copy"))
    (1000, None)
    """
    match = STEP_FOLDER.fullmatch(path.name)
    return int(match[1]) if match else None


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is a whole checkpoint, under any name."""
    return (path / MANIFEST).is_file()


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first; neither half-written nor set-aside ones."""
    if not folder.is_dir():
        return []
    found = [(step_of(path), path) for path in folder.iterdir() if path.is_dir()]
    return [path for _, path in sorted((step, path) for step, path in found if step is not None)]


def inside(name: str) -> str:
    """The path of a file in a checkpoint, as its manifest has it. Raises ValueError for one that leads out of it."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(name)
    return name
