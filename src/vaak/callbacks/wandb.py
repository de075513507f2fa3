"""Weights & Biases, online or offline (``WANDB_MODE=offline``), repeating what ``metrics.jsonl`` says.

Checkpoints are uploaded as its artifacts, if that is asked for.

W&B's step is the step of training. W&B can't take back what it has, and takes nothing for a step before its last one;
but a resumed run repeats itself, so steps after the checkpoint that W&B already has are skipped.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vaak.callbacks.trackers import Tracker, describe_error, log_media, numbers
from vaak.core.errors import UserError
from vaak.core.storage.files import write_text
from vaak.core.storage.links import require_no_link
from vaak.engine.callback import Run, StepReport
from vaak.engine.checkpoint.files import list_checkpoints, pointed
from vaak.engine.metrics_file import Record, iterate_records

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
        """Queue the existing checkpoints of a resumed run; W&B recognizes by content those that it has."""
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
        """Hand over the rest; every checkpoint is whole by now."""
        if self.thread is not None:
            self.thread.join()
        self._upload(self.waiting)
        self.run, self.waiting = None, []

    def _upload(self, ready: list[tuple[Path, bool]]) -> None:
        import wandb

        try:
            for path, is_best in ready:
                if self.run is None or not path.is_dir():
                    # Given up, or removed as superfluous.
                    continue
                step = int(path.name.removeprefix("step-"))
                artifact = wandb.Artifact(f"checkpoint-{self.run.id}", "model", metadata={"step": step})
                artifact.add_dir(str(path))
                self.run.log_artifact(artifact, aliases=[f"step-{step}", *(["best"] if is_best else [])])
        except Exception as error:
            self.run = None
            log.warning("checkpoints can't be uploaded (%s); they stay in the run directory", describe_error(error))


BOUNDS = {"init_timeout": 30.0, "finish_timeout": 120.0, "login_timeout": 30.0}
"""Seconds that W&B may take; a variable such as WANDB_INIT_TIMEOUT in the environment overrides it."""
# finish_timeout where checkpoints are uploaded.
UPLOAD_SECONDS = 3600.0
SUPERSEDED = "a later session has all of this\n"


class WandbCallback(Tracker):
    """One W&B run for one run directory, under an id that RUN/wandb/id keeps.

    ``settings`` are those of the section ``wandb``. Records of ``metrics.jsonl`` that W&B lacks (killed before sending,
    W&B not reached then) are sent when the run resumes. An offline session begins with all of it, so the newest offline
    folder alone is the whole run; those before it are marked as synced. If one was sent already, the session takes a
    new id: W&B would put the rows after those that it has. Raises UserError without the package wandb.
    """

    name = "Weights & Biases"

    def __init__(self, settings: dict[str, Any], config: dict[str, Any], only: tuple[str, ...] | None = None) -> None:
        super().__init__(only)
        found = importlib.util.find_spec("wandb")
        # A folder called wandb, which W&B creates, isn't the package.
        if found is None or found.origin is None:
            raise UserError("training.logging.wandb is true but wandb isn't installed: pip install 'vaak[wandb]'")
        self.settings = {name: value for name, value in settings.items() if name != "checkpoints"}
        self.config = config
        self.uploads = CheckpointUploads(settings.get("checkpoints", "none"))
        self.run: Any = None
        self.next_step = 0
        self.exit_code = 0

    def open(self, trainer: Run) -> None:
        import wandb

        folder = trainer.directory.resolve() / "wandb"
        with contextlib.suppress(FileNotFoundError):
            # A new run has no such folder yet.
            # What W&B itself writes there.
            require_no_link(folder / "wandb")
        offline = (self.settings.get("mode") or wandb.setup().settings.mode) == "offline"
        bounds: dict[str, Any] = BOUNDS | ({"finish_timeout": UPLOAD_SECONDS} if self.uploads.which != "none" else {})
        bounds = {name: seconds for name, seconds in bounds.items() if f"WANDB_{name.upper()}" not in os.environ}
        self.run = wandb.init(
            id=run_id(folder, is_new=trainer.position.step == 0 or (offline and on_server(folder))),
            # When it is synced, an offline run that resumes has its steps moved.
            resume=None if offline else "allow",
            dir=str(folder.parent),
            config=self.config,
            allow_val_change=True,
            settings=wandb.Settings(**bounds),
            **self.settings,
        )
        self.next_step = self.run.step
        # the run's offline folders before this one count as synced, in W&B's own way: ``wandb sync`` leaves them out
        for file in folder.glob(f"offline-run-*-{self.run.id}/*.wandb"):
            marker = file.with_suffix(".wandb.synced")
            if file.parent != Path(self.run.dir).parent and not marker.exists():
                write_text(marker, SUPERSEDED)
        if trainer.records.path is not None and trainer.records.path.exists():
            for record in iterate_records(trainer.records.path):
                self.write(record)
        self.uploads.begin(self.run, trainer)

    def write(self, record: Record) -> None:
        if record["step"] >= self.next_step:
            self.run.log(numbers(record, self.only), step=record["step"])

    def write_pictures(self, step: int, pictures: Mapping[str, bytes]) -> None:
        import wandb

        if step >= self.next_step:
            log_media(self.run, wandb, step, pictures)

    def close(self) -> None:
        if self.run is not None:
            self.uploads.finish()
            self.run.finish(exit_code=self.exit_code)

    def on_exception(self, trainer: Run, error: BaseException) -> None:
        # W&B then shows the run as failed.
        self.exit_code = 1

    def on_checkpoint(self, trainer: Run, path: Path) -> None:
        if self.works:
            self.uploads.order(trainer, path)

    def on_step_end(self, trainer: Run, report: StepReport) -> None:
        self.uploads.advance()


def run_id(folder: Path, is_new: bool) -> str:
    """Return the id that RUN/wandb keeps; a new one for a run that starts, or starts over."""
    path = folder / "id"
    if is_new or not path.exists():
        folder.mkdir(exist_ok=True)
        write_text(path, uuid.uuid4().hex[:12])
    return path.read_text()


def on_server(folder: Path) -> bool:
    """Whether the run under its present id is known to W&B's server: an online session of it, or a synced one."""
    identity = run_id(folder, is_new=False)
    synced = folder.glob(f"offline-run-*-{identity}/*.synced")
    return any(folder.glob(f"run-*-{identity}")) or any(marker.read_text() != SUPERSEDED for marker in synced)
