"""A checkpoint: a folder that is there whole or not at all, and says of each file what it must contain.

    step-00001000/model.safetensors      parameters and buffers by name, tied tensors once
                  optimizer.safetensors  moments by parameter name
                  average.safetensors    the averaged weights, where training.ema keeps them
                  state.json             position, loss scale, what callbacks remember
                  MANIFEST.json          size and SHA-256 of the others

It is written beside, flushed, and renamed. Nothing in it is code: safetensors and JSON only.
"""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from vaak.core import files
from vaak.core.errors import CheckpointError

log = logging.getLogger("vaak")

MODEL, OPTIMIZER, AVERAGE = "model.safetensors", "optimizer.safetensors", "average.safetensors"
STATE, MANIFEST = "state.json", "MANIFEST.json"
SET_ASIDE = "set-aside"
REMOVED, REPLACED = ".removed", ".replaced"


@dataclass
class Snapshot:
    """Everything of a run's state, copied to the CPU at one step's boundary."""

    step: int
    model: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    average: dict[str, torch.Tensor] = field(default_factory=dict)


def step_folder(step: int) -> str:
    """Name of the checkpoint of a step; names sort as steps do."""
    return f"step-{step:08d}"


def model_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name; of tied tensors only the first name."""
    seen: set[int] = set()
    tensors = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor.detach()
    return tensors


def copy_to_cpu(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies that training can't change any more."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}


def save_checkpoint(folder: Path, snapshot: Snapshot) -> Path:
    """Write ``folder``/step-N whole or not at all and return it; one that exists is replaced.

    Raises CheckpointError where the disk is full or can't be written; whatever was there is unharmed.
    """
    final = folder / step_folder(snapshot.step)
    beside = folder / f".{final.name}.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        _write_files(beside, snapshot)
        replaced = folder / f".{final.name}{REPLACED}"
        if final.exists():
            final.rename(replaced)
        beside.rename(final)
        files.sync_directory(folder)
        shutil.rmtree(replaced, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise CheckpointError(f"checkpoint {final} can't be written: {error}; the ones before it are whole") from error
    return final


def _write_files(folder: Path, snapshot: Snapshot) -> None:
    """The files of a checkpoint, flushed to the disk, the manifest last."""
    kept = {MODEL: snapshot.model, OPTIMIZER: snapshot.optimizer}
    if snapshot.average:
        kept[AVERAGE] = snapshot.average
    for name, tensors in kept.items():
        save_file(tensors, folder / name)
        files.sync_file(folder / name)
    files.write_json(folder / STATE, snapshot.state)
    listed = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": files.sha256_of(folder / name)}
        for name in (*kept, STATE)
    }
    files.write_json(folder / MANIFEST, {"format": 1, "step": snapshot.step, "files": listed})


def verify(path: Path) -> None:
    """Raise CheckpointError unless every file of a checkpoint is there with the size and SHA-256 its manifest gives."""
    try:
        listed = files.read_json(path / MANIFEST)["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} is no whole checkpoint: its {MANIFEST} can't be read ({type(error).__name__})"
        ) from error
    for name, expected in listed.items():
        file = path / Path(name).name
        if not file.is_file():
            raise CheckpointError(f"checkpoint {path} is damaged: {name} is missing")
        if file.stat().st_size != expected["bytes"] or files.sha256_of(file) != expected["sha256"]:
            raise CheckpointError(f"checkpoint {path} is damaged: {name} is not what its {MANIFEST} says")


def load_checkpoint(path: Path, *, weights_only: bool = False) -> Snapshot:
    """The verified content of a checkpoint. Raises CheckpointError where it is missing or damaged."""
    if not path.is_dir():
        raise CheckpointError(f"there is no checkpoint {path}")
    verify(path)
    try:
        model = load_file(path / MODEL)
        state = files.read_json(path / STATE)
        optimizer = {} if weights_only else load_file(path / OPTIMIZER)
        average = load_file(path / AVERAGE) if (path / AVERAGE).exists() else {}
    except (SafetensorError, ValueError, OSError) as error:
        raise CheckpointError(f"checkpoint {path} can't be read: {error}") from error
    return Snapshot(int(state["position"]["step"]), model, optimizer, state, average)


def load_weights(model: nn.Module, tensors: dict[str, torch.Tensor], source: Path) -> None:
    """Copy tensors into a model bit by bit. Raises CheckpointError listing everything that doesn't fit."""
    wanted = model_tensors(model)
    problems = [f"{name} is missing" for name in wanted if name not in tensors]
    problems += [f"{name} is not in the model" for name in tensors if name not in wanted]
    problems += [
        f"{name} has shape {tuple(tensors[name].shape)}, the model {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in tensors and tensors[name].shape != tensor.shape
    ]
    if problems:
        shown = "; ".join(problems[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        raise CheckpointError(f"{source} is of another model: {shown}")
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(tensors[name])


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first; neither half-written nor set-aside ones."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.name.startswith("step-") and path.is_dir())


def find_latest_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint, None where there is none at all; damaged ones that are newer are set aside.

    Raises CheckpointError, with nothing changed, where every one is damaged.
    """
    damaged: dict[Path, CheckpointError] = {}
    for path in reversed(list_checkpoints(folder)):
        try:
            verify(path)
        except CheckpointError as error:
            damaged[path] = error
            continue
        for newer, damage in damaged.items():
            log.warning("%s; it is set aside and the one before it is used", damage)
            set_aside(newer)
        return path
    if damaged:
        newest = next(iter(damaged.values()))
        raise CheckpointError(f"no checkpoint in {folder} is whole: {newest}; to begin anew, move the run away")
    return None


def set_aside(path: Path) -> Path:
    """Move a checkpoint out of the way, into set-aside/, under a name that is free."""
    folder = path.parent / SET_ASIDE
    folder.mkdir(exist_ok=True)
    number = 1
    while (target := folder / f"{path.name}.{number}").exists():
        number += 1
    path.rename(target)
    return target


def point(folder: Path, name: str, checkpoint: str) -> None:
    """Make ``folder``/best or ``folder``/last hold the name of a checkpoint."""
    files.write_text(folder / name, checkpoint + "\n")


def pointed(folder: Path, name: str) -> Path | None:
    """The checkpoint that best or last names, if it is there."""
    try:
        target = folder / (folder / name).read_text().strip()
    except OSError:
        return None
    return target if target.is_dir() and target.parent == folder else None


def resolve_checkpoint(path: Path) -> Path:
    """The checkpoint that a user means by a run, its checkpoints folder, best or last, or a checkpoint itself.

    A run stands for its best checkpoint, or its newest where none is marked best.
    """
    if path.name in ("best", "last") and path.parent.is_dir():
        found = pointed(path.parent, path.name)
    elif (path / MANIFEST).exists() or path.name.startswith("step-"):
        found = path if path.is_dir() else None
    else:
        folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
        found = pointed(folder, "best") or next(reversed(list_checkpoints(folder)), None)
    if found is None:
        raise CheckpointError(
            f"there is no checkpoint at {path}; give a run directory, or a folder step-…, best or last in it"
        )
    return found
