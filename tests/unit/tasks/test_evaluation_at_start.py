"""What begins pretrained, of whatever task, is evaluated before its first step; losses have intervals by examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tiny_runs
from contract_cases import CASES
from task_case import TaskCase
from vaak.cli.output import print_outcome
from vaak.engine.callback import Callback
from vaak.engine.metrics_file import read_history
from vaak.report.start import compare_with_start

CTC = CASES["asr, ctc, pretrained"]
SCRATCH = CASES["asr"]


class Evaluations(Callback):
    """Notes the steps at which the model is evaluated."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_evaluate_end(self, trainer: Any, metrics: dict[str, float]) -> None:
        self.steps.append(trainer.position.step)


def _multitask() -> TaskCase:
    assert isinstance(CTC, TaskCase)
    assert isinstance(SCRATCH, TaskCase)
    tasks = {name: {"task": "asr", **one.options} for name, one in (("a", SCRATCH), ("b", CTC))}
    return TaskCase("multitask", {"tasks": tasks}, write=CTC.write)


@pytest.mark.parametrize(("name", "is_pretrained"), [("ctc", True), ("multitask", True), ("scratch", False)])
def test_a_task_that_begins_pretrained_is_evaluated_before_its_first_step(
    name: str, is_pretrained: bool, tmp_path: Path
):
    case: Any = {"ctc": CTC, "multitask": _multitask(), "scratch": SCRATCH}[name]
    seen = Evaluations()
    trainer = case.prepared(tmp_path).trainer(tmp_path / "run", seen)
    trainer.evaluate_at_start()
    assert seen.steps == [0] * is_pretrained


@pytest.mark.usefixtures("pictures")
def test_a_run_that_begins_with_another_is_evaluated_first_and_its_loss_has_an_interval(
    tiny_run: Path, tiny_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = tmp_path / "run"
    options = ("training.max_steps=2", "training.validation.interval=2")
    outcome = tiny_runs.train(tiny_text, run, f"training.checkpoint.init_from={tiny_run}", *options)
    evaluations = [one for one in read_history(run) if one["kind"] == "evaluation"]
    assert [one["step"] for one in evaluations] == [0, 2]
    summary = json.loads((run / "pictures" / "val_examples" / "step-00000000.json").read_text())
    nats, tokens = map(sum, zip(*summary["scores"]["sums"], strict=True))
    assert nats / tokens == pytest.approx(evaluations[0]["val_loss"], rel=1e-6)
    changes = {one.name: one for one in compare_with_start(run, 2)}
    for figure in ("val_loss", "val_perplexity"):
        change = changes[figure]
        assert change.interval is not None
        assert change.interval[0] <= change.difference <= change.interval[1]
        assert change.interval[0] < change.interval[1]
    capsys.readouterr()
    print_outcome(outcome, as_json=False)
    line = next(one for one in capsys.readouterr().out.splitlines() if one.startswith("no interval"))
    named = "val_accuracy, val_bits_per_byte"
    assert line == f"no interval of the difference: {named} (no scores of single examples are kept of these)"
