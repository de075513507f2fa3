"""Resuming from a checkpoint: which one, under which guarantees, and what in the run directory is newer than it.

Same draws (batches, order, random numbers) hold always; same bits where machine, versions, threads, ranks and compile
mode are those that the checkpoint was made under.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from vaak.config.resume.table import Change, changes_between, of_class
from vaak.core.errors import CheckpointError, SaidByMainProcessError, UserError
from vaak.core.storage.files import sha256_of
from vaak.core.task import Task
from vaak.engine.checkpoint import files as checkpoint
from vaak.engine.checkpoint.files import Snapshot
from vaak.engine.checkpoint.names import MANIFEST, step_folder
from vaak.engine.checkpoint.writer import remove_leftovers
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.resuming.conditions import differences, in_words, unknown
from vaak.engine.resuming.past import HasPast, Past
from vaak.engine.resuming.saving import Saving
from vaak.engine.state import State
from vaak.engine.training_data import TrainingData

log = logging.getLogger("vaak")


NOT_SAVED = -1


class Resumes(HasPast, Protocol):
    """What resuming requires of a trainer (trainer.py)."""

    task: Task
    ranks: Ranks
    state: State
    data: TrainingData
    saving: Saving

    @property
    def configuration(self) -> Mapping[str, Any]: ...

    def restore(self, snapshot: Snapshot, source: Path) -> None: ...

    def conditions(self) -> dict[str, Any]: ...


def resume(trainer: Resumes, source: str) -> bool:
    """Put the trainer where a checkpoint was made; ``auto`` is the newest complete one of its run directory, if any.

    The main process finds and verifies it, and tells the others. Until it was restored, the run stays as it is.

    Raises CheckpointError where the checkpoint is from another model or other data.
    """
    folder = trainer.checkpoints
    found = trainer.ranks.decide_on_main(lambda: _find(trainer, source))
    if found is None:
        if trainer.ranks.is_main:
            log.info("nothing to resume: no checkpoint in %s; the run starts from step 0", folder)
        begin_anew(trainer)
        return False
    _demand_seen(trainer.ranks, found)
    path = Path(found["path"])
    snapshot = checkpoint.load_checkpoint(path, verify=False)
    changes = changes_to(trainer.configuration, trainer.task.reference, snapshot, path)
    if path.resolve().parent not in (folder.resolve(), _aside(folder)):
        _forget_journals(trainer)
    trainer.restore(snapshot, path)
    if path.resolve().parent not in (folder.resolve(), _aside(folder)):
        trainer.saving.saved_step = NOT_SAVED  # here
    trainer.ranks.decide_on_main(lambda: _put_in_order(trainer, source, found, snapshot))
    if trainer.ranks.is_main:
        _say_promise(snapshot.state["conditions"], trainer.conditions(), changes, path)
    return True


def begin_anew(trainer: Resumes) -> None:
    """Start a run: what an earlier start left in its directory is set aside and ignored."""
    _forget_journals(trainer)
    trainer.ranks.decide_on_main(Past(trainer).forget)


def _find(trainer: Resumes, source: str) -> dict[str, Any] | None:
    """The checkpoint that is meant, verified: its path, step and manifest's hash, and what is wrong with newer ones.

    What is damaged of its companions is restored: nothing else of the run changes.
    """
    folder = trainer.checkpoints
    remove_leftovers(folder)

    def check(path: Path) -> None:
        checkpoint.restore_checkpoint(path, trainer.directory, trainer.state.model.module)

    damaged: dict[Path, str] = {}
    path: Path | None
    if source == "auto":
        path, damaged = checkpoint.newest_whole(folder, check)
    else:
        path = checkpoint.resolve_checkpoint(Path(source))
        check(path)
    if path is None:
        return None
    step = checkpoint.about_checkpoint(path).get("step")
    return {
        "path": str(path),
        "step": step,
        "manifest": sha256_of(path / MANIFEST),
        "damaged": {str(newer): damage for newer, damage in damaged.items()},
    }


def _demand_seen(ranks: Ranks, found: dict[str, Any]) -> None:
    """Raises UserError on all ranks where one of them doesn't see the very checkpoint that the main process found."""
    manifest = Path(found["path"]) / MANIFEST
    sees = manifest.is_file() and sha256_of(manifest) == found["manifest"]
    blind = [rank for rank, one_sees in enumerate(ranks.gather(sees)) if not one_sees]
    if blind:
        raise (UserError if ranks.is_main else SaidByMainProcessError)(
            f"rank {', '.join(map(str, blind))} does not see {found['path']} (step {found['step']}) as rank 0 does: "
            "the run directory must be on storage that all nodes share"
        )


