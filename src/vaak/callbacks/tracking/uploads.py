"""Checkpoints as artifacts of Weights & Biases."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

from vaak.callbacks.tracking.tracked import reason_of
from vaak.core.callback import Run
from vaak.engine.checkpoint.files import list_checkpoints, pointed

log = logging.getLogger("vaak")


class CheckpointUploads:
    """Uploads complete checkpoints to W&B in the background: on a thread, since files are hashed and copied.

    ``which`` is ``none``, ``best`` or ``all``. A failed upload is logged once; then no more are tried.
    """

    def __init__(self, which: str) -> None:
        self.which = which
        self.run: Any = None
        self.waiting: list[tuple[Path, bool]] = []
        self.thread: threading.Thread | None = None

    def begin(self, run: Any, trainer: Run) -> None:
        """Include those of a resumed run: W&B recognizes by their content the ones that it has."""
        if self.which == "none":
            return
        self.run = run
        best = pointed(trainer.checkpoints, "best")
        self.waiting = [
            (path, path == best)
            for path in list_checkpoints(trainer.checkpoints)
            if self.which == "all" or path == best
        ]

    def order(self, trainer: Run, path: Path) -> None:
        """Have a checkpoint uploaded that was written."""
        is_best = path == pointed(trainer.checkpoints, "best")
        if self.run is not None and (is_best or self.which == "all"):
            self.waiting.append((path, is_best))

    def advance(self) -> None:
        """Begin with what is waiting, unless a checkpoint is being uploaded."""
        if self.waiting and not (self.thread and self.thread.is_alive()):
            ready, self.waiting = self.waiting, []
            self.thread = threading.Thread(target=self._upload, args=(ready,), name="uploads", daemon=True)
            self.thread.start()

    def finish(self) -> None:
        """Hand over what is left; every checkpoint is whole by now."""
        if self.thread is not None:
            self.thread.join()
        self._upload(self.waiting)
        self.run, self.waiting = None, []

    def _upload(self, ready: list[tuple[Path, bool]]) -> None:
        import wandb

        try:
            for path, is_best in ready:
                if self.run is None or not path.is_dir():  # given up, or removed as superfluous
                    continue
                step = int(path.name.removeprefix("step-"))
                artifact = wandb.Artifact(f"checkpoint-{self.run.id}", "model", metadata={"step": step})
                artifact.add_dir(str(path))
                self.run.log_artifact(artifact, aliases=[f"step-{step}", *(["best"] if is_best else [])])
        except Exception as error:
            self.run = None
            log.warning("checkpoints can't be uploaded (%s); they stay in the run directory", reason_of(error))
