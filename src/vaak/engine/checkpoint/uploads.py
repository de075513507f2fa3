"""The checkpoints of a run at a URL: uploaded in the background, removed as those here are, and downloaded to resume.

    URL/run.json  config.yml  metrics.jsonl  …      the run's own small files, the current ones
        writer.json                                 the process that writes here
        checkpoints/step-00001000/…  MANIFEST.json  sent last, once every other file was compared with its hash
                    best  last  owner.json
        set-aside/step-00001000/…                   left over by a resume at an earlier step, or damaged

A checkpoint without its manifest counts for nothing, so an upload may be killed at any moment. What is the same file in
two checkpoints (frozen weights, a tokenizer) is copied by the service rather than sent again. One process writes to a
URL. Nothing there can be locked: ``run.json`` tells another run's from this one's, and ``writer.json`` names the
process that began last, so that one before it, on a machine that was given up for lost, stops.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from vaak.core.errors import CheckpointError
from vaak.core.progress import progress
from vaak.core.storage.files import inside, replacing_folder, write_bytes
from vaak.core.storage.remote import RemoteFolder, StorageError
from vaak.engine.checkpoint.files import COMPLETED, CheckpointWriter, choose_kept, pointed
from vaak.engine.checkpoint.names import (
    MANIFEST,
    Entry,
    list_checkpoints,
    listed_files,
    parse_listed,
    parse_step,
    step_folder,
)

log = logging.getLogger("vaak")
FOLDER, SET_ASIDE, IDENTITY, WRITER = "checkpoints", "set-aside", "run.json", "writer.json"
WAITS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds between tries of an upload, before it counts as failed."""
SAY_AGAIN_SECONDS = 60.0


class TakenOverError(Exception):
    """Another process writes to the URL now."""


class RemoteCheckpoint(NamedTuple):
    """A whole checkpoint at a URL: the bytes and the content of its manifest, and the files that it lists."""

    manifest: bytes
    about: dict[str, Any]
    listed: dict[str, Entry]


