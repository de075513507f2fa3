"""``vaak data check FOLDER`` recognises every layout, lists its contents, and writes a YAML that can be checked."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import downloaded
import tiny_voice
from tiny_audio import write_audio

LAYOUTS = downloaded.WRITERS


def checked(vaak: Any, folder: Path, *options: Any, code: int = 0) -> dict[str, Any]:
    exit_code, out, errors = vaak("data", "check", folder, "--json", *options)
    assert exit_code == code, errors + out
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_layout_is_recognised_counted_and_its_yaml_accepted(vaak, kind: str, tmp_path: Path):
    written = LAYOUTS[kind](tmp_path / "corpus")
    [corpus] = checked(vaak, tmp_path / "corpus", "--output", tmp_path / "begin.yml")["corpora"]
    assert corpus["type"] == kind
    assert corpus["splits"].keys() == written.keys()
    for split, said in written.items():
        about = corpus["splits"][split]
        assert about["texts"] == sum(text is not None for _, text in said)
        assert about["speakers"] == len({speaker for speaker, _ in said if speaker})
        assert about["complete"]
        assert about["broken"] == []
        assert about["rates"] == ({"32000": about["recordings"]} if kind == "commonvoice" else {"16000": about["read"]})
    code, out, errors = vaak("config", "check", tmp_path / "begin.yml")
    assert code == 0, errors
    assert "warning" not in errors
    assert out.startswith("valid: task asr")


def test_hours_are_those_of_the_recordings(vaak, tmp_path: Path):
    downloaded.ami(tmp_path)
    [corpus] = checked(vaak, tmp_path)["corpora"]
    assert corpus["splits"]["train"]["hours"] == pytest.approx(2.0 / 3600, abs=1e-4)
    assert corpus["splits"]["train"]["seconds"] == [2.0, 2.0, 2.0]


def write_text(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_text("".join(json.dumps({"content": f"line {n}"}) + "\n" for n in range(30)))
    (folder / "test.jsonl").write_text(
        json.dumps({"content": "Line 3."}) + "\n" + json.dumps({"content": "new"}) + "\n"
    )
    (folder / "README.md").write_text("about")


def write_table(folder: Path) -> None:
    for name in "ab":
        write_audio(folder / "clips" / f"{name}.wav", 0.3)
    (folder / "metadata.csv").write_text("file_name,transcription\nclips/a.wav,so it is\nclips/b.wav,no\n")


def write_turns(folder: Path) -> None:
    for number in range(6):
        write_audio(folder / f"talk{number}.wav", 2.0)
        turns = [
            f"SPEAKER talk{number} 1 {start:.2f} 0.50 <NA> <NA> {who} <NA> <NA>"
            for start, who in ((0.1, "ann"), (1.0, "bob"))
        ]
        (folder / f"talk{number}.rttm").write_text("\n".join(turns) + "\n")


OTHERS: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "ljspeech": (tiny_voice.write_ljspeech, "ljspeech", "tts"),
    "texts": (write_text, "text", "lm"),
    "table": (write_table, "json", "asr"),
    "turns": (write_turns, "folder", "diarization"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_data_are_recognised_by_their_files(vaak, name: str, tmp_path: Path):
    write, kind, task = OTHERS[name]
    write(tmp_path / "data")
    [corpus] = checked(vaak, tmp_path / "data", "--output", tmp_path / "begin.yml")["corpora"]
    assert corpus["type"] == kind
    code, out, errors = vaak("config", "check", tmp_path / "begin.yml")
    assert (code, out.split()[:3]) == (0, ["valid:", "task", f"{task},"]), errors


def test_what_leaks_between_splits_and_what_is_missing_is_said_in_80_columns(vaak, tmp_path: Path):
    downloaded.commonvoice(tmp_path)
    test = next(tmp_path.rglob("test.tsv"))
    test.write_text(test.read_text().replace("s4" * 64, "s2" * 64).replace(downloaded.TEXTS[2], "go - he said"))
    next(tmp_path.rglob("common_voice_hi_3.mp3")).unlink()
    code, out, _ = vaak("data", "check", tmp_path)
    assert code == 2, "a recording is missing"
    assert [line for line in out.splitlines() if len(line) > 80 and "cv-corpus" not in line] == []
    plain = " ".join(out.split())
    assert "leak 1 of 1 speakers of test are in train, too (100.0 %)" in plain
    assert "leak 1 of 1 texts of test are in train, too (100.0 %)" in plain
    assert "problem 1 of 4 recordings read are missing or broken:" in plain
    assert "common_voice_hi_3.mp3: can't be read: No such file" in plain
    assert "languages hi rates 32,000 Hz" in plain
    assert "type: commonvoice" in out


def test_several_corpora_in_a_folder_are_several_datasets(vaak, tmp_path: Path):
    downloaded.commonvoice(tmp_path, "hi")
    downloaded.commonvoice(tmp_path, "ta")
    downloaded.parquet(tmp_path / "hub")
    found = checked(vaak, tmp_path, "--output", tmp_path / "begin.yml")["corpora"]
    assert [one["type"] for one in found] == ["commonvoice", "commonvoice", "parquet"]
    assert vaak("config", "check", tmp_path / "begin.yml")[0] == 0


def test_when_time_is_up_figures_are_estimates(tmp_path: Path):
    from vaak.report.corpora import render_lines
    from vaak.runs.preflight.doctor.folder import survey_folder

    downloaded.write_tar(
        tmp_path / "train.tar",
        {f"{n:04}.{kind}": content for n in range(300) for kind, content in
         (("flac", downloaded.audio_bytes(0.2)), ("txt", b"so"))},
    )  # fmt: skip
    [corpus] = survey_folder(tmp_path, 0.0)
    corpus.splits["train"].durations = corpus.splits["train"].durations[:10]
    split = corpus.splits["train"]
    assert not split.is_exact
    assert split.hours == pytest.approx(split.num_entries * 0.2 / 3600)
    assert "~ estimated, > at least" in "\n".join(render_lines(corpus, tmp_path))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.mkdir(), "is empty"),
        (lambda path: path.write_text("so"), "has nothing to train on: 1 .bin"),
        (lambda path: None, "no such file or folder"),
        (
            lambda path: [path.mkdir(), (path / "a.bin").write_bytes(b"\0")],
            "has nothing to train on: 1 .bin; speech recognition needs: ",
        ),
    ],
)
def test_what_is_no_corpus_is_one_line(vaak, make, message: str, tmp_path: Path):
    make(path := tmp_path / "data.bin")
    code, out, errors = vaak("data", "check", path)
    assert (code, out) == (2, "")
    assert message in errors
    assert len(errors.splitlines()) == 1


def _name_elsewhere(root: Path) -> str:
    write_audio(root.parent / "elsewhere" / "a.wav", 0.3, 16000, seed=1)
    rows = [{"audio": "../elsewhere/a.wav", "text": f"words {number}"} for number in range(30)]
    (root / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return r"train\.jsonl:1: \.\./elsewhere/a\.wav is outside of the folder of the manifest .* audio_root: "


def _name_absent(root: Path) -> str:
    (root / "list.csv").write_text("file,text\n" + "".join(f"a{number}.wav,words {number}\n" for number in range(30)))
    return r"list\.csv:2: .*a0\.wav: can't be read: No such file or directory"


def _break_audio(root: Path) -> str:
    for number in range(30):
        (root / f"a{number}.wav").write_bytes(b"RIFF, but nothing else" * 20)
        (root / f"a{number}.txt").write_text(f"some words {number}\n")
    return r"a0\.wav: this is not audio that libsndfile can read"


def _name_alone(root: Path) -> str:
    (root / "list.jsonl").write_text("".join(json.dumps({"audio": f"/nowhere/{n}.wav"}) + "\n" for n in range(30)))
    return r"list\.jsonl:1: /nowhere/0\.wav is outside of the folder of the manifest"


@pytest.mark.parametrize("write", [_name_elsewhere, _name_absent, _break_audio, _name_alone])
def test_recordings_that_can_not_be_read_are_not_taken_for_text_without_the_reason(
    vaak, write: Callable[[Path], str], tmp_path: Path
):
    (data := tmp_path / "data").mkdir()
    reason = write(data)
    for command in (("init", "--data", data), ("init", "asr", "--data", data)):
        code, out, errors = vaak(*command, "-o", tmp_path / "begin.yml")
        assert (code, out, (tmp_path / "begin.yml").exists()) == (2, "", False), command
        assert re.search(reason, errors.splitlines()[-1]), (command, errors)  # what was found is above it
    code, out, errors = vaak("data", "check", data)  # what it says is wrapped, and folders are abbreviated
    assert code == 2
    assert "its recordings aren't read:" in out, out + errors
    if write is not _name_alone:  # the texts may still be asked for
        code, out, errors = vaak("init", "lm", "--data", data, "-o", tmp_path / "lm.yml")
        assert code == 0, errors
        assert "task: lm" in (tmp_path / "lm.yml").read_text()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_folder_that_can_not_be_read_is_one_line(vaak, tmp_path: Path):
    (tmp_path / "data").mkdir(mode=0)
    code, _, errors = vaak("data", "check", tmp_path / "data")
    assert code == 2
    assert "can't be read: Permission denied" in errors
