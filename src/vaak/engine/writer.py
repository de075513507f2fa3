"""Checkpoints written behind training: one in flight, a failure raised at the next step.

The order on disk keeps every moment safe to be killed in: the log is flushed, then the checkpoint renamed into place,
then ``last`` and ``best`` point to it, and only then are superfluous ones removed.
"""

from __future__ import annotations

import logging
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

from vaak.core import files
from vaak.core.errors import CheckpointError
from vaak.engine import checkpoint

log = logging.getLogger("vaak")


@dataclass(frozen=True)
class Order:
    """A snapshot to write, and whether it is the best so far."""

    snapshot: checkpoint.Snapshot
    is_best: bool


class CheckpointWriter:
    """Writes snapshots into ``folder`` on a thread of its own."""

    def __init__(self, folder: Path, metrics: Path, total_limit: int | None) -> None:
        self.folder = folder
        self.metrics = metrics
        self.total_limit = total_limit
        self.thread: threading.Thread | None = None
        self.failure: BaseException | None = None

    def write(self, order: Order) -> None:
        """Begin to write; wait first for the one in flight. Raises that one's failure."""
        self.finish()
        thread = threading.Thread(target=self._write, args=(order,), name="checkpoint")
        try:
            thread.start()
        except RuntimeError:  # the system has no room for another thread: it is written here and now
            self._write(order)
        else:
            self.thread = thread

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is in flight."""
        return self.thread is not None and self.thread.is_alive()

    def wait(self) -> None:
        """Wait for the checkpoint in flight."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def finish(self) -> None:
        """Wait for the checkpoint in flight. Raises CheckpointError if it failed."""
        self.wait()
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise what went wrong behind, if anything did."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def _write(self, order: Order) -> None:
        try:
            if self.metrics.exists():
                files.sync_file(self.metrics)
            path = checkpoint.save_checkpoint(self.folder, order.snapshot)
            checkpoint.point(self.folder, "last", path.name)
            if order.is_best:
                checkpoint.point(self.folder, "best", path.name)
            self._remove_superfluous()
        except CheckpointError as error:
            self.failure = error
        except OSError as error:
            self.failure = CheckpointError(f"checkpoints in {self.folder} can't be written: {error.strerror or error}")
        except BaseException as error:
            self.failure = error

    def _remove_superfluous(self) -> None:
        """Keep the newest ``total_limit`` checkpoints, and best and last whatever their age."""
        if self.total_limit is None:
            return
        kept = {checkpoint.pointed(self.folder, "best"), checkpoint.pointed(self.folder, "last")}
        for path in checkpoint.list_checkpoints(self.folder)[: -self.total_limit]:
            if path not in kept:
                hidden = path.with_name(f".{path.name}{checkpoint.REMOVED}")
                path.rename(hidden)
                shutil.rmtree(hidden, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Delete what a killed writer left half-written or half-removed; put back what it was about to replace."""
    for path in list(folder.glob(".*")):
        if path.suffix == checkpoint.REPLACED and not (original := folder / path.stem[1:]).exists():
            path.rename(original)
        elif path.suffix in (".tmp", checkpoint.REMOVED, checkpoint.REPLACED):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
