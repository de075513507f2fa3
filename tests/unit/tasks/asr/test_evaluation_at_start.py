"""A run that begins pretrained is evaluated before its first step, once, and its report and card compare with that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tiny_listener
from vaak.cli.output import print_outcome
from vaak.engine.metrics_file import read_history
from vaak.report.model_card import AboutExport, model_card
from vaak.report.page import run_page
from vaak.report.run_facts import read_facts
from vaak.report.start import compare_with_start
from vaak.runs.start import Outcome

pytestmark = pytest.mark.usefixtures("pictures")
STEPS = ("training.max_steps=2", "training.validation.interval=1", "training.checkpoint.interval=1")


def _train(corpus: Path, whisper: Path, run: Path, *options: str) -> Path:
    model: dict[str, Any] = {"base": str(whisper), "lora": {"rank": 2}}
    return tiny_listener.train(corpus, run, *STEPS, *options, model=model)


@pytest.fixture(scope="module")
def adapted(corpus: Path, whisper_folder: Path, tmp_path_factory: pytest.TempPathFactory, pictures: None) -> Path:
    return _train(corpus, whisper_folder, tmp_path_factory.mktemp("adapted") / "run")


def _evaluated(run: Path) -> list[int]:
    return [one["step"] for one in read_history(run) if one["kind"] == "evaluation"]


def _losses(run: Path) -> list[float]:
    return [one["loss"] for one in read_history(run) if one["kind"] == "step"]


def test_it_comes_first_and_changes_no_step(adapted: Path, corpus: Path, whisper_folder: Path, tmp_path: Path):
    without = _train(corpus, whisper_folder, tmp_path / "run", "training.validation.at_start=false")
    assert (_evaluated(adapted), _evaluated(without)) == ([0, 1, 2], [1, 2])
    assert _losses(adapted) == _losses(without)
    metrics = [[one for one in read_history(run) if one["kind"] == "evaluation"][-1] for run in (adapted, without)]
    assert metrics[0]["val_loss"] == metrics[1]["val_loss"]


@pytest.mark.slow
def test_a_resumed_run_is_not_evaluated_at_its_start_again(
    adapted: Path, corpus: Path, whisper_folder: Path, tmp_path: Path
):
    run = _train(corpus, whisper_folder, tmp_path / "run")
    longer = ("training.max_steps=3", "training.checkpoint.resume=auto")
    assert _evaluated(_train(corpus, whisper_folder, run, *longer)) == [0, 1, 2, 3]


def test_a_run_from_scratch_is_not_evaluated_before_it_begins(corpus: Path, tmp_path: Path):
    run = tiny_listener.train(corpus, tmp_path / "run", *STEPS)
    assert _evaluated(run) == [1, 2]
    assert compare_with_start(run, 2) == []


def test_the_report_and_the_card_have_the_row_before_with_the_difference(adapted: Path):
    changes = {one.name: one for one in compare_with_start(adapted, 2)}
    first, last = ([one for one in read_history(adapted) if one["kind"] == "evaluation"][place] for place in (0, -1))
    wer = changes["val_wer"]
    assert (wer.before, wer.difference) == (first["val_wer"], last["val_wer"] - first["val_wer"])
    assert wer.interval is not None
    assert wer.interval[0] <= wer.difference <= wer.interval[1]
    card = model_card(adapted, AboutExport("peft", 2, "folder"))
    assert "| metric | before | value | difference |" in " ".join(card.split(" "))
    assert wer.cells[0] in card
    assert "Before training and after it" in run_page(read_facts(adapted))


def test_the_command_ends_with_the_figures_before_and_the_difference(adapted: Path, capsys: pytest.CaptureFixture[str]):
    last = [one for one in read_history(adapted) if one["kind"] == "evaluation"][-1]
    metrics = {name: value for name, value in last.items() if name.startswith("val_") and isinstance(value, float)}
    print_outcome(Outcome("finished", adapted, 2, 2, metrics, [], is_main=True), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["metric", "value", "before", "difference"]
    wer = next(one for one in compare_with_start(adapted, 2) if one.name == "val_wer")
    assert next(line for line in lines if line.startswith("val_wer")).endswith("  ".join(("", *wer.cells)))


def test_verify_takes_it_for_no_scheduled_one(adapted: Path, vaak: Any):
    code, out, err = vaak("verify", adapted)
    assert code == 0, out + err
