"""Resume from a checkpoint: find it, restore it, and put away what the run wrote after it.

A resumed run always has the same draws (batches, order, random numbers). It has the same bits if the machine, versions,
threads, ranks and compile mode are those of the checkpoint. After a kill, log lines beyond the newest checkpoint are
deleted, because the run will write them again. Everything else is set aside:

    RUN/set-aside/0001/                       metrics.jsonl, complete; journals; pictures
    CHECKPOINTS/set-aside/step-00001000.1/    a checkpoint
    CHECKPOINTS/set-aside/asides.json         for each of these checkpoints: the folder in RUN/set-aside that has its
                                              log, and the step after which the run took another way

The order makes a kill in between harmless: checkpoints are moved first, then the log that belongs to the rest.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vaak.config.changes import Change, changes_between, of_class
from vaak.core.errors import CheckpointError, RemoteError, UserError
from vaak.core.storage import files
from vaak.core.storage.files import hash_file, remove_leftovers
from vaak.engine.checkpoint import files as checkpoint
from vaak.engine.checkpoint.conditions import MEANINGS, differences, in_words, unknown
from vaak.engine.checkpoint.names import MANIFEST, list_checkpoints, parse_step, step_folder
from vaak.engine.checkpoint.saving import Checkpointer
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.evaluation import Pictures
from vaak.engine.journal import JOURNALS, journal_files
from vaak.engine.snapshot import Snapshot

METRICS_FILE, RECORDS = "metrics.jsonl", "asides.json"


class RunHistory:
    """The files that a run has written so far: its log, checkpoints and pictures. For the main process only."""

    def __init__(self, saving: Checkpointer, pictures: Pictures) -> None:
        self.position, self.pictures = saving.state.position, pictures
        self.directory, self.checkpoints = saving.directory, saving.writer.folder
        self.metrics = self.directory / METRICS_FILE
        set_aside = self.directory / checkpoint.SET_ASIDE
        numbers = [int(path.name) for path in set_aside.glob("*") if path.name.isdecimal()]
        self.backup = set_aside / f"{max(numbers, default=0) + 1:04d}"

    def forget(self) -> None:
        """Set aside the files of an earlier start, for a run that starts from step 0."""
        if left := self._set_aside_all():
            log.warning(
                "the run starts from step 0: %s of an earlier start is set aside in %s", ", ".join(left), self.backup
            )

    def cut(self, snapshot: Snapshot) -> None:
        """Delete log lines and pictures beyond the newest checkpoint, after a kill."""
        self._truncate(snapshot)
        self.pictures.cut(self._last_shown())

    def go_back(self, snapshot: Snapshot) -> None:
        """Set aside the files that are later than an earlier checkpoint, to which the run goes back."""
        later = [path for path in list_checkpoints(self.checkpoints) if _step(path) > snapshot.step]
        if later or _size(self.metrics) > snapshot.state["metrics_bytes"]:
            self._copy_log()
        self._set_aside(later, snapshot.step)
        self._truncate(snapshot)
        self.pictures.cut(self._last_shown(), self.backup / "pictures")

    def bring_back(self, path: Path, snapshot: Snapshot) -> None:
        """Return to a checkpoint that was set aside: it and its log replace everything that isn't part of its past."""
        records = _read_records(path.parent)
        own = records.get(path.name)
        since = [] if own is None else [one["after"] for one in records.values() if one["in"] >= own["in"]]
        shared = min(since, default=snapshot.step - 1)
        own_log = self.metrics if own is None else self.backup.parent / own["in"] / METRICS_FILE
        content = own_log.read_bytes() if own_log.exists() else b""
        self._copy_log()
        self._set_aside([other for other in list_checkpoints(self.checkpoints) if _step(other) > shared], shared)
        files.write_bytes(self.metrics, content[: snapshot.state["metrics_bytes"]])
        path.rename(self.checkpoints / step_folder(snapshot.step))
        self.pictures.cut(-1, self.backup / "pictures")

    def replace(self) -> None:
        """Set aside everything in the run directory, before a checkpoint of another run is used."""
        self._copy_log()
        self._set_aside(list_checkpoints(self.checkpoints), 0)
        self._set_aside_all()

    def _set_aside_all(self) -> list[str]:
        """Set aside the log, the journals and the pictures; return the names of the files."""
        left = [file for file in (self.metrics, *journal_files(self.directory, *JOURNALS)) if _size(file)]
        for file in left:
            self.backup.mkdir(parents=True, exist_ok=True)
            file.replace(self.backup / file.name)
        self.metrics.unlink(missing_ok=True)
        self.pictures.cut(-1, self.backup / "pictures")
        return [file.name for file in left]

    def _set_aside(self, paths: list[Path], after: int) -> None:
        """Move checkpoints into set-aside/, the newest first; the run takes another way ``after`` this step."""
        for path in reversed(paths):
            log.warning("%s is set aside: it is later than the checkpoint from which this run resumes", path)
            self.backup.mkdir(parents=True, exist_ok=True)
            target = checkpoint.choose_set_aside_path(path)
            known = _read_records(target.parent)
            files.write_json(target.parent / RECORDS, known | {target.name: {"in": self.backup.name, "after": after}})
            path.rename(target)

    def _copy_log(self) -> None:
        if _size(self.metrics):
            self.backup.mkdir(parents=True, exist_ok=True)
            with open(self.metrics, "rb") as log_file, files.open_new(self.backup / METRICS_FILE) as copy:
                shutil.copyfileobj(log_file, copy)
            files.sync_file(self.backup / METRICS_FILE)
            log.warning("%s is kept unchanged in %s", self.metrics, self.backup)

    def _truncate(self, snapshot: Snapshot) -> None:
        if self.metrics.exists():
            with files.open_to_append(self.metrics) as file:
                file.truncate(min(_size(self.metrics), snapshot.state["metrics_bytes"]))

    def _last_shown(self) -> int:
        """Return the step of the last pictures that stay; an evaluation that is still due draws its own."""
        return self.position.step - self.position.schedule_pending


