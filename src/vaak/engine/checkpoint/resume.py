"""Resuming from a checkpoint: which one, under which promises, and what becomes of what the run wrote after it.

Same draws (batches, order, random numbers) hold always; same bits where machine, versions, threads, ranks and compile
mode are those that the checkpoint was made under. Only what a kill leaves is deleted: log lines beyond the newest
checkpoint, which come again. All else is set aside:

    RUN/set-aside/0001/    metrics.jsonl, complete; journals; pictures
    CHECKPOINTS/set-aside/step-00001000.1/    and asides.json: which of those folders has its log, and after which step
                                              the run took another way

A kill in the middle leaves a run that can be resumed: checkpoints go first, then the log that belongs to those left.
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
    """The files that a run has written so far: its log, its checkpoints and its ``pictures``; on the main process."""

    def __init__(self, saving: Checkpointer, pictures: Pictures) -> None:
        self.position, self.pictures = saving.state.position, pictures
        self.directory, self.checkpoints = saving.directory, saving.writer.folder
        self.metrics = self.directory / METRICS_FILE
        set_aside = self.directory / checkpoint.SET_ASIDE
        numbers = [int(path.name) for path in set_aside.glob("*") if path.name.isdecimal()]
        self.backup = set_aside / f"{max(numbers, default=0) + 1:04d}"

    def forget(self) -> None:
        """Start without a past: files of an earlier start are set aside."""
        if left := self._set_aside_all():
            log.warning(
                "the run starts from step 0: %s of an earlier start is set aside in %s", ", ".join(left), self.backup
            )

    def cut(self, snapshot: Snapshot) -> None:
        """After a kill: delete the lines and pictures beyond the newest checkpoint."""
        self._truncate(snapshot)
        self.pictures.cut(self._last_shown())

    def go_back(self, snapshot: Snapshot) -> None:
        """Go back to an earlier checkpoint of the run: later files are set aside."""
        later = [path for path in list_checkpoints(self.checkpoints) if _step(path) > snapshot.step]
        if later or _size(self.metrics) > snapshot.state["metrics_bytes"]:
            self._copy_log()
        self._set_aside(later, snapshot.step)
        self._truncate(snapshot)
        self.pictures.cut(self._last_shown(), self.backup / "pictures")

    def bring_back(self, path: Path, snapshot: Snapshot) -> None:
        """Return to a checkpoint that was set aside: it and its log replace everything that isn't of its past."""
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
        """Set everything here aside, for a checkpoint of another run."""
        self._copy_log()
        self._set_aside(list_checkpoints(self.checkpoints), 0)
        self._set_aside_all()

    def _set_aside_all(self) -> list[str]:
        """Move the log, the journals and the pictures; return the names of the files."""
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
            log.warning("%s is from after the checkpoint that this run resumes from: it is set aside", path)
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
        """The step of the last pictures that stay; an evaluation that is still due draws its own."""
        return self.position.step - self.position.schedule_pending


def _read_records(folder: Path) -> dict[str, dict[str, Any]]:
    """The records of the checkpoints that were set aside, by name."""
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
    """Put the run where a checkpoint was made; ``auto`` is the newest complete one of its directory, if any.

    The main process finds and verifies it, and tells the others. Until it was restored, the run stays unchanged.
    ``reference`` is that of a task of the user's own. Returns whether there was a checkpoint. Raises CheckpointError
    where it is from another model or other data.
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
    # What is noted here of steps (how microbatches were divided, say) isn't of the run that the checkpoint is from.
    if not is_own:
        _forget_journals(saving)
    saving.restore(snapshot, path)
    # It is saved elsewhere: here, its step has no checkpoint yet.
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
    """Return the checkpoint that is meant, verified: path, step, manifest's hash, and what is wrong with newer ones.

    What is damaged of its bundled_files is restored: nothing else of the run changes.
    """
    folder = saving.writer.folder
    remove_leftovers(folder)

    def check(path: Path) -> None:
        checkpoint.restore_checkpoint(path, saving.directory, saving.state.model.module)

    damaged: dict[Path, str] = {}
    path: Path | None
    if source == "auto":
        # damage at the newest costs some steps, not the run; a checkpoint named by the user has no substitute
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
        # other ranks compare it: over a network file system they might see another checkpoint of the name
        "manifest": hash_file(path / MANIFEST),
        "damaged": {str(newer): damage for newer, damage in damaged.items()},
    }


def _require_seen(ranks: Ranks, found: dict[str, Any]) -> None:
    """Raises UserError on all ranks where one of them doesn't see the very checkpoint that the main process found."""
    manifest = Path(found["path"]) / MANIFEST
    sees = manifest.is_file() and hash_file(manifest) == found["manifest"]
    blind = [rank for rank, one_sees in enumerate(ranks.gather(sees)) if not one_sees]
    if blind:
        raise (UserError if ranks.is_main else RemoteError)(
            f"rank {', '.join(map(str, blind))} does not see {found['path']} (step {found['step']}) as rank 0 does: "
            "the run directory must be on storage that all nodes share"
        )


def _forget_journals(saving: Checkpointer) -> None:
    """Ignore the skipped examples and the splits that were written down before."""
    saving.data.forget_skipped()
    saving.state.chunk_rules.forget()


def _put_in_order(
    saving: Checkpointer, pictures: Pictures, source: str, found: dict[str, Any], snapshot: Snapshot
) -> None:
    """Make the run directory end at this checkpoint, which was restored; say where the run resumes."""
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
        # A run killed while it did so at its end has no save to come.
        saving.writer.remove_superfluous()
    except OSError as error:
        raise CheckpointError(f"{saving.directory} can't be written: {error.strerror or error}") from error


def _point(folder: Path, name: str, step: int | None) -> None:
    """Have best or last name the checkpoint of a step; where it isn't here, nothing."""
    if step is not None and (folder / step_folder(step)).is_dir():
        checkpoint.point(folder, name, step_folder(step))
    else:
        (folder / name).unlink(missing_ok=True)


def _find_set_aside(folder: Path) -> Path:
    return folder.resolve() / checkpoint.SET_ASIDE


def require_resumable(
    configuration: Mapping[str, Any], reference: str | None, before: Mapping[str, Any] | None, path: Path
) -> list[Change]:
    """How a configuration differs from ``before``, that of the checkpoint ``path``; nothing where one isn't known.

    ``reference`` is that of a task of the user's own. Raises CheckpointError with all the options that a resume can't
    change.
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


def _log_promise(before: dict[str, Any], now: dict[str, Any], changes: list[Change], path: Path) -> None:
    """Log what is the same as in an uninterrupted run (draws, bits), and why something isn't."""
    for change in of_class(changes, "converts"):
        log.warning("resuming from %s with other batches from here on: %s", path, change)
    for change in of_class(changes, "other numbers"):
        log.warning("resuming from %s with other numbers from here on: %s", path, change)
    others = [
        f"{name} {then} -> {value}" + (f": {MEANINGS[name]}" if name in MEANINGS else "")
        for name, then, value in differences(before, now)
    ]
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
