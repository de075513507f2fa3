"""A run trained by a user's optimizer, schedule and auxiliary loss: copied, trusted, resumed to the bit, opened."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tiny_runs
from run_files import last_checkpoint
from vaak.config.load import load
from vaak.core.errors import UserError
from vaak.runs.open_run import open_run
from vaak.runs.start import train

CODE = """\
import torch
from vaak.core.batch import Term

class Mine(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=(0.5, 0.9)):
        super().__init__(params, {"lr": lr, "momentum": momentum, "taken": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["taken"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                    mean.lerp_(parameter.grad, 1 / group["taken"] ** group["momentum"][0])
                    parameter.sub_(mean.sign(), alpha=group["lr"])

class Halving:
    def __init__(self, every):
        self.every = every

    def __call__(self, step, total_steps):
        return 0.5 ** ((step - 1) // self.every)

class Entropy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, outputs, targets, valid, per):
        return Term((self.scale * outputs).logsumexp(-1)[valid].sum(), per)
"""
MINE = """\
extends: tiny.yml
training:
  optimizer: {type: './mine.py:Mine', lr: 1e-2, momentum: [0.7]}
  scheduler: {type: './mine.py:Halving', every: 3}
  loss: {auxiliary: {entropy: {type: './mine.py:Entropy', weight: 0.01}}}
  checkpoint: {interval: 2}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    tiny_runs.write_corpus(folder)
    (folder / "mine.py").write_text(CODE)
    (folder / "mine.yml").write_text(MINE)
    return folder


def trained(project: Path, run: Path, *overrides: str) -> Path:
    loaded = load([project / "mine.yml"], [f"run_dir={run}", *overrides])
    train(loaded)
    return run


@pytest.fixture(scope="module")
def whole(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(project, tmp_path_factory.mktemp("runs") / "whole")


def test_a_resume_changes_no_bit(project, whole, tmp_path):
    run = trained(project, tmp_path / "run", "training.max_steps=4")
    trained(project, run, "training.checkpoint.resume=auto")
    found, expected = (last_checkpoint(one) for one in (run, whole))
    assert found.step == expected.step == 8
    for part in ("model", "optimizer", "loss"):
        ours, theirs = getattr(found, part), getattr(expected, part)
        assert ours.keys() == theirs.keys(), part
        assert all(tensor.equal(theirs[name]) for name, tensor in ours.items()), part
    assert found.state["optimizer"] == expected.state["optimizer"]
    assert "auxiliary_entropy.scale" in found.loss


def test_the_copy_in_the_run_resumes_it(project, whole, tmp_path):
    run = trained(project, tmp_path / "run", "training.max_steps=4")
    config = run / "config.yml"
    assert "./code/mine.py:Mine" in config.read_text()
    train(load([config], ["training.max_steps=8", "training.checkpoint.resume=auto"], trust_code=True))
    found, expected = (last_checkpoint(one) for one in (run, whole))
    assert all(tensor.equal(expected.model[name]) for name, tensor in found.model.items())


def test_using_the_run_executes_none_of_its_code(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run", symlinks=True)
    (run / "code" / "mine.py").write_text("raise SystemExit('this is executed')\n" + CODE)
    assert open_run(run).checkpoint.exists()


def test_training_it_again_asks_for_trust(vaak, whole):
    code, _, errors = vaak("train", whole / "config.yml", "training.max_steps=9")
    assert code == 2
    for name in ("Mine", "Halving", "Entropy"):
        assert f"./code/mine.py:{name}" in errors
    assert "--trust-code" in errors


def test_a_wrong_option_is_one_line_before_anything_is_trained(project, tmp_path):
    with pytest.raises(UserError, match=r"training.optimizer: ./mine.py:Mine has no option momentums"):
        trained(project, tmp_path / "run", "training.optimizer.momentums=1")
