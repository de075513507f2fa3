"""Sections whose type may be a user's class: its options stand next to ``type``, in files, layers and runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from vaak.config.base import REGISTERED
from vaak.config.changes import changes_between
from vaak.config.components import register_optimizer, register_schedule
from vaak.config.load import load, load_values
from vaak.config.optimization import OptimizerConfig
from vaak.config.resolved import as_yaml, resolved_values
from vaak.config.training import AuxiliaryLoss
from vaak.core.errors import UserError

OWN = """\
task: lm
training:
  optimizer: {type: ./mine.py:Adam, lr: 0.1, betas: [0.9, 0.95, 0.99], centred: true}
  scheduler: {type: ./mine.py:Steps, warmup_steps: 3, factor: 3.0}
  loss: {auxiliary: {z_loss: 0.1, own: {type: ./mine.py:Own, weight: 0.2, margin: 3}}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(REGISTERED, "training.optimizer", {})
    monkeypatch.setitem(REGISTERED, "training.scheduler", {})
    (tmp_path / "mine.py").write_text("raise SystemExit\nclass Adam: ...\nclass Steps: ...\nclass Own: ...\n")
    (tmp_path / "f.yml").write_text(OWN)
    return tmp_path


def test_what_vaak_does_not_read_is_the_classes(folder):
    training = load(["f.yml"]).experiment.training
    assert (training.optimizer.lr, training.scheduler.warmup_steps) == (0.1, 3)
    assert training.optimizer.options == {"betas": [0.9, 0.95, 0.99], "centred": True}
    assert training.scheduler.options == {"factor": 3.0}
    own = training.loss.auxiliary["own"]
    assert isinstance(own, AuxiliaryLoss)
    assert (own.type, own.weight, own.options) == ("./mine.py:Own", 0.2, {"margin": 3})


def test_the_resolved_file_repeats_it(folder):
    first = load(["f.yml"]).experiment
    (folder / "again.yml").write_text(as_yaml(first))
    assert load(["again.yml"]).experiment == first
    assert "options:" not in as_yaml(first)


def test_an_override_reaches_its_options(folder):
    training = load(["f.yml"], ["training.optimizer.centred=false", "training.loss.auxiliary.own.margin=4"]).experiment
    assert training.training.optimizer.options["centred"] is False
    own = training.training.loss.auxiliary["own"]
    assert isinstance(own, AuxiliaryLoss)
    assert own.options == {"margin": 4}


def test_another_type_drops_the_options_of_the_one_before(folder):
    loaded = load(["f.yml"], ["training.optimizer.type=adamw"])
    assert loaded.experiment.training.optimizer == OptimizerConfig(type="adamw", lr=0.1)
    assert [str(warning).partition(": ")[2].partition(":")[0] for warning in loaded.warnings] == [
        "training.optimizer.betas",
        "training.optimizer.centred",
    ]
    own = load(["f.yml"], ["training.scheduler=cosine", "training.scheduler.min_lr=1e-3", "training.optimizer=lion"])
    assert own.experiment.training.scheduler.options == {}


def test_a_class_below_another_folder_is_seen_from_the_last_file(folder):
    (folder / "sub").mkdir()
    (folder / "sub" / "g.yml").write_text("extends: ../f.yml\n")
    training = load(["sub/g.yml"]).experiment.training
    own = training.loss.auxiliary["own"]
    assert isinstance(own, AuxiliaryLoss)
    references = [training.optimizer.type, training.scheduler.type, own.type]
    assert references == ["../mine.py:Adam", "../mine.py:Steps", "../mine.py:Own"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.optimizer.type=./mine.py:Adm", "training.optimizer.type: mine.py has no Adm; did you mean Adam?"),
        ("training.scheduler.type=cosin", 'training.scheduler.type: is "cosin"; expected one of constant'),
        ("training.scheduler.type=cosin", "or ./file.py:Name or package.module:Name; did you mean cosine?"),
        ("training.loss.auxiliary.own.type=nope", "training.loss.auxiliary.own.type: 'nope' is not known; expected"),
        ("training.optimizer={type: sgd, centred: true}", "training.optimizer.centred: unknown key"),
    ],
)
def test_mistakes_have_their_place(folder, override, message):
    with pytest.raises(UserError) as error:
        load(["f.yml"], [override])
    assert message in str(error.value)


def test_registered_names_work_in_values_and_files(folder):
    class Mine: ...

    register_optimizer("mine", Mine)
    register_schedule("mine", Mine)
    values = {"task": "lm", "training": {"optimizer": {"type": "mine", "power": 2}, "scheduler": "mine"}}
    training = load_values([{}, values], folder / "f.yml").experiment.training
    assert (training.optimizer.options, training.scheduler.type) == ({"power": 2}, "mine")


def test_a_runs_configuration_with_a_name_that_is_not_registered_says_so(folder):
    (folder / "run").mkdir()
    (folder / "run" / "run.json").write_text("{}")
    (folder / "run" / "config.yml").write_text("task: lm\ntraining: {optimizer: mine, loss: my_loss}\n")
    with pytest.raises(UserError) as error:
        load([folder / "run" / "config.yml"])
    first, second = sorted(str(error.value).splitlines())
    for line, key in ((first, "training.loss.main.type"), (second, "training.optimizer.type")):
        assert key in line
        assert line.endswith("register it here, too, before opening the run")
    register_optimizer("mine", object)
    with pytest.raises(UserError) as error:
        load([folder / "run" / "config.yml"])
    assert "optimizer" not in str(error.value)


def test_a_changed_option_of_the_class_is_a_change_of_the_run(folder):
    def values(*overrides: str) -> dict[str, object]:
        return resolved_values(load(["f.yml"], overrides).experiment)

    before = values()
    after = values("training.optimizer.betas=[0.9,0.95,0.5]", "training.optimizer.eps=1e-8", "training.optimizer.lr=1")
    assert list(map(str, changes_between(before, after))) == [
        "training.optimizer.lr was 0.1, is 1.0",
        "training.optimizer.betas was [0.9, 0.95, 0.99], is [0.9, 0.95, 0.5]",
        "training.optimizer.eps was not given, is 1e-08",
    ]
    assert {change.resume_class for change in changes_between(before, after)} == {"other numbers"}
    other = values("training.optimizer.type=./mine.py:Own")
    assert [str(change) for change in changes_between(before, other) if change.resume_class == "refused"] == [
        'training.optimizer.type was "./mine.py:Adam", is "./mine.py:Own"'
    ]


def test_a_copied_file_is_no_change(folder):
    before = resolved_values(load(["f.yml"]).experiment)
    (folder / "code").mkdir()
    (folder / "code" / "mine.py").write_text((folder / "mine.py").read_text())
    (folder / "f.yml").write_text(OWN.replace("./mine.py", "./code/mine.py"))
    assert changes_between(before, resolved_values(load(["f.yml"]).experiment)) == []


def test_in_python_options_are_given_as_options():
    config = OptimizerConfig(type="torch.optim:NAdam", options={"betas": (0.9, 0.95)})
    assert config.options == {"betas": (0.9, 0.95)}
    with pytest.raises(UserError, match=r"betas is not read for .*NAdam; give it in options"):
        OptimizerConfig(type="torch.optim:NAdam", betas=(0.9, 0.95))
    with pytest.raises(UserError, match="nadam is not known; expected one of adamw, adam, sgd"):
        OptimizerConfig(type="nadam")
