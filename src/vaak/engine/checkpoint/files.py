"""A checkpoint: a folder that exists complete or not at all, with a manifest of what each file must contain.

    step-00001000/model.safetensors      parameters and buffers by name, tied tensors once
                  frozen.safetensors     those parameters that no optimizer trains, if any; on disk once for a run
                  optimizer.safetensors  moments by parameter name
                  average.safetensors    the averaged weights, where training.ema keeps them
                  loss.safetensors       parameters and buffers of losses, where they have some
                  state.json             position, loss scale, what callbacks remember
                  config.yml  prepared/  what opens it without its run (companions.py)
                  MANIFEST.json          size and SHA-256 of the others; who wrote it and why
                  completed.json         state.json as it is after what was due at this step (an evaluation)

It is written under a temporary name, flushed, and renamed. Nothing in it is code: safetensors and JSON only.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from vaak.core.errors import CheckpointError
from vaak.core.storage import files
from vaak.engine.checkpoint.companions import (
    FROZEN,
    OF_THE_STATE,
    STATE,
    TENSORS,
    demand_frozen,
    frozen_tensors,
    keep_second_copy,
    restore_companions,
    share_large,
    write_companions,
)
from vaak.engine.checkpoint.companions import SET_ASIDE as SET_ASIDE
from vaak.engine.checkpoint.manifest import Entry, listed_files, write_manifest
from vaak.engine.checkpoint.manifest import about_checkpoint as about_checkpoint
from vaak.engine.checkpoint.names import MANIFEST as MANIFEST
from vaak.engine.checkpoint.names import list_checkpoints as list_checkpoints
from vaak.engine.checkpoint.names import step_folder as step_folder
from vaak.engine.checkpoint.names import step_of
from vaak.engine.checkpoint.tensors import copy_to_cpu as copy_to_cpu
from vaak.engine.checkpoint.tensors import load_weights as load_weights
from vaak.engine.checkpoint.tensors import model_tensors as model_tensors

log = logging.getLogger("vaak")

ALWAYS_WRITTEN = ("model", "optimizer")
COMPLETED = "completed.json"
REMOVED, REPLACED = ".removed", ".replaced"


@dataclass
class Snapshot:
    """Everything of a run's state, copied to the CPU at one step's boundary.

    ``frozen`` names parameters of the model that are never trained; ``base_is_enough`` where the model as its task
    makes it has their values, too.
    """

    step: int
    model: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    average: dict[str, torch.Tensor] = field(default_factory=dict)
    loss: dict[str, torch.Tensor] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    base_is_enough: bool = True


def save_checkpoint(
    folder: str | Path,
    snapshot: Snapshot,
    about: dict[str, Any] | None = None,
    companions: Mapping[str, str | Path] | None = None,
) -> Path:
    """Write ``folder``/step-N completely or not at all and return it; an existing one is replaced.

    ``about`` goes into the manifest: facts about this checkpoint that are not part of the run's state.
    ``companions`` are further files by their path in it: texts, or files to copy, those that are still there.

    Raises CheckpointError where the disk is full or can't be written; existing files are unharmed.
    """
    folder = Path(folder)
    final = folder / step_folder(snapshot.step)
    temporary = folder / f".{final.name}.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        _write_files(temporary, snapshot, about or {}, companions or {})
        replaced = folder / f".{final.name}{REPLACED}"
        if final.exists():
            final.rename(replaced)
        temporary.rename(final)
        files.sync_directory(folder)
        shutil.rmtree(replaced, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(f"checkpoint {final} can't be written: {error}; the earlier ones are complete") from error
    return final


def _write_files(folder: Path, snapshot: Snapshot, about: dict[str, Any], others: Mapping[str, str | Path]) -> None:
    """The files of a checkpoint, flushed to the disk, the manifest last."""
    parts = [part for part in TENSORS if part in ALWAYS_WRITTEN or getattr(snapshot, part)]
    tensors = {f"{part}.safetensors": getattr(snapshot, part) for part in parts}
    if frozen := {name: tensor for name, tensor in snapshot.model.items() if name in snapshot.frozen}:
        tensors[FROZEN] = frozen
        tensors["model.safetensors"] = {name: one for name, one in snapshot.model.items() if name not in frozen}
    for name, own in tensors.items():
        with files.usual_mode(folder / name):
            save_file(own, folder / name)
        files.sync_file(folder / name)
    files.write_json(folder / STATE, snapshot.state)
    written = write_companions(folder, others)
    listed = {name: Entry.of(folder / name) for name in (*tensors, STATE, *written)}
    share_large(folder, listed)
    if frozen and not snapshot.base_is_enough:
        keep_second_copy(folder.parent, listed[FROZEN], folder / FROZEN)
    write_manifest(folder, {"step": snapshot.step, **about}, listed)


def complete_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Replace what a checkpoint says of the state, in one rename, by the state after what was due at its step.

    Its tensors are the same. The hash of what is replaced is stored too, so that it can't belong to another checkpoint.
    """
    files.write_json(path / COMPLETED, {"state": state, "completes": files.sha256_of(path / STATE)})