class RemoteCheckpoints:
    """The checkpoints at a URL. Methods raise StorageError where the service refuses."""

    def __init__(self, url: str) -> None:
        self.store = RemoteFolder(url)
        self.whole: dict[int, RemoteCheckpoint] = {}
        """Complete remote checkpoints, by step, as ``look`` found them or this process sent them."""
        self._claim: bytes | None = None

    @property
    def shown(self) -> str:
        """The URL, for messages."""
        return self.store.shown

    def claim(self) -> None:
        """Say there that this process writes from now on: one that did so before stops at its next upload."""
        since = datetime.now(UTC).isoformat(timespec="seconds")
        who = {"host": platform.node(), "process": os.getpid(), "since": since, "id": secrets.token_hex(8)}
        self._claim = json.dumps(who).encode()
        self.store.write(WRITER, self._claim)
        try:
            number = self.store.abort_unfinished()
        except StorageError as error:
            # Who may write need not be allowed to list uploads.
            log.warning("%s; S3 may charge for parts that killed processes have left there", error)
        else:
            if number:
                log.info("%s: %d unfinished upload(s) of a killed process were removed there", self.shown, number)

    def require_claim(self) -> None:
        """Raise TakenOverError if another process has begun to write there since this one's ``claim``."""
        if self._claim is None or (found := self.store.read(WRITER)) in (None, self._claim):
            return
        with contextlib.suppress(ValueError, KeyError, TypeError):
            who = json.loads(found or b"")
            raise TakenOverError(
                f"process {who['process']} on {who['host']} writes to {self.shown} since {who['since']}"
            )
        raise TakenOverError(f"another process writes to {self.shown}")

    def look(self) -> None:
        """Find the checkpoints that are whole; one whose files have other sizes than its manifest says isn't."""
        found = self.store.list_files(FOLDER)
        sizes = {name.removeprefix(f"{FOLDER}/"): about.get("size") for name, about in found.items()}
        self.whole = {}
        for name in sizes:
            folder, _, file = name.partition("/")
            step = parse_step(Path(folder))
            if step is None or file != MANIFEST:
                continue
            content = self.store.read(f"{FOLDER}/{name}")
            try:
                about = json.loads(content or b"")
                listed = parse_listed(about)
            except (ValueError, OverflowError, KeyError, TypeError, AttributeError):
                listed = {}
            if listed and all(sizes.get(f"{folder}/{one}") == entry.size for one, entry in listed.items()):
                self.whole[step] = RemoteCheckpoint(content or b"", about, listed)
            else:
                log.warning("%s/%s/%s is damaged or incomplete: it doesn't count", self.shown, FOLDER, folder)

    def send(self, path: Path) -> None:
        """Upload a checkpoint, its manifest last, or replace one of its step that isn't the same."""
        step, listed = parse_step(path), listed_files(path)
        assert step is not None
        manifest, place = (path / MANIFEST).read_bytes(), f"{FOLDER}/{path.name}"
        self.require_claim()
        # Without its manifest, the one before is gone before its files change.
        if self.whole.pop(step, None) is not None:
            self.store.remove([f"{place}/{MANIFEST}"])
        there = self.store.list_files(place)
        for name, entry in listed.items():
            self._send_file(path / name, f"{place}/{name}", entry, known=there.get(f"{place}/{name}"))
        # Of an earlier checkpoint of this step: a completed.json belongs to the state whose hash it has.
        self.store.remove([name for name in there if name.removeprefix(f"{place}/") not in listed])
        self.require_claim()
        self.store.write(f"{place}/{MANIFEST}", manifest)
        if self.store.read(f"{place}/{MANIFEST}") != manifest:
            raise StorageError(f"{self.shown}/{place}/{MANIFEST} differs from what was sent")
        self.whole[step] = RemoteCheckpoint(manifest, json.loads(manifest), listed)

    def _send_file(self, file: Path, place: str, entry: Entry, known: Mapping[str, Any] | None) -> None:
        """Send a file, unless it is there already, or in another checkpoint there."""
        if known is not None and known.get("size") == entry.size:
            # Left by an upload that was interrupted.
            try:
                return self.store.require(place, entry.size, entry.sha256, file)
            except StorageError:
                pass
        for step, other in self.whole.items():
            for name, one in other.listed.items():
                if one == entry and entry.size:
                    try:
                        self.store.copy(f"{FOLDER}/{step_folder(step)}/{name}", place)
                        return self.store.require(place, entry.size, entry.sha256, file)
                    except StorageError:
                        break
        self.store.send(file, place, entry.sha256)
        return None

    def remove(self, step: int) -> None:
        """Delete a checkpoint, its manifest first."""
        self.whole.pop(step, None)
        place = f"{FOLDER}/{step_folder(step)}"
        self.store.remove([f"{place}/{MANIFEST}"])
        self.store.remove(list(self.store.list_files(place)))

    def set_aside(self, step: int) -> None:
        """Move a checkpoint out of the way; killed meanwhile, it is still where it was."""
        place = f"{FOLDER}/{step_folder(step)}"
        names = sorted(self.store.list_files(place), key=lambda name: name.endswith(MANIFEST))
        for name in names:
            self.store.copy(name, f"{SET_ASIDE}/{name.removeprefix(f'{FOLDER}/')}")
        self.remove(step)

    def fetch(self, step: int, folder: Path) -> Path:
        """Download a whole checkpoint to a folder of checkpoints, where it appears once all of it is verified.

        Raises CheckpointError if a file isn't what its manifest says.
        """
        found, path, place = self.whole[step], folder / step_folder(step), f"{FOLDER}/{step_folder(step)}"
        size = sum(entry.size for entry in found.listed.values())
        with replacing_folder(path) as made, progress(f"downloading {path.name}", size) as advance:
            for name, entry in found.listed.items():
                self.store.fetch(f"{place}/{name}", made / inside(name))
                advance(entry.size)
                if not entry.describes(made / name):
                    raise CheckpointError(f"{self.shown}/{place}/{name} is damaged: it does not match its {MANIFEST}")
            if (completed := self.store.read(f"{place}/{COMPLETED}")) is not None:
                write_bytes(made / COMPLETED, completed)
            write_bytes(made / MANIFEST, found.manifest)
        return path

    def find_pointed(self, name: str) -> int | None:
        """Return the step that ``best`` or ``last`` names there."""
        content = self.store.read(f"{FOLDER}/{name}")
        return None if content is None else parse_step(Path(content.decode(errors="replace").strip()))


