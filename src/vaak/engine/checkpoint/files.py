"""A checkpoint: a folder that exists complete or not at all, with a manifest of what each file must contain.

    step-00001000/model.safetensors      parameters and buffers by name, tied tensors once
                  frozen.safetensors     those parameters that no optimizer trains, if any; on disk once for a run
                  optimizer.safetensors  moments by parameter name
                  average.safetensors    averaged weights, with training.ema
                  loss.safetensors       parameters and buffers of losses, if they have any
                  state.json             position, loss scale, states of callbacks
                  config.yml  prepared/  files with which it opens without its run (bundled_files.py)
                  MANIFEST.json          size and SHA-256 of the others; the session that wrote it, and why
                  completed.json         state.json after the work that was due at this step (an evaluation)

Nothing in it is code: state is stored as safetensors and JSON only. It is written in the background, one at a time; a
failure is raised at the next step. The process may be killed at any moment: the log is flushed, the checkpoint is
written under a temporary name, flushed and renamed, then ``last`` and ``best`` point to it, and only then are
superfluous checkpoints removed.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from vaak.core.errors import CheckpointError, catching_panics
from vaak.core.storage import files
from vaak.core.storage.links import require_no_link
from vaak.engine.checkpoint.bundled_files import (
    OF_THE_STATE,
    STATE,
    frozen_tensors,
    keep_second_copy,
    require_frozen,
    restore_bundled_files,
    share_large,
    write_bundled_files,
)
from vaak.engine.checkpoint.bundled_files import SET_ASIDE as SET_ASIDE
from vaak.engine.checkpoint.names import MANIFEST as MANIFEST
from vaak.engine.checkpoint.names import Entry, listed_files, parse_step, write_manifest
from vaak.engine.checkpoint.names import about_checkpoint as about_checkpoint
from vaak.engine.checkpoint.names import list_checkpoints as list_checkpoints
from vaak.engine.checkpoint.names import step_folder as step_folder
from vaak.engine.snapshot import ALWAYS_WRITTEN, FROZEN, TENSORS, Snapshot, tensor_files

log = logging.getLogger("vaak")
COMPLETED = "completed.json"


def save_checkpoint(
    folder: str | Path,
    snapshot: Snapshot,
    about: dict[str, Any] | None = None,
    bundled_files: Mapping[str, str | Path] | None = None,
) -> Path:
    """Write ``folder``/step-N, completely or not at all, and return its path; an existing one is replaced.

    ``about`` has further entries of the manifest, which are not part of the run's state. ``bundled_files`` are further
    files by their path in the checkpoint: their text, or a file to copy, unless that is gone.

    Raises CheckpointError if the disk is full or can't be written; existing files are unchanged then.
    """
    folder = Path(folder)
    final = folder / step_folder(snapshot.step)
    temporary = files.name_temporary(final)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        require_no_link(temporary)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        _write_files(temporary, snapshot, about or {}, bundled_files or {})
        replaced = folder / f".{final.name}{files.REPLACED}"
        if final.exists():
            final.rename(replaced)
        temporary.rename(final)
        files.sync_directory(folder)
        shutil.rmtree(replaced, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(
            f"checkpoint {final} can't be written: {reason}; the earlier ones are complete"
        ) from error
    finally:
        for _ in snapshot.chunks:
            # Read to the end, also after an error, because the other ranks send all of their parts.
            pass
    return final


def _write_files(folder: Path, snapshot: Snapshot, about: dict[str, Any], others: Mapping[str, str | Path]) -> None:
    """Write the files of a checkpoint and flush them to the disk, the manifest last."""
    tensors = tensor_files({part: getattr(snapshot, part) for part in TENSORS}, snapshot.frozen)
    for layout in snapshot.files:
        layout.write(folder, snapshot.chunks)
    for name, own in {} if snapshot.files else tensors.items():
        with files.usual_mode(folder / name):
            save_file(own, folder / name)
    names = tuple(layout.name for layout in snapshot.files) or tuple(tensors)
    for name in names:
        # Flushed before they are hashed, so that the manifest describes bytes that survive a power cut.
        files.sync_file(folder / name)
    files.write_json(folder / STATE, snapshot.state)
    written = write_bundled_files(folder, others)
    listed = {name: Entry.of(folder / name) for name in (*names, STATE, *written)}
    share_large(folder, listed)
    if FROZEN in names and not snapshot.base_is_enough:
        keep_second_copy(folder.parent, listed[FROZEN], folder / FROZEN)
    # Last, because a checkpoint without a manifest counts as unfinished.
    write_manifest(folder, {"step": snapshot.step, **about}, listed)


def complete_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Add to a checkpoint, in one rename, the state after the scheduled work at its step, such as an evaluation.

    This replaces state.json, whose hash is stored, too, to show which checkpoint it belongs to; tensors are unchanged.
    """
    files.write_json(path / COMPLETED, {"state": state, "completes": files.hash_file(path / STATE)})


