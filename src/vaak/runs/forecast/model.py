"""What a configuration's model is, and what training it takes, before any data are read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from vaak.config.load import Loaded
from vaak.config.tasks import task_class
from vaak.config.training import TrainingConfig
from vaak.core.errors import UserError
from vaak.engine.cost.dry_pass import NEEDS_NUMBERS, DryPass, dry_pass, numberless
from vaak.engine.devices.precision import Precision
from vaak.engine.distributed.launcher import pick_device
from vaak.engine.memory.device import read_memory
from vaak.engine.optim.freezing import Freezing
from vaak.nn.stack import set_gradient_checkpointing
from vaak.runs.forecast.memory import AtRest, at_rest
from vaak.runs.forecast.model_tree import Branch, model_tree
from vaak.runs.prepared import is_prepared


@dataclass(frozen=True)
class ModelEstimate:
    """The model's tree and sizes; ``work`` is that of the largest microbatch, None where ``unknown`` says why not."""

    tree: list[Branch]
    parameters: int
    trained: int
    rows: int
    work: DryPass | None
    unknown: str
    at_rest: AtRest
    limit: int
    device: str
    precision: str

    @property
    def activations(self) -> int:
        """Peak bytes of a microbatch, in addition to what is kept between steps."""
        return max(0, self.work.peak_bytes - self.at_rest.gradients) if self.work else 0

    @property
    def needed(self) -> int | None:
        """Peak bytes of training; None where a microbatch's aren't known."""
        return self.at_rest.total + self.activations if self.work else None

    @property
    def flops(self) -> float | None:
        """Operations of training on one unit (token)."""
        return self.work.flops / self.work.count if self.work else None

    def as_json(self) -> dict[str, Any]:
        activations = self.activations if self.work else None
        memory = {**asdict(self.at_rest), "activations": activations, "needed": self.needed, "limit": self.limit}
        unit = self.work.unit if self.work else None
        return {
            "parameters": self.parameters,
            "trained": self.trained,
            "flops_per_unit": self.flops,
            "unit": unit,
            "microbatch_rows": self.rows,
            "memory_bytes": memory,
            "device": self.device,
            "precision": self.precision,
            "tree": [asdict(branch) for branch in self.tree],
        }


def estimate_model(loaded: Loaded) -> ModelEstimate:
    """What would be trained, made of shapes alone; it takes a second or two, and no memory.

    Raises UserError for a task that can't describe its model before its data are prepared.
    """
    experiment, training = loaded.experiment, loaded.experiment.training
    task = task_class(experiment.reference)(experiment, experiment.run_dir, loaded.folder)
    device = pick_device(training.device)
    precision = Precision(training.mixed_precision, device if device.type == "cuda" else torch.device("cpu"))
    with numberless(precision.device) as fake:
        model = task.sketch()
        if model is None and is_prepared(experiment.run_dir):
            model = task.model()
    if model is None:
        raise UserError(
            f"what the model of {experiment.task} is, its tokenizer's size included, is known once its data are "
            f"prepared: train it, then give {experiment.run_dir / 'config.yml'}"
        )
    _prepare(model, training)
    rows, work, unknown = 0, None, ""
    batch = task.sketch_batch()
    if batch is not None:
        rows, passes = batch.num_rows, min(training.gradient_accumulation_steps, 2)
        try:
            with fake:
                work = dry_pass(fake, task, model, batch, precision, passes)
        except NEEDS_NUMBERS as error:
            unknown = f"a shape depends on numbers ({str(error).partition(chr(10))[0]})"
    else:
        unknown = f"the task {experiment.task} has no sketch_batch"
    parameters = list(model.parameters())
    return ModelEstimate(
        tree=model_tree(model),
        parameters=sum(parameter.numel() for parameter in parameters),
        trained=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        rows=rows,
        work=work,
        unknown=unknown,
        at_rest=at_rest(model, training),
        limit=read_memory(device).limit,
        device=device.type,
        precision=precision.name,
    )


def _prepare(model: nn.Module, training: TrainingConfig) -> None:
    """Freeze what is never trained, and recompute where training would."""
    Freezing(model, training.freeze)
    set_gradient_checkpointing(model, training.performance.gradient_checkpointing)
