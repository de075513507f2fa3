"""Evaluating, saving, logging and loading change no weight; only scheduled evaluations change what is remembered."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from toy import ToyDataset, ToyMeters, ToyTask, next_microbatches, same_bits, toy_trainer, weights
from vaak.callbacks.early_stopping import EarlyStoppingCallback
from vaak.callbacks.step_log import StepLogCallback
from vaak.core.batch import Batch
from vaak.core.errors import DataError
from vaak.engine.callback import Callback, StepReport
from vaak.engine.evaluation import EvaluationInterruptedError, Evaluator
from vaak.engine.trainer import Trainer


class Asking(Callback):
    """Asks for evaluations and saves after given steps."""

    def __init__(self, evaluate_at: tuple[int, ...] = (), save_at: tuple[int, ...] = ()) -> None:
        self.evaluate_at, self.save_at = evaluate_at, save_at
        self.scheduled: dict[int, bool] = {}

    def on_step_end(self, trainer: Any, report: StepReport) -> None:
        if report.step in self.evaluate_at:
            trainer.request_evaluate()
        if report.step in self.save_at:
            trainer.request_save()

    def on_evaluate_end(self, trainer: Any, metrics: dict[str, float]) -> None:
        self.scheduled[trainer.position.step] = trainer.scheduled_evaluation


def final_weights(folder: Path, *callbacks: Callback, **training: Any) -> dict[str, Tensor]:
    trainer = toy_trainer(folder, *callbacks, **training)
    assert trainer.fit() == "finished"
    return weights(trainer)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    return final_weights(tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.parametrize(
    ("callbacks", "training"),
    [
        ([Asking(evaluate_at=(3,))], {}),
        ([Asking(evaluate_at=(1, 2, 4, 5, 8))], {}),
        ([Asking(save_at=(2, 5))], {}),
        ([StepLogCallback(1)], {}),
        ([StepLogCallback(3)], {"logging": {"interval": 3}}),
        pytest.param([], {"performance": {"num_workers": 2}}, marks=pytest.mark.slow),
        ([], {"validation": {"interval": 2}}),
        ([], {"checkpoint": {"interval": 3}}),
    ],
    ids=["asked", "asked often", "saves", "logs", "logs rarely", "workers", "scheduled", "checkpoints"],
)
def test_watching_changes_no_weight(
    callbacks: list[Callback], training: dict[str, Any], undisturbed: dict[str, Tensor], tmp_path: Path
):
    assert same_bits(final_weights(tmp_path, *callbacks, **training), undisturbed)


def remembered(folder: Path, *callbacks: Callback, scripted: bool = True) -> tuple[Trainer, EarlyStoppingCallback]:
    """A run whose evaluations give 1, 2, 3, ... at steps 2, 4, 6 and 8, on a plateau schedule."""
    stopping = EarlyStoppingCallback(patience=99)
    trainer = toy_trainer(
        folder,
        stopping,
        *callbacks,
        task=ToyTask(scripted=map(float, count(1))),
        validation={"interval": 2},
        scheduler={"type": "plateau", "patience": 1, "factor": 0.5},
    )
    trainer.fit()
    return trainer, stopping


def test_scheduled_evaluations_are_remembered(tmp_path: Path):
    trainer, stopping = remembered(tmp_path)
    assert (trainer.state.best.value, trainer.state.best.step) == (1.0, 2)
    assert stopping.state_dict() == {"best": 1.0, "evaluations_without": 3}
    assert trainer.state.plateau is not None
    assert trainer.state.plateau.factor == 0.5


def test_evaluations_asked_for_are_not(tmp_path: Path):
    """The one asked for at step 1 gives the best value of all, and those at 3 and 5 would exhaust the plateau."""
    asking = Asking(evaluate_at=(1, 3, 5))
    trainer, stopping = remembered(tmp_path, asking)
    assert asking.scheduled == {1: False, 2: True, 3: False, 4: True, 5: False, 6: True, 8: True}
    assert (trainer.state.best.value, trainer.state.best.step) == (2.0, 2)
    assert stopping.state_dict() == {"best": 2.0, "evaluations_without": 3}
    assert trainer.state.plateau is not None
    assert trainer.state.plateau.factor == 0.5


def test_a_wish_at_a_scheduled_step_is_one_evaluation(tmp_path: Path):
    asking = Asking(evaluate_at=(2,))
    trainer, _ = remembered(tmp_path, asking)
    assert asking.scheduled == {2: True, 4: True, 6: True, 8: True}
    assert trainer.metrics == {"val_loss": 4.0}


def test_figures_are_sums_over_the_set_divided_once(tmp_path: Path):
    """Not a mean of batch means: against one batch of everything."""
    metrics = {}
    for size in (1, 3, 10):
        trainer = toy_trainer(tmp_path, validation={"batch_size": size})
        trainer.evaluate(due=False)
        metrics[size] = trainer.metrics
    assert metrics[1]["val_loss"] == pytest.approx(metrics[10]["val_loss"], rel=1e-6)
    assert metrics[3]["val_loss"] == pytest.approx(metrics[10]["val_loss"], rel=1e-6)
    assert metrics[1]["val_tokens"] == metrics[10]["val_tokens"] == trainer.task.dataset("valid").lengths.sum()


def test_dropout_is_off_and_the_mode_restored(tmp_path: Path):
    trainer = toy_trainer(tmp_path, task=ToyTask(dropout=0.9))
    for training in (True, False):
        trainer.model.train(training)
        trainer.evaluate(due=False)
        first = trainer.metrics
        trainer.evaluate(due=False)
        assert trainer.metrics == first
        assert trainer.model.training is training


def test_an_interrupted_evaluation_ends_at_once_and_restores_the_mode(tmp_path: Path):
    trainer = toy_trainer(tmp_path)
    trainer.model.train()
    with pytest.raises(EvaluationInterruptedError):
        trainer.evaluator.evaluate(trainer.model, "valid", lambda: True)
    assert trainer.model.training
    assert all(parameter.requires_grad for parameter in trainer.model.parameters())


def test_the_next_batches_are_the_same_after_an_evaluation(tmp_path: Path):
    trainer = toy_trainer(tmp_path)
    before = next_microbatches(trainer)
    trainer.evaluate(due=True)
    torch.rand(3)
    for one, other in zip(before, next_microbatches(trainer), strict=True):
        assert one.batch is not None
        assert other.batch is not None
        assert one.batch["inputs"].equal(other.batch["inputs"])


class TornValidation(ToyTask):
    def dataset(self, split: str) -> ToyDataset:
        return ToyDataset(10, bad=(3,))


def test_a_bad_example_is_named_or_skipped_and_counted(tmp_path: Path):
    with pytest.raises(DataError, match=r"toy\.txt line 4"):
        toy_trainer(tmp_path / "fail", task=TornValidation()).evaluate(due=False)
    alone = toy_trainer(tmp_path / "alone", task=TornValidation())
    with pytest.raises(DataError, match=r"toy\.txt line 4"):  # unless something else is asked for
        Evaluator(alone.task, alone.config, alone.ranks).evaluate(alone.model, "valid")
    trainer = toy_trainer(tmp_path / "skip", task=TornValidation(), skip_bad=True)
    trainer.evaluate(due=False)
    lengths = ToyDataset(10).lengths
    assert trainer.metrics["val_skipped"] == 1
    assert trainer.metrics["val_tokens"] == lengths.sum() - lengths[3]


def test_an_error_of_the_meters_is_raised_as_it_is(tmp_path: Path):
    """Taken for a lack of memory, it would be tried again in ever smaller chunks, and its reason lost."""

    class Failing(ToyTask):
        def meters(self, split: str) -> ToyMeters:
            meters = ToyMeters()
            meters.update = fail  # type: ignore[method-assign,assignment]
            return meters

    def fail(*_: Any) -> None:
        raise ValueError("no such token")

    with pytest.raises(ValueError, match="no such token"):
        toy_trainer(tmp_path, task=Failing()).evaluate(due=False)


class ByLanguage(ToyMeters):
    """A figure for each language that a batch has: the first ones have one only."""

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        return {"wer/hi": 0.5}


@pytest.mark.parametrize(
    ("metric", "is_unknown"), [("val_wer/hi", False), ("val_wer/en", False), ("val_wer", False), ("val_cer/hi", True)]
)
def test_a_figure_that_no_first_batch_can_give_is_no_warning(
    metric: str, is_unknown: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    class Task(ToyTask):
        def meters(self, split: str) -> ToyMeters:
            return ByLanguage()

    toy_trainer(tmp_path, task=Task(), checkpoint={"metric": metric}).rehearse()
    assert ("did not give" in caplog.text) is is_unknown


class KeepsExamples(ToyMeters):
    """Keeps the number of tokens of each batch that it was shown, as what it saw of single examples."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[float] = []

    def update(self, model: torch.nn.Module, batch: Batch) -> None:
        super().update(model, batch)
        self.shown.append(batch.totals()["token"])

    def seen(self) -> dict[str, list[Any]]:
        return {"tokens": self.shown}

    def summary(self, sums: dict[str, float], seen: dict[str, list[Any]]) -> dict[str, Any]:
        return {"all": sums["token"], **seen}


def test_single_examples_are_those_of_all_batches_however_sums_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With exact sums, each batch has separate meters."""
    monkeypatch.setattr(ToyTask, "meters", lambda self, split: KeepsExamples())
    found = {}
    for reduction in ("float", "exact"):
        trainer = toy_trainer(tmp_path / reduction, distributed={"reduction": reduction}, logging={"examples": True})
        made: list[Callable[[], dict[str, bytes]]] = []
        Evaluator(trainer.task, trainer.config, trainer.ranks, show=made.append).evaluate(trainer.model, "valid")
        found[reduction] = json.loads(*made[-1]().values())
    assert found["exact"] == found["float"]
    assert len(found["float"]["tokens"]) > 1
    assert sum(found["float"]["tokens"]) == found["float"]["all"]