def read_state(path: Path) -> dict[str, Any]:
    """Read the state of a checkpoint, after the work at its step if that was done; else that work is still pending."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        completed = files.read_json(path / COMPLETED)
        if completed["completes"] == files.hash_file(path / STATE):
            return dict(completed["state"])
    return dict(files.read_json(path / STATE))


def verify(path: Path) -> None:
    """Raise CheckpointError unless every file of the state has the size and SHA-256 that the manifest gives.

    Frozen weights may be in another copy (bundled_files.py). Other bundled files aren't checked.
    """
    listed = listed_files(path)
    _require_state(path, listed)
    require_frozen(path, listed)


def restore_checkpoint(path: Path, run: Path, base: nn.Module) -> None:
    """Verify a checkpoint from which the run in directory ``run`` resumes, and restore its bundled files.

    ``base`` is the run's model before a checkpoint is restored. Raises CheckpointError if the state is damaged.
    """
    _require_state(path, listed_files(path))
    restore_bundled_files(path, run, base)


def _require_state(path: Path, listed: Mapping[str, Entry]) -> None:
    for name in (STATE, *(f"{part}.safetensors" for part in ALWAYS_WRITTEN)):
        if name not in listed:
            raise CheckpointError(f"checkpoint {path} is damaged: {name} is not in its {MANIFEST}")
    for name in (name for name in listed if name in OF_THE_STATE):
        if not (path / name).is_file():
            raise CheckpointError(f"checkpoint {path} is damaged: {name} is missing")
        if not listed[name].describes(path / name):
            raise CheckpointError(f"checkpoint {path} is damaged: {name} does not match its {MANIFEST}")


def load_checkpoint(
    path: str | Path, *, weights_only: bool = False, verify: bool = True, base: nn.Module | None = None
) -> Snapshot:
    """Load a checkpoint, with its files memory-mapped; ``verify`` compares their hashes first.

    With ``weights_only``, only the weights and their averages are loaded. Damaged frozen weights are read from another
    copy, or taken from ``base``, the model before it is restored.

    Raises CheckpointError if the checkpoint is missing or damaged.
    """
    path = Path(path)
    if not path.is_dir():
        raise CheckpointError(f"no checkpoint at {path}")
    if verify:
        _require_state(path, listed_files(path))
    parts = ("model", "average") if weights_only else TENSORS
    try:
        with catching_panics():
            return _read_snapshot(path, parts, verify=verify, base=base)
    except (SafetensorError, ValueError, OSError, KeyError, TypeError) as error:
        raise CheckpointError(f"checkpoint {path} can't be read: {error}") from error


def _read_snapshot(path: Path, parts: Sequence[str], *, verify: bool, base: nn.Module | None) -> Snapshot:
    """Read these parts of a checkpoint; raises the errors of the libraries."""
    state, listed = read_state(path), listed_files(path)
    tensors: dict[str, Any] = {
        part: load_file(path / f"{part}.safetensors")
        for part in parts
        if part in ALWAYS_WRITTEN or f"{part}.safetensors" in listed
    }
    for name in sorted({*OF_THE_STATE, FROZEN} - listed.keys()):
        if (path / name).exists():
            log.warning("%s is not in its %s: it is ignored", path / name, MANIFEST)
    if verify:
        tensors["model"] |= frozen_tensors(path, base)
    elif FROZEN in listed and (path / FROZEN).exists():
        tensors["model"] |= load_file(path / FROZEN)
    return Snapshot(int(state["position"]["step"]), **tensors, state=state)


def find_latest_checkpoint(folder: str | Path) -> Path | None:
    """Return the newest complete checkpoint, None without any; set aside newer ones that are damaged.

    Raises CheckpointError, and changes nothing, if all are damaged.
    """
    path, damaged = newest_whole(Path(folder))
    for newer, damage in damaged.items():
        set_aside_damaged(newer, damage)
    return path


def newest_whole(folder: Path, check: Callable[[Path], None] = verify) -> tuple[Path | None, dict[Path, str]]:
    """Return the newest complete checkpoint, None without any, and the damage of newer ones by their path.

    ``check`` raises CheckpointError for one that can't be used. Raises CheckpointError if all are damaged.
    """
    damaged: dict[Path, str] = {}
    for path in reversed(list_checkpoints(folder)):
        try:
            check(path)
        except CheckpointError as error:
            damaged[path] = str(error)
        else:
            return path, damaged
    if damaged:
        newest = next(iter(damaged.values()))
        raise CheckpointError(
            f"no checkpoint in {folder} is complete: {newest}; to start from scratch, move the run elsewhere"
        )
    return None, {}


def set_aside_damaged(path: Path, damage: str) -> None:
    """Move a damaged checkpoint out of the way, with a warning."""
    log.warning("%s; it is set aside and the previous one is used", damage)
    set_aside(path)


def set_aside(path: Path) -> Path:
    """Move a checkpoint into set-aside/, under a free name, and return its new path."""
    return path.rename(choose_set_aside_path(path))


def choose_set_aside_path(path: Path) -> Path:
    """Return a free path in set-aside/, which is created, for a checkpoint."""
    folder = path.parent / SET_ASIDE
    folder.mkdir(exist_ok=True)
    number = 1
    while (target := folder / f"{path.name}.{number}").exists():
        number += 1
    return target


def point(folder: Path, name: str, checkpoint: str) -> None:
    """Write the name of a checkpoint to ``folder``/best or ``folder``/last."""
    files.write_text(folder / name, checkpoint + "\n")


def pointed(folder: Path, name: str) -> Path | None:
    """Return the checkpoint that best or last names; None if it doesn't exist."""
    try:
        target = folder / (folder / name).read_text().strip()
        return target if parse_step(target) is not None and target.parent == folder and target.is_dir() else None
    except (OSError, ValueError):
        # The file is missing, or isn't text.
        return None


