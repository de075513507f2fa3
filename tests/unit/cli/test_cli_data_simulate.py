"""``vaak data simulate``: conversations of built-in voices, or of a YAML's dataset, in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from vaak.audio.formats.annotation_lines import read_rttm

Command = Callable[..., tuple[int, str, str]]

SMALL = ("datasets.0.num_voices=6", "datasets.0.num_sentences=3", "datasets.0.conversations.train_duration=12")


@pytest.fixture(scope="session")
def voices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the voices of all tests here are kept."""
    return tmp_path_factory.mktemp("voices")


@pytest.fixture
def simulate(vaak: Command, voices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(tmp_path)
    options = (*SMALL, f"datasets.0.output_dir={voices}")
    return lambda *arguments: vaak("data", "simulate", *arguments, *options)


def audio(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.flac")}


def test_conversations_of_built_in_voices_with_no_yaml(simulate: Command, tmp_path: Path) -> None:
    code, out, err = simulate("out", "--split", "train", "--number", 3)
    assert (code, err) == (0, "")
    assert out == "train: 18 utterances\n3 conversations, 0.6 minutes, of 6 speakers in out (3 new)\n"
    rttm = read_rttm(tmp_path / "out" / "reference.rttm")
    assert len(rttm) == 3
    for name, segments in rttm.items():
        samples, rate = soundfile.read(tmp_path / "out" / f"{name}.flac")
        assert (rate, len(samples)) == (16_000, 12 * 16_000)
        assert len({segment.speaker for segment in segments}) == 2
        speaking = np.zeros(len(samples), bool)
        for start, end, _ in segments:
            speaking[round(start * rate) : round(end * rate)] = True
        levels = [np.mean(np.square(samples[part])) for part in (speaking, ~speaking)]
        assert levels[0] > 5 * levels[1], "noise is at least 10 dB below the speech"


def test_the_same_options_give_the_same_bits_and_go_on(simulate: Command, tmp_path: Path) -> None:
    asked = ("--split", "train", "--number", 2, "--json")
    about = {"folder": "one", "number": 2, "new": 2, "seconds": 24.0, "speakers": 6}
    read = {"train": {"unit": "utterances", "number": 18, "left_out": {}, "names": {}}}
    assert json.loads(simulate("one", *asked)[1]) == {**about, "data": read, "files": []}
    assert json.loads(simulate("two", *asked)[1])["new"] == 2
    assert audio(tmp_path / "one") == audio(tmp_path / "two")
    assert json.loads(simulate("one", *asked)[1])["new"] == 0
    simulate("three", *asked, "training.random_seed=7")
    assert not set(audio(tmp_path / "three").values()) & set(audio(tmp_path / "one").values())
    code, out, err = simulate("one", *asked, "training.random_seed=7")
    assert (code, out) == (2, "")
    assert err == "one contains conversations made with other options or from other data: give another folder\n"


def test_options_of_the_yaml_decide(simulate: Command, vaak: Command, voices: Path, tmp_path: Path) -> None:
    dataset = {"type": "voices", "num_voices": 6, "num_sentences": 3, "split_by": "speaker", "output_dir": str(voices)}
    several = {"num_speakers": 3, "train_duration": 10, "train": 2, "noise": None}
    one = {"name": "one", **dataset, "conversations": several}
    Path("some.yml").write_text(
        json.dumps({"task": "diarization", "datasets": [one, {"name": "other", **dataset}]}), encoding="utf-8"
    )
    code, _, err = vaak("data", "simulate", "out", "some.yml", "--split", "train")
    assert (code, err) == (2, "there are several datasets; --dataset takes one of one, other\n")
    code, _, err = vaak("data", "simulate", "out", "some.yml", "--dataset", "nothing")
    assert (code, err) == (2, "unknown dataset nothing; --dataset takes one of one, other\n")
    assert not Path("out").exists()
    code, out, err = vaak("data", "simulate", "out", "some.yml", "--split", "train", "--dataset", "one")
    assert (code, err) == (0, "")
    assert out.splitlines()[1].startswith("2 conversations, 0.3 minutes")
    rttm = read_rttm(tmp_path / "out" / "reference.rttm")
    assert max(len({segment.speaker for segment in segments}) for segments in rttm.values()) == 3
    samples, _ = soundfile.read(tmp_path / "out" / "train-conversation-000000.flac")
    assert np.mean(np.abs(samples) < 1e-4) > 0.02, "there are pauses without any noise"


@pytest.mark.slow
def test_no_speaker_is_in_two_splits_by_default(vaak: Command, voices: Path, tmp_path: Path, monkeypatch) -> None:
    """Without valid and test, utterances were divided by recording: everyone in test had been heard in training."""
    monkeypatch.chdir(tmp_path)
    conversations = {"num_speakers": 2, "duration": 10, "train": 12, "valid": 3, "test": 3}
    dataset = {"type": "voices", "num_voices": 20, "num_sentences": 2, "output_dir": str(voices)}
    fractions = {"train_fraction": 0.4, "valid_fraction": 0.3, "conversations": conversations}
    text = json.dumps({"task": "diarization", "datasets": [{"name": "one", **dataset, **fractions}]})
    Path("some.yml").write_text(text, encoding="utf-8")
    speakers: dict[str, set[str]] = {}
    for split in ("train", "valid", "test"):
        code, _, err = vaak("data", "simulate", split, "some.yml", "--split", split)
        assert (code, err) == (0, "")
        rttm = read_rttm(Path(split) / "reference.rttm")
        speakers[split] = {segment.speaker for segments in rttm.values() for segment in segments}
    assert all(len(some) >= 2 for some in speakers.values())
    assert not speakers["train"] & speakers["test"]
    assert not speakers["train"] & speakers["valid"]
    assert not speakers["valid"] & speakers["test"]


def test_mistakes_are_said_in_a_line(simulate: Command, vaak: Command) -> None:
    code, _, err = simulate("out", "--split", "train", "datasets.0.conversations.num_speakers=9")
    assert (code, err.count("\n")) == (2, 1)
    assert "too few for conversations of 9" in err
    code, _, err = simulate("out", "datasets.0.conversations.betta=1")
    assert (code, err.count("\n")) == (2, 1)
    assert "command line: datasets.0.conversations.betta" in err
    assert "beta" in err.partition("betta")[2]
    Path("text.yml").write_text("task: lm\n", encoding="utf-8")
    code, _, err = vaak("data", "simulate", "out", "text.yml")
    assert (code, err) == (2, "the YAML of task lm names no audio under datasets\n")
    assert not Path("out").exists()


def test_help_shows_an_example(vaak: Command) -> None:
    code, out, _ = vaak("data", "simulate", "--help")
    assert code == 0
    assert "Example: vaak data simulate" in out
    assert "simulate" in vaak("data", "--help")[1]
