"""Checkpoints written in the background: one in flight, a failure raised at the next step.

The order on disk makes it safe to be killed at any moment: the log is flushed, then the checkpoint renamed into place,
then ``last`` and ``best`` point to it, and only then are superfluous ones removed.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaak.core.errors import CheckpointError
from vaak.core.storage import files
from vaak.engine.checkpoint import files as checkpoint
from vaak.engine.checkpoint.names import MANIFEST, list_checkpoints, step_folder

log = logging.getLogger("vaak")


@dataclass(frozen=True)
class Order:
    """A snapshot to write, and why: ``is_best`` so far; ``is_periodic`` is False for one that is only the best."""

    snapshot: checkpoint.Snapshot
    is_best: bool
    is_periodic: bool = True


class CheckpointWriter:
    """Writes snapshots into ``folder`` on a separate thread. ``session`` is that of the run, noted in each manifest.

    ``companions`` are files that each checkpoint gets, by their path in it: what opens it without the run.

    Of those written periodically (or asked for) it keeps the newest ``total_limit``; of those written only because
    they were the best, the best.
    """

    def __init__(self, folder: Path, metrics: Path, total_limit: int | None) -> None:
        self.folder = folder
        self.metrics = metrics
        self.total_limit = total_limit
        self.session: int | None = None
        self.companions: Mapping[str, str | Path] = {}
        self._finished: list[Path] = []
        self.thread: threading.Thread | None = None
        self.failure: BaseException | None = None

    def write(self, order: Order) -> None:
        """Begin to write; wait first for the one in flight. Raises that one's failure."""
        self.finish()
        thread = threading.Thread(target=self._write, args=(order,), name="checkpoint")
        try:
            thread.start()
        except RuntimeError:  # the system can't start another thread: write it here and now
            self._write(order)
        else:
            self.thread = thread

    def wait(self) -> None:
        """Wait for the checkpoint in flight."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def finish(self) -> None:
        """Wait for the checkpoint in flight. Raises CheckpointError if it failed."""
        self.wait()
        self.raise_failure()

    def take_finished(self) -> list[Path]:
        """The checkpoints finished since the last call, oldest first. They are complete and in place."""
        finished, self._finished = self._finished, []
        return finished

    def complete(self, step: int, state: dict[str, Any], is_best: bool) -> None:
        """Add the state after what was due at a step to its checkpoint, once that is written, and mark the best.

        Raises CheckpointError where either can't be written.
        """
        self.finish()
        path = self.folder / step_folder(step)
        try:
            if self.metrics.exists():
                files.sync_file(self.metrics)
            checkpoint.complete_checkpoint(path, state)
            if is_best:
                checkpoint.point(self.folder, "best", path.name)
                self._remove_superfluous()  # the best before may be
        except OSError as error:
            raise CheckpointError(f"{path} can't be written: {error.strerror or error}") from error
        if path not in self._finished:  # it was resumed from: what was due is new
            self._finished.append(path)

    def raise_failure(self) -> None:
        """Raise what went wrong in the background, if anything did."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def _write(self, order: Order) -> None:
        try:
            if self.metrics.exists():
                files.sync_file(self.metrics)
            path = checkpoint.save_checkpoint(self.folder, order.snapshot, self._about(order), self.companions)
            checkpoint.point(self.folder, "last", path.name)
            if order.is_best:
                checkpoint.point(self.folder, "best", path.name)
            self._remove_superfluous()
            self._finished.append(path)
        except CheckpointError as error:
            self.failure = error
        except OSError as error:
            self.failure = CheckpointError(f"checkpoints in {self.folder} can't be written: {error.strerror or error}")
        except BaseException as error:
            self.failure = error

    def _about(self, order: Order) -> dict[str, Any]:
        """What the manifest says of this checkpoint; one that is written again stays periodic."""
        before = self.folder / step_folder(order.snapshot.step)
        is_periodic = order.is_periodic or (before.is_dir() and _is_periodic(before))
        return {"periodic": is_periodic} | ({} if self.session is None else {"session": self.session})

    def _remove_superfluous(self) -> None:
        """Remove superfluous checkpoints; best and last stay at any age, and so does anything else in the folder."""
        if self.total_limit is None:
            return
        pointed = {checkpoint.pointed(self.folder, "best"), checkpoint.pointed(self.folder, "last")}
        whole = [path for path in list_checkpoints(self.folder) if (path / MANIFEST).is_file()]
        periodic = [path for path in whole if _is_periodic(path)]
        kept = {*periodic[-self.total_limit :], *pointed}
        for path in whole:
            if path not in kept:
                hidden = path.with_name(f".{path.name}{checkpoint.REMOVED}")
                path.rename(hidden)
                shutil.rmtree(hidden, ignore_errors=True)


def _is_periodic(path: Path) -> bool:
    """Whether a checkpoint counts among the periodic ones: all do but those written only because they were the best."""
    return checkpoint.about_checkpoint(path).get("periodic") is not False


def remove_leftovers(folder: Path) -> None:
    """Delete what a killed writer left half-written or half-removed; put back what it was about to replace."""
    for path in list(folder.glob(".*")):
        if path.suffix == checkpoint.REPLACED and not (original := folder / path.stem[1:]).exists():
            path.rename(original)
        elif path.suffix in (".tmp", checkpoint.REMOVED, checkpoint.REPLACED):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