def warn_of_lost(folder: Path, name: str, instead: str) -> None:
    """Warn that best or last exists but doesn't name a checkpoint, and what is used ``instead``."""
    if (folder / name).exists() and pointed(folder, name) is None:
        text = (folder / name).read_bytes()[:40].decode(errors="replace").strip() if (folder / name).is_file() else ""
        log.warning("%s does not name a checkpoint there (its content is %r); %s", folder / name, text, instead)


def resolve_checkpoint(path: Path) -> Path:
    """Return the checkpoint that a user means by a run, its checkpoints folder, best or last, or a checkpoint.

    A run stands for its best checkpoint, or for its newest if none is marked as best. Raises CheckpointError if there
    is no checkpoint.
    """
    if path.name in ("best", "last") and path.parent.is_dir():
        found = pointed(path.parent, path.name)
        if found is None and path.exists():
            raise CheckpointError(f"no checkpoint at {path}: it does not name one; give a step-… folder next to it")
    elif (path / MANIFEST).exists() or path.name.startswith("step-"):
        found = path if path.is_dir() else None
    else:
        folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
        warn_of_lost(folder, "best", "the newest checkpoint is used")
        found = pointed(folder, "best") or next(reversed(list_checkpoints(folder)), None)
    if found is None:
        raise CheckpointError(f"no checkpoint at {path}; give a run directory, or step-…, best or last in it")
    return found


