"""Which files of a run are vouched for, which have changed, and which nothing covers.

A file counts as compared where something that is computed again, or its hash in something compared, says what must be
in it. All others are named as not covered: logs, times, pictures, what users put there.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vaak.core.artifact import LOCK
from vaak.core.storage.files import read_json
from vaak.engine.checkpoint.bundled_files import SET_ASIDE
from vaak.runs.folder.directory import TASKS_FOLDER

ONE_BY_ONE = ("checkpoints", "prepared", "code", "sessions", TASKS_FOLDER)
"""Folders whose files that nothing covers are named singly: hardly any are expected there."""
MOST_NAMED = 8


@dataclass
class Inventory:
    """Facts about the files of a run.

    ``compared`` maps each path to whether the file is unchanged; ``not_covered`` describes contents that no file or
    computation vouches for, and ``explained`` has their files. ``sound`` are the checkpoints fit for computation,
    oldest first. ``damage`` has the files that must not be computed with.
    """

    directory: Path
    compared: dict[Path, bool] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    not_covered: list[str] = field(default_factory=list)
    explained: set[Path] = field(default_factory=set)
    sound: list[Path] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)

    def compare(self, path: Path, *problems: str | None) -> None:
        """Count a file as compared, with what is wrong with it."""
        wrong = [problem for problem in problems if problem is not None]
        self.compared[path] = self.compared.get(path, True) and not wrong
        self.findings += [problem for problem in wrong if problem not in self.findings]

    def leave_out(self, what: str, *paths: Path) -> None:
        """Name what isn't covered, once; ``paths`` are files of which nothing is."""
        self.not_covered += [] if what in self.not_covered else [what]
        self.explained |= set(paths)

    def say(self, finding: str) -> None:
        """Add a finding that isn't about a single file."""
        self.compare(self.directory, finding)

    def read(self, path: Path) -> Any:
        """Return the JSON of a file; None, with a finding, where it is damaged, or isn't there."""
        try:
            return read_json(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            self.compare(path, f"{path}: this is damaged")
            return None

    @property
    def num_files(self) -> tuple[int, int]:
        """The number of files that were compared, and of those unchanged."""
        files = [same for path, same in self.compared.items() if path != self.directory]
        return len(files), sum(files)

    def name_uncovered(self) -> None:
        """Add to ``not_covered`` every file that nothing was compared with."""
        groups: Counter[str] = Counter()
        for path in list_files(self.directory):
            if path not in self.compared and path not in self.explained:
                groups[_group(path.relative_to(self.directory))] += 1
        singly = [
            name for name in groups if name.startswith(tuple(f"{one}/" for one in ONE_BY_ONE)) and name[-1] != "/"
        ]
        for name, number in groups.items():
            if name not in singly[MOST_NAMED:]:
                self.not_covered.append(name if number == 1 and name[-1] != "/" else f"{name} ({number})")
        if left := len(singly[MOST_NAMED:]):
            self.not_covered.append(f"{left} more files in {', '.join(sorted({one.split('/')[0] for one in singly}))}")


def _group(path: Path) -> str:
    """Return under what a file is named: itself, or its folder."""
    if path.name == LOCK:
        return LOCK
    if SET_ASIDE in path.parts[:-1]:
        return f"{'/'.join(path.parts[: path.parts.index(SET_ASIDE) + 1])}/"
    return path.as_posix() if path.parts[0] in ONE_BY_ONE or len(path.parts) == 1 else f"{path.parts[0]}/"


def list_files(directory: Path) -> Iterator[Path]:
    """Yield the files of a run, also of checkpoints and prepared data that are elsewhere; no other link is followed."""
    for place, folders, files in os.walk(directory):
        folder = Path(place)
        folders.sort()
        yield from (folder / name for name in sorted(files))
        for name in folders:
            if (folder / name).is_symlink():
                elsewhere = name in ("checkpoints", "prepared")
                yield from (
                    sorted(one for one in (folder / name).rglob("*") if one.is_file()) if elsewhere else [folder / name]
                )
