"""Evaluation adds up sums over the whole set, divides once, and changes nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from vaak.core.batch import Batch
from vaak.core.errors import UserError
from vaak.core.random_keys import EVALUATION_SEED, Purpose
from vaak.data.batching import evaluation_plan
from vaak.data.loader import MicrobatchReader, evaluation_addresses
from vaak.engine.evaluation import Evaluator
from vaak.engine.snapshot import model_tensors
from vaak.engine.trainer import Trainer
from vaak.testing.case import Case, open_trainer, require, require_close, require_same

CHECKED_BATCH_SIZES = (1, 5, 64)


class _BrokenError(Exception):
    """Put into a model, to see what changes."""


def check_metrics(case: Case) -> None:
    """Figures don't depend on the batch size, and carry the conditions they were made under (at least the split)."""
    metrics: list[dict[str, float]] = []
    for size in CHECKED_BATCH_SIZES:
        with open_trainer(case, validation={"interval": 4, "batch_size": size}) as trainer:
            metrics.append(_metrics(trainer))
            require_close(metrics[-1], metrics[0], f"metrics in batches of {size} against batches of 1", 1e-5)
            for split in trainer.task.evaluation_splits:
                found = trainer.task.meters(split).protocol.get("split")
                require(found == split, f"the protocol of {split}'s metrics says that the split is {found}")


def check_evaluation(case: Case) -> None:
    """Evaluation doesn't change the model: weights, buffers, ``requires_grad``, and the mode of every module.

    Nor do the pictures and the audio that it makes.
    """
    with open_trainer(case) as trainer:
        model = trainer.model
        before = _state(model)
        first = _metrics(trainer, show=_make)
        require_same(_state(model), before, "the model after an evaluation against before")
        require_same(_metrics(trainer), first, "metrics of the same model evaluated twice")
        model.eval()
        for split in trainer.task.evaluation_splits:
            with torch.no_grad():
                trainer.task.meters(split).update(model, _first_batch(trainer, split))
            changed = [name or "the model" for name, module in model.named_modules() if module.training]
            require(not changed, f"the meters of {split} put modules into training mode: {', '.join(changed[:5])}")


def check_failing_batch(case: Case) -> None:
    """A batch on which the model fails, at its first module or at its last, adds nothing to the meters."""
    with open_trainer(case) as trainer, torch.no_grad():
        model = trainer.model.eval()
        for split in trainer.task.evaluation_splits:
            batch = _first_batch(trainer, split)
            undisturbed, meters = trainer.task.meters(split), trainer.task.meters(split)
            with _watching_modules() as calls:
                undisturbed.update(model, batch)
            undisturbed.update(model, batch)
            for fail_at in (1, len(calls)) if calls else ():
                with contextlib.suppress(_BrokenError), _watching_modules(fail_at):
                    meters.update(model, batch)
            meters.update(model, batch)
            meters.update(model, batch)
            require_same(dict(meters.sums()), dict(undisturbed.sums()), f"sums of {split} after batches that failed")


@contextlib.contextmanager
def _watching_modules(fail_at: int | None = None) -> Iterator[list[nn.Module]]:
    """Within this context, the modules called are listed, and call ``fail_at`` fails where it would have returned."""
    calls: list[nn.Module] = []

    def watch(module: nn.Module, *_: Any) -> None:
        calls.append(module)
        if len(calls) == fail_at:
            raise _BrokenError

    with register_module_forward_hook(watch):
        yield calls


def _first_batch(trainer: Trainer, split: str) -> Batch:
    dataset = trainer.task.dataset(split)
    plan = evaluation_plan(dataset.lengths, trainer.config.batch_size, parts=dataset.parts)
    reader = MicrobatchReader(dataset, (Purpose.EVALUATION, split), EVALUATION_SEED)
    batch = reader[next(evaluation_addresses(plan, 0, 1))].batch
    assert batch is not None
    return batch


def _make(shown: Callable[[], dict[str, bytes]]) -> None:
    """Make the pictures or the audio of an evaluation, unless what draws them isn't installed."""
    with contextlib.suppress(UserError):
        shown()


def _metrics(
    trainer: Trainer, show: Callable[[Callable[[], dict[str, bytes]]], None] | None = None
) -> dict[str, float]:
    evaluator = Evaluator(trainer.task, trainer.config, trainer.ranks, show=show)
    metrics: dict[str, float] = {}
    for split in trainer.task.evaluation_splits:
        metrics |= evaluator.evaluate(trainer.model, split)
    return metrics


def _state(model: nn.Module) -> dict[str, Any]:
    """Copies of weights and buffers, and whether each parameter is trained."""
    state: dict[str, Any] = {name: tensor.clone() for name, tensor in model_tensors(model).items()}
    return state | {f"requires_grad of {name}": value.requires_grad for name, value in model.named_parameters()}
