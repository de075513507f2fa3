"""``audio_root`` names the folders outside of a manifest's own in which audio may be, for manifests of every type."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from lhotse import CutSet, Recording

from tiny_audio import write_audio
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.audio.cuts.reading import read_cut
from vaak.core.errors import DataError


@pytest.fixture
def audio(tmp_path: Path) -> Path:
    """A folder of audio that no manifest is in."""
    for name in ("a", "b"):
        write_audio(tmp_path / "speech" / "clips" / f"{name}.wav", 0.5, 16000)
    (tmp_path / "manifests").mkdir()
    return tmp_path / "speech"


def corpus(kind: str, folder: Path, name: str, *roots: Path, **options: Any) -> AudioCorpus:
    options = {"train": (str(folder / name),), "train_fraction": 1, "valid_fraction": 0, **options}
    return AudioCorpus(DatasetConfig(name="d", type=kind, audio_root=tuple(map(str, roots)), **options), AudioConfig())


def nemo(folder: Path, audio: Path) -> AudioCorpus:
    lines = [{"audio_filepath": str(audio / "clips" / f"{n}.wav"), "duration": 0.5, "text": n} for n in "ab"]
    (folder / "m.json").write_text("".join(json.dumps(one) + "\n" for one in lines))
    return corpus("json", folder, "m.json", audio, columns={"audio": "audio_filepath"})


def table(folder: Path, audio: Path) -> AudioCorpus:
    """As Common Voice and folders of Hugging Face have them: names without the folder of the audio."""
    with open(folder / "train.tsv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t").writerows([("path", "sentence"), ("a.wav", "a"), ("b.wav", "b")])
    columns = {"audio": "path", "text": "sentence"}
    return corpus("json", folder, "train.tsv", audio / "none", audio / "clips", columns=columns)


def beside(folder: Path, audio: Path) -> AudioCorpus:
    lines = [{"audio": f"../speech/clips/{n}.wav", "text": n} for n in "ab"]
    (folder / "m.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    return corpus("json", folder, "m.jsonl", audio)


def linked(folder: Path, audio: Path) -> AudioCorpus:
    (folder / "wavs").symlink_to(audio / "clips")
    (folder / "metadata.csv").write_text("a|a|a\nb|b|b\n")
    return corpus("ljspeech", folder, "metadata.csv", audio)


def split_folders(folder: Path, audio: Path) -> AudioCorpus:
    (folder / "Train").mkdir()
    lines = [{"audio": str(audio / "clips" / f"{n}.wav"), "text": n} for n in "ab"]
    (folder / "Train" / "m.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    return corpus("splits", folder, "", audio, corpus_dir=str(folder), train=())


def cuts(folder: Path, audio: Path) -> AudioCorpus:
    made = [Recording.from_file(audio / "clips" / f"{n}.wav").to_cut() for n in "ab"]
    made[0].recording.sources[0].source = "clips/a.wav"  # relative, as seen from audio_root
    CutSet.from_cuts(made).to_file(folder / "cuts.jsonl")
    return corpus("cuts", folder, "cuts.jsonl", audio)


MADE = {one.__name__: one for one in (nemo, table, beside, linked, split_folders, cuts)}


@pytest.mark.parametrize("kind", MADE)
def test_audio_in_its_folders_is_read(tmp_path: Path, audio: Path, kind: str):
    (audio / "none").mkdir()
    there = MADE[kind](tmp_path / "manifests", audio)
    found = [*there.cuts("train")]
    assert len(found) == 2
    assert all(len(read_cut(cut, AudioConfig()).samples) == 8000 for cut in found)
    assert all(path.is_file() for _, path in there.named_files())


@pytest.mark.parametrize("kind", sorted(MADE.keys() - {"table"}))
def test_audio_elsewhere_is_refused_and_the_option_named(tmp_path: Path, audio: Path, kind: str):
    (tmp_path / "other").mkdir()
    made = MADE[kind](tmp_path / "manifests", audio).dataset
    there = AudioCorpus(made.model_copy(update={"audio_root": (str(tmp_path / "other"),)}), AudioConfig())
    with pytest.raises(DataError, match=r"is .*outside of the folder of the manifest .*audio_root: \[.*speech/clips\]"
                       if kind != "cuts" else "missing|outside"):  # fmt: skip
        list(there.cuts("train"))


def test_without_it_an_absolute_path_is_refused_with_the_line_to_write(tmp_path: Path, audio: Path):
    dataset = nemo(tmp_path / "manifests", audio).dataset.model_copy(update={"audio_root": ()})
    with pytest.raises(DataError, match=r"m\.json:1: .*clips/a\.wav is outside of the folder of the manifest") as said:
        list(AudioCorpus(dataset, AudioConfig()).cuts("train"))
    suggested = str(said.value).partition("audio_root: [")[2].partition("]")[0]
    there = AudioCorpus(dataset.model_copy(update={"audio_root": (suggested,)}), AudioConfig())
    assert len([*there.cuts("train")]) == 2


def test_a_link_in_it_that_leads_out_is_refused(tmp_path: Path, audio: Path):
    write_audio(tmp_path / "private.wav", 0.5, 16000)
    (audio / "clips" / "a.wav").unlink()
    (audio / "clips" / "a.wav").symlink_to(tmp_path / "private.wav")
    with pytest.raises(DataError, match=r"a\.wav is a link to .*private\.wav, outside of .* and of audio_root"):
        list(nemo(tmp_path / "manifests", audio).cuts("train"))


def test_lhotses_absolute_paths_are_free_until_it_is_given(tmp_path: Path, audio: Path):
    dataset = cuts(tmp_path / "manifests", audio).dataset
    CutSet.from_cuts([Recording.from_file(audio / "clips" / "b.wav").to_cut()]).to_file(
        tmp_path / "manifests" / "cuts.jsonl"
    )
    assert len([*AudioCorpus(dataset.model_copy(update={"audio_root": ()}), AudioConfig()).cuts("train")]) == 1
    (tmp_path / "other").mkdir()
    there = AudioCorpus(dataset.model_copy(update={"audio_root": (str(tmp_path / "other"),)}), AudioConfig())
    with pytest.raises(DataError, match=r"cuts\.jsonl:1: .*b\.wav is outside of .*audio_root: \[.*clips\]"):
        list(there.cuts("train"))


def test_a_folder_that_isnt_there_is_named(tmp_path: Path, audio: Path):
    with pytest.raises(DataError, match=r"datasets, d: audio_root: no such folder: .*nowhere"):
        corpus("json", tmp_path / "manifests", "m.json", tmp_path / "nowhere", train=(str(tmp_path),))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{folder}/secret.tar@bytes=0+9", r"secret\.tar is outside of the folder of the manifest"),
        ("pipe:touch {folder}/was_run", "names no part of a file"),
        ("a.tar@bytes=-1+9", "names no part of a file"),
        ("a.tar@cell=0.x.audio", "names no part of a file"),
        (["a.tar"], "names no part of a file"),
    ],
)
def test_a_part_of_a_file_in_a_manifest_is_where_audio_may_be(tmp_path: Path, audio: Path, source: Any, message: str):
    cut = Recording.from_file(audio / "clips" / "a.wav").to_cut().to_dict()
    (tmp_path / "secret.tar").write_bytes(b"secret")
    named = source.format(folder=tmp_path) if isinstance(source, str) else source
    cut["recording"]["sources"][0] |= {"type": "part", "source": named}
    (tmp_path / "manifests" / "cuts.jsonl").write_text(json.dumps(cut) + "\n")
    with pytest.raises(DataError, match=message):
        list(corpus("cuts", tmp_path / "manifests", "cuts.jsonl", audio).cuts("train"))
    assert not (tmp_path / "was_run").exists()
