"""Where a run was in each of its sessions, and where another run is that its options name: both may have moved."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from vaak.config.yaml.reader import read_yaml
from vaak.config.yaml.tree import find


def places_of(directory: Path) -> Iterator[str]:
    """The ``run_dir`` of each session of a run, as it was given."""
    for path in (directory / "config.yml", *directory.glob("sessions/*.yml")):
        place = find(read_yaml(path), ("run_dir",)) if path.exists() else None
        if place is not None:
            yield str(place.value)


def places_of_another(path: Path, directory: Path) -> list[Path]:
    """Where a run may be that another one, in ``directory``, names by ``path``, in the order to look.

    As it is named, seen from the working folder; where it is seen from the run, if both moved together; and, of a
    relative path, seen from any folder around the run, as that of the project.
    """
    places = [Path(place) for place in places_of(directory)]
    moved = [directory / os.path.relpath(path, was) for was in places if was.is_absolute() == path.is_absolute()]
    around = [] if path.is_absolute() else [folder / path for folder in directory.absolute().parents]
    return list(dict.fromkeys(Path(os.path.normpath(place)) for place in (path, *moved, *around)))
