"""Lines of Lhotse's manifests by someone who means no good: nothing in them runs, connects or unpickles."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from lhotse import CutSet, Recording
from lhotse.cut import PaddingCut
from lhotse.serialization import deserialize_item

from tiny_audio import write_audio
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.audio.cuts.reading import read_cut
from vaak.audio.cuts.store import CutStore, write_cuts
from vaak.core.errors import DataError
from vaak.core.storage.mapped_lines import writing_lines

Json = dict[str, Any]


@pytest.fixture
def cut(tmp_path: Path) -> Json:
    write_audio(tmp_path / "a.wav", 1, 16000)
    return dict(Recording.from_file(tmp_path / "a.wav").to_cut().to_dict())


def manifest(folder: Path, line: Json) -> AudioCorpus:
    (folder / "cuts.jsonl").write_text(json.dumps(line) + "\n")
    dataset = DatasetConfig(
        name="d", type="cuts", train=(str(folder / "cuts.jsonl"),), train_fraction=1, valid_fraction=0
    )
    return AudioCorpus(dataset, AudioConfig())


def recording(folder: Path, kind: str = "command") -> Json:
    """A recording whose samples come from a command that leaves a mark."""
    command = f"touch {folder}/was_run; cat {folder}/a.wav"
    source = {"type": kind, "channels": [0], "source": command}
    return {"id": "r", "sources": [source], "sampling_rate": 16000, "num_samples": 16000, "duration": 1.0}


def reverberated(rir: Json) -> list[Json]:
    return [{"name": "ReverbWithImpulseResponse", "kwargs": {"rir": rir, "rir_channels": [0]}}]


def array(kind: str, path: str) -> Json:
    return {"storage_type": kind, "storage_path": path, "storage_key": "x", "shape": [2]}


def mixed(*tracks: Json, **more: Any) -> Json:
    parts = [{"cut": {k: v for k, v in one.items() if k != "type"}, "type": one["type"]} for one in tracks]
    return {"id": "m", "tracks": parts, "type": "MixedCut", **more}


def padding() -> Json:
    return dict(PaddingCut("p", 1.0, 16000, -100, num_samples=16000).to_dict())


Attack = Callable[[Path, Json], Json]
ATTACKS: dict[str, Attack] = {
    "command": lambda f, cut: {**cut, "recording": recording(f)},
    "address": lambda f, cut: {**cut, "recording": recording(f, "url")},
    "memory": lambda f, cut: {**cut, "recording": recording(f, "memory")},
    "shar": lambda f, cut: {**cut, "recording": recording(f, "shar")},
    "no type of source": lambda f, cut: {**cut, "recording": recording(f, ["file"])},  # type: ignore[arg-type]
    "reverberated recording": lambda f, cut: {
        **cut,
        "recording": {**cut["recording"], "transforms": reverberated(recording(f))},
    },
    "reverberated mix": lambda f, cut: mixed(cut, padding(), transforms=reverberated(recording(f))),
    "reverberation by a reverberated recording": lambda f, cut: mixed(
        cut,
        transforms=reverberated({**cut["recording"], "transforms": reverberated(recording(f))}),
    ),
    "reverberation by a cut": lambda f, cut: mixed(cut, transforms=reverberated({**cut, "recording": recording(f)})),
    "a mix in a mix": lambda f, cut: mixed(mixed(cut, {**cut, "recording": recording(f)}), padding()),
    "a reference that isn't heard": lambda f, cut: mixed(
        cut, snr_reference={"cut": {**cut, "type": None, "recording": recording(f)}, "type": "MonoCut"}
    ),
    "unknown transform": lambda f, cut: mixed(cut, transforms=[{"name": "Evil", "kwargs": {}}]),
    "recording in a custom field": lambda f, cut: {**cut, "custom": {"target": recording(f)}},
    "recording in a label's field": lambda f, cut: {
        **cut,
        "supervisions": [
            {"id": "s", "recording_id": "a", "start": 0, "duration": 1, "custom": {"clean": recording(f)}}
        ],
    },
    "pickle in a custom field": lambda f, cut: {**cut, "custom": {"x": array("memory_raw", pickle.dumps(1).hex())}},
    "pickle in a temporal array": lambda f, cut: {
        **cut,
        "custom": {"x": {"array": array("memory_raw", ""), "temporal_dim": 0, "frame_shift": 0.1, "start": 0}},
    },
    "Kaldi's pipe": lambda f, cut: {**cut, "custom": {"x": array("kaldiio", f"touch {f}/was_run |")}},
    "array at an address": lambda f, cut: {**cut, "custom": {"x": array("lilcom_url", "http://localhost/x")}},
    "array from a pipe": lambda f, cut: {**cut, "custom": {"x": array("numpy_files", f"pipe:touch {f}/was_run")}},
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_line_that_could_run_something_is_refused_by_its_place(tmp_path: Path, cut: Json, attack: str):
    line = ATTACKS[attack](tmp_path, deepcopy(cut))
    with pytest.raises(DataError, match=r"cuts\.jsonl:1: .*refused"):
        [read_cut(one, AudioConfig()) for one in manifest(tmp_path, line).cuts("train")]
    assert not (tmp_path / "was_run").exists()


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_someone_elses_run_has_prepared_is_not_trusted_either(tmp_path: Path, cut: Json, attack: str):
    store = write_cuts(tmp_path / "store", manifest(tmp_path, cut).cuts("train"))
    with writing_lines(tmp_path / "store" / "cuts.jsonl") as lines:
        lines.write(json.dumps(ATTACKS[attack](tmp_path, deepcopy(cut))).encode() + b"\n")
    with pytest.raises(DataError, match=r"store/cuts\.jsonl:1: .*refused"):
        read_cut(CutStore(store.folder)[0], AudioConfig())
    assert not (tmp_path / "was_run").exists()


@pytest.mark.parametrize("attack", ["reverberated recording", "reverberated mix", "a mix in a mix"])
def test_cuts_of_a_program_are_checked_before_they_are_read(tmp_path: Path, cut: Json, attack: str):
    made = deserialize_item(ATTACKS[attack](tmp_path, deepcopy(cut)))
    with pytest.raises(DataError, match="its audio comes from a command, which is refused"):
        read_cut(made, AudioConfig())
    assert not (tmp_path / "was_run").exists()


def test_recordings_with_transforms_are_checked_like_cuts(tmp_path: Path, cut: Json):
    supervision = {"id": "s", "recording_id": cut["recording"]["id"], "start": 0, "duration": 1, "speaker": "A"}
    line = {**cut["recording"], "transforms": reverberated(recording(tmp_path))}
    (tmp_path / "recordings.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "supervisions.jsonl").write_text(json.dumps(supervision) + "\n")
    dataset = DatasetConfig(name="d", type="cuts", train=tuple(str(tmp_path / f"{k}s.jsonl") for k in
                            ("recording", "supervision")), train_fraction=1, valid_fraction=0)  # fmt: skip
    with pytest.raises(DataError, match=r"recordings\.jsonl:1: its audio comes from a command, which is refused"):
        list(AudioCorpus(dataset, AudioConfig()).cuts("train"))
    assert not (tmp_path / "was_run").exists()


def test_a_files_name_is_no_shell_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Lhotse reads ``.sph`` by a shell with the name of the file."""
    monkeypatch.chdir(tmp_path)
    write_audio(tmp_path / "a.wav", 1, 16000)
    cut = Recording.from_file("a.wav").to_cut().perturb_speed(1.1)
    Path("a.wav").rename(name := "a.sph;touch was_run;.sph")
    cut.recording.sources[0].source = name
    CutSet.from_cuts([cut]).to_file("cuts.jsonl")
    dataset = DatasetConfig(name="d", type="cuts", train=("cuts.jsonl",), train_fraction=1, valid_fraction=0)
    [one] = AudioCorpus(dataset, AudioConfig()).cuts("train")
    assert len(read_cut(one, AudioConfig()).samples) == one.num_samples
    assert not Path("was_run").exists()


