"""One optimizer step in readable form: batches, figures, what every module gave, what became of every weight."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import torch

from vaak.core.report import StepReport
from vaak.data.reader import Microbatch
from vaak.engine.diagnosis.dead_units import watching_units
from vaak.engine.diagnosis.inspection import watching
from vaak.engine.diagnosis.non_finite import leaving_no_trace
from vaak.engine.gradient import Forward
from vaak.engine.objective.descent import Descent
from vaak.engine.trainer import Trainer
from vaak.engine.training_data import StepData


def batches_of(trainer: Trainer, data: StepData) -> list[dict[str, Any]]:
    """Each microbatch with its rows: which examples, how long, what is in them; and which were skipped."""
    return [
        {
            "number": microbatch.address.number,
            "pieces": trainer.state.piece_rules.pieces(
                data.step, microbatch.address.number, trainer.data.cells(microbatch)
            ),
            "rows": _rows(trainer, microbatch),
            "skipped": [asdict(skip) for skip in microbatch.skipped],
        }
        for microbatch in data.microbatches
    ]


def _rows(trainer: Trainer, microbatch: Microbatch) -> list[dict[str, Any]]:
    if microbatch.batch is None:
        return []
    dataset, batch = trainer.data.dataset, microbatch.batch
    lines = trainer.task.show(batch) or [""] * len(batch.indices)
    return [
        {
            "examples": [{"index": index, "description": dataset.describe(index)} for index in row],
            "length": sum(dataset.lengths[index].item() for index in row),
            "shown": shown,
        }
        for row, shown in zip(batch.indices, lines, strict=True)
    ]


def figures_of(trainer: Trainer, report: StepReport) -> dict[str, Any]:
    """The numbers of a step: ``loss`` is what is descended on; each of ``losses`` is over the count of its unit."""
    losses = {name: float(total) for name, total in report.losses.items()}
    norm = float(report.gradient_norm)
    limit = trainer.step.clipping.norm
    return {
        "epoch": report.epoch,
        "loss": sum(trainer.loss_weights.get(name, 1.0) * loss for name, loss in losses.items()),
        "losses": losses,
        "units": report.units,
        "counts": report.counts,
        "gradient_norm": norm,
        "clip_factor": 1.0 if limit is None else min(1.0, limit / (norm + 1e-6)),
        "learning_rate": report.learning_rate,
        "loss_scale": report.loss_scale,
        "skipped": report.skipped,
        "seconds": report.seconds,
    }


def pieces_of_step(trainer: Trainer, data: StepData) -> list[dict[str, Any]]:
    """Before the step: each piece's losses over its own counts, and what every module gives, in the order they end."""
    found = []
    trainer.model.train()
    for objective, forward, piece in _forwards(trainer, data):
        with watching(trainer.model) as watch:
            terms = forward.terms(data.step, piece)
        counts = piece.batch.totals()
        losses = {name: float(term.total) / (counts.get(term.per) or 1.0) for name, term in terms.items()}
        modules = [asdict(module) for module in watch.statistics]
        seen = {"microbatch": piece.number, "piece": piece.piece, "losses": losses, "modules": modules}
        found.append(({"objective": objective.name} if objective.name else {}) | seen)
    return found


def dead_units_of_step(trainer: Trainer, data: StepData) -> list[dict[str, Any]]:
    """Of each layer with weights, how many of its inputs are 0 wherever it is called, without dropout."""
    modes = [(module, module.training) for module in trainer.model.modules()]
    trainer.model.eval()
    with watching_units(trainer.model) as alive:
        for _, forward, piece in _forwards(trainer, data):
            forward.terms(data.step, piece)
    for module, mode in modes:
        module.training = mode
    return [
        {"module": name, "units": len(units), "dead": (~units).nonzero().flatten().tolist()}
        for name, units in alive.items()
    ]


def _forwards(trainer: Trainer, data: StepData) -> Iterator[tuple[Descent, Forward, Any]]:
    """Each objective with the plain model and each piece of the step, for forward passes that leave no trace."""
    with leaving_no_trace(trainer.model, trainer.state.loss.module), torch.no_grad():
        for objective in trainer.step.objectives:
            plain = replace(objective.gradient.forward, model=trainer.model)
            whole = replace(objective.gradient, forward=plain).after_first_pass(trainer.state.piece_rules, data)
            for piece in objective.gradient.pieces(trainer.state.piece_rules, whole):
                yield objective, plain, piece


@contextlib.contextmanager
def updates_of_step(trainer: Trainer) -> Iterator[list[dict[str, Any]]]:
    """A list that holds, once the step is taken, each parameter's gradient (clipped), weights and update as norms."""
    named = dict(trainer.model.named_parameters())
    before = {name: parameter.detach().to("cpu", copy=True) for name, parameter in named.items()}
    gradients: dict[str, float] = {}

    names = {parameter: name for name, parameter in named.items()}

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            if parameter.grad is not None and parameter in names:
                gradients[names[parameter]] = float(parameter.grad.norm())

    handles = [optimizer.register_step_pre_hook(note) for optimizer in trainer.state.optimizers]
    updates: list[dict[str, Any]] = []
    try:
        yield updates
    finally:
        for handle in handles:
            handle.remove()
    for name, parameter in named.items():
        update = parameter.detach().cpu() - before[name]
        norms = {"gradient_norm": gradients.get(name), "weight_norm": float(before[name].norm())}
        norms |= {"update_norm": float(update.norm()), "largest_update": float(update.abs().max())}
        updates.append({"name": name, **norms})
