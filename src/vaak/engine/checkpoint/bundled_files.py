"""The files of a checkpoint besides the state, whose damage costs a warning and not the run.

    config.yml  prepared/  code/    what opens it without its run: a copy of each checkpoint's own; the run has another
    frozen.safetensors              weights that are never trained, on disk once for all checkpoints. Their base gives
                                    them, too; where it doesn't (init_from), CHECKPOINTS/frozen-HASH.safetensors does

A file with the SHA-256 of the manifest is the right one, wherever it is stored. Only a resume writes restored files:
reading a checkpoint changes nothing in its run.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from vaak.core.errors import CheckpointError
from vaak.core.storage import files
from vaak.core.storage.files import scratch_folder
from vaak.engine.checkpoint.names import Entry, list_checkpoints, listed_files
from vaak.engine.snapshot import FROZEN, TENSORS, copy_to_cpu, model_tensors

log = logging.getLogger("vaak")
STATE = "state.json"
OF_THE_STATE = {STATE, *(f"{part}.safetensors" for part in TENSORS)}
"""The files that have no other copy; all others are bundled_files."""
SET_ASIDE = "set-aside"
LARGE_BYTES = 16 * 2**20
"""Bundled files of more bytes are on disk once for all checkpoints, as frozen weights are."""


def write_bundled_files(folder: Path, bundled_files: Mapping[str, str | Path]) -> list[str]:
    """Write bundled_files, flushed to the disk; return the names of those that were there to be written."""
    there = {name: one for name, one in bundled_files.items() if not isinstance(one, Path) or one.is_file()}
    for name, content in there.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            files.copy_file(content, folder / name)
            files.sync_file(folder / name)
        else:
            files.write_text(folder / name, content)
    return list(there)


def share_large(folder: Path, listed: Mapping[str, Entry]) -> None:
    """Have frozen weights and large bundled_files on disk once: one with those of the newest checkpoint that has any.

    Only the same content is shared: by blocks where the file system can, which a change to one file leaves alone, else
    by a hard link, if there are any.
    """
    for name, entry in listed.items():
        if name == FROZEN or (entry.size > LARGE_BYTES and name not in OF_THE_STATE):
            known = next((other / name for other in _newest_first(folder.parent) if (other / name).is_file()), None)
            if known is not None and entry.describes(known):
                _make_one(known, folder / name)


def _make_one(known: Path, file: Path) -> None:
    """Have a file share what is on disk with another of the same content, where the file system can."""
    link = file.with_name(f"{file.name}.link")
    with contextlib.suppress(OSError):
        if not files.share_blocks(known, link):
            os.link(known, link)
        link.replace(file)


def share_between_runs(runs: Iterable[Path]) -> None:
    """Have frozen weights of the same content on disk once for all checkpoints of several runs, such as of experts.

    A run whose frozen weights are damaged later takes them from its base, as always.
    """
    first: dict[str, Path] = {}
    for path in (path for run in runs for path in list_checkpoints(run / "checkpoints")):
        entry, file = listed_files(path).get(FROZEN), path / FROZEN
        if entry is None or not file.is_file():
            continue
        known = first.get(entry.sha256)
        if known is None:
            if entry.describes(file):
                first[entry.sha256] = file
        elif not known.samefile(file):
            _make_one(known, file)


def keep_second_copy(folder: Path, frozen: Entry, source: Path) -> None:
    """Keep frozen weights that their base doesn't give in a folder of checkpoints once more."""
    copy = _second_copy(folder, frozen)
    if not copy.is_file():
        _put(copy, lambda file: files.copy_bytes(source, file))


def _second_copy(folder: Path, frozen: Entry) -> Path:
    return folder / f"frozen-{frozen.sha256[:12]}.safetensors"


def restore_bundled_files(path: Path, run: Path, base: nn.Module) -> None:
    """Restore damaged bundled files of a checkpoint from the copies of ``run`` or of another checkpoint.

    Frozen weights are also restored from those of ``base``, the model before a checkpoint is restored. A bundled file
    without another copy causes a warning. Raises CheckpointError if frozen weights are lost.
    """
    for name, entry in listed_files(path).items():
        if name in OF_THE_STATE or entry.describes(path / name):
            continue
        copy = whole_copy(path, name, entry, run)
        problem, remedy = "it has no other copy", "nor does its base give it: put that back where it was"
        try:
            if copy is not None:
                _put(path / name, lambda file, copy=copy: files.copy_file(copy, file))  # type: ignore[misc]
                log.warning("%s was damaged or missing: it is restored from %s", path / name, copy)
                continue
            if name == FROZEN and _restore_from(base, path, entry):
                log.warning("%s was damaged or missing: it is restored from its base", path / name)
                continue
        except OSError as error:
            problem = remedy = f"it can't be restored: {error.strerror or error}"
        if name == FROZEN:
            raise _lost(path, remedy)
        log.warning(
            "%s is damaged or missing, and %s; the run doesn't need it, but this checkpoint alone does",
            path / name,
            problem,
        )


