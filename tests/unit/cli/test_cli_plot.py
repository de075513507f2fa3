"""``vaak plot`` draws the records of a run and of a pipeline's stages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quick_cases import mostly_slow
from vaak.engine.metrics_file import read_history
from vaak.report.charts import draw_histories
from vaak.tasks.asr.stages.drawings import draw_experts, draw_gate

CONFUSION = [[18, 2, 0], [1, 9, 0], [0, 0, 10]]
BINS = [(0.55, 4, 0.5), (0.75, 12, 0.75), (0.97, 24, 1.0)]
WER = [0.12, 0.31, None]


def write_run(folder: Path, metrics: dict[str, list[float]]) -> None:
    folder.mkdir(parents=True)
    lines: list[dict[str, Any]] = []
    for number, (loss, *_) in enumerate(zip(*metrics.values(), strict=True), 1):
        step = 10 * number
        lines.append({"kind": "step", "step": step, "epoch": 0, "loss": loss, "learning_rate": 1e-3 / number})
        values = {name: own[number - 1] for name, own in metrics.items()}
        lines.append({"kind": "evaluation", "step": step, "epoch": 0, "scheduled": True, **values})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a pipeline of which every stage is done; the third expert had no utterances."""
    folder = tmp_path_factory.mktemp("moe") / "quick"
    write_run(folder / "gate" / "run", {"val_loss": [1.1, 0.7, 0.4, 0.3]})
    bins = [{"from": 0.0, "to": 0.5, "count": 0, "confidence": None, "accuracy": None}]
    bins += [
        {"from": 0.0, "to": 1.0, "count": count, "confidence": sure, "accuracy": right} for sure, count, right in BINS
    ]
    gate = {"accuracy": 0.925, "held_out": 40, "confusion": CONFUSION, "calibration": {"error": 0.03, "bins": bins}}
    (folder / "gate" / "gate.json").write_text(json.dumps(gate))
    for expert in (0, 1):
        write_run(folder / "experts" / f"expert-{expert}", {"val_wer": [0.9, 0.4 + expert / 10, 0.12 + expert / 5]})
    experts = [{"expert": expert, "train": (30, 10, 0)[expert], "wer": wer} for expert, wer in enumerate(WER)]
    (folder / "experts" / "experts.json").write_text(json.dumps({"experts": experts}))
    losses, errors = [2.0, 1.0, 0.6, 0.5], [0.9, 0.5, 0.2, 0.15]
    groups = {f"val_wer/{group}": [rate * factor for rate in errors] for group, factor in (("en", 0.8), ("hi", 1.3))}
    write_run(folder / "joint" / "run", {"val_loss": losses, "val_wer": errors, **groups})
    metrics = {"val_expert_wer/0": 0.1, "val_expert_wer/1": 0.2}
    (folder / "joint" / "joint.json").write_text(json.dumps({"figures": metrics, "use": [0.7, 0.3, 0.0]}))
    return folder


@pytest.mark.parametrize("picture", mostly_slow(("gate", "experts", "asr"), "asr"))
def test_every_picture_is_a_file(vaak, pipeline: Path, picture: str):
    code, out, _ = vaak("plot", pipeline, picture)
    assert (code, out.strip()) == (0, str(pipeline / f"{picture}.png"))
    assert (pipeline / f"{picture}.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_is_drawn_without_saying_what(vaak, pipeline: Path, tmp_path: Path):
    assert vaak("plot", pipeline / "joint" / "run", "--output", tmp_path / "run.svg")[0] == 0
    drawn = (tmp_path / "run.svg").read_text()
    assert all(f"<!-- {name} -->" in drawn for name in ("loss", "val_wer", "en", "hi"))


def test_the_gate_is_what_it_measured(pipeline: Path):
    matrix, reliability, losses, _ = draw_gate(pipeline).axes
    assert [text.get_text() for text in matrix.texts] == [str(count) for row in CONFUSION for count in row]
    assert matrix.images[0].get_array()[0].tolist() == [0.9, 0.1, 0.0]
    found = reliability.collections[0]
    assert found.get_offsets().tolist() == [[sure, right] for sure, _, right in BINS]
    areas = found.get_sizes()
    assert areas[2] / areas[0] == pytest.approx(24 / 4)
    assert [line.get_label() for line in losses.lines] == ["train", "valid"]


def test_experts_have_their_use_and_errors_alone_and_together(pipeline: Path):
    use, errors, curves = draw_experts(pipeline).axes
    assert [bar.get_height() for bar in use.patches] == pytest.approx([75, 25, 0, 70, 30, 0])
    assert [bar.get_height() for bar in errors.patches] == pytest.approx([12, 31, 10, 20])
    assert curves.lines[1].get_ydata().tolist() == pytest.approx([90, 50, 32])


def test_what_is_not_there_yet_is_a_line(vaak, pipeline: Path, tmp_path: Path):
    for picture, what in (("gate", "no gate/gate.json, which the stage gate"), ("asr", "has no metrics.jsonl")):
        code, _, said = vaak("plot", tmp_path, picture)
        assert (code, what in said) == (2, True)
    code, _, said = vaak("plot", pipeline, "gate", "--output", tmp_path / "gate.nonsense")
    assert (code, "can't be written" in said) == (2, True)


def test_a_legend_of_many_groups_does_not_hide_the_panel(tmp_path: Path):
    groups = {f"pairs_accuracy/phenomenon number {number}": [0.5, 0.5 + number / 40] for number in range(17)}
    write_run(tmp_path / "lm", {"val_loss": [2.0, 1.0], "pairs_accuracy": [0.5, 0.7], **groups})
    figure = draw_histories({"": read_history(tmp_path / "lm")}, "lm")
    figure.draw_without_rendering()
    for axes in figure.axes:
        legend = axes.get_legend()
        if legend is not None and len(axes.lines) > 6:
            assert len(axes.lines) == len(legend.get_texts()) == 18
            assert legend.get_window_extent().y1 < axes.get_window_extent().y0
            assert legend.get_window_extent().y0 > 0
            assert axes.get_window_extent().height > 100
            return
    raise AssertionError("no panel has all groups")


def test_several_runs_are_drawn_together(vaak, tmp_path: Path):
    for name, last in (("one", 1.0), ("two", 1.5)):
        write_run(tmp_path / name, {"val_loss": [2.0, last], "val_wer": [0.9, 0.2], "val_wer/en": [0.8, 0.1]})
    path = tmp_path / "both.svg"
    assert vaak("plot", tmp_path / "one", tmp_path / "two", "-o", path)[:2] == (0, f"{path}\n")
    drawn = path.read_text()
    assert all(f"<!-- {name}: valid -->" in drawn for name in ("one", "two"))
    assert "<!-- en -->" not in drawn
    code, _, said = vaak("plot", tmp_path / "one", "nonsense")
    assert (code, "nonsense is not a folder of a run, nor one of history, gate" in said) == (2, True)
    code, _, said = vaak("plot", tmp_path / "one", tmp_path / "two", "gate")
    assert (code, "of one pipeline" in said) == (2, True)
