"""A trained run, opened to be used: its configuration, its task, and the weights of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vaak.config.catalog import task_class
from vaak.config.experiment import Experiment
from vaak.config.load import load
from vaak.core.errors import CheckpointError, UserError
from vaak.engine.checkpoint import load_checkpoint, load_weights, resolve_checkpoint
from vaak.engine.launcher import pick_device


@dataclass(frozen=True)
class OpenedRun:
    """A run's task and its model in evaluation mode, on its device; ``weights`` says which it has (own, average)."""

    experiment: Experiment[Any, Any]
    directory: Path
    checkpoint: Path
    task: Any
    model: torch.nn.Module
    weights: str


def run_of(path: Path) -> Path:
    """The run directory of a run, a checkpoint or its pointer. Raises CheckpointError where there is none."""
    for folder in (path, path.parent, path.parent.parent):
        if (folder / "config.yml").exists():
            return folder
    raise CheckpointError(
        f"{path} is no run and lies in none (there is no config.yml); give a run directory or a checkpoint in it"
    )


def open_run(
    path: Path,
    files: Sequence[Path] = (),
    overrides: Sequence[str] = (),
    device: str = "auto",
    *,
    weights: str = "auto",
    scratch: Path | None = None,
    splits: tuple[str, ...] = (),
) -> OpenedRun:
    """Open a run, or one checkpoint of it; a run alone stands for its best checkpoint.

    ``files`` and ``overrides`` go over its configuration, as for training. Where they name other data, its ``splits``
    are prepared in ``scratch`` with what the run learned from its own (its tokenizer). No user code is executed.
    ``weights`` are ``own``, or their ``average`` (training.ema); ``auto`` takes those that the run itself evaluated.

    Raises UserError where the average is asked for and the checkpoint has none.
    """
    directory = run_of(path)
    own = load([directory / "config.yml"]).experiment
    experiment = load([directory / "config.yml", *files], overrides).experiment
    checkpoint = resolve_checkpoint(path)
    task = task_class(experiment.task)(own, directory, directory)
    if scratch is not None and experiment.data != own.data:
        task.prepare_others(experiment.data, scratch, splits)
    model = task.model().to(pick_device(device))
    snapshot = load_checkpoint(checkpoint, weights_only=True)
    if weights == "auto":
        ema = own.training.ema
        weights = "average" if ema is not None and ema.evaluate and snapshot.average else "own"
    if weights == "average" and not snapshot.average:
        raise UserError(f"{checkpoint} has no averaged weights: the run was trained without training.ema")
    load_weights(model, snapshot.model | (snapshot.average if weights == "average" else {}), checkpoint)
    return OpenedRun(experiment, directory, checkpoint, task, model.eval(), weights)
