"""What a folder of checkpoints elsewhere (training.checkpoint.save_dir) needs to be opened without its run.

    SAVE_DIR/NAME/config.yml      the run's configuration
    SAVE_DIR/NAME/prepared/       what the run prepared, such as its tokenizer, without the data of its splits

As long as the run is where it was, its checkpoints there stand for it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from vaak.core.storage import files
from vaak.runs.folder.owner import owner_at_home
from vaak.runs.prepared import DONE, LOCK, prepared_folder


def keep_beside_checkpoints(directory: Path, configuration: str) -> None:
    """Write configuration and prepared data next to checkpoints that aren't in the run directory."""
    checkpoints = (directory / "checkpoints").resolve()
    if checkpoints.is_relative_to(directory.resolve()):
        return
    files.write_text(checkpoints / "config.yml", configuration)
    prepared, copy = prepared_folder(directory), prepared_folder(checkpoints)
    if not (prepared / DONE).exists():
        return
    splits = files.read_json(prepared / DONE).get("statistics", {})
    for item in prepared.iterdir():
        if item.is_dir() and item.name not in splits:
            shutil.copytree(item, copy / item.name, dirs_exist_ok=True)
        elif item.is_file() and item.name != LOCK:
            copy.mkdir(exist_ok=True)
            shutil.copyfile(item, copy / item.name)


def run_with_checkpoints(folder: Path) -> Path | None:
    """The directory of the run whose checkpoints are in a folder elsewhere; None where there is none."""
    directory = owner_at_home(folder)
    if directory is None or not (directory / "config.yml").exists():
        return None
    return directory if (directory / "checkpoints").resolve() == folder.resolve() else None
