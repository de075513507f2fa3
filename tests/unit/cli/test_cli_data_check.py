"""``vaak data check``: problems of examples by name, before any training; a task adds what it knows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

import tiny_diarizer

USERS_TASK = """
import numpy as np
import torch
import vaak
from vaak.core.task import DataFinding


class Numbers(vaak.Dataset):
    fingerprint = "numbers"
    lengths = np.ones(4)

    def example(self, index, rng):
        return [0.5, float("nan"), 1.0, float("inf")][index]

    def collate(self, rows):
        values = torch.tensor([[value] for row in rows for value in row])
        return vaak.Batch({"values": values}, {"row": torch.ones(len(rows))})

    def describe(self, index):
        return f"number {index}"


class Task(vaak.Task):
    evaluation_splits = ()

    def dataset(self, split):
        if split != "train":
            raise vaak.UserError("no such split")
        return Numbers()

    def data_findings(self, split):
        yield DataFinding("number 2", "too round", "use another one", "warning")
"""


@pytest.fixture
def recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration of made recordings, written here."""
    monkeypatch.chdir(tmp_path)
    tiny_diarizer.write_corpus(tmp_path / "made")
    return tmp_path / "made"


def test_data_that_is_fine(vaak, recordings: Path):
    code, out, errors = vaak("data", "check", recordings / "tiny.yml")
    assert (code, errors) == (0, "")
    assert out.splitlines() == [
        "train: 16 examples", "valid: 3 examples", "test: 3 examples", "0 problems, 0 warnings",
    ]  # fmt: skip
    assert not (recordings.parent / "runs").exists()


@pytest.mark.slow
def test_nan_silence_clipping_and_what_cannot_be_read(vaak, recordings: Path):
    samples, rate = soundfile.read(recordings / "train" / "train0.wav", dtype="float32")
    soundfile.write(recordings / "train" / "train0.wav", np.clip(samples * 20, -1, 1), rate)
    soundfile.write(recordings / "valid" / "valid1.wav", np.zeros_like(samples), rate)
    samples[100_000] = np.nan
    soundfile.write(recordings / "test" / "test2.wav", samples, rate, subtype="FLOAT")
    code, out, _ = vaak("data", "check", recordings / "tiny.yml")
    assert code == 2
    lines = out.splitlines()
    assert lines[-1] == "2 problems, 1 warning"
    found = {line.split()[1]: line for line in lines if line.startswith("  ")}
    assert set(found) == {"clipped", "silent", "unreadable"}
    assert found["clipped"].startswith("  warning  clipped      train0 (")
    assert found["silent"].startswith("  problem  silent       valid1 (")
    assert "test2.wav: the sample at 6.250 s is nan, not a number" in found["unreadable"]
    code, out, _ = vaak("data", "check", recordings / "tiny.yml", "--json")
    report = json.loads(out)
    assert (code, report["usable"]) == (2, False)
    assert report["splits"] == {"train": 16, "valid": 3, "test": 3}
    assert [(row["split"], row["kind"], row["mark"]) for row in report["findings"]] == [
        ("train", "clipped", "warning"), ("valid", "silent", "problem"), ("test", "unreadable", "problem"),
    ]  # fmt: skip
    code, out, _ = vaak("data", "check", recordings / "tiny.yml", "data.on_bad_example=skip", "--json")
    assert [row["mark"] for row in json.loads(out)["findings"]] == ["warning", "problem", "warning"]


def test_a_users_task_adds_findings_and_nan_of_any_task_is_found(vaak, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "numbers.py").write_text(USERS_TASK)
    (tmp_path / "numbers.yml").write_text("task: ./numbers.py:Task\n")
    code, out, _ = vaak("data", "check", "numbers.yml", "--trust-code", "--json")
    assert code == 2
    assert [(row["example"], row["kind"], row["message"]) for row in json.loads(out)["findings"]] == [
        ("example 1 (number 1)", "not finite", "1 of 1 values of values are NaN or infinite"),
        ("example 3 (number 3)", "not finite", "1 of 1 values of values are NaN or infinite"),
        ("number 2", "too round", "use another one"),
    ]


def test_text_tasks_and_mistakes(vaak, tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = vaak("data", "check", tiny_text / "tiny.yml")
    assert code == 0
    assert out.splitlines()[-1] == "0 problems, 0 warnings"
    code, out, errors = vaak("data", "check", tiny_text / "tiny.yml", "data.corpus.train=[nowhere.txt]")
    assert (code, out) == (2, "")
    assert errors.count("\n") == 1
    assert "nowhere.txt" in errors
