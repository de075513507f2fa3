"""A user's optimizer trains as Vaak's own do: its options, its mistakes, and a resume that changes no bit."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from all_parameters import build_optimizers
from quick_cases import mostly_slow
from run_files import last_checkpoint
from toy import StopAt, same_bits, toy_trainer, weights
from vaak.config.base import REGISTERED
from vaak.config.components import register_optimizer
from vaak.config.optimization import UPDATE_RULES, OptimizerConfig
from vaak.core.errors import CheckpointError, UserError
from vaak.engine.gradient import Undo


class Counting(Optimizer):
    """Sign descent with a momentum that starts late; counts its steps in its groups, where its decay is as well."""

    def __init__(self, params: Any, lr: float, decays: tuple[float, float, float] = (0.5, 0.7, 0.9)) -> None:
        super().__init__(params, {"lr": lr, "decays": decays, "taken": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["taken"] += 1
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                state.setdefault("scale", torch.ones(()))
                if group["taken"] > 2:  # not there in a first step
                    state.setdefault("late", torch.ones_like(parameter)).lerp_(parameter.grad, group["decays"][1])
                state["scale"] *= group["decays"][2]
                parameter.sub_(state.get("late", parameter.grad).sign() * state["scale"], alpha=group["lr"])


class NeedsClosure(SGD):
    def step(self, closure: Any) -> Any:  # type: ignore[override]
        return super().step(closure)


class KeepsGlobally(Counting):
    def step(self, closure: Any = None) -> Any:
        super().step()
        self.state["all"] = {"norm": 1.0}  # type: ignore[index]


class KeepsObjects(Counting):
    def step(self, closure: Any = None) -> Any:
        super().step()
        self.param_groups[0]["history"] = {object()}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTERED, "training.optimizer", {})
    for kind in (Counting, NeedsClosure, KeepsGlobally, KeepsObjects):
        register_optimizer(kind.__name__.lower(), kind)


def built(**options: Any) -> Optimizer:
    (optimizer,) = build_optimizers(nn.Linear(3, 2), OptimizerConfig(**options))
    return optimizer


def test_it_gets_its_options_and_vaaks_groups():
    optimizer = built(type="counting", lr=0.5, layer_decay=0.5, options={"decays": (0.1, 0.2, 0.3)})
    assert type(optimizer) is Counting
    assert {group["decays"] for group in optimizer.param_groups} == {(0.1, 0.2, 0.3)}
    assert [group["base_lr"] for group in optimizer.param_groups] == [0.5, 0.5]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.0]


def test_a_class_of_a_package_and_of_a_file(tmp_path):
    assert type(built(type="torch.optim:NAdam", options={"momentum_decay": 0.1})) is torch.optim.NAdam
    (tmp_path / "mine.py").write_text("from torch.optim import RMSprop as Mine\n")
    config = OptimizerConfig(type="./mine.py:Mine")
    assert type(build_optimizers(nn.Linear(3, 2), config, tmp_path)[0]) is torch.optim.RMSprop


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "numpy:ndarray"}, r"training.optimizer: numpy:ndarray is not a torch.optim.Optimizer class"),
        ({"type": "torch.optim:Nadam"}, r"training.optimizer: torch.optim:Nadam can't be loaded"),
        ({"type": "torch.optim:LBFGS"}, r"step\(\) of torch.optim:LBFGS needs a closure"),
        ({"type": "needsclosure"}, "needs a closure"),
        (
            {"type": "counting", "options": {"decay": 0.1}},
            "counting has no option decay; its options are decays; did you mean decays",
        ),
        ({"type": "counting", "options": {"params": []}}, "counting has no option params"),
        ({"type": "torch.optim:NAdam", "options": {"betas": [2.0, 0.9]}}, "NAdam can't be created: Invalid beta"),
    ],
)
def test_mistakes_are_one_line(options, message):
    with pytest.raises(UserError, match=message) as error:
        built(**options)
    assert "\n" not in str(error.value)


def test_a_decay_that_the_class_does_not_know_is_reported(caplog):
    with caplog.at_level(logging.WARNING, "vaak"):
        built(type="counting", weight_decay=0.1)
        built(type="counting", weight_decay=0.0)
        built(type="torch.optim:NAdam", weight_decay=0.1)
    assert [record.getMessage() for record in caplog.records] == [
        "training.optimizer.weight_decay: counting has no weight decay, so nothing decays"
    ]


def test_a_built_in_name_is_not_registered_again():
    with pytest.raises(UserError, match="'muon' is built-in"):
        register_optimizer("muon", Counting)
    with pytest.raises(UserError, match="can't be registered"):
        register_optimizer("my:optimizer", Counting)


@pytest.mark.parametrize(
    "kind",
    mostly_slow(
        ("counting", "torch.optim:NAdam", "torch.optim:Rprop", "torch.optim:ASGD"), "counting", "torch.optim:ASGD"
    ),
)
def test_a_resume_changes_no_bit(kind, tmp_path):
    options: dict[str, Any] = {
        "optimizer": {"type": kind, "lr": 0.01},
        "checkpoint": {"interval": 1, "save_total_limit": None},
    }
    whole = toy_trainer(tmp_path / "whole", **options)
    assert whole.fit() == "finished"
    stopped = toy_trainer(tmp_path / "stopped", StopAt(5), **options)
    assert stopped.fit() == "enough"
    resumed = toy_trainer(tmp_path / "stopped", **options)
    assert resumed.resume("auto")
    assert resumed.position.step == 5
    resumed.fit()
    assert same_bits(weights(resumed), weights(whole))
    found, expected = (last_checkpoint(tmp_path / run) for run in ("stopped", "whole"))
    assert same_bits(found.optimizer, expected.optimizer)
    assert found.state["optimizer"] == expected.state["optimizer"]


def test_what_it_counts_in_its_groups_is_kept(tmp_path):
    trainer = toy_trainer(tmp_path, optimizer={"type": "counting", "lr": 0.01})
    trainer.fit()
    values = trainer.state.optimizer.state_dict()
    assert {name: value for name, value in values.items() if name.startswith("groups")} == {
        f"groups.0.{index}.taken": trainer.total_steps for index in range(len(trainer.state.optimizers[0].param_groups))
    }


def test_the_rehearsal_leaves_it_alone(tmp_path):
    rehearsed = toy_trainer(tmp_path / "rehearsed", optimizer={"type": "torch.optim:NAdam", "lr": 0.01})
    rehearsed.fit()
    options: dict[str, Any] = {"optimizer": {"type": "torch.optim:NAdam", "lr": 0.01}, "memory": {"rehearsal": False}}
    plain = toy_trainer(tmp_path / "plain", **options)
    plain.fit()
    assert same_bits(weights(rehearsed), weights(plain))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("keepsglobally", "keeps state under 'all', which is not a parameter"),
        ("keepsobjects", "keeps 'history' as set"),
    ],
)
def test_what_a_checkpoint_cannot_keep_ends_the_run_with_one_line(kind, message, tmp_path):
    trainer = toy_trainer(tmp_path, optimizer={"type": kind, "lr": 0.01}, checkpoint={"interval": 1})
    with pytest.raises(UserError, match=message) as error:
        trainer.fit()
    assert "\n" not in str(error.value)


def test_another_models_state_is_refused(tmp_path):
    trainer = toy_trainer(tmp_path, optimizer={"type": "counting", "lr": 0.01})
    trainer.fit()
    state = trainer.state.optimizer.state_dict()
    renamed = {name.replace(".embedding.", ".embeddings."): value for name, value in state.items()}
    with pytest.raises(CheckpointError, match=r"lacks 1 .*embedding.* and has foreign 2"):
        trainer.state.optimizer.load_state_dict(renamed)


def test_a_step_that_is_taken_back_takes_back_what_groups_count():
    optimizer = built(type="counting")
    parameters = optimizer.param_groups[0]["params"]
    undo = Undo()
    undo.keep([optimizer])
    before = [parameter.detach().clone() for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert optimizer.param_groups[0]["taken"] == 1
    undo.take_back()
    assert optimizer.param_groups[0]["taken"] == 0
    assert all(map(torch.equal, parameters, before))
    assert not optimizer.state


def test_the_table_says_which_options_a_rule_reads():
    for name, rule in UPDATE_RULES.items():
        assert set(rule.reads) <= set(OptimizerConfig.model_fields), name
        assert not any(OptimizerConfig.reads(option) for option in rule.reads), name
