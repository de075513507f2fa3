"""A checkpoint looked at: its parameters, and what a step of training would do to each of them."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from vaak.config.load import load
from vaak.engine.checkpoint.files import load_checkpoint, resolve_checkpoint
from vaak.engine.diagnosis.non_finite import json_value
from vaak.engine.trainer import Trainer
from vaak.runs.folder.sessions import configuration_of_step
from vaak.runs.folder.user_code import demand_trust
from vaak.runs.open_run import run_of
from vaak.runs.replay.past_step import quietly, trainer_like
from vaak.runs.replay.step_view import dead_units_of_step, figures_of, updates_of_step


def inspect_run(path: Path, *, device: str | None = None, trust_code: bool = False) -> dict[str, Any]:
    """The parameters of a checkpoint, and of the training step after it gradients, updates and dead units, as JSON.

    Nothing is written into the run. Where the schedule has come to a rate of 0, the step is taken at the highest.

    ``path`` is that of a run, which stands for its best checkpoint, or of a checkpoint; ``device`` None is the run's
    own. User code is executed only with ``trust_code``. Raises UserError for everything that a user can fix.
    """
    directory, checkpoint = run_of(path), resolve_checkpoint(path)
    snapshot = load_checkpoint(checkpoint)
    configuration = configuration_of_step(directory, max(1, snapshot.step))
    loaded = load([configuration], trust_code=trust_code)
    demand_trust(loaded)
    with tempfile.TemporaryDirectory(prefix="vaak-inspect-") as temporary_folder, quietly():
        trainer = trainer_like(loaded, directory, Path(temporary_folder), device)
        trainer.restore(snapshot, checkpoint)
        found = {"run": str(directory), "checkpoint": str(checkpoint), **_looked_at(trainer)}
    report: dict[str, Any] = json_value(found)
    return report


def _looked_at(trainer: Trainer) -> dict[str, Any]:
    with contextlib.closing(trainer.data.steps(trainer.position)) as steps:
        data = next(steps)
    rate = trainer.step.schedule(min(data.step, trainer.total_steps)) or 1.0
    dead = dead_units_of_step(trainer, data)
    with updates_of_step(trainer) as updates:
        report = replace(trainer.step, schedule=lambda step: rate)(trainer.state, data)
    norms = {one["name"]: one for one in updates}
    parameters = [
        {
            "name": name,
            "shape": list(parameter.shape),
            "count": parameter.numel(),
            "device": str(parameter.device),
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "trainable": parameter.requires_grad,
            "gradient_norm": norms[name]["gradient_norm"],
            "weight_norm": norms[name]["weight_norm"],
            "update_to_weight": norms[name]["update_norm"] / (norms[name]["weight_norm"] or math.nan),
        }
        for name, parameter in trainer.model.named_parameters()
    ]
    return {**figures_of(trainer, report), "parameters": parameters, "layers": _layers(parameters), "dead_units": dead}


def _layers(parameters: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The gradient's norm over all parameters of each module that has any of its own."""
    squares: defaultdict[str, float] = defaultdict(float)
    for one in parameters:
        if one["gradient_norm"] is not None:
            squares[one["name"].rpartition(".")[0] or "model"] += one["gradient_norm"] ** 2
    return [{"module": name, "gradient_norm": math.sqrt(total)} for name, total in squares.items()]
