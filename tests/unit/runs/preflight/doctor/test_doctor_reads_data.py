"""``vaak doctor --read-data``: a corpus that is damaged inside is found, and what is damaged is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile

import tiny_diarizer
import tiny_runs
from vaak.runs.preflight.doctor import DoctorFinding
from vaak.runs.preflight.doctor.training import examine_configuration


@pytest.fixture
def recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration of made recordings, written here."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "made"
    tiny_diarizer.write_corpus(folder)
    for wav in folder.rglob("*.wav"):
        soundfile.write(wav.with_suffix(".flac"), *soundfile.read(wav, dtype="float32"))
        wav.unlink()
    file = tmp_path / "tiny.yml"
    file.write_text(tiny_diarizer.CONFIG.replace("FOLDER", str(folder)))
    return file


def damage(recordings: Path, split: str) -> Path:
    """Overwrite the middle of a recording; header and length stay right, so that only reading it shows it."""
    file = recordings.parent / "made" / split / f"{split}0.flac"
    content = bytearray(file.read_bytes())
    middle = slice(len(content) // 2, len(content) // 2 + 4000)
    content[middle] = bytes(reversed(content[middle]))
    file.write_bytes(content)
    return file


def read(file: Path, *overrides: str) -> list[DoctorFinding]:
    """What reading all data finds."""
    return [one for one in examine_configuration([file], overrides, read_data=True) if one.about == "all data"]


def test_a_truncated_recording_is_found_and_named(recordings: Path):
    before = tiny_runs.hashes(recordings.parent)
    whole = read(recordings)
    assert [(one.name, one.mark) for one in whole] == [("train", "ok"), ("valid", "ok"), ("test", "ok")]
    assert re.fullmatch(r"\d+ examples can be read; an example takes \d+\.\d ms \(.*reading.*\) to make", whole[0].said)
    assert tiny_runs.hashes(recordings.parent) == before, "nothing is written there"
    file = damage(recordings, "test")
    assert all(one.mark == "ok" for one in examine_configuration([recordings], [])), "not seen without reading"
    *fine, counted, named = read(recordings)
    assert [one.mark for one in fine] == ["ok", "ok"]
    assert (counted.name, counted.mark, counted.said) == ("test", "problem", "1 of 3 examples can't be read")
    assert file.name in named.said


def test_bad_examples_that_training_skips_are_a_warning(recordings: Path):
    damage(recordings, "train")
    (counted,) = [one for one in read(recordings, "data.on_bad_example=skip") if "can't be read" in one.said][:1]
    assert counted.mark == "warning"
    assert "skips them" in counted.advice


def test_text_that_can_not_be_prepared_is_a_problem(tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "lines.jsonl"
    file.write_text('{"text": "एक दो तीन"}\n{"text": \n')
    overrides = ["data.corpus.type=json", f"data.corpus.train=[{file}]", "data.corpus.valid=[]", "data.corpus.test=[]"]
    (finding,) = read(tiny_text / "tiny.yml", *overrides)
    assert (finding.name, finding.mark) == ("preparation", "problem")
    assert "lines.jsonl:2" in finding.said


def test_the_command_counts_and_exits_with_2(recordings: Path, vaak: Callable[..., tuple[int, str, str]]):
    damage(recordings, "valid")
    code, said, _ = vaak("doctor", recordings, "--read-data", "--json")
    assert code == 2
    findings = [one for one in json.loads(said)["findings"] if one["about"] == "all data"]
    assert [one["mark"] for one in findings] == ["ok", "problem", "problem", "ok"]
    assert findings[1]["said"] == "1 of 3 examples can't be read"
    code, _, errors = vaak("doctor", "--read-data")
    assert code == 2
    assert "give a YAML" in errors
