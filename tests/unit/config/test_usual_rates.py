"""A pretrained base that is trained at a rate for scratch is said so, whether or not the rate was given."""

from __future__ import annotations

from pathlib import Path

import pytest

from vaak.config.load import load

TEXTS = {
    "lm": "model: {pretrained: theirs, LORA}\ndata: {corpus: {train: a.txt}}",
    "seq2seq": "model: {pretrained: theirs, LORA}\ndata: {corpus: {train: a.tsv}}",
    "classification": "model: {architecture: transformer, pretrained_model: theirs, LORA}\n"
    "data: {corpus: {train: a.csv}}",
    "asr": "model: {base: theirs, LORA}\ndatasets: [{name: a, train: a}]",
}
WHOLE = {"lm": "2e-05", "seq2seq": "0.0001", "classification": "2e-05", "asr": "1e-05"}


def said(folder: Path, task: str, *changes: str, lora: str = "lora: null") -> list[str]:
    text = f"task: {task}\nname: x\n{TEXTS[task].replace('LORA', lora)}\n"
    (folder / "x.yml").write_text(text)
    found = load([folder / "x.yml"], changes).warnings
    return [str(one) for one in found if "pretrained base" in str(one)]


@pytest.mark.parametrize("task", TEXTS)
def test_a_rate_for_scratch_is_said(task: str, tmp_path: Path):
    (line,) = said(tmp_path, task, "training.optimizer.lr=1e-3")
    assert (
        f"training.optimizer.lr is 0.001; a pretrained base, all of it trained, usually learns at {WHOLE[task]}" in line
    )
    low = f"training.optimizer.lr={WHOLE[task]}"
    assert "warm-up; give training.scheduler.warmup_ratio" in said(tmp_path, task, low)[0]
    assert said(tmp_path, task, low, "training.scheduler.warmup_ratio=0.1") == []


@pytest.mark.parametrize("task", ["lm", "asr"])
def test_the_default_rate_of_a_task_is_said_too(task: str, tmp_path: Path):
    assert "usually learns at" in said(tmp_path, task)[0]
    lora = "lora: {rank: 4}"
    assert said(tmp_path, task, lora=lora) == []
    assert "low-rank adapters of a pretrained base" in said(tmp_path, task, "training.optimizer.lr=1e-6", lora=lora)[0]
    assert "low-rank adapters of a pretrained base" in said(tmp_path, task, "training.optimizer.lr=0.1", lora=lora)[0]


def test_nothing_is_said_where_nothing_is_known(tmp_path: Path):
    high = "training.optimizer.lr=1e-3"
    assert said(tmp_path, "lm", high, "training.optimizer.type=muon") == []
    assert said(tmp_path, "lm", high, "training.freeze=[{match: embedding}]") == []
    (tmp_path / "scratch.yml").write_text("task: lm\nname: x\ndata: {corpus: {train: a.txt}}\n")
    assert not any("pretrained" in str(one) for one in load([tmp_path / "scratch.yml"], [high]).warnings)