def _read_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the records of checkpoints that were set aside, by name; empty if they can't be read."""
    try:
        found = files.read_json(folder / RECORDS)
        return {name: {"in": Path(one["in"]).name, "after": int(one["after"])} for name, one in found.items()}
    except (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError):
        return {}


def _step(path: Path) -> int:
    step = parse_step(path)
    # Listed checkpoints have a step.
    assert step is not None
    return step


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


log = logging.getLogger("vaak")
NOT_SAVED = -1


def resume(saving: Checkpointer, pictures: Pictures, reference: str | None, source: str) -> bool:
    """Resume a run from the checkpoint ``source``, or with ``auto`` from the newest complete one of its directory.

    The main process finds and verifies the checkpoint, and tells the others. The run directory stays unchanged until
    the checkpoint is restored. ``reference`` is that of a user's own task.

    Returns whether there was a checkpoint. Raises CheckpointError if it is from another model or other data.
    """
    ranks, folder = saving.ranks, saving.writer.folder
    found = ranks.run_on_main(lambda: _find(saving, source))
    if found is None:
        if ranks.is_main:
            log.info("nothing to resume: no checkpoint in %s; the run starts from step 0", folder)
        start_fresh(saving, pictures)
        return False
    _require_seen(ranks, found)
    path = Path(found["path"])
    snapshot = checkpoint.load_checkpoint(path, verify=False)
    changes = require_resumable(saving.configuration, reference, snapshot.state.get("configuration"), path)
    is_own = path.resolve().parent in (folder.resolve(), _find_set_aside(folder))
    # The journals of this run say nothing about the steps of the run that the checkpoint is from.
    if not is_own:
        _forget_journals(saving)
    saving.restore(snapshot, path)
    # The run directory has no checkpoint of this step yet.
    if not is_own:
        saving.saved_step = NOT_SAVED
    ranks.run_on_main(lambda: _put_in_order(saving, pictures, source, found, snapshot))
    if ranks.is_main:
        _log_promise(snapshot.state["conditions"], saving.conditions(), changes, path)
    return True


def start_fresh(saving: Checkpointer, pictures: Pictures) -> None:
    """Start a run: files that an earlier start left in its directory are set aside and ignored."""
    _forget_journals(saving)
    saving.ranks.run_on_main(RunHistory(saving, pictures).forget)


def _find(saving: Checkpointer, source: str) -> dict[str, Any] | None:
    """Find and verify the checkpoint: return its path, step and hash of its manifest, and the damage of newer ones.

    Its damaged bundled files are restored; nothing else in the run changes. None if ``auto`` finds no checkpoint.
    """
    folder = saving.writer.folder
    remove_leftovers(folder)

    def check(path: Path) -> None:
        checkpoint.restore_checkpoint(path, saving.directory, saving.state.model.module)

    damaged: dict[Path, str] = {}
    path: Path | None
    if source == "auto":
        # Instead of a damaged one, auto uses the one before; a checkpoint that the user names has no substitute.
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
        # Other ranks compare it, since they might see another checkpoint of this name over a network file system.
        "manifest": hash_file(path / MANIFEST),
        "damaged": {str(newer): damage for newer, damage in damaged.items()},
    }