def read_state(path: Path) -> dict[str, Any]:
    """The state of a checkpoint, completed if it was; a completion that can't be read leaves what was due pending."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        completed = files.read_json(path / COMPLETED)
        if completed["completes"] == files.sha256_of(path / STATE):
            return dict(completed["state"])
    return dict(files.read_json(path / STATE))


def verify(path: Path) -> None:
    """Raise CheckpointError unless every file of the state has the size and SHA-256 that the manifest gives.

    Frozen weights may lie in another copy (companions.py); other companions don't matter.
    """
    listed = listed_files(path)
    _demand_state(path, listed)
    demand_frozen(path, listed)


def restore_checkpoint(path: Path, run: Path, base: nn.Module | None = None) -> None:
    """Verify a checkpoint that the run in a directory resumes from, and restore its companions.

    ``base`` is its model before any checkpoint is restored. Raises CheckpointError where it can't be resumed from.
    """
    _demand_state(path, listed_files(path))
    restore_companions(path, run, base)


def _demand_state(path: Path, listed: Mapping[str, Entry]) -> None:
    for name in (name for name in listed if name in OF_THE_STATE):
        if not (path / name).is_file():
            raise CheckpointError(f"checkpoint {path} is damaged: {name} is missing")
        if not listed[name].describes(path / name):
            raise CheckpointError(f"checkpoint {path} is damaged: {name} does not match its {MANIFEST}")


def load_checkpoint(
    path: str | Path, *, weights_only: bool = False, verify: bool = True, base: nn.Module | None = None
) -> Snapshot:
    """The content of a checkpoint, its files mapped; ``verify`` compares their hashes first.

    Frozen weights that are damaged are read from another copy, or from ``base``, the model before it is restored.

    Raises CheckpointError where it is missing or damaged.
    """
    path = Path(path)
    if not path.is_dir():
        raise CheckpointError(f"no checkpoint at {path}")
    if verify:
        _demand_state(path, listed_files(path))
    parts = ("model", "average") if weights_only else TENSORS
    try:
        state = read_state(path)
        tensors: dict[str, Any] = {
            part: load_file(path / f"{part}.safetensors")
            for part in parts
            if part in ALWAYS_WRITTEN or (path / f"{part}.safetensors").exists()
        }
        if verify:
            tensors["model"] |= frozen_tensors(path, base)
        elif (path / FROZEN).exists():
            tensors["model"] |= load_file(path / FROZEN)
        return Snapshot(int(state["position"]["step"]), **tensors, state=state)
    except (SafetensorError, ValueError, OSError, KeyError, TypeError) as error:
        raise CheckpointError(f"checkpoint {path} can't be read: {error}") from error


def find_latest_checkpoint(folder: str | Path) -> Path | None:
    """The newest complete checkpoint, None if there are none; newer ones that are damaged are set aside.

    Raises CheckpointError, with nothing changed, where every one is damaged.
    """
    path, damaged = newest_whole(Path(folder))
    for newer, damage in damaged.items():
        set_damaged_aside(newer, damage)
    return path


def newest_whole(folder: Path, check: Callable[[Path], None] = verify) -> tuple[Path | None, dict[Path, str]]:
    """The newest complete checkpoint, None if there are none, and what is wrong with newer ones.

    ``check`` raises CheckpointError for one that can't be used. Raises CheckpointError where every one is damaged.
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


def set_damaged_aside(path: Path, damage: str) -> None:
    """Move a damaged checkpoint out of the way, with a warning."""
    log.warning("%s; it is set aside and the previous one is used", damage)
    set_aside(path)


def set_aside(path: Path) -> Path:
    """Move a checkpoint out of the way, into set-aside/, under a name that is free."""
    return path.rename(place_aside(path))


def place_aside(path: Path) -> Path:
    """Where a checkpoint would be set aside: a free name in set-aside/, which is made."""
    folder = path.parent / SET_ASIDE
    folder.mkdir(exist_ok=True)
    number = 1
    while (target := folder / f"{path.name}.{number}").exists():
        number += 1
    return target


def point(folder: Path, name: str, checkpoint: str) -> None:
    """Make ``folder``/best or ``folder``/last hold the name of a checkpoint."""
    files.write_text(folder / name, checkpoint + "\n")


def pointed(folder: Path, name: str) -> Path | None:
    """The checkpoint that best or last names, if it is there."""
    try:
        target = folder / (folder / name).read_text().strip()
        return target if step_of(target) is not None and target.parent == folder and target.is_dir() else None
    except (OSError, ValueError):  # no file, or no text
        return None


def warn_of_lost(folder: Path, name: str, instead: str) -> None:
    """Warn that best or last exists but doesn't name a checkpoint, and what is used ``instead``."""
    if (folder / name).exists() and pointed(folder, name) is None:
        said = (folder / name).read_bytes()[:40].decode(errors="replace").strip() if (folder / name).is_file() else ""
        log.warning("%s does not name a checkpoint there (it holds %r); %s", folder / name, said, instead)


def resolve_checkpoint(path: Path) -> Path:
    """The checkpoint that a user means by a run, its checkpoints folder, best or last, or a checkpoint itself.

    A run stands for its best checkpoint, or its newest where none is marked best.
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
