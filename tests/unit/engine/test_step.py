"""Clipping equals torch's, draws are functions of the step, and features are redrawn at the step's boundary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toy import ToyTask, next_data, next_microbatches, one_step, same_bits, toy_trainer, weights
from vaak.config.optimization import GradientClippingConfig
from vaak.core.batch import Term, get_divisor
from vaak.core.random_keys import Purpose, draw_key
from vaak.data.loader import Address, Microbatch
from vaak.engine.gradient import LossSums
from vaak.engine.step import clip_gradients
from vaak.engine.training_data import StepData, count_units


def parameters_with_gradients(seed: int, scale: float) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((3, 4), (5,), ())]
    for parameter in parameters:
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator)
    return parameters


@given(
    seed=st.integers(0, 99),
    scale=st.sampled_from([0.01, 1.0, 100.0]),
    norm=st.sampled_from([None, 0.5, 2.0]),
    value=st.sampled_from([None, 0.1, 3.0]),
)
def test_clipping_is_torchs(seed: int, scale: float, norm: float | None, value: float | None):
    ours, torchs = parameters_with_gradients(seed, scale), parameters_with_gradients(seed, scale)
    gradients = [parameter.grad for parameter in ours if parameter.grad is not None]
    clip_gradients(gradients, torch.nn.utils.get_total_norm(gradients), GradientClippingConfig(norm=norm, value=value))
    if norm is not None:
        torch.nn.utils.clip_grad_norm_(torchs, norm)
    if value is not None:
        torch.nn.utils.clip_grad_value_(torchs, value)
    for gradient, parameter in zip(gradients, torchs, strict=True):
        assert parameter.grad is not None
        assert gradient.equal(parameter.grad)


def test_the_reported_norm_is_that_before_clipping(tmp_path: Path):
    free, free_gradients = one_step(toy_trainer(tmp_path, gradient_clipping={"norm": None}))
    clipped, gradients = one_step(toy_trainer(tmp_path, gradient_clipping={"norm": 0.1}))
    norm = torch.stack([gradient.norm() for gradient in free_gradients.values()]).norm()
    assert float(free.gradient_norm) == float(clipped.gradient_norm) == pytest.approx(float(norm))
    assert float(torch.stack([gradient.norm() for gradient in gradients.values()]).norm()) == pytest.approx(
        0.1, rel=1e-4
    )


def test_a_step_is_a_function_of_the_state_and_its_number(tmp_path: Path):
    """Whatever was drawn in between: dropout and augmentation come from the step alone."""
    calm, restless = toy_trainer(tmp_path), toy_trainer(tmp_path)
    for step in range(5):
        one_step(calm)
        torch.rand(step)
        data = next_data(restless)
        torch.manual_seed(step)
        restless.take_step(data)
    assert same_bits(weights(calm), weights(restless))


def test_every_step_microbatch_and_seed_draws_differently(tmp_path: Path):
    """The same rows and weights, with dropout: another loss for each, and the same again."""

    def loss(step: int, number: int, seed: int = 1) -> float:
        trainer = toy_trainer(tmp_path, task=ToyTask(noise=0.0, dropout=0.5), random_seed=seed)
        rows = [[index] for index in range(12)]
        batch = trainer.data.reader[Address(1, 0, 0, rows)].batch
        for parameter in trainer.model.parameters():
            torch.nn.init.constant_(parameter, 0.1)
        torch.nn.init.normal_(trainer.model.get_parameter("head.weight"), generator=torch.Generator().manual_seed(3))
        trainer.position.step = step - 1
        fetched = [Microbatch(Address(step, number, 0, rows), batch)]
        return float(trainer.take_step(StepData(step, fetched, count_units(fetched))).losses["main"])

    places = [(1, 0), (1, 1), (2, 0), (2, 1), (1, 0, 2)]
    losses = [loss(*place) for place in places]
    assert len(set(losses)) == len(places)
    assert [loss(*place) for place in places] == losses


def test_a_step_without_anything_to_read_changes_no_weights_but_counts(tmp_path: Path):
    """All its examples were skipped: gradients are none, and the run continues."""
    trainer = toy_trainer(tmp_path)
    before = weights(trainer)
    report = trainer.take_step(StepData(1, [Microbatch(Address(1, 0, 0, []), None)], {}))
    assert same_bits(before, weights(trainer))
    assert (report.step, report.losses, report.counts, float(report.gradient_norm)) == (1, {}, {}, 0.0)


def test_a_report_keeps_nothing_that_a_forward_pass_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Kept for some steps, it would fragment the memory of the next ones: a run took 8 to 40 MB more."""
    made: list[torch.Tensor] = []
    add = LossSums.add

    def watched(self: LossSums, terms: dict[str, Term], scale: float = 1.0) -> Any:
        made.extend(term.total for term in terms.values())
        return add(self, terms, scale)

    monkeypatch.setattr(LossSums, "add", watched)
    trainer = toy_trainer(tmp_path, gradient_accumulation_steps=1)
    report = trainer.take_step(next(trainer.data.steps(trainer.position)))
    assert made
    kept = {total.data_ptr() for total in report.sums.values()}
    assert kept.isdisjoint(total.data_ptr() for total in made)
    assert [float(total) for total in report.sums.values()] == [float(total.detach()) for total in made]


