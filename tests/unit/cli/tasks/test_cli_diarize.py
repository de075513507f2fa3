"""``vaak diarize`` takes any audio and writes valid RTTM; a bad file doesn't hold up the others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tiny_diarizer import RATE, conversation
from vaak.audio.formats.annotation_lines import read_rttm, write_rttm
from vaak.audio.segments import merged
from vaak.runs.open_run import open_run
from vaak.scoring.diarization_errors import diarization_error


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A conversation that training doesn't have, with its reference next to it."""
    samples, segments = conversation(100)
    path = tmp_path / "in" / "talk.wav"
    path.parent.mkdir()
    soundfile.write(path, samples, RATE)
    write_rttm(path.with_suffix(".rttm"), {"talk": segments})
    return path


def rate_of(reference: Path, hypothesis: Path) -> float:
    (right,), (found,) = read_rttm(reference).values(), read_rttm(hypothesis).values()
    rate = diarization_error(right, found, uem=None, collar=0.0, skip_overlap=False).rate
    assert rate is not None
    return rate


def test_standard_output_is_rttm_and_the_rest_is_said_beside_it(vaak, diarizer_run: Path, recording: Path):
    code, out, err = vaak("diarize", diarizer_run, recording)
    assert code == 0
    hypothesis = recording.with_name("said.rttm")
    hypothesis.write_text(out)
    assert list(read_rttm(hypothesis)) == ["talk"]
    assert rate_of(recording.with_suffix(".rttm"), hypothesis) < 0.1
    assert err.splitlines()[0].startswith(f"{recording}: speakers 2, 12.0 s of audio in ")
    assert err.splitlines()[-1].startswith("files 1, 12.0 s of audio in ")
    assert err.count("real-time factor 0.") == 2
    opened = open_run(diarizer_run)
    (predicted,) = opened.task.predict(opened.model, [recording])
    assert read_rttm(hypothesis)["talk"] == [pytest.approx(one) for one in predicted.segments]


def test_every_rate_channel_count_and_format_says_the_same(vaak, diarizer_run: Path, recording: Path, tmp_path: Path):
    from soxr import resample

    samples, _ = soundfile.read(recording, dtype="float32")
    folder = tmp_path / "as"
    folder.mkdir()
    soundfile.write(folder / "stereo.flac", np.stack([samples, samples], 1), RATE)
    soundfile.write(folder / "rate44.wav", resample(samples, RATE, 44100), 44100)
    soundfile.write(folder / "six.wav", np.repeat(samples[:, None], 6, 1), RATE, subtype="FLOAT")
    soundfile.write(folder / "lossy.ogg", samples, RATE)
    soundfile.write(folder / "rate8.wav", resample(samples, RATE, 8000), 8000)
    code, _, _ = vaak("diarize", diarizer_run, folder, "--output", tmp_path / "out")
    assert code == 0
    for name in ("stereo", "rate44", "six", "lossy"):
        assert rate_of(recording.with_suffix(".rttm"), tmp_path / "out" / f"{name}.rttm") < 0.15, name
    assert (tmp_path / "out" / "rate8.rttm").exists()  # the high voice is above what 8 kHz can hold: less is left


