"""Recordings that are kept become data for ``vaak init`` and ``vaak train``; nothing that is there is lost."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import soundfile

from folders import contents
from vaak.config.yaml.text import read_yaml
from vaak.core.errors import UserError
from vaak.serve.demo.keeping import KeptRecordings


def record(path: Path, seconds: float = 0.5, channels: int = 1, rate: int = 44_100) -> Path:
    samples = np.random.default_rng(list(path.name.encode())).uniform(-0.5, 0.5, (round(seconds * rate), channels))
    soundfile.write(path, samples, rate, "PCM_16")
    return path


def lines_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "recordings.jsonl").read_text(encoding="utf-8").splitlines()]


def test_kept_recordings_are_what_init_and_train_read(vaak, tmp_path: Path, caplog):
    kept = KeptRecordings(tmp_path / "kept")
    for number in range(4):
        kept.add(record(tmp_path / f"../{tmp_path.name}/talk-{number}.wav", channels=2), f"so it\n is {number}")
    code, out, err = vaak("init", "asr", "--data", tmp_path / "kept", "--output", tmp_path / "own.yml")
    assert code == 0, err
    (corpus,) = read_yaml(tmp_path / "own.yml")["datasets"]
    assert corpus["type"] == "nemo"
    code, out, err = vaak("data", "check", tmp_path / "own.yml")
    assert code == 0, out + err
    assert sum(map(int, re.findall(r"^\w+: (\d+) examples", out, re.MULTILINE))) == 4, out
    # The lock of what keeps them is nobody's data.
    assert caplog.text.count("there are recordings.jsonl, wavs\n") == 2
    assert ".lock" not in caplog.text + out + err
    (one, *_) = lines_of(tmp_path / "kept")
    assert one["text"] == "so it is 0"
    found = soundfile.info(tmp_path / "kept" / str(one["audio_filepath"]))
    assert (found.samplerate, found.channels, found.duration) == (44_100, 1, 0.5)


@pytest.mark.slow
def test_kept_recordings_are_trained_from(vaak, tmp_path: Path):
    kept = KeptRecordings(tmp_path / "kept")
    for number in range(3):
        kept.add(record(tmp_path / f"talk-{number}.wav"), f"so it is {number}")
    code, out, err = vaak("init", "asr", "--data", tmp_path / "kept", "--output", tmp_path / "own.yml")
    assert code == 0, out + err
    small = ["training.max_steps=1", "training.device=cpu"]
    code, out, err = vaak("train", tmp_path / "own.yml", *small, f"run_dir={tmp_path / 'run'}")
    assert code == 0, out + err
    assert "step 1/1" in err
    code, out, err = vaak("transcribe", tmp_path / "run", *sorted(kept.folder.glob("wavs/*.wav")))
    assert code == 0, out + err


def test_what_is_kept_at_once_is_all_there(tmp_path: Path):
    kept = KeptRecordings(tmp_path / "kept")
    talks = [record(tmp_path / f"talk-{number}.wav", 0.01) for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        made = [one.path for one in pool.map(kept.add, talks, [f"text {number}" for number in range(24)])]
    found = lines_of(kept.folder)
    assert len({*made}) == len(found) == 24
    assert {one["text"] for one in found} == {f"text {number}" for number in range(24)}
    assert {Path(str(one["audio_filepath"])).name for one in found} == {path.name for path in made}
    assert {path.name for path in (kept.folder / "wavs").iterdir()} == {path.name for path in made}


def test_a_recording_that_is_kept_again_has_its_text_corrected(tmp_path: Path):
    """It was there twice, once with the slip; one of the two might be trained on, and the other be validated on."""
    kept, talk = KeptRecordings(tmp_path / "kept"), record(tmp_path / "talk.wav")
    first = kept.add(talk, "so it iz")
    other = kept.add(record(tmp_path / "other.wav"), "and so on")
    manifest = kept.folder / "recordings.jsonl"
    manifest.write_text(manifest.read_text() + "no JSON\n")
    assert (first.before, other.before) == (None, None)
    assert kept.add(talk, "so it is") == (first.path, "so it iz")
    before = manifest.read_bytes()
    assert kept.add(talk, " so  it is\n") == (first.path, "so it is")
    assert manifest.read_bytes() == before
    lines = before.decode().splitlines()
    assert [json.loads(line)["text"] for line in lines[:2]] == ["so it is", "and so on"]
    assert lines[2:] == ["no JSON"]
    assert len(list((kept.folder / "wavs").iterdir())) == 2


def test_what_is_there_already_stays(tmp_path: Path):
    kept = KeptRecordings(tmp_path / "kept")
    kept.folder.mkdir()
    (kept.folder / "recordings.jsonl").write_text('{"audio_filepath": "own.wav", "text": "mine"}')  # no line end
    kept.add(record(tmp_path / "talk.wav"), "so it is")
    assert [one["text"] for one in lines_of(kept.folder)] == ["mine", "so it is"]


@pytest.mark.parametrize(
    ("name", "text", "said"), [("talk.wav", " \n", "has no transcript"), ("noise.wav", "so it is", "noise.wav")]
)
def test_what_cant_be_kept_leaves_nothing(tmp_path: Path, name: str, text: str, said: str):
    record(tmp_path / "talk.wav")
    (tmp_path / "noise.wav").write_bytes(b"no audio")
    with pytest.raises(UserError, match=said):
        KeptRecordings(tmp_path / "kept").add(tmp_path / name, text)
    assert not (tmp_path / "kept").exists()


def test_a_folder_that_cant_be_written_is_named(tmp_path: Path):
    (tmp_path / "kept").write_text("a file")
    before = contents(tmp_path)
    with pytest.raises(UserError, match="kept: the recording can't be kept"):
        KeptRecordings(tmp_path / "kept").add(record(tmp_path / "talk.wav"), "so it is")
    assert {**contents(tmp_path), "talk.wav": None} == {**before, "talk.wav": None}