def _forget_journals(trainer: Resumes) -> None:
    """Ignore everything that was written down before."""
    trainer.data.forget_skipped()
    trainer.state.piece_rules.forget()


def _put_in_order(trainer: Resumes, source: str, found: dict[str, Any], snapshot: Snapshot) -> None:
    """Make the run directory end at this checkpoint, which was restored; say where the run resumes."""
    path, folder, past = Path(found["path"]), trainer.checkpoints, Past(trainer)
    try:
        for newer, damage in found["damaged"].items():
            checkpoint.set_damaged_aside(Path(newer), damage)
        for name in ("best", "last"):
            checkpoint.warn_of_lost(folder, name, "it is rewritten")
        if path.resolve().parent == _aside(folder):
            past.bring_back(path, snapshot)
        elif path.resolve().parent != folder.resolve():
            past.replace()
        elif source == "auto":
            past.cut(snapshot)
        else:
            past.go_back(snapshot)
        _point(folder, "last", snapshot.step)
        _point(folder, "best", trainer.state.best.step)
    except OSError as error:
        raise CheckpointError(f"{trainer.directory} can't be written: {error.strerror or error}") from error


def _point(folder: Path, name: str, step: int | None) -> None:
    """Have best or last name the checkpoint of a step; where it isn't here, nothing."""
    if step is not None and (folder / step_folder(step)).is_dir():
        checkpoint.point(folder, name, step_folder(step))
    else:
        (folder / name).unlink(missing_ok=True)


def _aside(folder: Path) -> Path:
    return folder.resolve() / checkpoint.SET_ASIDE


def changes_to(configuration: Mapping[str, Any], reference: str | None, snapshot: Snapshot, path: Path) -> list[Change]:
    """How a configuration differs from that of a checkpoint, as far as that is known.

    Raises CheckpointError with all the options that a resume can't change.
    """
    return demand_resumable(configuration, reference, snapshot.state.get("configuration"), path)


def demand_resumable(
    configuration: Mapping[str, Any], reference: str | None, before: Mapping[str, Any] | None, path: Path
) -> list[Change]:
    """How a configuration differs from ``before``, that of the checkpoint ``path``; nothing where one isn't known.

    ``reference`` is that of a task of the user's own. Raises CheckpointError as ``changes_to`` does.
    """
    if not before or not configuration:
        return []
    changes = changes_between(before, configuration, reference)
    if refused := of_class(changes, "refused"):
        raise CheckpointError(
            f"{path} is from a run with other options, which can't change on resume: "
            f"{'; '.join(map(str, refused))}; restore them, or start a new run "
            f"(training.checkpoint.init_from={path} takes over its weights)"
        )
    return changes


def _say_promise(before: dict[str, Any], now: dict[str, Any], changes: list[Change], path: Path) -> None:
    """Log what is the same as in an uninterrupted run (draws, bits), and why something isn't."""
    for change in of_class(changes, "converts"):
        log.warning("resuming from %s with other batches from here on: %s", path, change)
    for change in of_class(changes, "other numbers"):
        log.warning("resuming from %s with other numbers from here on: %s", path, change)
    others = [f"{name} {then} -> {value}" for name, then, value in differences(before, now)]
    unsaid = ", ".join(unknown(before, now))
    if of_class(changes, "converts") or of_class(changes, "other numbers"):
        log.info("resuming from %s; the steps to come are not those of an uninterrupted run", path)
    elif others:
        log.warning("resuming from %s: same draws, bits equal to rounding only (%s)", path, "; ".join(others))
    elif unsaid:
        log.warning(
            "resuming from %s: same draws; the bits are the same if these are: %s (an earlier version of Vaak, which "
            "made this checkpoint, didn't write them down)",
            path,
            unsaid,
        )
    else:
        log.info("resuming from %s: same draws, same bits (%s)", path, in_words(now))
