"""Options that using a trained run can't follow are refused or reported, whether a file or an override gives them."""

import logging
from pathlib import Path

import pytest

import tiny_runs
from vaak.core.errors import UserError
from vaak.runs.evaluate import evaluate_run


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    tiny_runs.write_corpus(folder)
    tiny_runs.train(folder, folder / "run", "training.max_steps=4")
    return folder / "run"


def test_a_file_or_an_override_with_another_model_is_refused(run, tmp_path):
    (tmp_path / "base.yml").write_text("model: {d_model: 64}\n")
    for files, overrides in (([tmp_path / "base.yml"], []), ([], ["model.d_model=64"])):
        with pytest.raises(UserError, match=r"model\.d_model is 64, but the run was trained with 32"):
            evaluate_run(run, files, overrides, ["valid"], "cpu")


def test_options_of_training_alone_are_reported(run, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("vaak.runs.open_run.log.propagate", True)
    caplog.set_level(logging.WARNING)
    (tmp_path / "base.yml").write_text("training: {optimizer: {lr: 0.5}, validation: {batch_size: 4}}\n")
    overrides = ["training.max_steps=9", "model.dropout=0.7", "data.tokenizer.vocab_size=100"]
    evaluate_run(run, [tmp_path / "base.yml"], overrides, ["valid"], "cpu")
    said = [record.message for record in caplog.records if "only training reads" in record.message]
    keys = "model.dropout, data.tokenizer.vocab_size, training.max_steps, training.optimizer.lr"
    assert said == [f"{keys}: no effect here, because only training reads it"]