class CheckpointWriter:
    """Writes snapshots into ``folder`` on a separate thread.

    ``session`` is the number of the run's session, which is recorded in each manifest. ``bundled_files`` are copied
    into each checkpoint, by their path in it, so that it opens without the run.

    Of the checkpoints written periodically or on request, the newest ``total_limit`` are kept, and all at multiples of
    ``keep_every`` steps; of those written only because they were the best, the last one.
    """

    def __init__(self, folder: Path, metrics: Path, total_limit: int | None, keep_every: int | None = None) -> None:
        self.folder = folder
        self.metrics = metrics
        self.total_limit, self.keep_every = total_limit, keep_every
        self.session: int | None = None
        self.bundled_files: Mapping[str, str | Path] = {}
        self.on_change: Callable[[], None] | None = None
        """Called when a checkpoint was written or completed."""
        self.in_use: Callable[[], Iterable[Path]] = tuple
        """Returns checkpoints that must not be removed yet."""
        self.finished: list[Path] = []
        """Complete checkpoints that were not reported yet, oldest first."""
        self.thread: threading.Thread | None = None
        self.failure: BaseException | None = None

    def write(self, snapshot: Snapshot, is_best: bool, is_periodic: bool = True) -> None:
        """Begin to write a snapshot; wait first for the one in flight. Raises that one's failure.

        ``is_best`` so far; ``is_periodic`` is False for one that is only the best.
        """
        self._begin(lambda: self._write(snapshot, is_best, is_periodic))

    def give(self, snapshot: Snapshot) -> None:
        """Begin to send this rank's parts to rank 0, which writes them; wait first for those of the last checkpoint.

        Raises UserError if rank 0 ended before it had received those.
        """

        def give() -> None:
            try:
                for _ in snapshot.chunks:
                    pass
            except BaseException as error:
                self.failure = error

        self._begin(give)

    def _begin(self, work: Callable[[], None]) -> None:
        self.finish()
        thread = threading.Thread(target=work, name="checkpoint")
        try:
            thread.start()
        except RuntimeError:
            # The system can't start another thread, so this one does the work.
            work()
        else:
            self.thread = thread

    def wait(self) -> None:
        """Wait for the checkpoint that is being written."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def finish(self) -> None:
        """Wait for the checkpoint that is being written. Raises CheckpointError if that failed."""
        self.wait()
        self.raise_failure()

    def complete(self, step: int, state: dict[str, Any], is_best: bool) -> None:
        """Add the state after the scheduled work at a step to its checkpoint, once that is written, and mark the best.

        Raises CheckpointError if either can't be written.
        """
        self.finish()
        path = self.folder / step_folder(step)
        try:
            if self.metrics.exists():
                files.sync_file(self.metrics)
            complete_checkpoint(path, state)
            if is_best:
                point(self.folder, "best", path.name)
                # The previous best may be superfluous now.
                self.remove_superfluous()
        except OSError as error:
            raise CheckpointError(f"{path} can't be written: {error.strerror or error}") from error
        if path not in self.finished:
            # The run resumed from this checkpoint, which has changed since.
            self.finished.append(path)
        self._notify_change()

    def raise_failure(self) -> None:
        """Raise the error of the background thread, if there was one."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def _write(self, snapshot: Snapshot, is_best: bool, is_periodic: bool) -> None:
        try:
            if self.metrics.exists():
                files.sync_file(self.metrics)
            # A periodic checkpoint that is rewritten stays periodic.
            before = self.folder / step_folder(snapshot.step)
            about: dict[str, Any] = {"periodic": is_periodic or (before.is_dir() and _is_periodic(before))}
            if self.session is not None:
                about["session"] = self.session
            path = save_checkpoint(self.folder, snapshot, about, self.bundled_files)
            point(self.folder, "last", path.name)
            if is_best:
                point(self.folder, "best", path.name)
            self.remove_superfluous()
            self.finished.append(path)
            self._notify_change()
        except CheckpointError as error:
            self.failure = error
        except OSError as error:
            self.failure = CheckpointError(f"checkpoints in {self.folder} can't be written: {error.strerror or error}")
        except BaseException as error:
            self.failure = error

    def remove_superfluous(self) -> None:
        """Remove superfluous checkpoints, but never best, last, or anything else in the folder."""
        if self.total_limit is None:
            return
        whole = {parse_step(path) or 0: path for path in list_checkpoints(self.folder) if (path / MANIFEST).is_file()}
        named = {parse_step(path) for name in ("best", "last") if (path := pointed(self.folder, name))}
        periodic = {step: _is_periodic(path) for step, path in whole.items()}
        in_use = {parse_step(path) for path in self.in_use()}
        kept = choose_kept(periodic, self.total_limit, self.keep_every, named | in_use)
        for path in (path for step, path in whole.items() if step not in kept):
            hidden = path.with_name(f".{path.name}{files.REMOVED}")
            path.rename(hidden)
            shutil.rmtree(hidden, ignore_errors=True)

    def _notify_change(self) -> None:
        if self.on_change is not None:
            self.on_change()


def choose_kept(
    periodic: Mapping[int, bool], total_limit: int, keep_every: int | None, named: Collection[int | None]
) -> set[int]:
    """Return the steps to keep: the newest ``total_limit`` periodic ones, multiples of ``keep_every``, and ``named``.

    >>> sorted(choose_kept({10: True, 20: False, 30: True, 40: True, 50: True}, 2, 30, {10}))
    [10, 30, 40, 50]
    """
    forever = {step for step in periodic if keep_every is not None and step % keep_every == 0}
    counted = sorted(step for step, is_periodic in periodic.items() if is_periodic and step not in forever)
    return {*counted[-total_limit:], *forever, *(step for step in named if step is not None)}


def _is_periodic(path: Path) -> bool:
    """Return whether a checkpoint counts as periodic: all do except those written only because they were the best."""
    return about_checkpoint(path).get("periodic") is not False
