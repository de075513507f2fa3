"""A wrong backward is found and named; right ones pass; the model is left alone."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from toy import ToyDataset, ToyModel, ToyTask, same_bits
from toy_duel import Contours, Duel, DuelTask
from vaak.study import check_gradients, gradient_norms
from vaak.tasks.lm import model as lm_model


class WronglyScaled(torch.autograd.Function):
    """x · w, whose backward gives w a gradient that is off by a factor."""

    @staticmethod
    def forward(ctx, x, weight, factor):
        ctx.save_for_backward(x, weight)
        ctx.factor = factor
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight, ctx.factor * (gradient * x).sum((0, 1)), None


class Planted(ToyModel):
    """The toy model with a scale between embedding and head; ``fault`` is what is wrong with its gradient."""

    def __init__(self, fault: str) -> None:
        super().__init__(dropout=0.3)
        self.fault = fault
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, inputs):
        x = self.embedding(inputs)
        if self.fault == "detached":
            x = x * self.scale.detach()
        elif self.fault == "none":
            x = x * self.scale
        else:
            x = WronglyScaled.apply(x, self.scale, float(self.fault))
        return self.head(self.features(self.dropout(x)))


def a_batch(rows=6):
    data = ToyDataset(rows)
    rng = np.random.default_rng(0)
    return data.collate([[data.example(index, rng)] for index in range(rows)])


@pytest.mark.parametrize("fault", ["1.01", "0.5", "-1", "0", "detached"])
def test_a_wrong_gradient_is_found_and_named(fault):
    checks = check_gradients(ToyTask(), Planted(fault), a_batch())
    assert [check.name for check in checks if not check.is_right] == ["scale"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fault", ["none", "1.0"])
def test_right_gradients_pass(fault, seed):
    torch.manual_seed(seed)
    checks = check_gradients(ToyTask(), Planted(fault), a_batch(), seed=seed)
    assert all(check.is_right for check in checks)
    assert max(check.error for check in checks) < 1e-5
    assert {"scale", "embedding.weight", "head.weight", "head.bias"} == {check.name for check in checks}


def test_every_loss_and_its_weight_count():
    task = ToyTask()
    task.loss = task.loss.model_copy(update={"auxiliary": {"z_loss": 1.0}})
    weighed = [check_gradients(task, ToyModel(), a_batch(), loss_weights={"z_loss": weight}) for weight in (0.0, 5.0)]
    assert all(check.is_right for checks in weighed for check in checks)
    assert weighed[0][0].norm != pytest.approx(weighed[1][0].norm)


@pytest.mark.parametrize("broken", [None, "judge_losses", "maker_losses"])
def test_each_parameter_is_checked_under_the_objective_that_trains_it(broken, monkeypatch):
    task, model, data = DuelTask(), Duel(), Contours("train", 6)
    batch = data.collate([[data.example(index, np.random.default_rng(0))] for index in range(6)])
    if broken is not None:
        whole = getattr(DuelTask, broken)
        monkeypatch.setattr(
            task, broken, lambda model, batch: {n: detached(t) for n, t in whole(task, model, batch).items()}
        )
        task.objectives = tuple(replace(one, losses=getattr(task, f"{one.name}_losses")) for one in task.objectives)
    checks = check_gradients(task, model, batch)
    assert [check.name for check in checks] == [name for name, _ in model.named_parameters()]
    wrong = {check.name.split(".")[0] for check in checks if not check.is_right}
    assert wrong == ({broken.removesuffix("_losses")} if broken else set())


def detached(term):
    """The term with a hundredth of its gradient missing."""
    return replace(term, total=0.99 * term.total + 0.01 * term.total.detach())


def test_the_model_and_the_generators_are_left_alone():
    torch.manual_seed(0)
    model = ToyModel(dropout=0.2).eval()
    model(torch.zeros(1, 2, dtype=torch.long)).sum().backward()
    model.embedding.weight.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    norms, drawn = gradient_norms(model), torch.get_rng_state()
    checks = check_gradients(ToyTask(), model, a_batch())
    assert "embedding.weight" not in [check.name for check in checks]
    assert same_bits(dict(model.state_dict()), before)
    assert gradient_norms(model) == norms
    assert not model.training
    assert torch.get_rng_state().equal(drawn)


def test_gradient_norms_are_by_name_and_only_where_there_is_a_gradient():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    assert gradient_norms(model) == {}
    model[1](torch.tensor([[3.0, 4.0]])).sum().backward()
    assert gradient_norms(model) == {"1.weight": 5.0, "1.bias": 1.0}


def test_the_command_shows_every_parameter(tiny_text, tmp_path, vaak):
    code, said, errors = vaak("check-gradients", tiny_text / "tiny.yml", f"run_dir={tmp_path / 'run'}", "--rows", 2)
    assert (code, errors) == (0, "")
    assert "embedding.weight" in said
    code, said, _ = vaak(
        "check-gradients", tiny_text / "tiny.yml", f"run_dir={tmp_path / 'run'}", "--rows", 2, "--json"
    )
    assert code == 0
    assert all(check["is_right"] for check in json.loads(said))
    assert not (tmp_path / "run").exists()


def test_the_command_fails_where_a_gradient_is_wrong_and_names_it(tiny_text, tmp_path, vaak, monkeypatch):
    norm = lm_model.LanguageModel.forward

    def forward(self, *arguments, **options):
        self.embedding.weight.register_hook(lambda gradient: 1.1 * gradient)
        return norm(self, *arguments, **options)

    monkeypatch.setattr(lm_model.LanguageModel, "forward", forward)
    code, said, errors = vaak("check-gradients", tiny_text / "tiny.yml", f"run_dir={tmp_path / 'run'}", "--rows", 2)
    assert code == 2
    assert [line.split()[0] for line in said.splitlines() if line.endswith("wrong")] == ["embedding.weight"]
    assert errors.startswith("gradients of 1 of ")
    assert "embedding.weight" in errors
    assert len(errors.splitlines()) == 1