def test_brackets_without_end_are_one_line(tmp_path: Path, cut: Json):
    manifest(tmp_path, cut)
    good = (tmp_path / "cuts.jsonl").read_text()
    (tmp_path / "cuts.jsonl").write_text(good + '{"custom": ' + "[" * 100_000 + "\n")
    dataset = DatasetConfig(name="d", type="cuts", train=(str(tmp_path / "cuts.jsonl"),))
    corpus = AudioCorpus(dataset, AudioConfig())
    with pytest.raises(DataError, match=r"cuts\.jsonl:2: this is not JSON"):
        [list(corpus.cuts(split)) for split in ("train", "valid", "test")]  # a line without a name falls into any


def test_what_people_have_in_manifests_is_read_as_before(tmp_path: Path, cut: Json):
    """Reverberation by a file next to the manifest, every transform of Lhotse's, own fields of any kind, features."""
    write_audio(tmp_path / "rir.wav", 0.1, 16000)
    rir = Recording.from_file(tmp_path / "rir.wav").to_dict()
    rir["sources"][0]["source"] = "rir.wav"  # seen from the manifest, as the audio itself
    custom = {
        "sources": ["LibriVox"], "transforms": ["none"], "features": "loud", "name": "Eve", "type": "command",
        "kept": array("numpy_files", "x.npy"),
    }  # fmt: skip
    features = {"type": "kaldi-fbank", "num_frames": 100, "num_features": 80, "frame_shift": 0.01, "start": 0,
                "sampling_rate": 16000, "duration": 1.0, "channels": 0, **array("kaldiio", "feats.ark:17")}  # fmt: skip
    del features["shape"]
    volume = {"name": "Volume", "kwargs": {"factor": 0.5}}
    line = {
        **cut,
        "custom": custom,
        "features": features,
        "recording": {**cut["recording"], "transforms": [volume, *reverberated(rir)]},
    }
    [found] = manifest(tmp_path, line).cuts("train")
    assert not found.has_features
    assert {k: v for k, v in found.custom.items() if k != "kept"} == {k: v for k, v in custom.items() if k != "kept"}
    assert found.custom["kept"].storage_type == "numpy_files"
    heard = read_cut(found, AudioConfig()).samples
    assert heard.shape == (16000,)
    store = write_cuts(tmp_path / "store", [found])
    assert (read_cut(store[0], AudioConfig()).samples == heard).all()
