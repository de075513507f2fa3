"""What a folder of checkpoints elsewhere (training.checkpoint.save_dir) needs to be opened without its run.

    SAVE_DIR/NAME/config.yml      the run's configuration
    SAVE_DIR/NAME/prepared/       what the run prepared, such as its tokenizer, without the data of its splits

As long as the run is where it was, its checkpoints there stand for it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from vaak.core.storage import files
from vaak.runs.folder.directory import TASKS
from vaak.runs.folder.owner import owner_at_home
from vaak.runs.prepared import DONE, LEFT_OUT, LOCK, is_prepared, prepared_folder


def keep_beside_checkpoints(directory: Path, configuration: str) -> None:
    """Write configuration and prepared data next to checkpoints that aren't in the run directory."""
    checkpoints = (directory / "checkpoints").resolve()
    if checkpoints.is_relative_to(directory.resolve()):
        return
    files.write_text(checkpoints / "config.yml", configuration)
    for folder in (directory, *(directory / TASKS).glob("*")):
        if is_prepared(folder):
            _copy_without_splits(prepared_folder(folder), prepared_folder(checkpoints / folder.relative_to(directory)))


def _copy_without_splits(prepared: Path, copy: Path) -> None:
    about = files.read_json(prepared / DONE)
    splits = set(about.get("statistics", {}))
    copy.mkdir(parents=True, exist_ok=True)
    for item in prepared.iterdir():
        if item.is_dir() and item.name not in splits:
            shutil.copytree(item, copy / item.name, dirs_exist_ok=True)
        elif item.is_file() and item.name not in (LOCK, DONE):
            shutil.copyfile(item, copy / item.name)
    files.write_json(copy / DONE, {**about, LEFT_OUT: sorted(splits)})


def run_with_checkpoints(folder: Path) -> Path | None:
    """The directory of the run whose checkpoints are in a folder elsewhere; None where there is none."""
    directory = owner_at_home(folder)
    if directory is None or not (directory / "config.yml").exists():
        return None
    return directory if (directory / "checkpoints").resolve() == folder.resolve() else None
