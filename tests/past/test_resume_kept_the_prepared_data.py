"""A corpus changed under a run: resuming once prepared it again, with another tokenizer, and the old one was lost."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny_runs
from vaak.config.tasks import task_class
from vaak.core.errors import UserError


def test_a_run_that_has_begun_keeps_its_data(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    text, run, whole = tmp_path / "text", tmp_path / "run", tmp_path / "whole"
    tiny_runs.write_corpus(text)
    tiny_runs.train(text, whole)
    tiny_runs.train(text, run)
    (run / "checkpoints" / "step-00000008").rename(tmp_path / "gone")
    before = tiny_runs.hashes(run / "prepared")
    with open(text / "train.txt", "a") as file:
        file.write("बिलकुल और ही शब्द\n" * 50)
    assert tiny_runs.train(text, run, "training.checkpoint.resume=auto").step == 8
    assert tiny_runs.hashes(run / "prepared") == before
    assert "the corpus may have changed since this run started" in capfd.readouterr().err
    final = "checkpoints/step-00000008/model.safetensors"
    assert (run / final).read_bytes() == (whole / final).read_bytes()


def test_a_run_goes_on_when_its_corpus_is_gone(tmp_path: Path):
    text, run = tmp_path / "text", tmp_path / "run"
    tiny_runs.write_corpus(text)
    tiny_runs.train(text, run)
    (text / "train.txt").unlink()
    assert tiny_runs.train(text, run, "training.checkpoint.resume=auto").reason == "finished"


def test_other_options_are_refused_and_nothing_is_lost(tmp_path: Path):
    text, run = tmp_path / "text", tmp_path / "run"
    tiny_runs.write_corpus(text)
    tiny_runs.train(text, run)
    before = tiny_runs.hashes(run / "prepared")
    with pytest.raises(UserError, match=r"can't change on resume: data\.tokenizer\.vocab_size was 500, is 450"):
        tiny_runs.train(text, run, "training.checkpoint.resume=auto", "data.tokenizer.vocab_size=450")
    assert tiny_runs.hashes(run / "prepared") == before
    given = tiny_runs.loaded(text, run, "data.tokenizer.vocab_size=450")
    task = task_class("lm")(given.experiment, run, given.folder)
    with pytest.raises(UserError, match=r"was started with \(tokenizer\.vocab_size was 500, is 450 now\): restore"):
        task.prepare()  # as where the checkpoint can't be read
