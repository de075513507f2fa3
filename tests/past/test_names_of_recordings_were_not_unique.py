"""Sections of one recording, and equal file names in two folders, ended in "names must be unique"."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tiny_audio import write_audio
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.core.errors import DataError

KEYS = {"json": "audio", "nemo": "audio_filepath"}


def section(kind: str, audio: str, offset: float | None = None, duration: float | None = None) -> dict[str, Any]:
    times = {"offset": offset, "duration": duration}
    return {KEYS[kind]: audio, "text": "so", **{key: value for key, value in times.items() if value is not None}}


def names(folder: Path, kind: str, lines: list[dict[str, Any]]) -> dict[str, str]:
    """Return each cut's id, by its recording and where it begins and ends."""
    (folder / "train.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    own = {"corpus_dir": str(folder)} if kind == "nemo" else {"train": (str(folder / "train.json"),)}
    dataset = DatasetConfig(name="data", type=kind, train_fraction=1.0, valid_fraction=0.0, **own)
    return {
        f"{cut.recording_id} {cut.start:g}-{cut.start + cut.duration:g}": cut.id
        for cut in AudioCorpus(dataset, AudioConfig()).cuts("train")
    }


@pytest.mark.parametrize("kind", KEYS)
def test_names_are_made_of_what_distinguishes_and_stay(tmp_path: Path, kind: str):
    for name in ("long", "a/1", "b/1", "c/1", "other"):
        write_audio(tmp_path / f"{name}.wav", 2.0)
    lines = [
        section(kind, "long.wav", 0.0, 0.5),
        section(kind, "long.wav", 0.5, 0.5),
        section(kind, "long.wav", 1.25, 0.5),
        section(kind, "long.wav", 1.25, 0.25),
        section(kind, "a/1.wav"),
        section(kind, "b/1.wav"),
    ]
    expected = {
        "long.wav 0-0.5": "long",
        "long.wav 0.5-1": "long-0.500",
        "long.wav 1.25-1.75": "long-1.250-1.750",
        "long.wav 1.25-1.5": "long-1.250-1.500",
        "a/1.wav 0-2": "a-1",
        "b/1.wav 0-2": "b-1",
    }
    assert names(tmp_path, kind, lines) == expected
    more = [section(kind, "other.wav"), *reversed(lines), section(kind, "long.wav", 1.5), section(kind, "c/1.wav")]
    assert names(tmp_path, kind, more) == {
        **expected,
        "other.wav 0-2": "other",
        "long.wav 1.5-2": "long-1.500",
        "c/1.wav 0-2": "c-1",
    }


def test_what_is_there_twice_is_an_error_that_says_what_to_do(tmp_path: Path):
    write_audio(tmp_path / "a.wav", 1.0)
    with pytest.raises(DataError, match=r"two cuts with the name a.*: give each its own id, or remove"):
        names(tmp_path, "json", [section("json", "a.wav"), section("json", "a.wav")])


def test_manifests_with_absolute_names_need_no_folder(tmp_path: Path):
    write_audio(tmp_path / "a.wav", 1.0)
    path = tmp_path / "my.json"
    path.write_text(json.dumps(section("nemo", str(tmp_path / "a.wav"))) + "\n")
    for corpus_dir in (None, str(tmp_path / "nowhere")):
        dataset = DatasetConfig(
            name="data",
            type="nemo",
            train=(str(path),),
            corpus_dir=corpus_dir,
            train_fraction=1.0,
            valid_fraction=0.0,
        )
        assert [cut.id for cut in AudioCorpus(dataset, AudioConfig()).cuts("train")] == ["a"]


def test_a_further_manifest_changes_no_name_of_those_before_it(tmp_path: Path):
    """The names of all lines changed where a second manifest had one of the same name in another folder."""
    for name in ("a/1", "b/1", "c/1", "c/2", "d/2"):
        write_audio(tmp_path / f"{name}.wav", 1.0)
    given = {"one": ("a/1",), "two": ("b/1", "c/1", "c/2"), "three": ("d/2",)}
    for manifest, audio in given.items():
        lines = [json.dumps(section("json", f"{name}.wav")) + "\n" for name in audio]
        (tmp_path / f"{manifest}.jsonl").write_text("".join(lines))
    found = []
    for number in (1, 2, 3):
        train = tuple(str(tmp_path / f"{manifest}.jsonl") for manifest in [*given][:number])
        dataset = DatasetConfig(name="data", train=train, type="json", train_fraction=1.0, valid_fraction=0.0)
        found.append([cut.id for cut in AudioCorpus(dataset, AudioConfig()).cuts("train")])
    assert found == [["1"], ["1", "b-1", "c-1", "2"], ["1", "b-1", "c-1", "2", "d-2"]]


def test_a_line_without_a_name_is_in_no_split_by_where_the_corpus_is(tmp_path: Path):
    """Its path decided: in the test split of one folder, it was in train of another, which good lines never are."""
    splits = []
    for number in range(8):
        folder = tmp_path / f"copy{number}"
        lines = []
        for name in "abcdefgh":
            write_audio(folder / f"{name}.wav", 0.5)
            lines.append(json.dumps(section("json", f"{name}.wav")) + "\n")
        (folder / "all.jsonl").write_text("".join([*lines, "not JSON\n", json.dumps({"text": "so"}) + "\n"]))
        dataset = DatasetConfig(
            name="data", type="json", train=(str(folder / "all.jsonl"),), train_fraction=0.4, valid_fraction=0.3
        )
        corpus, bad = AudioCorpus(dataset, AudioConfig()), dict[str, DataError]()
        corpus.on_bad = lambda error, name: bad.update({name: error})  # noqa: B023  # called below
        found: dict[str, list[str]] = {}
        for split in ("train", "valid", "test"):
            found[split] = [cut.id for cut in corpus.cuts(split)]
            found[split] += [f"bad {len(bad)}"] if bad else []
            bad.clear()
        splits.append(found)
    assert all(one == splits[0] for one in splits)
    assert splits[0]["train"][-1] == "bad 2"