def report_damaged(path: Path) -> None:
    """Warn of each bundled file of a checkpoint, which is used without its run, that has changed since it was saved."""
    for name, entry in listed_files(path).items():
        if name not in OF_THE_STATE and name != FROZEN and not entry.describes(path / name):
            log.warning(
                "%s changed after it was saved; unless you changed it, copy it from another checkpoint or the run",
                path / name,
            )


def require_frozen(path: Path, listed: Mapping[str, Entry]) -> None:
    """Raises CheckpointError if a checkpoint's frozen weights are damaged and no file has them."""
    if FROZEN in listed and whole_copy(path, FROZEN, listed[FROZEN]) is None:
        raise _lost(path)


def frozen_tensors(path: Path, base: nn.Module | None) -> dict[str, torch.Tensor]:
    """The frozen weights of a checkpoint, of whichever copy is whole, or those of ``base``, if they are the same.

    Raises CheckpointError if they are lost.
    """
    entry = listed_files(path).get(FROZEN)
    if entry is None:
        return {}
    copy = whole_copy(path, FROZEN, entry)
    if copy is not None:
        if copy != path / FROZEN:
            log.warning("%s is damaged or missing: %s is read", path / FROZEN, copy)
        return load_file(copy)
    if base is not None:
        with scratch_folder("frozen") as folder:
            # the base may have changed since, so its weights are written and compared by the manifest's hash
            found = _load_frozen(base, path)
            save_file(found, folder / FROZEN)
            if entry.describes(folder / FROZEN):
                log.warning("%s is damaged or missing: its base is read", path / FROZEN)
                return found
    raise _lost(path)


def whole_copy(path: Path, name: str, entry: Entry, run: Path | None = None) -> Path | None:
    """A file with the content that a checkpoint's file must have: itself, or one of its run or other checkpoints."""
    seen = set()
    for file in _places(path, name, entry, run):
        try:
            about = file.stat()
        except OSError:
            continue
        if (about.st_dev, about.st_ino) not in seen:
            # Many are one file.
            seen.add((about.st_dev, about.st_ino))
            if entry.describes(file):
                return file
    return None


def _places(path: Path, name: str, entry: Entry, run: Path | None) -> Iterator[Path]:
    yield path / name
    folder = path.parent.parent if path.parent.name == SET_ASIDE else path.parent
    if name == FROZEN:
        yield _second_copy(folder, entry)
    else:
        yield from (one / name for one in (run, folder.parent) if one is not None)
    for one in (folder,) if run is None else (folder, run / "checkpoints"):
        yield from (other / name for other in _newest_first(one))
    yield from sorted((folder / SET_ASIDE).glob(f"step-*/{name}"))


def _newest_first(folder: Path) -> list[Path]:
    return list_checkpoints(folder)[::-1]


def _restore_from(base: nn.Module, path: Path, entry: Entry) -> bool:
    """Write a checkpoint's frozen weights as ``base`` has them, if they are the right ones; return whether they are.

    Raises OSError if they can't be written.
    """
    made = files.name_temporary(path / FROZEN)
    try:
        frozen = _load_frozen(base, path)
    except SafetensorError:
        return False
    try:
        with files.usual_mode(made):
            save_file(frozen, made)
        if right := entry.describes(made):
            files.sync_file(made)
            made.replace(path / FROZEN)
    except SafetensorError as error:
        # Its own kind for what the system says, such as of a full disk.
        raise OSError(str(error)) from error
    finally:
        made.unlink(missing_ok=True)
    return right


def _load_frozen(model: nn.Module, path: Path) -> dict[str, torch.Tensor]:
    """The weights of a model that a checkpoint doesn't have among those that are trained."""
    with safe_open(path / "model.safetensors", "pt") as trained:
        names = set(trained.keys())
    return copy_to_cpu({name: one for name, one in model_tensors(model).items() if name not in names})


def _put(file: Path, write: Callable[[Path], None]) -> None:
    """Have ``write`` write a file, which appears whole or not at all; a file of its name, and its links, stay."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(file) as made:
        write(made)


def _lost(path: Path, remedy: str = "resuming its run restores it from its base") -> CheckpointError:
    return CheckpointError(
        f"checkpoint {path} is damaged: {FROZEN} does not match its MANIFEST.json, and no other copy does; {remedy}"
    )
