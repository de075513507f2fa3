"""``vaak tune``: settings from development recordings, found again by every use of the run, and by nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import tiny_runs
from tiny_speaker_encoder import save_onnx
from vaak.config.load import load


@pytest.fixture
def run(diarizer_run: Path, tmp_path: Path) -> Path:
    """A copy of the tiny diarizer that a test may write to."""
    return shutil.copytree(diarizer_run, tmp_path / "run", symlinks=True)


def test_what_is_found_is_used_from_then_on(vaak, run: Path, made_recordings: Path):
    before = tiny_runs.hashes(run)
    start = ("data.inference.threshold=0.95", "data.inference.median_filter=1.1")
    untuned = json.loads(vaak("eval", run, *start, "--json")[1])
    code, out, err = vaak("tune", run, *start, "--json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert report["before"]["der"] == pytest.approx(untuned["metrics"]["val_der"])
    assert report["after"]["der"] < report["before"]["der"]
    assert {**tiny_runs.hashes(run)}.keys() - before.keys() == {"tuned.yml"}
    assert {name: value for name, value in tiny_runs.hashes(run).items() if name != "tuned.yml"} == before

    tuned = json.loads(vaak("eval", run, "--json")[1])
    assert tuned["metrics"]["val_der"] == pytest.approx(report["after"]["der"])
    protocol = tuned["protocol"]["valid"]
    assert {name: protocol[name] for name in report["inference"]} == {
        name: str(value) for name, value in report["inference"].items()
    }
    heard = json.loads(vaak("diarize", run, made_recordings / "test" / "test0.wav", "--json")[1])
    # Null in the options; what was computed with, in a result.
    assert heard["inference"] == report["inference"] | {"clustering_threshold": 0.5}

    asked = ("data.inference.threshold=0.6", "data.inference.median_filter=0.5")
    over = json.loads(vaak("eval", run, *asked, "--json")[1])["protocol"]["valid"]
    assert (over["threshold"], over["median_filter"]) == ("0.6", "0.5")
    over = json.loads(vaak("diarize", run, made_recordings / "test", "--threshold", 0.6, "--json")[1])["inference"]
    assert over == {**heard["inference"], "threshold": 0.6}


def test_it_says_what_it_did(vaak, run: Path):
    code, out, _ = vaak("tune", run, "data.inference.threshold=0.95")
    lines = out.splitlines()
    assert code == 0
    assert lines[0] == "valid: recordings 3"
    assert lines[1].startswith("before  DER ")
    assert lines[2].startswith("after   DER ")
    assert lines[-2] == "valid: 3 recordings"
    assert any(line.startswith("threshold         0.95 → ") for line in lines)
    remarks = (run / "tuned.yml").read_text().splitlines()[:2]
    assert remarks[0] == "# By vaak tune, on valid (3 recordings), with step-00000020."
    assert remarks[1].startswith("# DER ")


@pytest.mark.slow
def test_training_knows_nothing_of_it(vaak, run: Path):
    vaak("tune", run, "data.inference.threshold=0.95")
    untouched = load([run / "config.yml"]).experiment.data.inference.threshold
    assert untouched == 0.5
    code, _, err = vaak("train", run / "config.yml", f"run_dir={run}", "training.max_steps=22", "--resume", "auto")
    assert code == 0, err
    assert load([run / "config.yml"]).experiment.data.inference.threshold == 0.5


@pytest.mark.slow
def test_other_development_recordings(vaak, run: Path, made_recordings: Path):
    datasets = f"datasets=[{{name: other, type: folder, train: [/gone], valid: [{made_recordings}/test]}}]"
    report = json.loads(vaak("tune", run, datasets, "data.inference.threshold=0.95", "--json")[1])
    assert report["recordings"] == 3
    start = ("data.inference.threshold=0.95", "--split", "test", "--json")
    assert report["before"]["der"] == pytest.approx(json.loads(vaak("eval", run, *start)[1])["metrics"]["test_der"])


def test_nothing_is_tuned_on_test_or_train(vaak, run: Path):
    for split in ("test", "train"):
        code, out, err = vaak("tune", run, "--split", split)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"can't tune on {split}: " in err
    assert not (run / "tuned.yml").exists()


def test_mistakes_are_one_line(vaak, run: Path, tmp_path: Path):
    def refused(*arguments: object) -> str:
        code, out, err = vaak(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        return err

    assert "unknown split 'dev'; expected one of test, train, valid" in refused("tune", run, "--split", "dev")
    assert "is not a run directory, nor inside one" in refused("tune", tmp_path / "nothing")
    assert "unknown key" in refused("tune", run, "data.inference.treshold=0.3")
    (run / "tuned.yml").write_text("data: {inference: {threshold: 7}}\n")
    assert f"{run}/tuned.yml:1: data.inference.threshold" in refused("eval", run)
    (run / "tuned.yml").unlink()
    (run / "tuned.yml").mkdir()
    assert "tuned.yml" in refused("tune", run)


@pytest.mark.slow
def test_a_speaker_encoder_is_kept_with_the_run_and_heard_by_every_command(
    vaak, run: Path, made_recordings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    save_onnx(tmp_path / "voices.onnx", ("row", "frame", 80), 1)
    options = (
        "data.inference.speaker_encoder=voices.onnx",
        "data.inference.window=2",
        "data.inference.window_overlap=0",
    )
    code, out, err = vaak("tune", run, *options, "--json")
    assert (code, err) == (0, "")
    tuned = json.loads(out)
    assert tuned["inference"]["speaker_encoder"] == str(tmp_path / "voices.onnx")
    monkeypatch.chdir(run)
    evaluated = json.loads(vaak("eval", run, "--json")[1])["metrics"]
    assert evaluated["val_der"] == pytest.approx(tuned["after"]["der"])
    test = made_recordings / "test"
    evaluated = json.loads(vaak("eval", run, "--split", "test", "--json")[1])["metrics"]
    found = json.loads(vaak("diarize", run, test, "--reference", test, "--json")[1])
    assert found["scores"]["total"]["der"] == pytest.approx(evaluated["test_der"], abs=0.01)
    code, out, err = vaak("diarize", run, test, "--speaker-encoder", "other.onnx")
    assert (code, out, err) == (2, "", "data.inference.speaker_encoder: no file other.onnx\n")
