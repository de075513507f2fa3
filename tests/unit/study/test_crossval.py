"""Cross-validation: how each task's data are divided, folds that were killed, and mistakes in one line."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quick_cases import mostly_slow
from tiny_runs import hashes
from vaak.config.base import with_fold
from vaak.config.load import load
from vaak.config.tasks import task_class
from vaak.core.errors import UserError
from vaak.core.significance import corrected_t_test
from vaak.core.storage.lock import locked
from vaak.engine.callback import Callback, Run, StepReport
from vaak.runs.start import Outcome, train
from vaak.study import crossval as crossing
from vaak.study.crossval import CrossValidation, CrossvalPlan, summary, write_report

FAST = ("training.max_steps=4", "training.validation.interval=2", "training.checkpoint.interval=2")
CLASSIFIER = """\
task: classification
name: toy
data:
  corpus: {type: files, train: [FOLDER/train.jsonl], test: [FOLDER/test.jsonl]}
  max_length: 16
model: {architecture: cnn, embed_size: 8, num_filters: 4, filter_sizes: [2]}
training:
  max_steps: 2
  batch_size: 8
  device: cpu
  logging: {interval: 1, tensorboard: false, progress_bar: false}
"""
PAIRS = """\
task: seq2seq
name: pairs
data: {corpus: {type: grammar, num_sentences: 100}}
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """30 texts of train and 6 of test, with labels, authors and a text that occurs twice."""
    rows = [
        {"text": f"word{n} {'good' if n % 3 else 'bad'}", "label": ["b", "g"][bool(n % 3)], "author": f"a{n % 5}"}
        for n in range(36)
    ]
    for name, own in (("train", [*rows[:30], rows[0]]), ("test", rows[30:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))
    (tmp_path / "toy.yml").write_text(CLASSIFIER.replace("FOLDER", str(tmp_path)))
    return tmp_path / "toy.yml"


def plan(file: Path, *overrides: str, folds: int = 2, **more: Any) -> CrossvalPlan:
    return CrossvalPlan((str(file),), overrides, folds, **more)


def finished(made: CrossvalPlan, folder: Path) -> dict[str, Any]:
    study = CrossValidation(made, folder)
    for _ in study.work():
        pass
    return write_report(study)


def read_fold(study: CrossValidation, number: int, repeat: int = 1) -> dict[str, list[list[Any]]]:
    """The items of each corpus of a task by split, read as training reads them."""
    loaded = study.plan.load()
    experiment = with_fold(loaded.experiment, f"{repeat}:{number}", str(study.folds_file))
    task = task_class(experiment.reference)(experiment, study.folder, loaded.folder)
    return {split: [list(corpus.read(split)) for corpus in task.corpora()] for split in ("train", "valid", "test")}


@pytest.mark.parametrize("task", ["lm", "seq2seq", "classification", "diarization"])
def test_the_data_of_every_task_are_divided(
    task: str, toy: Path, tiny_text: Path, made_recordings: Path, tmp_path: Path
):
    (tmp_path / "pairs.yml").write_text(PAIRS)
    files = {"lm": tiny_text / "tiny.yml", "seq2seq": tmp_path / "pairs.yml", "classification": toy}
    file = files.get(task, made_recordings / "tiny.yml")
    study = CrossValidation(plan(file, group_by="none", folds=3), tmp_path / "study")
    tested: Counter[str] = Counter()
    for number in (1, 2, 3):
        there = {
            split: {str(getattr(item, "id", getattr(item, "text", getattr(item, "source", item)))) for item in items}
            for split, (items,) in read_fold(study, number).items()
        }
        assert all(there.values())
        everything = set().union(*there.values())
        assert len(everything) == sum(map(len, there.values())), "no example is in two splits"
        tested.update(there["test"])
    assert set(tested) == everything
    assert set(tested.values()) == {1}


def test_speakers_are_kept_together_where_the_task_says_so(made_recordings: Path, tmp_path: Path):
    """Both speakers are in every recording here, so there is one group; where none is asked for, it can be divided."""
    with pytest.raises(UserError, match=r"there are 1 groups \(--group-by\), fewer than the 2 folds"):
        CrossValidation(plan(made_recordings / "tiny.yml"), tmp_path / "study")
    assert not (tmp_path / "study").exists(), "nothing is left of it"
    CrossValidation(plan(made_recordings / "tiny.yml", group_by="none"), tmp_path / "study")


def test_labels_that_no_recording_has_neither_group_nor_stratify(made_recordings: Path, tmp_path: Path):
    file = made_recordings / "tiny.yml"
    for made in (plan(file, group_by="speeker"), plan(file, group_by="none", stratify_by="speeker")):
        with pytest.raises(
            UserError, match=r"--(group|stratify)-by: no example has a 'speeker'; did you mean 'speaker'"
        ):
            CrossValidation(made, tmp_path)


def test_a_column_groups_or_stratifies_and_given_splits_may_be_divided_too(toy: Path, tmp_path: Path):
    by_author = CrossValidation(plan(toy, group_by="author", folds=3), tmp_path / "authors")
    choose_split: dict[str, str] = {}
    for split, (texts,) in read_fold(by_author, 2).items():
        choose_split |= {text.text: split for text in texts}
    rows = [json.loads(line) for line in (toy.parent / "train.jsonl").read_text().splitlines()]
    splits = {author: {choose_split[row["text"]] for row in rows if row["author"] == author} for author in ("a0", "a1")}
    assert all(len(own) == 1 for own in splits.values())
    everything = CrossValidation(plan(toy, pool="all", folds=10), tmp_path / "all")
    sizes = [len(read_fold(everything, number)["test"][0]) for number in range(1, 11)]
    assert sum(sizes) == 36
    assert max(sizes) - min(sizes) <= 1
    even = CrossValidation(plan(toy, stratify_by="author"), tmp_path / "even")
    found = json.loads(even.folds_file.read_text())["corpora"]["corpus"]
    assert Counter(row["stratum"] for row in found) == {f"a{n}": 6 for n in range(5)}
    assert Counter(row["stratum"] for row in found if row["test"] == [1]) == {f"a{n}": 3 for n in range(5)}


def test_each_fold_is_a_run_and_the_figures_have_an_interval(vaak, toy: Path, tmp_path: Path):
    code, out, _ = vaak("crossval", toy, "--folds", 2, "--output", tmp_path / "a", "--json")
    assert code == 0
    report = json.loads(out.splitlines()[-1])
    assert report == json.loads((tmp_path / "a" / "results.json").read_text())
    assert [(one["repeat"], one["fold"], one["examples"]) for one in report["folds"]] == [(1, 1, 15), (1, 2, 15)]
    scores = [one["metrics"]["loss"] for one in report["folds"]]
    assert json.loads((tmp_path / "a" / "scores.json").read_text()) == scores
    metric = report["figures"]["loss"]
    assert metric["mean"] == pytest.approx(np.mean(scores))
    assert tuple(metric["interval"]) == corrected_t_test(scores, [0.0, 0.0], 0.5).interval
    run = tmp_path / "a" / "runs" / "1-01"
    code, out, _ = vaak("eval", run, "--split", "test", "--device", "cpu", "--json")
    assert json.loads(out)["metrics"]["test_loss"] == scores[0]
    others = ("--split", "test", "--device", "cpu", f"data.corpus.test={toy.parent / 'train.jsonl'}")
    code, _, err = vaak("eval", run, *others)
    assert code == 2
    assert "add fold=null" in err
    code, out, _ = vaak("eval", run, *others, "data.corpus.fold=null", "--json")
    assert code == 0
    assert json.loads(out)["metrics"]["test_loss"] != scores[0]

    shutil.copytree(tmp_path / "a", tmp_path / "b")
    better = json.loads((tmp_path / "b" / "results.json").read_text())
    for one in better["folds"]:
        one["metrics"]["loss"] -= 0.1
    (tmp_path / "b" / "results.json").write_text(json.dumps(better))
    code, out, _ = vaak("compare", tmp_path / "a", tmp_path / "b", "--json")
    assert code == 0
    compared = json.loads(out)
    assert compared["comparisons"][0]["difference"] == pytest.approx(-0.1)
    assert compared["comparisons"][0]["tests"][0]["name"] == "corrected t-test"
    (tmp_path / "b" / "results.json").write_text(json.dumps(better | {"division": "other"}))
    code, _, err = vaak("compare", tmp_path / "a", tmp_path / "b")
    assert code == 2
    assert "different folds" in err


def test_the_interval_is_that_of_nadeau_and_bengio():
    """By hand: mean ± t(0.975, 9) sqrt((1/10 + 1/9) var) of ten folds."""
    scores = [0.75, 0.77, 0.76, 0.78, 0.74, 0.76, 0.77, 0.75, 0.76, 0.78]
    found = summary([{"metrics": {"accuracy": one, "nan": float("nan")}} for one in scores], 10)
    reach = 2.2621571627 * np.sqrt((1 / 10 + 1 / 9) * np.var(scores, ddof=1))
    assert found["accuracy"]["interval"] == pytest.approx([np.mean(scores) - reach, np.mean(scores) + reach])
    assert list(found) == ["accuracy"]


class KilledError(BaseException):
    """The process is gone: nothing of ours may handle it."""


class Killed(Callback):
    def on_step_end(self, trainer: Run, report: StepReport) -> None:
        if trainer.position.step == 3:
            raise KilledError


@pytest.mark.slow
def test_a_killed_fold_is_resumed_in_its_middle_to_the_same_bits(
    tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = plan(tiny_text / "tiny.yml", *FAST)
    whole = finished(made, tmp_path / "whole")

    def killed(loaded: Any) -> Outcome:
        return train(loaded, () if loaded.experiment.run_dir.name == "1-01" else (Killed(),))

    monkeypatch.setattr(crossing, "train", killed)
    with pytest.raises(KilledError):
        finished(made, tmp_path / "cut")
    monkeypatch.setattr(crossing, "train", train)
    cut = finished(made, tmp_path / "cut")
    assert (cut["figures"], cut["division"]) == (whole["figures"], whole["division"])
    last = "runs/1-02/checkpoints/step-00000004"
    weights = [hashes(tmp_path / name / last) for name in ("whole", "cut")]
    own = [{name: one for name, one in found.items() if name.endswith(".safetensors")} for found in weights]
    assert own[0] == own[1] != {}
    steps = [json.loads(line) for line in (tmp_path / "cut/runs/1-02/metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in steps if record["kind"] == "step"] == [1, 2, 3, 4], "from step 2 on"


def test_processes_share_the_folds_and_what_is_done_is_not_done_again(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    done = []

    def tested(study: CrossValidation, fold: Any) -> dict[str, Any]:
        done.append(str(fold))
        return {"repeat": fold.repeat, "fold": fold.number, "metrics": {"loss": 1.0}}

    monkeypatch.setattr(CrossValidation, "_test_fold", tested)
    study = CrossValidation(plan(toy, repeats=2), tmp_path / "study")
    with locked(study.folder / "runs" / ".1-02.lock"):
        assert [str(fold) for fold in study.work()] == done == ["1-01", "2-01", "2-02"]
        with pytest.raises(UserError, match="1 folds are being trained by other processes"):
            write_report(study)
    moved = (tmp_path / "study").rename(tmp_path / "moved")
    finished(plan(toy, repeats=2), moved)
    assert done == ["1-01", "2-01", "2-02", "1-02"]
    with pytest.raises(UserError, match=r"a cross-validation made with other options \(seed was 42, is 1 now\): "):
        CrossValidation(plan(toy, repeats=2, seed=1), moved)
    with pytest.raises(UserError, match=r"other options \(configuration\.model\.embed_size was"):
        CrossValidation(plan(toy, "model.embed_size=9", repeats=2), moved)
    folds = moved / "folds.json"
    folds.write_text(folds.read_text().replace('"test": [1, 2]', '"test": [2, 2]', 1))
    with pytest.raises(UserError, match=r"other options \(folds\.json was"):
        CrossValidation(plan(toy, repeats=2), moved)


@pytest.mark.parametrize("task", mostly_slow(("classification", "lm", "diarization"), "classification"))
def test_a_fold_that_was_cut_resumes_where_its_study_is_now(
    task: str, toy: Path, tiny_text: Path, made_recordings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also by its own config.yml, in between; and another fold in its place is refused."""
    files = {"classification": toy, "lm": tiny_text / "tiny.yml", "diarization": made_recordings / "tiny.yml"}
    made = plan(files[task], *FAST, "training.logging.interval=1", group_by="none")
    monkeypatch.setattr(crossing, "train", lambda loaded: train(loaded, (Killed(),)))
    with pytest.raises(KilledError):
        finished(made, tmp_path / "cut")
    moved = (tmp_path / "cut").rename(tmp_path / "elsewhere")
    with pytest.raises(KilledError):
        train(load([moved / "runs/1-01/config.yml"], ["training.checkpoint.resume=auto"]), (Killed(),))
    section = "datasets.0" if task == "diarization" else "data.corpus"
    with pytest.raises(UserError, match='fold was "1:1", is "1:2"'):
        train(load([moved / "runs/1-01/config.yml"], ["training.checkpoint.resume=auto", f"{section}.fold=1:2"]))
    monkeypatch.setattr(crossing, "train", train)
    assert next(CrossValidation(made, moved).work()) == (1, 1)
    steps = [json.loads(line) for line in (moved / "runs/1-01/metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in steps if record["kind"] == "step"] == [1, 2, 3, 4], "from step 2 on"


@pytest.mark.parametrize("reason", ["SIGINT", "SIGTERM"])
def test_a_fold_that_is_stopped_has_no_figures(reason: str, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stopped = Outcome(reason, tmp_path, 1, 2, {}, [], is_main=True)
    monkeypatch.setattr(crossing, "train", lambda loaded: stopped)
    study = CrossValidation(plan(toy), tmp_path / "study")
    with pytest.raises(KeyboardInterrupt if reason == "SIGINT" else UserError):
        next(study.work())
    assert study.results == []


def test_mistakes_are_said_in_a_line(vaak, toy: Path, tmp_path: Path):
    for options, message in (
        (("--folds", 1), "--folds"),
        (("--folds", 11), "b has 10 examples, fewer than the 11 folds"),
        (("--folds", 6, "--group-by", "author"), "there are 5 groups"),
        (("--group-by", "writer"), "no column 'writer'"),
        (("--stratify-by", "writer"), "no column 'writer'"),
        (("data.corpus.type=grammar", "--group-by", "author"), "has no columns"),
        (("--valid", 0.9), "--valid"),
    ):
        code, _, err = vaak("crossval", toy, *options, "--output", tmp_path / "other")
        assert code == 2, options
        assert message in err
        assert len(err.splitlines()) == 1
        assert not (tmp_path / "other").exists()
