"""Which files are the configuration of a run: RUN/config.yml, and RUN/sessions/0001.yml of each of its sessions."""

from __future__ import annotations

from pathlib import Path

MADE_BY_RUNS = ("run.json", "environment.json")


def run_of_configuration(file: Path) -> Path | None:
    """The run directory whose configuration a file is, wherever it was copied or moved; None for a user's file."""
    run = _folder_of_a_run(file)
    return run if run is not None and any((run / name).is_file() for name in MADE_BY_RUNS) else None


def is_called_as_a_runs(file: Path) -> bool:
    """Whether a file has the name under which runs keep their configuration, whatever else is in its folder."""
    return any(_folder_of_a_run(one) is not None for one in (file, file.resolve()))


def _folder_of_a_run(file: Path) -> Path | None:
    if file.name == "config.yml":
        return file.parent
    return file.parent.parent if file.parent.name == "sessions" and file.stem.isdecimal() else None
