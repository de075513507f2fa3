"""A folder with Train and Dev is read by what it has: manifests, files of speakers, or texts next to audio."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.core.errors import DataError


def found_in(root: Path) -> dict[str, list[tuple[str, str | None, str | None]]]:
    """Speaker, text and etiology of each utterance, by split."""
    corpus = AudioCorpus(DatasetConfig(name="sap", type="splits", corpus_dir=str(root)), AudioConfig())

    def labels(split: str) -> list[Any]:
        return [label for cut in corpus.cuts(split) for label in cut.supervisions]

    return {
        split: [(one.speaker, one.text, (one.custom or {}).get("etiology")) for one in labels(split)]
        for split in corpus.splits
    }


def write_audio(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.zeros(800), 8000)


def test_files_of_speakers(tmp_path: Path):
    for split, speaker, etiology in (("Train", "s1", "ALS"), ("Train", "s2", "Down Syndrome"), ("Dev", "s3", "ALS")):
        folder = tmp_path / split / speaker
        write_audio(folder / f"{speaker}_1.wav")
        files = [{"Filename": f"{speaker}_1.wav", "Prompt": {"Transcript": f"said by {speaker}"}}]
        about = {"Contact ID": speaker, "Etiology": etiology, "Files": files}
        (folder / f"{speaker}.json").write_text(json.dumps(about))
    assert found_in(tmp_path) == {
        "train": [("s1", "said by s1", "ALS"), ("s2", "said by s2", "Down Syndrome")],
        "valid": [("s3", "said by s3", "ALS")],
    }
    (tmp_path / "Train" / "s1" / "s1.json").write_text("{}")
    with pytest.raises(DataError, match=r"s1\.json: expected Etiology and Files"):
        found_in(tmp_path)


def test_a_bad_file_of_a_speaker_costs_its_recordings(tmp_path: Path):
    for speaker in ("s1", "s2", "s3", "s4"):
        folder = tmp_path / "Train" / speaker
        write_audio(folder / f"{speaker}.wav")
        files: list[dict[str, Any]] = [{"Filename": f"{speaker}.wav", "Prompt": {"Transcript": f"by {speaker}"}}]
        files += [{"Filename": "gone.wav", "Prompt": None}] * (speaker == "s3")
        (folder / f"{speaker}.json").write_bytes(
            json.dumps({"Files": files}).encode("utf-16" if speaker == "s4" else "utf-8")
        )
    (tmp_path / "Train" / "s2" / "s2.json").write_text('{"Files": [')
    (tmp_path / "Train" / "s2" / "other.json").write_text("[1]")
    corpus = AudioCorpus(DatasetConfig(name="sap", type="splits", corpus_dir=str(tmp_path)), AudioConfig())
    found = list(corpus.reader.read("train"))
    assert [one.cut.supervisions[0].text for one in found if one.cut is not None] == ["by s1", "by s3", "by s4"]
    problems = [str(one.problem) for one in found if one.problem is not None]
    assert [problem.partition(": ")[0].rpartition("/")[2] for problem in problems] == [
        "other.json",
        "s2.json",
        "s3.json, file 2",
    ]
    assert "expected Filename and Prompt: Transcript" in problems[2]


def test_texts_next_to_audio_and_manifests(tmp_path: Path):
    for name in ("ALS/a", "ALS/b", "Stroke/a"):
        write_audio(tmp_path / "train" / f"{name}.flac")
        (tmp_path / "train" / f"{name}.txt").write_text(f"text of {name}\n")
    write_audio(tmp_path / "dev" / "clips" / "c.wav")
    (tmp_path / "dev" / "all.csv").write_text("audio,text,etiology\nclips/c.wav,so it is,ALS\n")
    found = found_in(tmp_path)
    assert [(text, group) for _, text, group in found["train"]] == [
        ("text of ALS/a", "ALS"),
        ("text of ALS/b", "ALS"),
        ("text of Stroke/a", "Stroke"),
    ]
    assert [(text, group) for _, text, group in found["valid"]] == [("so it is", "ALS")]
    (tmp_path / "train" / "ALS" / "b.txt").unlink()
    with pytest.raises(DataError, match=r"b\.txt: the transcript of b\.flac"):
        found_in(tmp_path)


def test_a_folder_without_train_is_named(tmp_path: Path):
    (tmp_path / "eval").mkdir()
    with pytest.raises(DataError, match="has no folder Train; it has eval"):
        found_in(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        found_in(tmp_path / "nowhere")


def write_speakers(root: Path, num_speakers: int) -> None:
    for speaker in range(num_speakers):
        folder = root / f"s{speaker}"
        names = [f"s{speaker}_{number}.wav" for number in range(3)]
        for name in names:
            write_audio(folder / name)
        files = [{"Filename": name, "Prompt": {"Transcript": "so it is"}} for name in names]
        about = {"Contact ID": f"s{speaker}", "Etiology": "ALS", "Files": files}
        (folder / f"s{speaker}.json").write_text(json.dumps(about))


def test_without_dev_train_is_split_by_speaker_and_this_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    write_speakers(tmp_path / "Train", 30)
    (tmp_path / "Text").mkdir()
    found = {split: {speaker for speaker, *_ in labels} for split, labels in found_in(tmp_path).items()}
    assert set(found) == {"train", "valid", "test"}
    assert all(found.values())
    assert sum(map(len, found.values())) == 30, "no speaker is in two splits"
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "valid is split off from Train by speaker, since its folder doesn't exist; there are Text, Train" in said[0]
    values = DatasetConfig(name="sap", type="splits", split_by="recording").model_dump(exclude_unset=True)
    assert DatasetConfig(**values).split_by == "recording", "as it was asked for"


@pytest.mark.parametrize(("name", "is_meant"), [("Deev", True), ("dve", True), ("Development", True), ("Notes", False)])
def test_a_misspelt_dev_is_not_passed_over(name: str, is_meant: bool, tmp_path: Path):
    write_speakers(tmp_path / "Train", 30)
    write_speakers(tmp_path / name, 2)
    if is_meant:
        expected = rf"has no folder Dev; it has .*{name}.*; did you mean {name}\? Rename it Dev"
        with pytest.raises(DataError, match=expected):
            found_in(tmp_path)
        write_speakers(tmp_path / "valid", 2)
    assert found_in(tmp_path)["valid"]