class Uploads:
    """Keeps the checkpoints at a URL like those that a writer keeps here, on a separate thread.

    ``list_run_files`` gives the run's own files by their names at the URL. A failure is retried, then logged in a line
    and counted; the next checkpoint brings what is lacking.
    """

    def __init__(
        self,
        remote: RemoteCheckpoints,
        writer: CheckpointWriter,
        list_run_files: Callable[[], Mapping[str, Path]],
    ) -> None:
        self.remote, self.writer, self.list_run_files = remote, writer, list_run_files
        self.sent = self.failures = 0
        self._is_taken_over = False
        self._awake, self._is_closing = threading.Event(), False
        self._sending: Path | None = None
        self._begun: set[Path] = set()
        self._states: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="uploads", daemon=True)
        writer.on_change, writer.in_use = self.wake, self.in_use

    def start(self) -> None:
        """Begin: from now on each checkpoint that is written is uploaded."""
        self._thread.start()
        self.wake()

    def wake(self) -> None:
        """Something has changed here."""
        self._awake.set()

    def in_use(self) -> Iterable[Path]:
        """Return the checkpoint that is being uploaded, which must stay here as long."""
        with self._lock:
            return () if self._sending is None else (self._sending,)

    def close(self) -> None:
        """Upload the rest, and log how many uploads there were and how many failed."""
        self._is_closing = True
        self.wake()
        self._thread.join(timeout=1)
        while self._thread.is_alive():
            log.info("waiting for uploads to %s (Ctrl-C leaves now)", self.remote.shown)
            self._thread.join(timeout=SAY_AGAIN_SECONDS)
        self.writer.on_change, self.writer.in_use = None, tuple
        # One that stayed here only until it was uploaded.
        with contextlib.suppress(OSError):
            self.writer.remove_superfluous()
        newest = list_checkpoints(self.writer.folder)[-1:]
        lacking = [path for path in newest if not self._is_there(path)]
        said = f"{self.sent} checkpoint(s) uploaded to {self.remote.shown}, {self.failures} upload(s) failed"
        if self._is_taken_over:
            log.warning("%s; later ones stay here, since another process writes there", said)
        elif lacking:
            log.warning("%s; %s, the newest, is not there: the next start of this run uploads it", said, lacking[0])
        else:
            log.log(logging.WARNING if self.failures else logging.INFO, said)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._awake.wait()
            self._awake.clear()
            is_last = self._is_closing
            try:
                self._try_again()
            except (StorageError, CheckpointError) as error:
                self.failures += 1
                log.warning("upload failed after %d tries: %s; training continues", len(WAITS) + 1, error)
            except TakenOverError as error:
                self._is_taken_over = True
                log.error("%s: nothing more is uploaded from here; end this run, or the other one", error)
                return
            except Exception:
                # A bug of ours must not end hours of training.
                self.failures += 1
                log.exception("uploads to %s have stopped; training continues", self.remote.shown)
                return

    def _try_again(self) -> None:
        """Bring what is here to the URL, in several tries. Raises the last one's error."""
        for wait in WAITS:
            try:
                return self._synchronise()
            except StorageError as error:
                log.debug("upload: %s; trying again in %g s", error, wait)
                time.sleep(wait)
                self._states.clear()
        return self._synchronise()

    def _synchronise(self) -> None:
        self.remote.require_claim()
        failed: set[Path] = set()
        while (path := self._choose_next(failed)) is not None:
            try:
                # First the log that leads to it.
                self._send_run_files()
                self._begun.add(path)
                self.remote.send(path)
                self.sent += 1
            except (FileNotFoundError, CheckpointError):
                # Removed or replaced here meanwhile.
                failed.add(path)
            finally:
                with self._lock:
                    self._sending = None
            self._send_small()
        self._send_small()
        for path in [path for path in self._begun if not path.is_dir()]:
            # Removed here while it was sent, or since.
            if parse_step(path) not in self.remote.whole:
                self.remote.remove(parse_step(path) or 0)
            self._begun.discard(path)
        self._remove_superfluous()
        self._send_run_files()

    def _choose_next(self, failed: Iterable[Path]) -> Path | None:
        """Return the newest checkpoint here that isn't there, held until it is; the best one comes after it."""
        with self._lock:
            whole = [path for path in list_checkpoints(self.writer.folder) if (path / MANIFEST).is_file()]
            first = [*whole[-1:], pointed(self.writer.folder, "best")]
            whole.sort(key=lambda path: (path not in first, path == first[-1], -(parse_step(path) or 0)))
            lacking = (path for path in whole if path not in failed and not self._is_there(path))
            self._sending = next(lacking, None)
            return self._sending

    def _is_there(self, path: Path) -> bool:
        """Return whether this very checkpoint is whole at the URL."""
        there = self.remote.whole.get(parse_step(path) or 0)
        try:
            return there is not None and there.manifest == (path / MANIFEST).read_bytes()
        except FileNotFoundError:
            return True

    def _send_run_files(self) -> None:
        for name, file in self.list_run_files().items():
            self._send_changed(name, file)

    def _send_small(self) -> None:
        """Send what was added to checkpoints that are there, and which one is the best and the last."""
        folder = self.writer.folder
        for path in list_checkpoints(folder):
            if self._is_there(path):
                self._send_changed(f"{FOLDER}/{path.name}/{COMPLETED}", path / COMPLETED)
        for name in ("best", "last"):
            aim = pointed(folder, name)
            if aim is not None and self._is_there(aim):
                self._send_changed(f"{FOLDER}/{name}", folder / name)

    def _send_changed(self, name: str, file: Path) -> None:
        """Send a small file that has changed since; nothing if there is none."""
        try:
            about = file.stat()
            state = about.st_mtime_ns, about.st_size
            if self._states.get(name) != state:
                self.remote.store.write(name, file.read_bytes())
                self._states[name] = state
        except FileNotFoundError:
            return

    def _remove_superfluous(self) -> None:
        """Remove checkpoints there by the rule for those here; keep all until the newest one is there."""
        newest = list_checkpoints(self.writer.folder)[-1:]
        if self.writer.total_limit is None or not newest or not self._is_there(newest[0]):
            return
        periodic = {step: one.about.get("periodic") is not False for step, one in self.remote.whole.items()}
        named = {parse_step(path) for name in ("best", "last") if (path := pointed(self.writer.folder, name))}
        kept = choose_kept(periodic, self.writer.total_limit, self.writer.keep_every, named)
        superfluous = sorted(self.remote.whole.keys() - kept)
        if superfluous:
            self.remote.require_claim()
        for step in superfluous:
            self.remote.remove(step)