def test_a_unit_without_a_count_gives_no_division_by_zero():
    losses = LossSums({}, {"token": 0.0})
    _, (factor,) = losses.add({"main": Term(torch.zeros((), requires_grad=True), "token")})
    assert (float(factor), float(losses.sums["main"]), get_divisor(losses.counts, "token")) == (1.0, 0.0, 1.0)


def test_terms_are_weighed_in_the_gradient_and_reported_as_they_are():
    losses = LossSums({"extra": 0.5}, {"token": 4.0, "frame": 2.0})
    x = torch.tensor(2.0, requires_grad=True)
    for _ in range(2):
        torch.autograd.backward(*losses.add({"main": Term(8 * x, "token"), "extra": Term(6 * x, "frame")}, scale=32.0))
    assert x.grad is not None
    assert float(x.grad) == 2 * 32 * (8 / 4 + 0.5 * 6 / 2)
    assert {name: float(total) for name, total in losses.sums.items()} == {"main": 32.0, "extra": 24.0}
    assert losses.units == {"main": "token", "extra": "frame"}


def test_a_term_without_a_gradient_is_reported_and_left_out_of_the_descent():
    losses = LossSums({}, {"token": 4.0})
    assert losses.add({"main": Term(torch.tensor(8.0), "token")}) == ([], [])
    assert (float(losses.sums["main"]), losses.units) == (8.0, {"main": "token"})


def test_half_precision_sums_are_taken_on_in_single_precision():
    total = torch.tensor(60000.0, dtype=torch.float16, requires_grad=True)
    losses = LossSums({}, {"token": 7.0})
    (root,), (factor,) = losses.add({"main": Term(total, "token")})
    losses.add({"main": Term(total, "token")})
    assert (root.dtype, factor.dtype, float(losses.sums["main"])) == (torch.float32, torch.float32, 120000.0)


def test_counts_are_summed_over_microbatches(tmp_path: Path):
    fetched = next_microbatches(toy_trainer(tmp_path))
    tokens = sum(int(microbatch.batch.counts["token"].sum()) for microbatch in fetched if microbatch.batch)
    assert count_units(fetched) == {"token": tokens, "example": 12.0}
    assert count_units([]) == {}


def test_features_are_redrawn_every_so_many_steps_by_a_key_of_the_step(tmp_path: Path):
    trainer = toy_trainer(tmp_path, feature_redraw_interval=3)
    number = [type(module).__name__ for module in trainer.model.modules()].index("RandomFeatures")
    drawn = []
    for _ in range(7):
        one_step(trainer)
        drawn.append(trainer.model.get_buffer("features.projection").clone())
    assert not drawn[1].any()
    for step in (3, 6):
        generator = torch.Generator().manual_seed(draw_key(Purpose.RANDOM_FEATURES, 42, step, number))
        assert drawn[step - 1].equal(torch.randn(8, 8, generator=generator))
    assert drawn[3].equal(drawn[2])
    assert drawn[6].equal(drawn[5])


def test_a_fixed_projection_is_never_redrawn(tmp_path: Path):
    trainer = toy_trainer(tmp_path, feature_redraw_interval=1, fixed_projection=True)
    one_step(trainer)
    assert not trainer.model.get_buffer("features.projection").any()
