"""``vaak transcribe``: recordings in, text, JSON or subtitles out, and one line for what can't be transcribed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiny_listener
from vaak.audio.formats.alignments import read_textgrid


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("listener")
    tiny_listener.write_listener(folder / "corpus")
    options = ("training.max_steps=2", "data.decoding.max_new_tokens=6")
    return tiny_listener.train(folder / "corpus", folder / "run", *options)


def test_formats(vaak, run: Path, tmp_path: Path):
    corpus = run.parent / "corpus"
    code, out, err = vaak("transcribe", run, corpus / "test0.wav")
    assert (code, err) == (0, "")
    text = out.strip()
    code, out, _ = vaak("transcribe", run, corpus / "test0.wav", corpus / "test1.wav", "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [one["name"] for one in found] == ["test0", "test1"]
    assert found[0]["text"] == text
    assert found[0]["duration"] == pytest.approx(0.25)
    files = (corpus / "test0.wav", corpus / "test1.wav", "--format", "srt", "--output", tmp_path / "srt")
    code, out, _ = vaak("transcribe", run, *files, "--method", "beam", "--beam-size", 2)
    assert (code, out) == (0, "")
    assert sorted(path.name for path in (tmp_path / "srt").iterdir()) == ["test0.srt", "test1.srt"]


def test_subtitles_for_browsers_and_praat(vaak, run: Path, tmp_path: Path):
    audio = run.parent / "corpus" / "test2.wav"
    code, out, _ = vaak("transcribe", run, audio, "--format", "vtt")
    assert (code, out.partition("\n")[0]) == (0, "WEBVTT")
    code, out, err = vaak("transcribe", run, audio, "--format", "textgrid")
    assert (code, out, err) == (2, "", "--format textgrid: give --output, a folder for the files\n")
    code, out, _ = vaak("transcribe", run, audio, "--format", "textgrid", "--output", tmp_path / "grids")
    assert (code, out) == (0, "")
    text = vaak("transcribe", run, audio)[1].strip()
    assert [one.text for one in read_textgrid(tmp_path / "grids" / "test2.TextGrid")["segments"]] == [text]
    for option in (("--timestamps", "word"), ("--language", "auto"), ("--task", "translate"), ("--long-form", "seek")):
        code, out, err = vaak("transcribe", run, audio, *option)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert f"data.decoding.{option[0][2:].replace('-', '_')}" in err


def test_files_that_cannot_be_read_are_reported_and_the_others_transcribed(vaak, run: Path, tmp_path: Path):
    (tmp_path / "broken.wav").write_bytes(b"RIFF no audio")
    code, out, err = vaak("transcribe", run, tmp_path / "broken.wav", run.parent / "corpus" / "test0.wav")
    assert code == 2
    assert out.startswith("test0:")
    assert len(err.splitlines()) == 1
    assert "broken.wav" in err


def test_a_run_of_another_task_is_refused(vaak, voice_run: Path, run: Path):
    code, out, err = vaak("transcribe", voice_run, run.parent / "corpus" / "test0.wav")
    assert (code, out) == (2, "")
    assert err == f"{voice_run} is a run of task tts; vaak transcribe requires a run of task asr\n"
