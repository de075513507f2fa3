"""``vaak find-lr``: the engine's own steps at growing rates, in a folder that is gone afterwards."""

from __future__ import annotations

import csv
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny_runs
from vaak.core.errors import UserError
from vaak.engine.step import Step
from vaak.runs.start import temporary_trainer
from vaak.study.lr_finder import find_lr, write_curve
from vaak.study.lr_range import Curve, RateRange

SHORT = RateRange(num_iter=12)


def test_steps_are_those_of_training_with_the_rates_of_the_range(tiny_text, tmp_path, monkeypatch):
    overrides = (
        "training.optimizer.type=muon",
        "training.gradient_accumulation_steps=2",
        "training.gradient_clipping=0.1",
    )
    loaded = tiny_runs.loaded(tiny_text, tmp_path / "run", *overrides)
    seen = []

    take_step = Step.__call__

    def watched(step, state, data):
        report = take_step(step, state, data)
        rates = [group["lr"] for optimizer in state.optimizers for group in optimizer.param_groups]
        seen.append((len(data.microbatches), max(rates), min(rates), float(next(iter(report.losses.values())))))
        return report

    monkeypatch.setattr(Step, "__call__", watched)
    curve = find_lr(loaded, SHORT)
    assert [largest for _, largest, _, _ in seen] == pytest.approx([SHORT.rate(number) for number in range(12)])
    assert [smallest for _, _, smallest, _ in seen] == pytest.approx([SHORT.rate(number) / 3 for number in range(12)])
    assert {number for number, *_ in seen} == {2}
    assert [loss for *_, loss in seen] == curve.losses
    with temporary_trainer(
        loaded
    ) as trainer:  # the rate of the first step is too small to change the second's loss much
        assert trainer.step.clipping.norm == 0.1


def test_it_changes_nothing_and_is_the_same_every_time(tiny_text, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path)
    loaded = tiny_runs.loaded(tiny_text, tmp_path / "run")
    drawn = (torch.get_rng_state(), np.random.get_state(legacy=False)["state"]["key"].copy())
    curves = [find_lr(loaded, SHORT).losses for _ in range(2)]
    assert curves[0] == curves[1]
    assert torch.get_rng_state().equal(drawn[0])
    assert (np.random.get_state(legacy=False)["state"]["key"] == drawn[1]).all()
    assert os.listdir(tmp_path) == ["temporary"]
    assert os.listdir(tmp_path / "temporary") == []


def test_it_begins_with_the_weights_that_training_would_begin_with(tiny_text, tiny_run, tmp_path):
    fresh = find_lr(tiny_runs.loaded(tiny_text, tmp_path / "run"), SHORT)
    overrides = (f"training.checkpoint.init_from={tiny_run}", f"data.tokenizer.path={tiny_run}/prepared/tokenizer")
    tuned = find_lr(tiny_runs.loaded(tiny_text, tmp_path / "run", *overrides), SHORT)
    assert tuned.losses[0] < fresh.losses[0]


def test_losses_that_are_no_numbers_end_it(tiny_text, tmp_path):
    overrides = ("training.optimizer.type=sgd", "training.gradient_clipping=null")
    loaded = tiny_runs.loaded(tiny_text, tmp_path / "run", *overrides)
    curve = find_lr(loaded, RateRange(1e-3, 1e30, 40))
    assert curve.diverged
    assert len(curve.losses) < 40


def test_the_command_writes_curve_and_picture_and_ends_with_the_option(tiny_text, tmp_path, vaak):
    folder = tmp_path / "out"
    arguments = (
        "find-lr",
        tiny_text / "tiny.yml",
        f"run_dir={tmp_path / 'run'}",
        "--num-iter",
        40,
        "--output-dir",
        folder,
    )
    code, said, errors = vaak(*arguments)
    assert (code, errors) == (0, "")
    last = said.splitlines()[-1]
    option, _, rate = last.partition("=")
    assert option == "training.optimizer.lr"
    assert 1e-4 < float(rate) < 1
    content = json.loads((folder / "lr-range.json").read_text())
    assert content["suggestion"] == pytest.approx(float(rate), rel=0.06)
    assert said.count("\n  ") >= len(content["lr"]), "every point is in the terminal"
    assert "  < suggestion" in said
    assert "the loss falls from " in said
    assert "every other step alone, suggest " in said
    rows = list(csv.DictReader((folder / "lr-range.csv").read_text().splitlines()))
    assert [float(row["loss"]) for row in rows] == content["loss"]
    assert (folder / "lr-range.png").read_bytes().startswith(b"\x89PNG")
    code, said, _ = vaak(*arguments, "--json", "--linear", "--end-lr", "0.01")
    assert code == 0
    found = json.loads(said)
    assert np.allclose(np.diff(found["lr"]), np.diff(found["lr"])[0])
    assert str(folder / "lr-range.png") in found["files"]
    assert {"alternatives", "falling", "doubts"} <= set(found)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--start-lr", "1", "--end-lr", "0.1"), "learning rates must be above 0 and grow"),
        (("--num-iter", "2"), "at least 10 steps"),
        (("training.optimizer.lr=x",), "training.optimizer.lr"),
    ],
)
def test_a_mistake_is_one_line(tiny_text, tmp_path, vaak, options, complaint):
    code, said, errors = vaak("find-lr", tiny_text / "tiny.yml", *options, "--output-dir", tmp_path)
    assert code == 2
    assert complaint in errors
    assert said == ""


def test_a_folder_that_cannot_be_created_is_said_before_the_test(tiny_text, tmp_path, vaak, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("vaak.study.lr_finder.find_lr", lambda *_: pytest.fail("the test was run"))
    code, _, errors = vaak("find-lr", tiny_text / "tiny.yml", "--output", tmp_path / "file")
    assert (code, errors) == (2, f"--output: the folder {tmp_path / 'file'} can't be created: File exists\n")


def test_a_curve_that_cannot_be_written_is_a_users_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="can't be written"):
        write_curve(Curve(), Path(tmp_path / "file" / "folder"))


def test_several_processes_are_refused(tiny_text, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="takes the same steps in one process"):
        find_lr(tiny_runs.loaded(tiny_text, tmp_path / "run"), SHORT)
