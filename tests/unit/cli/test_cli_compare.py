"""``vaak compare``: checkpoints of a run on every example, files of scores, and what can't be compared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from vaak.runs.evaluate import evaluate_run
from vaak.study.compare import evaluate_examples


def checkpoints(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("step-*"))


@pytest.mark.parametrize(("made", "metric"), [("tiny_run", "perplexity"), ("diarizer_run", "der")])
def test_the_sums_of_examples_give_the_figures_of_an_evaluation(made: str, metric: str, request: pytest.FixtureRequest):
    run = request.getfixturevalue(made)
    metrics = evaluate_run(run, [], [], ["valid"], "cpu")["metrics"]
    examples = evaluate_examples(run, [], [], "valid", "cpu")
    names = sorted(examples.rows)
    table = examples.table(names, examples.keys)
    assert len(names) > 2
    together = examples.figure(metric, table.sum(0, keepdims=True), examples.keys)
    assert float(together[0]) == pytest.approx(metrics[f"val_{metric}"], rel=1e-5)
    assert examples.metric == "loss"


def test_checkpoints_are_compared_by_the_metric_of_the_best(vaak, tiny_run: Path, tmp_path: Path):
    early, late = checkpoints(tiny_run)
    picture = tmp_path / "difference.png"
    code, out, err = vaak("compare", early, late, "--split", "valid", "--output", picture, "--json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    [found] = report["comparisons"]
    assert (report["metric"], report["baseline"], found["name"]) == ("loss", str(early), str(late))
    assert found["difference"] == pytest.approx(found["figure"] - report["figure"])
    assert found["interval"][0] <= found["difference"] <= found["interval"][1] < 0, "training lowers the loss"
    assert found["p_value"] == found["tests"][0]["p_value"] < 0.01
    assert picture.read_bytes().startswith(b"\x89PNG")
    code, out, err = vaak("compare", late, early, "--split", "valid", "--metric", "accuracy")
    assert (code, err) == (0, "")
    assert out.startswith(f"accuracy of {late}: ")
    assert " %, a difference of " in out


def test_masked_language_models_of_two_random_seeds_are_asked_for_the_same_tokens(vaak, tmp_path: Path):
    (tmp_path / "encoder.yml").write_text(
        "model: {model_type: encoder, d_model: 16, num_layers: 1, num_heads: 2}\n"
        "data: {corpus: {type: grammar, num_sentences: 60}, tokenizer: {type: character}, max_length: 40}\n"
        "training: {max_steps: 1, device: cpu}\n"
    )
    for seed in (1, 2):
        options = (f"run_dir={tmp_path / str(seed)}", f"training.random_seed={seed}")
        assert vaak("train", tmp_path / "encoder.yml", *options)[0] == 0
    code, out, err = vaak("compare", tmp_path / "1", tmp_path / "2", "--split", "valid")
    assert (code, err) == (0, "")
    assert out.startswith("loss of ")
    options = (f"run_dir={tmp_path / 'more'}", "data.masking_probability=0.3")
    assert vaak("train", tmp_path / "encoder.yml", *options)[0] == 0
    code, _, err = vaak("compare", tmp_path / "1", tmp_path / "more", "--split", "valid")
    assert code == 2
    assert "different protocols: masked is 0.15 and 0.3" in err


def test_files_of_scores(vaak, tmp_path: Path):
    baseline, first, second = (tmp_path / name for name in ("a.json", "b.csv", "c.txt"))
    baseline.write_text("[0.85, 0.87, 0.86, 0.88, 0.85]")
    first.write_text("f1,seed\n0.82,1\n0.84,2\n0.83,3\n0.86,4\n0.82,5\n")
    second.write_text("0.86\n0.86\n0.87\n0.88\n0.84\n")
    code, out, err = vaak("compare", baseline, first, second, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)["comparisons"]
    assert [one["p_value"] for one in found] == [0.125, 1.0], "exact p-values of 1/16 and 1, times two systems"
    assert found[0]["tests"][0]["name"] == "exact randomisation"
    code, out, err = vaak("compare", baseline, first, "--folds", "--json")
    plain, corrected = (json.loads(out)["comparisons"][0]["tests"][place]["p_value"] for place in (1, 0))
    assert plain < corrected
    same = tmp_path / "same.json"
    same.write_text(json.dumps((np.array([0.85, 0.87, 0.86, 0.88, 0.85]) - 0.5).tolist()))
    code, out, err = vaak("compare", baseline, same, "--json")
    assert "Infinity" not in out


@pytest.mark.parametrize(
    ("content", "other", "message"),
    [
        ("[1, 2", "[1, 2]", "no valid JSON"),
        ('["one"]', "[1]", "expected a list of numbers"),
        ("[1, 2]", "[1, 2, 3]", "there are 3 and 2"),
        ("[1]", "[2]", "at least two"),
    ],
)
def test_bad_scores_are_one_line(vaak, tmp_path: Path, content: str, other: str, message: str):
    (tmp_path / "a.json").write_text(content)
    (tmp_path / "b.json").write_text(other)
    code, out, err = vaak("compare", tmp_path / "a.json", tmp_path / "b.json")
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_what_cant_be_compared_is_refused(vaak, tiny_run: Path, tmp_path: Path):
    early, late = checkpoints(tiny_run)
    table = tmp_path / "scores.csv"
    table.write_text("score\n0.5\nhalf\n")
    for arguments, message in (
        ((early,), "requires different systems"),
        ((early, late, early), "requires different systems"),
        ((early, table), "can't be compared with anything else"),
        ((table, tmp_path / "scores.csv"), "requires different systems"),
        ((early, late, "--folds"), "--folds is for files of scores"),
        ((early, late, "--split", "valid", "--metric", "wer"), "has no metric 'wer'; expected one of"),
    ):
        code, out, err = vaak("compare", *arguments)
        assert (code, out) == (2, "")
        assert message in err
        assert len(err.splitlines()) == 1
    (tmp_path / "other.csv").write_text("0.5\n0.6\n")
    code, _, err = vaak("compare", table, tmp_path / "other.csv")
    assert (code, f"{table}:3: column 1 (score): expected a number, found 'half'" in err) == (2, True)