def _require_seen(ranks: Ranks, found: dict[str, Any]) -> None:
    """Raise UserError on all ranks if one of them doesn't see the same checkpoint as the main process."""
    manifest = Path(found["path"]) / MANIFEST
    sees = manifest.is_file() and hash_file(manifest) == found["manifest"]
    blind = [rank for rank, one_sees in enumerate(ranks.gather(sees)) if not one_sees]
    if blind:
        raise (UserError if ranks.is_main else RemoteError)(
            f"rank {', '.join(map(str, blind))} does not see {found['path']} (step {found['step']}) as rank 0 does: "
            "the run directory must be on storage that all nodes share"
        )


def _forget_journals(saving: Checkpointer) -> None:
    """Ignore the skipped examples and the chunk rules in the journals."""
    saving.data.forget_skipped()
    saving.state.chunk_rules.forget()


def _put_in_order(
    saving: Checkpointer, pictures: Pictures, source: str, found: dict[str, Any], snapshot: Snapshot
) -> None:
    """Make the run directory end at the restored checkpoint: set later files aside and update best and last.

    Raises CheckpointError if the directory can't be written.
    """
    path, folder, past = Path(found["path"]), saving.writer.folder, RunHistory(saving, pictures)
    try:
        for newer, damage in found["damaged"].items():
            checkpoint.set_aside_damaged(Path(newer), damage)
        for name in ("best", "last"):
            checkpoint.warn_of_lost(folder, name, "it is rewritten")
        if path.resolve().parent == _find_set_aside(folder):
            past.bring_back(path, snapshot)
        elif path.resolve().parent != folder.resolve():
            past.replace()
        elif source == "auto":
            past.cut(snapshot)
        else:
            past.go_back(snapshot)
        _point(folder, "last", snapshot.step)
        _point(folder, "best", saving.state.best.step)
        # A kill may have interrupted this after the last save, after which nothing else would do it.
        saving.writer.remove_superfluous()
    except OSError as error:
        raise CheckpointError(f"{saving.directory} can't be written: {error.strerror or error}") from error


def _point(folder: Path, name: str, step: int | None) -> None:
    """Make best or last name the checkpoint of a step; remove the pointer if that checkpoint isn't here."""
    if step is not None and (folder / step_folder(step)).is_dir():
        checkpoint.point(folder, name, step_folder(step))
    else:
        (folder / name).unlink(missing_ok=True)


def _find_set_aside(folder: Path) -> Path:
    return folder.resolve() / checkpoint.SET_ASIDE


def require_resumable(
    configuration: Mapping[str, Any], reference: str | None, before: Mapping[str, Any] | None, path: Path
) -> list[Change]:
    """Return how a configuration differs from ``before``, that of the checkpoint ``path``; empty if one is unknown.

    ``reference`` is that of a user's own task. Raises CheckpointError with all changes that a resume can't make.
    """
    if not before or not configuration:
        return []
    changes = changes_between(before, configuration, reference)
    if refused := of_class(changes, "refused"):
        raise CheckpointError(
            f"{path} is from a run with other options, which can't change on resume: "
            f"{'; '.join(map(str, refused))}; restore them, or start a new run "
            f"(with training.checkpoint.init_from={path} it starts from these weights)"
        )
    return changes


def _log_promise(before: dict[str, Any], now: dict[str, Any], changes: list[Change], path: Path) -> None:
    """Log whether draws and bits will be those of an uninterrupted run, or why not."""
    for change in of_class(changes, "converts"):
        log.warning("resuming from %s with other batches from here on: %s", path, change)
    for change in of_class(changes, "other numbers"):
        log.warning("resuming from %s with other numbers from here on: %s", path, change)
    others = [
        f"{name} {then} -> {value}" + (f": {MEANINGS[name]}" if name in MEANINGS else "")
        for name, then, value in differences(before, now)
    ]
    unrecorded = ", ".join(unknown(before, now))
    if of_class(changes, "converts") or of_class(changes, "other numbers"):
        log.info("resuming from %s; the coming steps are not those of an uninterrupted run", path)
    elif others:
        log.warning("resuming from %s: same draws, bits equal to rounding only (%s)", path, "; ".join(others))
    elif unrecorded:
        log.warning(
            "resuming from %s: same draws; the bits are the same if these are: %s (the earlier version of Vaak that "
            "made this checkpoint didn't record them)",
            path,
            unrecorded,
        )
    else:
        log.info("resuming from %s: same draws, same bits (%s)", path, in_words(now))
