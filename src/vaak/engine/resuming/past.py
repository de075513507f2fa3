"""What a run has written so far, reduced to what precedes the point where it now starts or resumes.

Only what a kill leaves is deleted: log lines beyond the newest checkpoint, which come again. All else is set aside:

    RUN/set-aside/0001/    metrics.jsonl, complete; journals; pictures
    CHECKPOINTS/set-aside/step-00001000.1/    and asides.json: which of those folders has its log, and after which step
                                              the run took another way

A kill in the middle leaves a run that can be resumed: checkpoints go first, then the log that belongs to those left.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any, Protocol

from vaak.core.storage import files
from vaak.engine.checkpoint import files as checkpoint
from vaak.engine.checkpoint.files import Snapshot
from vaak.engine.checkpoint.names import list_checkpoints, step_folder, step_of
from vaak.engine.position import Position
from vaak.engine.records.journal import JOURNALS, journal_files
from vaak.engine.records.pictures import Pictures

log = logging.getLogger("vaak")

METRICS, ASIDES = "metrics.jsonl", "asides.json"


class HasPast(Protocol):
    """What is required of a trainer here."""

    directory: Path
    pictures: Pictures

    @property
    def checkpoints(self) -> Path: ...

    @property
    def position(self) -> Position: ...


class Past:
    """The past of a trainer's run, on the main process."""

    def __init__(self, trainer: HasPast) -> None:
        self.trainer = trainer
        self.directory, self.checkpoints = trainer.directory, trainer.checkpoints
        self.metrics = self.directory / METRICS
        self.aside = _free_folder(self.directory / checkpoint.SET_ASIDE)

    def forget(self) -> None:
        """Start without a past: what an earlier start left is set aside."""
        if left := self._set_all_aside():
            log.warning(
                "the run starts from step 0: %s of an earlier start is set aside in %s", ", ".join(left), self.aside
            )

    def cut(self, snapshot: Snapshot) -> None:
        """After a kill: delete the lines and pictures beyond the newest checkpoint."""
        self._truncate(snapshot)
        self.trainer.pictures.cut(self._last_shown())

    def go_back(self, snapshot: Snapshot) -> None:
        """Back to an earlier checkpoint of the run: what comes after it is set aside."""
        later = [path for path in list_checkpoints(self.checkpoints) if _step(path) > snapshot.step]
        if later or _size(self.metrics) > snapshot.state["metrics_bytes"]:
            self._copy_log()
        self._set_aside(later, snapshot.step)
        self._truncate(snapshot)
        self.trainer.pictures.cut(self._last_shown(), self.aside / "pictures")

    def bring_back(self, path: Path, snapshot: Snapshot) -> None:
        """To a checkpoint of the run that was set aside: it and its log take the place of what isn't of its past."""
        asides = _asides(path.parent)
        own = asides.get(path.name)
        since = [] if own is None else [aside["after"] for aside in asides.values() if aside["in"] >= own["in"]]
        shared = min(since, default=snapshot.step - 1)
        own_log = self.metrics if own is None else self.aside.parent / own["in"] / METRICS
        content = own_log.read_bytes() if own_log.exists() else b""
        self._copy_log()
        self._set_aside([other for other in list_checkpoints(self.checkpoints) if _step(other) > shared], shared)
        files.write_bytes(self.metrics, content[: snapshot.state["metrics_bytes"]])
        path.rename(self.checkpoints / step_folder(snapshot.step))
        self.trainer.pictures.cut(-1, self.aside / "pictures")

    def replace(self) -> None:
        """To a checkpoint of another run: everything here is set aside."""
        self._copy_log()
        self._set_aside(list_checkpoints(self.checkpoints), 0)
        self._set_all_aside()

    def _set_all_aside(self) -> list[str]:
        """Move the log, the journals and the pictures; return the names of the files."""
        left = [file for file in (self.metrics, *journal_files(self.directory, *JOURNALS)) if _size(file)]
        for file in left:
            self.aside.mkdir(parents=True, exist_ok=True)
            file.replace(self.aside / file.name)
        self.metrics.unlink(missing_ok=True)
        self.trainer.pictures.cut(-1, self.aside / "pictures")
        return [file.name for file in left]

    def _set_aside(self, paths: list[Path], after: int) -> None:
        """Move checkpoints into set-aside/, the newest first; the run takes another way ``after`` this step."""
        for path in reversed(paths):
            log.warning("%s is from after the checkpoint that this run resumes from: it is set aside", path)
            self.aside.mkdir(parents=True, exist_ok=True)
            target = checkpoint.place_aside(path)
            known = _asides(target.parent)
            files.write_json(target.parent / ASIDES, known | {target.name: {"in": self.aside.name, "after": after}})
            path.rename(target)

    def _copy_log(self) -> None:
        if _size(self.metrics):
            self.aside.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.metrics, self.aside / METRICS)
            files.sync_file(self.aside / METRICS)
            log.warning("%s is kept unchanged in %s", self.metrics, self.aside)

    def _truncate(self, snapshot: Snapshot) -> None:
        if self.metrics.exists():
            os.truncate(self.metrics, min(_size(self.metrics), snapshot.state["metrics_bytes"]))

    def _last_shown(self) -> int:
        """The step of the last pictures that stay; an evaluation that is still due draws its own."""
        position = self.trainer.position
        return position.step - position.duties_pending


def _free_folder(folder: Path) -> Path:
    """The folder with the next number."""
    taken = [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]
    return folder / f"{max(taken, default=0) + 1:04d}"


def _asides(folder: Path) -> dict[str, dict[str, Any]]:
    """The records of the checkpoints that were set aside, by name."""
    try:
        found = files.read_json(folder / ASIDES)
        return {name: {"in": Path(aside["in"]).name, "after": int(aside["after"])} for name, aside in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _step(path: Path) -> int:
    step = step_of(path)
    assert step is not None  # it was listed
    return step


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
