"""The whole state of a run: what is saved, and where it goes when it is put back."""

from __future__ import annotations

import copy
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import vaak
from vaak.core.errors import CheckpointError
from vaak.engine.checkpoint import Snapshot, copy_to_cpu, load_weights, model_tensors
from vaak.engine.optimizer_state import load_optimizer_tensors, optimizer_tensors
from vaak.engine.position import Position

if TYPE_CHECKING:
    from vaak.engine.trainer import Trainer


def take_snapshot(trainer: Trainer) -> Snapshot:
    """The whole state at this boundary, copied."""
    moments, values = optimizer_tensors(trainer.model, trainer.optimizers)
    state = {
        "position": trainer.position.state_dict(),
        "loss_scale": trainer.loss_scale.state_dict(),
        "plateau": trainer.plateau.state_dict() if trainer.plateau else None,
        "best": trainer.best.state_dict(),
        "metrics": trainer.metrics,
        "optimizer": values,
        "splits": trainer.splits.state_dict(),
        "callbacks": [[type(callback).__name__, callback.state_dict()] for callback in trainer.callbacks],
        "data": trainer.data_fingerprint,
        "conditions": conditions(trainer),
        "metrics_bytes": size_of(trainer.directory / "metrics.jsonl"),
    }
    return Snapshot(
        step=trainer.position.step,
        model=copy_to_cpu(model_tensors(trainer.model)),
        optimizer=copy_to_cpu(moments),
        state=copy.deepcopy(state),
        average=copy_to_cpu(trainer.average.tensors()) if trainer.average else {},
    )


def restore(trainer: Trainer, snapshot: Snapshot, source: Path) -> None:
    """Put a trainer where a snapshot was taken. Raises CheckpointError where it is of another model or other data."""
    state = snapshot.state
    if state["data"] != trainer.data_fingerprint:
        raise CheckpointError(
            f"{source} was made with other data or other batching than this run's, so its place in them means nothing: "
            f"put them back, or start a new run with training.checkpoint.init_from={source}"
        )
    load_weights(trainer.model, snapshot.model, source)
    load_optimizer_tensors(trainer.model, trainer.optimizers, snapshot.optimizer, state["optimizer"])
    if trainer.average is not None:
        trainer.average.load(snapshot.average)
    trainer.position = Position.from_state(state["position"])
    trainer.loss_scale.load_state_dict(state["loss_scale"])
    trainer.best.load_state_dict(state["best"])
    trainer.splits.load_state_dict(state.get("splits", []))
    trainer.metrics = state["metrics"]
    if trainer.plateau and state["plateau"]:
        trainer.plateau.load_state_dict(state["plateau"])
    remembered = list(state["callbacks"])
    for callback in trainer.callbacks:
        name = type(callback).__name__
        entry = next((entry for entry in remembered if entry[0] == name), None)
        if entry is not None:
            remembered.remove(entry)
            callback.load_state_dict(entry[1])


def conditions(trainer: Trainer) -> dict[str, Any]:
    """What bits depend on besides the state."""
    device = trainer.ranks.device
    return {
        "vaak": vaak.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{device.type} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "world_size": trainer.ranks.world_size,
        "compile": trainer.config.performance.compile,
        "precision": trainer.precision.name,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def size_of(path: Path) -> int:
    """The size of a file in bytes; 0 where there is none."""
    return os.stat(path).st_size if path.exists() else 0