def test_bad_files_are_a_line_each_and_the_others_are_done(vaak, diarizer_run: Path, recording: Path, tmp_path: Path):
    folder = recording.parent
    samples, _ = soundfile.read(recording, dtype="float32")
    content = recording.read_bytes()
    (folder / "cut.wav").write_bytes(content[: len(content) // 2])
    soundfile.write(folder / "whole.flac", samples, RATE)
    flac = (folder / "whole.flac").read_bytes()
    (folder / "torn.flac").write_bytes(flac[: len(flac) // 2])
    (folder / "empty.wav").touch()
    soundfile.write(folder / "header.wav", np.zeros(0, np.float32), RATE)
    broken = samples.copy()
    broken[RATE] = np.nan
    soundfile.write(folder / "nan.wav", broken, RATE, subtype="FLOAT")
    (folder / "text.wav").write_text("this isn't audio\n" * 100)
    soundfile.write(folder / "short.wav", samples[8000:8800], RATE)
    soundfile.write(folder / "one.wav", samples[:1], RATE)
    soundfile.write(folder / "silence.wav", np.zeros(5 * RATE, np.float32), RATE)
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    code, out, err = vaak(
        "diarize", diarizer_run, folder, tmp_path / "gone.wav", nothing, "--output", tmp_path / "out", "--json"
    )
    assert code == 2
    report = json.loads(out)
    reasons = {Path(one["file"]).name: one["reason"] for one in report["failed"]}
    assert err.splitlines() == list(reasons.values())
    expected = {
        "nothing": "no audio in this folder",
        "empty.wav": "the file is empty (0 bytes)",
        "header.wav": "this file holds no samples",
        "nan.wav": "the sample at 1.000 s is nan, not a number",
        "text.wav": "this is not audio that libsndfile can read",
        "torn.flac": "(6.144 s): it is truncated",
        "gone.wav": "can't be read: No such file or directory",
    }
    assert reasons.keys() - {"cut.wav"} == expected.keys()  # a WAV cut short may be read as far as it goes
    for name, words in expected.items():
        assert words in reasons[name]
    done = {one["name"]: one for one in report["recordings"]}
    assert done.keys() - {"cut"} == {"talk", "whole", "short", "one", "silence"}
    assert done["one"]["segments"] == []
    assert {path.stem for path in (tmp_path / "out").iterdir()} == done.keys()
    assert (tmp_path / "out" / "one.rttm").read_text() == ""
    assert report["total"] | {"recordings": len(done), "failed": len(reasons)} == report["total"]
    for one in done.values():
        assert all(0 <= segment["start"] < segment["end"] <= one["duration"] for segment in one["segments"])


def test_one_file_for_all_and_names_that_rttm_can_hold(vaak, diarizer_run: Path, recording: Path, tmp_path: Path):
    for folder in ("a", "b"):
        (tmp_path / "floors" / folder).mkdir(parents=True)
        shutil.copy(recording, tmp_path / "floors" / folder / "board meeting.wav")
    output = tmp_path / "new" / "all.rttm"
    code, out, _ = vaak("diarize", diarizer_run, tmp_path / "floors", "--output", output)
    assert (code, out) == (0, "")
    found = read_rttm(output)
    assert list(found) == ["a-board_meeting", "b-board_meeting"]
    assert found["a-board_meeting"] == found["b-board_meeting"]


def test_reference_picture_and_score(vaak, diarizer_run: Path, recording: Path, tmp_path: Path):
    right, picture = recording.with_suffix(".rttm"), tmp_path / "timeline.png"
    asked = ("--reference", right, "--picture", picture, "--output", tmp_path / "out.rttm")
    code, _, err = vaak("diarize", diarizer_run, recording, *asked)
    assert code == 0
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert vaak("score", "der", right, tmp_path / "out.rttm")[1] in err
    (tmp_path / "part.uem").write_text("talk 1 0 6\n")
    report = json.loads(vaak("diarize", diarizer_run, recording, *asked, "--uem", tmp_path / "part.uem", "--json")[1])
    assert report["scores"]["protocol"]["uem"] == "given"
    scored = sum(min(end, 6) - start for start, end, _ in merged(read_rttm(right)["talk"]) if start < 6)
    assert report["scores"]["total"]["scored_seconds"] == pytest.approx(scored)
    plain = tmp_path / "plain"
    assert vaak("diarize", diarizer_run, recording, "--picture", plain)[0] == 0
    assert (plain / "talk.png").stat().st_size < picture.stat().st_size  # no lanes of a reference


def test_options_go_over_the_run_s(vaak, diarizer_run: Path, recording: Path):
    def said(*options: object) -> dict:
        code, out, err = vaak("diarize", diarizer_run, recording, "--json", *options)
        assert code == 0, err
        return json.loads(out)

    own = said()
    assert own["inference"]["window"] == 8.0
    assert own["recordings"][0]["speakers"] == ["speaker_1", "speaker_2"]
    assert said("--num-speakers", 1)["recordings"][0]["speakers"] == ["speaker_1"]
    bounded = said("--max-speakers", 1)
    assert bounded["recordings"][0]["speakers"] == ["speaker_1"]
    assert bounded["inference"]["num_speakers"] is None
    assert said("--min-duration-on", 60)["recordings"][0]["segments"] == []
    found = said("--threshold", 0.9, "--median-filter", 0.2, "--window", 20, "--window-overlap", 0.25)
    expected = {"threshold": 0.9, "median_filter": 0.2, "window": 20.0, "window_overlap": 0.25}
    assert found["inference"] | expected == found["inference"]


def test_a_model_says_where_it_can_tell_no_more_speakers_apart(
    vaak, diarizer_run: Path, recording: Path, tmp_path: Path
):
    """The model is for two: where it finds two there may be more, and three of them are refused, not made two."""
    notice = "; as many speakers as the model can tell apart: there may be more"
    code, out, err = vaak("diarize", diarizer_run, recording)
    assert code == 0
    assert err.splitlines()[0].endswith(notice)
    assert json.loads(vaak("diarize", diarizer_run, recording, "--json")[1])["recordings"][0]["at_ceiling"]
    for options in (("--num-speakers", 2), ("--threshold", 0.999999999)):  # the user knows; nobody speaks
        code, _, err = vaak("diarize", diarizer_run, recording, *options)
        assert (code, notice in err) == (0, False), options
    samples, rate = soundfile.read(recording)
    short = tmp_path / "short.wav"
    soundfile.write(short, samples[: 5 * rate], rate)
    code, out, err = vaak("diarize", diarizer_run, short, "--num-speakers", 3)
    assert (code, out) == (2, "")
    assert err.startswith(f"{short}: 3 speakers were asked for, but this model tells at most 2 apart")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--threshold", 2), "data.inference.threshold"),
        (("--num-speakers", 0), "data.inference.num_speakers"),
        (("--num-speakers", 2, "--min-speakers", 1), "leave out --min-speakers"),
        (("--min-speakers", 3, "--max-speakers", 2), "min_speakers (3) is more than max_speakers (2)"),
        (("--uem", "some.uem"), "which requires --reference"),
        (("--reference", "other.rttm"), "--reference has none of these recordings (it has other, not talk)"),
        (("--reference", "gone.rttm"), "gone.rttm: can't be read"),
        (("another.wav", "--picture", "one.png"), "is for one recording, but there are 2"),
        (("--output", "file/in"), "--output: the folder file/in can't be created"),
        (("--device", "tpu"), "unknown device 'tpu'"),
    ],
)
def test_mistakes(vaak, diarizer_run: Path, recording: Path, options, words: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("other.rttm").write_text("SPEAKER other 1 0 1 <NA> <NA> A <NA> <NA>\n")
    code, out, err = vaak("diarize", diarizer_run, recording, *options)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert words in err


def test_a_language_model_hears_nothing(vaak, tiny_run: Path, recording: Path):
    for command in (("diarize", tiny_run, recording), ("tune", tiny_run)):
        code, out, err = vaak(*command)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"{tiny_run} is a run of task lm; vaak {command[0]} requires" in err


def test_a_recording_longer_than_memory_should_hold_is_read_in_windows(
    vaak, diarizer_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Ten minutes, of which no more than a window with its edges is asked for at once."""
    from vaak.audio.audio_file import AudioFile

    asked: list[int] = []
    read = AudioFile.read

    def counted(self: AudioFile, start: float, end: float) -> np.ndarray:
        samples = read(self, start, end)
        asked.append(len(samples))
        return samples

    monkeypatch.setattr(AudioFile, "read", counted)
    samples, _ = conversation(101, 60.0)
    soundfile.write(tmp_path / "long.wav", np.tile(samples, 10), RATE)
    report = json.loads(vaak("diarize", diarizer_run, tmp_path / "long.wav", "--json")[1])
    assert report["total"]["duration"] == 600
    assert report["recordings"][0]["speakers"] == ["speaker_1", "speaker_2"]
    assert len(asked) > 100
    assert max(asked) < 8.2 * RATE


def test_recordings_of_one_name_are_called_alike_by_diarize_and_predict(
    vaak, diarizer_run: Path, recording: Path, tmp_path: Path
):
    for folder in ("a", "b"):
        (tmp_path / "calls" / folder).mkdir(parents=True)
        shutil.copy(recording, tmp_path / "calls" / folder / "1.wav")
    (tmp_path / "calls" / "notes.docx").write_bytes(b"PK")
    code, out, err = vaak("diarize", diarizer_run, tmp_path / "calls", "--output", tmp_path / "rttm", "--json")
    assert code == 0, err
    assert sorted(path.stem for path in (tmp_path / "rttm").iterdir()) == ["a-1", "b-1"]
    found = json.loads(out)
    assert [one["name"] for one in found["recordings"]] == ["a-1", "b-1"]
    where = str(tmp_path / "calls")
    assert found["files"] == [{"where": where, "read": 2, "left_out": {}, "other_files": {".docx": 1}}]
    code, out, err = vaak("predict", diarizer_run, tmp_path / "calls", "--json")
    assert (code, [json.loads(line)["name"] for line in out.splitlines()]) == (0, ["a-1", "b-1"])
    assert err.endswith("2 of 2 recordings predicted\n")
    code, out, err = vaak("predict", diarizer_run, tmp_path / "rttm")
    assert (code, out) == (2, "")
    assert "no audio in this folder" in err
    assert "there are 2 .rttm" in err


def test_an_evaluation_on_other_recordings_says_what_it_left_out(
    vaak, diarizer_run: Path, recording: Path, tmp_path: Path
):
    shutil.copy(recording, recording.with_name("unlabelled.wav"))
    (recording.parent / "notes.docx").write_bytes(b"PK")
    data = f"datasets=[{{name: d, type: folder, train: [/gone], valid: [{recording.parent}]}}]"
    code, out, err = vaak("eval", diarizer_run, data, "--json")
    assert code == 0, err
    report, reason = json.loads(out), "audio files without RTTM or TextGrid"
    contents = {"unit": "recordings", "number": 1, "left_out": {reason: 1}, "names": {reason: ["unlabelled"]}}
    assert report["data"] == {"valid": contents}
    where = str(recording.parent)
    assert report["files"] == [{"where": where, "read": 2, "left_out": {}, "other_files": {".docx": 1}}]
    code, out, err = vaak("eval", diarizer_run, data)
    assert out.splitlines()[-1] == f"valid: 1 recording; left out: 1 {reason} (unlabelled)"
