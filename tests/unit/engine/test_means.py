"""A term that is a mean is reported once, before the first step; nothing else is, and training continues as without."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from toy import QUIET, StopAt, ToyTask, same_bits, toy_trainer, weights
from toy_duel import DuelTask
from vaak.config.training import TrainingConfig
from vaak.core.batch import Batch, Term
from vaak.engine.callback import Callback
from vaak.engine.rehearsal import warn_of_means
from vaak.engine.trainer import Trainer

Change = Callable[[Term, nn.Module, Batch], Term]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The warnings of means so far."""
    monkeypatch.setattr("vaak.engine.rehearsal.log.propagate", True)
    return lambda: [message for message in caplog.messages if "looks like a mean" in message]


def with_term(change: Change) -> type[ToyTask]:
    """A toy whose loss ``main`` is changed."""

    class TaskWrapper(ToyTask):
        def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
            terms = super().losses(model, batch)
            return {**terms, "main": change(terms["main"], model, batch)}

    return TaskWrapper


def over_tokens(term: Term, model: nn.Module, batch: Batch) -> Term:
    return Term(term.total / batch.totals()["token"], "token")


def over_rows(term: Term, model: nn.Module, batch: Batch) -> Term:
    return Term(term.total / batch.num_rows, "token")


def over_what_is_not_counted(term: Term, model: nn.Module, batch: Batch) -> Term:
    return Term(term.total / (batch["targets"] > 5).sum(), "token")


def small(term: Term, model: nn.Module, batch: Batch) -> Term:
    return Term(1e-6 * term.total / batch.totals()["token"], "token")


MEANS = {
    "over tokens": (over_tokens, "it is the mean over each token of its batch"),
    "over rows": (over_rows, "it is the mean over each example of its batch"),
    "over what is not counted": (over_what_is_not_counted, "times that of the batch"),
    "of small numbers": (small, "it is the mean over each token of its batch"),
}


@pytest.mark.parametrize("kind", MEANS)
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_mean_is_reported_once(kind: str, precision: str, said: Callable[[], list[str]], tmp_path: Path):
    change, why = MEANS[kind]
    trainer = toy_trainer(tmp_path, task=with_term(change)(), batch_size=16, mixed_precision=precision)
    trainer.fit()
    (line,) = said()
    assert line.startswith("the loss main looks like a mean, not a sum (")
    assert why in line
    assert "divided by the count of token in the whole step" in line


def test_a_run_that_is_resumed_is_not_told_again(said: Callable[[], list[str]], tmp_path: Path):
    options: dict[str, Any] = {"batch_size": 16, "checkpoint": {"interval": 1}}
    toy_trainer(tmp_path, StopAt(1), task=with_term(over_rows)(), **options).fit()
    assert len(said()) == 1
    resumed = toy_trainer(tmp_path, task=with_term(over_rows)(), **options)
    assert resumed.resume("auto")
    resumed.fit()
    assert len(said()) == 1


def noisy(term: Term, model: nn.Module, batch: Batch) -> Term:
    """A sum, of which every draw makes another."""
    return Term(term.total * (0.5 + 3 * torch.rand(())), "token")


def declared(term: Term, model: nn.Module, batch: Batch) -> Term:
    return Term(term.total / batch.num_rows, "token", splittable=False)


def only_in_training(term: Term, model: nn.Module, batch: Batch) -> Term:
    assert model.training, "in evaluation the model has no losses"
    return over_rows(term, model, batch)


def of_a_gradient(term: Term, model: nn.Module, batch: Batch) -> Term:
    (gradient,) = torch.autograd.grad(term.total, [next(model.parameters())], create_graph=True)
    return Term(term.total + gradient.square().sum(), "token")


@pytest.mark.parametrize(
    "change", [lambda term, *_: term, noisy, declared, only_in_training, of_a_gradient], ids=lambda one: one.__name__
)
def test_nothing_else_is(change: Change, said: Callable[[], list[str]], tmp_path: Path):
    toy_trainer(tmp_path, task=with_term(change)(), batch_size=16, max_steps=2).fit()
    assert said() == []


def test_a_batch_of_one_row_says_nothing(said: Callable[[], list[str]], tmp_path: Path):
    toy_trainer(tmp_path, task=with_term(over_rows)(), batch_size=1, max_steps=2).fit()
    assert said() == []


def test_a_resumed_run_does_not_say_it_again(said: Callable[[], list[str]], tmp_path: Path):
    for stops in ([StopAt(2)], []):
        trainer = toy_trainer(tmp_path, *stops, task=with_term(over_rows)())
        trainer.resume("auto")
        trainer.fit()
        assert len(said()) == 1


def test_each_objective_is_looked_at(said: Callable[[], list[str]], tmp_path: Path):
    class Means(DuelTask):
        def __init__(self) -> None:
            super().__init__()
            self.objectives = tuple(
                type(one)(one.name, one.modules, self._averaged(one.losses)) for one in self.objectives
            )

        def _averaged(self, losses: Any) -> Any:
            return lambda model, batch: {
                name: Term(term.total / batch.totals()[term.per], term.per)
                for name, term in losses(model, batch).items()
            }

    Trainer(Means(), TrainingConfig(**QUIET), tmp_path).fit()
    assert [line.split()[2] for line in said()] == ["judge", "distance", "disguise"]


class Recorder(Callback):
    """The generators and the modes at the start of training, and every loss."""

    def __init__(self) -> None:
        self.losses: list[dict[str, Tensor]] = []

    def on_step_end(self, trainer: Any, report: Any) -> None:
        self.losses.append(dict(report.losses))


def test_training_is_the_same_to_the_bit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """With dropout, noise, redraws and three microbatches a step; and the look costs one batch and its halves."""
    calls: list[int] = []

    class Counted(with_term(over_rows)):  # type: ignore[misc]
        def losses(self, model: nn.Module, batch: Batch) -> dict[str, Term]:
            calls.append(batch.num_rows)
            terms: dict[str, Term] = super().losses(model, batch)
            return terms

    def trained(name: str) -> tuple[Trainer, Recorder, list[int]]:
        calls.clear()
        recorder = Recorder()
        trainer = toy_trainer(tmp_path / name, recorder, task=Counted(), feature_redraw_interval=2)
        trainer.fit()
        return trainer, recorder, list(calls)

    looked, with_look, more = trained("with")
    monkeypatch.setattr("vaak.engine.rehearsal.warn_of_means", lambda *_: None)
    plain, without_look, fewer = trained("without")
    assert all(map(same_bits, with_look.losses, without_look.losses))
    assert len(with_look.losses) == len(without_look.losses) == 8
    assert same_bits(weights(looked), weights(plain))
    assert same_bits(looked.saving.snapshot().optimizer, plain.saving.snapshot().optimizer)
    assert len(more) - len(fewer) == 4, "the batch, its halves, and the batch once more"


def test_generators_modes_and_buffers_are_as_before(tmp_path: Path):
    trainer = toy_trainer(tmp_path, task=with_term(over_rows)())
    trainer.model.train()
    trainer.model.get_submodule("features").eval()
    (first, *_) = next(trainer.data.steps(trainer.position)).microbatches
    assert first.batch is not None
    projection = trainer.model.get_buffer("features.projection")

    class Forgetful(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            projection.fill_(7.0)
            return x

    trainer.model.add_module("dropout", Forgetful())

    def state() -> tuple[Any, ...]:
        modes = tuple(module.training for module in trainer.model.modules())
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), modes  # type: ignore[index]

    before = state()
    warn_of_means(trainer.step.objectives, trainer.state, first.batch, 1)
    assert state() == before
    assert bool((projection == 0).all())
