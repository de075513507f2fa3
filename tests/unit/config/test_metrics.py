"""Each metric's properties are declared once, by its task."""

from __future__ import annotations

from pathlib import Path

import pytest

from vaak.config.load import load
from vaak.config.metrics import built_in_metrics, find_metric
from vaak.config.resolved import default_experiment
from vaak.config.tasks import TASKS


@pytest.mark.parametrize("task", sorted({*TASKS} - {"multitask"}))
def test_each_metric_that_a_task_gives_is_declared_in_its_folder(task: str) -> None:
    spec = TASKS[task]
    assert spec.metrics is not None
    names = {name.removeprefix("val_").rstrip("/") for name in spec.metrics(default_experiment(task, "x", "runs/x"))}
    declared = {metric.name for metric in spec.own_metrics}
    assert names - declared <= {"loss", *(spec.auxiliary_losses or ())}
    assert len(declared) == len(spec.own_metrics)


def test_tasks_that_have_a_metric_of_one_name_declare_the_same() -> None:
    declared = {metric for spec in TASKS.values() for metric in spec.own_metrics}
    assert len(declared) == len({metric.name for metric in declared}) == len(built_in_metrics()) - 1  # without loss


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ("val_recorded_wer", "recorded_wer"),
        ("test_wer/a_b/c", "wer"),
        ("wer", "wer"),
        ("val_words/macro_f1/x", "macro_f1"),
        ("val_powers", None),
        ("", None),
    ],
)
def test_a_figure_is_of_the_metric_with_the_longest_name_that_it_ends_with(metric: str, name: str | None) -> None:
    found = find_metric(metric)
    assert (None if found is None else found.name) == name


def test_watching_a_metric_the_wrong_way_is_said_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "x.yml").write_text(
        "task: lm\ndata: {corpus: {type: grammar}}\n"
        "training: {checkpoint: {metric: val_accuracy}, early_stopping: {metric: val_loss, mode: max}}\n"
    )

    def said(*overrides: str) -> str:
        return " ".join(map(str, load([tmp_path / "x.yml"], overrides).warnings))

    assert "val_accuracy is better when it is higher; set training.checkpoint.mode to max" in said()
    assert "val_loss is better when it is lower; set training.early_stopping.mode to min" in said()
    assert "better" not in said("training.checkpoint.mode=max", "training.early_stopping.mode=min")
