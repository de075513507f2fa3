"""A task's model learns; and its training can be cut, repeated, saved and loaded without a bit's difference."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from vaak.callbacks.step_log import StepLogCallback
from vaak.core.task import Dataset, Task, TaskWrapper
from vaak.engine.checkpoint.files import load_checkpoint, step_folder
from vaak.engine.metrics_file import read_records
from vaak.engine.precision import seed_everything
from vaak.engine.snapshot import load_weights
from vaak.engine.trainer import Trainer
from vaak.testing.case import (
    UNEVALUATED,
    UNREHEARSED,
    Case,
    KilledError,
    Witness,
    batches,
    compute_terms,
    exact,
    folder,
    require,
    require_same,
)

CPU = torch.device("cpu")
LOGGED_EVERY = 2


def check_learning(case: Case) -> None:
    """One batch, read once and shown again and again without dropout, is overfitted."""
    task, witness = exact(case.make_task()), Witness()
    size = case.config().batch_size
    with folder() as directory:
        options: dict[str, Any] = {
            "max_steps": case.learning_steps,
            "gradient_accumulation_steps": 1,
            "batching": {"type": "fixed"},
        }
        options |= {**UNEVALUATED, **UNREHEARSED, "checkpoint": {"interval_epochs": None}}
        trainer = case.trainer(directory, witness, task=_few_examples(task, size), **options)
        trainer.fit()
    name = case.learned_loss or next(iter(witness.losses[1]))
    first, last = (witness.losses[step][name] for step in (1, case.learning_steps))
    require(
        last < case.learned * first,
        f"one batch shown {case.learning_steps} times: the loss {name} went from {first:.4g} to {last:.4g}, "
        f"not below {case.learned:g} of it",
    )


class _FewExamples:
    """The first examples of a dataset, each as read the first time."""

    def __init__(self, dataset: Dataset, number: int) -> None:
        self.dataset = dataset
        self.lengths = dataset.lengths[:number]
        self.strata = None if dataset.strata is None else dataset.strata[:number]
        self.parts = None if dataset.parts is None else dataset.parts[:number]
        self.read: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dataset, name)

    def example(self, index: int, rng: np.random.Generator) -> Any:
        if index not in self.read:
            self.read[index] = self.dataset.example(index, rng)
        return self.read[index]


class _TaskOfFewExamples(TaskWrapper):
    """A task with the first examples of its training data only."""

    def __init__(self, task: Task, number: int) -> None:
        super().__init__(task)
        self.number = number

    def dataset(self, split: str) -> Any:
        dataset = self.task.dataset(split)
        return _FewExamples(dataset, self.number) if split == "train" else dataset


def _few_examples(task: Task, number: int) -> Task:
    return cast("Task", _TaskOfFewExamples(task, number))


def keep_one_part(task: Task) -> Task:
    """Return a task whose training examples have no parts: those of the first, where there are several."""
    parts = task.dataset("train").parts
    return task if parts is None else _few_examples(task, int((parts == parts[0]).sum()))


def check_resume(case: Case) -> None:
    """A run that is killed, resumed, asked to stop and resumed again ends with the bits of an uninterrupted one."""
    with folder() as runs:
        whole = _logged(case, runs / "whole", Witness())
        whole.fit()
        with contextlib.suppress(KilledError):
            _logged(case, runs / "cut", Witness(kill_at=3)).fit()
        _resumed(case, runs / "cut", Witness(stop_at=5)).fit()
        resumed = _resumed(case, runs / "cut", Witness())
        resumed.fit()
        weights = [dict(one.model.state_dict()) for one in (resumed, whole)]
        require_same(weights[0], weights[1], "weights of a resumed run against an uninterrupted one's")
        moments = [one.state.optimizer.state_dict() for one in (resumed, whole)]
        require_same(moments[0], moments[1], "optimizer state of a resumed run against an uninterrupted one's")
        records = [read_records(runs / name / "metrics.jsonl") for name in ("cut", "whole")]
        for record in (*records[0], *records[1]):
            # Times differ between runs.
            record.pop("clock", None)
        require(records[0] == records[1], "a resumed run logged other values than an uninterrupted one")


def _logged(case: Case, directory: Path, witness: Witness) -> Trainer:
    return case.trainer(directory, StepLogCallback(LOGGED_EVERY), witness)


def _resumed(case: Case, directory: Path, witness: Witness) -> Trainer:
    trainer = _logged(case, directory, witness)
    require(trainer.resume("auto"), "no checkpoint to resume from")
    return trainer


def check_replay(case: Case) -> None:
    """A past step, run again from the checkpoint before it, gives the same losses and weights to the bit, twice."""
    with folder() as runs:
        original, options = Witness(), {"max_steps": 4, **UNEVALUATED, **UNREHEARSED}
        case.trainer(runs / "run", original, **options).fit()
        for number in (1, 2):
            replayed = Witness()
            trainer = case.trainer(runs / f"replay-{number}", replayed, **options)
            trainer.resume(str(runs / "run" / "checkpoints" / step_folder(2)))
            trainer.fit()
            for step in (3, 4):
                require_same(replayed.losses[step], original.losses[step], f"losses of step {step}, run again")
                require_same(replayed.weights[step], original.weights[step], f"weights after step {step}, run again")


def check_saved(case: Case) -> None:
    """A trained model, saved and loaded into a fresh one, has the same losses and predicts the same."""
    with folder() as runs:
        trained = case.trainer(runs / "trained", **UNEVALUATED, **UNREHEARSED)
        trained.fit()
        fresh = case.trainer(runs / "fresh", random_seed=7)
        path = runs / "trained" / "checkpoints" / step_folder(trained.position.step)
        saved = load_checkpoint(path)
        load_weights(fresh.model, saved.model, path)
        load_weights(fresh.state.loss.module, saved.loss, path)
        losses = [_losses(one, batches(trained)) for one in (fresh, trained)]
        require_same(losses[0], losses[1], "losses of a model saved and loaded")
        if case.inputs:
            predicted = [_predictions(one, case.inputs) for one in (fresh, trained)]
            require_same(predicted[0], predicted[1], "predictions of a model saved and loaded, by input")
            again = _predictions(trained, case.inputs)
            require_same(again, predicted[1], "predictions made twice, by input")


def _losses(trainer: Trainer, seen: list[Any]) -> dict[str, Any]:
    trainer.model.eval()
    with torch.no_grad():
        return {
            f"{name} of batch {number}": term.total
            for number, batch in enumerate(seen)
            for name, term in compute_terms(trainer, batch).items()
        }


def _predictions(trainer: Trainer, inputs: Sequence[Any]) -> dict[str, Any]:
    seed_everything(0, CPU)
    with torch.no_grad():
        return {str(number): made for number, made in enumerate(trainer.task.predict(trainer.model.eval(), inputs))}
