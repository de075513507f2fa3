"""Names of checkpoints, how to list them, and their manifests, which have the hash of every file.

Doesn't import torch, so that listing runs is fast.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from vaak.core.errors import CheckpointError
from vaak.core.storage import files

MANIFEST = "MANIFEST.json"
MANIFEST_FORMAT = 1
STEP_FOLDER = re.compile(r"step-(\d{8,})")


def step_folder(step: int) -> str:
    """Return the name of the checkpoint of a step; names sort in the order of steps."""
    return f"step-{step:08d}"


def parse_step(path: Path) -> int | None:
    """Return the step of the checkpoint with this name; None for other names, such as that of a user's copy.

    >>> parse_step(Path("step-00001000")), parse_step(Path("step-00001000-copy"))
    (1000, None)
    """
    match = STEP_FOLDER.fullmatch(path.name)
    return int(match[1]) if match else None


def is_checkpoint(path: Path) -> bool:
    """Return whether a folder is a complete checkpoint, under any name."""
    return (path / MANIFEST).is_file()


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest first, without half-written ones and those that were set aside."""
    if not folder.is_dir():
        return []
    found = [(parse_step(path), path) for path in folder.iterdir() if path.is_dir()]
    return [path for _, path in sorted((step, path) for step, path in found if step is not None)]


class Entry(NamedTuple):
    """The size in bytes and the SHA-256 that a file must have."""

    size: int
    sha256: str

    @classmethod
    def of(cls, file: Path) -> Entry:
        """Return the entry of a file's present contents."""
        return cls(file.stat().st_size, files.hash_file(file))

    def describes(self, file: Path) -> bool:
        """Return whether a file exists, can be read, and has this content."""
        try:
            return file.is_file() and file.stat().st_size == self.size and files.hash_file(file) == self.sha256
        except OSError:
            return False


def write_manifest(folder: Path, about: dict[str, Any], listed: dict[str, Entry]) -> None:
    """Write a manifest, which marks the checkpoint as complete; ``about`` has further entries."""
    entries = {name: {"bytes": entry.size, "sha256": entry.sha256} for name, entry in listed.items()}
    files.write_json(folder / MANIFEST, {"format": MANIFEST_FORMAT, **about, "files": entries})


def about_checkpoint(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint's manifest; empty if it can't be read."""
    try:
        manifest = files.read_json(path / MANIFEST)
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def listed_files(path: Path) -> dict[str, Entry]:
    """Return the files of a checkpoint, by their paths in it. Raises CheckpointError if its manifest can't be read."""
    try:
        manifest = files.read_json(path / MANIFEST)
        if (written := int(manifest.get("format", MANIFEST_FORMAT))) > MANIFEST_FORMAT:
            raise CheckpointError(f"{path} was written by a later version of Vaak (format {written}): update Vaak")
        return parse_listed(manifest)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is not a complete checkpoint: it has no {MANIFEST}; use another one") from error
    except OSError as error:
        raise CheckpointError(f"{path / MANIFEST} can't be read: {error.strerror}") from error
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"checkpoint {path} is damaged: its {MANIFEST} is not valid; use another one") from error


def parse_listed(manifest: Any) -> dict[str, Entry]:
    """Return the files that a manifest lists. Raises ValueError, KeyError, TypeError and the like if it isn't valid."""
    return {
        files.inside(name): Entry(int(about["bytes"]), str(about["sha256"]))
        for name, about in manifest["files"].items()
    }
