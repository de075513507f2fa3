"""Which files are the configuration of a run: RUN/config.yml, and RUN/sessions/0001.yml of each of its sessions."""

from __future__ import annotations

from pathlib import Path

MADE_BY_RUNS = ("run.json", "environment.json")


def run_of_configuration(file: Path) -> Path | None:
    """The run directory whose configuration a file is, wherever it was copied or moved; None for a user's file."""
    if file.name == "config.yml":
        run = file.parent
    elif file.parent.name == "sessions" and file.stem.isdecimal():
        run = file.parent.parent
    else:
        return None
    return run if any((run / name).is_file() for name in MADE_BY_RUNS) else None
