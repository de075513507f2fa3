"""``vaak eval`` of a diarizer on recordings of others, and what a label type of one's own asks for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import soundfile

import tiny_diarizer
import tiny_runs
from vaak.audio.formats.annotation_lines import write_rttm, write_uem
from vaak.core.errors import UserError
from vaak.runs.open_run import open_run
from vaak.tasks.diarization.data import DiarizationDataset

CUSTOM = """\
import numpy as np

from vaak.tasks.diarization.labels import MultilabelCollator

with open({marker!r}, "a") as file:
    file.write("executed ")


class Quiet(MultilabelCollator):
    def labels(self, example, num_frames):
        return super().labels(example, num_frames) * np.float32(0.9)
"""


def figures(vaak, *arguments: object) -> dict:
    code, out, err = vaak("eval", *arguments, "--json")
    assert (code, err.count("Error")) == (0, 0), err
    return json.loads(out)


def test_the_run_is_left_as_it_was_and_its_speakers_stay_its_own(vaak, diarizer_run: Path, tmp_path: Path):
    samples, segments = tiny_diarizer.conversation(200)
    other = tmp_path / "other"
    other.mkdir()
    soundfile.write(other / "one.flac", samples, tiny_diarizer.RATE)
    write_rttm(other / "one.rttm", {"one": [one._replace(speaker=f"new {one.speaker}"[4:]) for one in segments]})
    before = tiny_runs.hashes(diarizer_run)
    datasets = f"datasets=[{{name: other, type: folder, test: [{other}]}}]"
    report = figures(vaak, diarizer_run, datasets, "--split", "test")
    assert report["metrics"]["test_der"] < 0.1
    assert report["protocol"]["test"]["collar"] == "0.0"
    collar = figures(vaak, diarizer_run, datasets, "--split", "test", "data.scoring.collar=0.25")
    assert collar["metrics"]["test_der"] < report["metrics"]["test_der"]
    assert collar["protocol"]["test"]["collar"] == "0.25"
    assert tiny_runs.hashes(diarizer_run) == before


def test_it_is_what_diarize_and_score_give(vaak, diarizer_run: Path, made_recordings: Path, tmp_path: Path):
    """Three ways to one figure: eval of the run's test set, eval of the same folder, and RTTM scored."""
    own = figures(vaak, diarizer_run, "--split", "test")["metrics"]
    datasets = f"datasets=[{{name: other, type: folder, test: [{made_recordings / 'test'}]}}]"
    other = figures(vaak, diarizer_run, datasets, "--split", "test")["metrics"]
    assert other == pytest.approx(own)
    vaak("diarize", diarizer_run, made_recordings / "test", "--output", tmp_path / "out.rttm")
    whole = {f"test{number}": [(0.0, tiny_diarizer.SECONDS)] for number in range(tiny_diarizer.SIZES["test"])}
    write_uem(tmp_path / "whole.uem", whole)  # as a recording without a UEM is evaluated
    asked = (made_recordings / "test", tmp_path / "out.rttm", "--uem", tmp_path / "whole.uem", "--json")
    scored = json.loads(vaak("score", "der", *asked)[1])
    assert scored["total"]["der"] == pytest.approx(own["test_der"], abs=1e-6)
    assert scored["total"]["jer"] == pytest.approx(own["test_jer"], abs=1e-6)


def test_real_meetings(vaak, vaak_data, diarizer_run: Path):
    """The recordings are unlike the training data; only reading each excerpt and scoring under its UEM matter."""
    data = vaak_data("diarization")
    datasets = f"datasets=[{{name: ami, type: folder, test: ['{data}/audio', '{data}/rttm', '{data}/uem']}}]"
    report = figures(vaak, diarizer_run, datasets, "--split", "test")["metrics"]
    parts = [report[f"test_{name}"] for name in ("miss", "false_alarm", "confusion")]
    assert sum(parts) == pytest.approx(report["test_der"])
    assert report["test_der"] > 0


def test_other_features_and_missing_recordings_are_refused(vaak, diarizer_run: Path, tmp_path: Path):
    def refused(*arguments: object) -> str:
        code, out, err = vaak("eval", diarizer_run, *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        return err

    assert "global_config.num_mel_bins is 40, but the run was trained with 24" in refused(
        "global_config.num_mel_bins=40"
    )
    gone = f"datasets=[{{name: other, type: folder, test: [{tmp_path}/gone]}}]"
    assert "no such file or folder" in refused(gone, "--split", "test")
    (tmp_path / "empty").mkdir()
    empty = f"datasets=[{{name: other, type: folder, test: [{tmp_path}/empty]}}]"
    assert "no audio found" in refused(empty, "--split", "test")


def test_long_recordings_are_evaluated_few_at_a_time(
    vaak, diarizer_run: Path, made_recordings: Path, monkeypatch: pytest.MonkeyPatch
):
    """The figures don't depend on how many are in memory together."""
    whole = figures(vaak, diarizer_run, "--split", "test")["metrics"]
    sizes: list[int] = []
    collate = DiarizationDataset.collate

    def counted(self, rows):
        sizes.append(len(rows))
        return collate(self, rows)

    monkeypatch.setattr(DiarizationDataset, "collate", counted)
    monkeypatch.setattr(DiarizationDataset, "evaluation_budget", 25.0)
    few = figures(vaak, diarizer_run, "--split", "test")["metrics"]
    assert sizes == [2, 1]
    assert few == pytest.approx(whole, rel=1e-5)


@pytest.mark.slow
def test_code_of_a_label_type_is_executed_only_where_it_is_trusted(
    vaak, made_recordings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    project = tmp_path / "project"
    project.mkdir()
    marker = tmp_path / "marker"
    (project / "labels.py").write_text(CUSTOM.format(marker=str(marker)))
    text = (made_recordings / "tiny.yml").read_text().replace("label_type: multilabel", "label_type: ./labels.py:Quiet")
    (project / "custom.yml").write_text(text)
    run = tmp_path / "run"
    code, _, err = vaak("train", project / "custom.yml", f"run_dir={run}", "training.max_steps=2")
    assert code == 0, err
    assert marker.exists()
    assert (run / "code" / "labels.py").exists()
    shutil.rmtree(project)
    marker.unlink()
    audio = made_recordings / "test" / "test0.wav"
    for command in (("eval", run), ("tune", run), ("diarize", run, audio)):
        code, out, err = vaak(*command)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "./code/labels.py:Quiet; read that code, and add --trust-code" in err
        assert not marker.exists()
    for command in (("eval", run), ("tune", run), ("diarize", run, audio)):
        assert vaak(*command, "--trust-code")[0] == 0
    assert marker.exists()
    with pytest.raises(UserError, match="add --trust-code"):
        open_run(run)
