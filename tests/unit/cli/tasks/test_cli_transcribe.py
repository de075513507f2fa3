"""``vaak transcribe``: recordings in, text, JSON or subtitles out, and one line for what can't be transcribed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import soundfile

import tiny_diarizer
import tiny_listener
from vaak.audio.audio_file import AudioFile
from vaak.audio.formats.alignments import read_textgrid
from vaak.audio.formats.annotation_lines import read_rttm
from vaak.runs.open_run import open_run
from vaak.scoring.speaker_errors import read_turns
from vaak.tasks.asr.speaker_transcripts import TURN_MARGIN_SECONDS, join_turns


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
    assert len(err.splitlines()) == 2
    assert err.endswith("\n1 of 2 recordings transcribed; left out: 1\n")
    assert "broken.wav" in err


def test_a_run_of_another_task_is_refused(vaak, voice_run: Path, run: Path):
    code, out, err = vaak("transcribe", voice_run, run.parent / "corpus" / "test0.wav")
    assert (code, out) == (2, "")
    assert err == f"{voice_run} is a run of task tts; vaak transcribe requires a run of task asr\n"


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A conversation that the tiny diarizer hasn't seen."""
    path = tmp_path_factory.mktemp("talk") / "a talk.wav"
    soundfile.write(path, tiny_diarizer.conversation(100)[0], tiny_diarizer.RATE)
    return path


def test_each_turn_is_what_the_recogniser_says_of_its_part(
    vaak, run: Path, diarizer_run: Path, talk: Path, tmp_path: Path
):
    code, out, err = vaak("transcribe", run, talk, "--diarize", diarizer_run, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    diarizer, listener = open_run(diarizer_run), open_run(run)
    (diarized,) = diarizer.task.predict(diarizer.model, [talk])
    transcriber, rate = listener.task.transcriber(listener.model), listener.task.features.sampling_rate
    expected = []
    for number, (start, end, speaker) in enumerate(join_turns(diarized.segments)):
        samples = AudioFile(talk, rate).read(max(start - TURN_MARGIN_SECONDS, 0), end + TURN_MARGIN_SECONDS)
        soundfile.write(tmp_path / f"{number}.wav", samples, rate, "FLOAT")
        text = transcriber.transcribe(tmp_path / f"{number}.wav").text
        expected += [(round(start, 3), round(end, 3), speaker, text)] if text else []
    assert len(expected) > 3
    assert [tuple(segment.values()) for segment in found["segments"]] == expected
    assert {segment["speaker"] for segment in found["segments"]} == {"speaker_1", "speaker_2"}


@pytest.mark.slow
def test_who_said_what_is_written_in_each_format_and_scored(
    vaak, run: Path, diarizer_run: Path, talk: Path, tmp_path: Path
):
    files = {}
    for format in ("json", "rttm", "stm", "srt", "vtt", "text", "textgrid"):
        options = ("--diarize", diarizer_run, "--format", format, "--output", tmp_path)
        assert vaak("transcribe", run, talk, *options)[:2] == (0, "")
        files[format] = tmp_path / f"a_talk.{ ({'text': 'txt', 'textgrid': 'TextGrid'}.get(format, format)) }"
    turns = json.loads(files["json"].read_text())["segments"]
    assert files["text"].read_text().splitlines() == [f"{one['speaker']}: {one['text']}" for one in turns]
    assert f"\n{turns[0]['speaker']}: {turns[0]['text']}\n" in files["srt"].read_text()
    assert f"\n{turns[0]['speaker']}: {turns[0]['text']}\n" in files["vtt"].read_text()
    tiers = read_textgrid(files["textgrid"])
    for speaker in ("speaker_1", "speaker_2"):
        said = [one["text"] for one in turns if one["speaker"] == speaker]
        assert [interval.text for interval in tiers[speaker] if interval.text] == said
    assert [segment.speaker for segment in read_rttm(files["rttm"])["a_talk"]] == [one["speaker"] for one in turns]
    assert [turn._asdict() for turn in read_turns(files["stm"])["a_talk"]] == turns
    code, out, _ = vaak(
        "score", "cpwer", files["stm"], files["rttm"], "--collar", 0.1, "--normaliser", "none", "--json"
    )
    assert code == 0
    assert json.loads(out)["total"]["tcp_errors"] == 0
    code, out, _ = vaak("score", "cpwer", files["stm"], files["stm"])
    assert code == 0
    assert out.splitlines()[-2].split()[:3] == ["total", "0.00", "0.00"]


def test_what_tells_no_speakers_is_refused(vaak, run: Path, diarizer_run: Path, talk: Path, tmp_path: Path):
    code, out, err = vaak("transcribe", run, talk, "--format", "stm")
    assert (code, out, err) == (2, "", "--format stm: only --diarize RUN tells who speaks\n")
    code, out, err = vaak("transcribe", run, talk, "--diarize", run, "--output", tmp_path / "new")
    assert (code, out, err) == (2, "", f"{run} is a run of task asr; --diarize requires a run of task diarization\n")
    assert not (tmp_path / "new").exists()
    code, out, err = vaak("transcribe", run, talk, "--diarize", diarizer_run, "--long-form", "seek")
    assert (code, out, err) == (2, "", "--long-form: with --diarize, times are those of turns; leave it out\n")
