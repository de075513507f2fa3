"""Going on from a checkpoint: which one, under which promise, and what of the run directory lies beyond it.

Same draws (batches, order, random numbers) hold always; same bits where machine, versions, threads, ranks and compile
mode are those that the checkpoint was made under.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaak.engine import checkpoint
from vaak.engine.state import conditions, restore, size_of
from vaak.engine.writer import remove_leftovers

if TYPE_CHECKING:
    from vaak.engine.trainer import Trainer

log = logging.getLogger("vaak")


def resume(trainer: Trainer, source: str) -> bool:
    """Put the trainer where a checkpoint was made; ``auto`` is the newest whole one of its run directory, if any.

    Raises CheckpointError where the checkpoint is of another model or of other data.
    """
    folder = trainer.writer.folder
    path = trainer.ranks.main_first(lambda: _find(folder, source, trainer.ranks.is_main))
    if path is None:
        trainer.ranks.main_first(lambda: _begin_anew(trainer))
        return False
    snapshot = checkpoint.load_checkpoint(path)
    restore(trainer, snapshot, path)
    own = path.parent.resolve() == folder.resolve()
    if trainer.ranks.is_main:
        _cut(trainer, folder, snapshot, own)
        _say_promise(snapshot.state["conditions"], conditions(trainer), path)
    trainer.ranks.wait()
    return True


def _find(folder: Path, source: str, is_main: bool) -> Path | None:
    if is_main:
        remove_leftovers(folder)
    if source == "auto":
        return checkpoint.find_latest_checkpoint(folder)
    return checkpoint.resolve_checkpoint(Path(source))


def _cut(trainer: Trainer, folder: Path, snapshot: checkpoint.Snapshot, own: bool) -> None:
    """Take away what the run wrote beyond this checkpoint: log lines, pictures, later checkpoints, wrong pointers.

    All that lies there is beyond a checkpoint of another run.
    """
    metrics = trainer.directory / "metrics.jsonl"
    if metrics.exists():
        os.truncate(metrics, min(size_of(metrics), snapshot.state["metrics_bytes"]) if own else 0)
    trainer.pictures.cut(snapshot.step - trainer.position.duties_pending if own else -1)
    for later in checkpoint.list_checkpoints(folder):
        if not own or later.name > checkpoint.step_folder(snapshot.step):
            log.warning("%s lies beyond the checkpoint this run goes on from: it is set aside", later)
            checkpoint.set_aside(later)
    if not own:
        return
    checkpoint.point(folder, "last", checkpoint.step_folder(snapshot.step))
    if trainer.best.step is not None and (folder / checkpoint.step_folder(trainer.best.step)).is_dir():
        checkpoint.point(folder, "best", checkpoint.step_folder(trainer.best.step))


def _begin_anew(trainer: Trainer) -> None:
    """A run that never saved begins again: its log must not show steps twice."""
    if trainer.ranks.is_main:
        (trainer.directory / "metrics.jsonl").unlink(missing_ok=True)
        trainer.pictures.cut(-1)


def _say_promise(before: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    changed = [f"{name} {before.get(name)} -> {value}" for name, value in now.items() if before.get(name) != value]
    if changed:
        log.warning("resuming from %s: same draws, bits equal to rounding only (%s)", path, "; ".join(changed))
    else:
        log.info("resuming from %s: same draws, same bits", path)
