"""What a checkpoint needs to be opened without its run, kept in each.

    step-00001000/config.yml      the run's configuration
                  prepared/       what the run prepared, such as its tokenizer, without the data of its splits
                  tasks/NAME/     the same of each of several tasks
                  code/           users' own classes

As long as the run is where it was, its checkpoints stand for it.
"""

from __future__ import annotations

import json
from pathlib import Path

from vaak.config.resolve.named_code import CODE
from vaak.core.storage import files
from vaak.runs.folder.directory import TASKS
from vaak.runs.folder.owner import owner_at_home
from vaak.runs.prepared import DONE, LEFT_OUT, is_prepared, prepared_folder


def companions_of(directory: Path, configuration: str) -> dict[str, str | Path]:
    """The files that each checkpoint of a run is to have, by their path in it: texts, or files to copy."""
    found: dict[str, str | Path] = {"config.yml": configuration}
    found |= {path.relative_to(directory).as_posix(): path for path in _files_below(directory / CODE)}
    for folder in (directory, *sorted((directory / TASKS).glob("*"))):
        if is_prepared(folder):
            prepared = prepared_folder(folder)
            about = files.read_json(prepared / DONE)
            splits = sorted(about.get("statistics", {}))
            parts = [path for path in prepared.iterdir() if path.name not in splits]
            for path in (file for part in parts for file in ([part] if part.is_file() else _files_below(part))):
                if not path.name.startswith("."):
                    found[path.relative_to(directory).as_posix()] = path
            done = (prepared / DONE).relative_to(directory).as_posix()
            found[done] = json.dumps({**about, LEFT_OUT: splits}, ensure_ascii=False)
    return found


def _files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def run_with_checkpoints(folder: Path) -> Path | None:
    """The directory of the run whose checkpoints are in a folder; None where there is none."""
    directory = owner_at_home(folder)
    if directory is None or not (directory / "config.yml").exists():
        return None
    return directory if (directory / "checkpoints").resolve() == folder.resolve() else None
