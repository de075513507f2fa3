"""Folders that are made once; those of earlier versions, by the literal content of their markers, are still whole."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from folders import contents
from tiny_audio import cut_of
from vaak import __version__
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.lhotse_manifests import prepare_corpus
from vaak.audio.cuts.store import CutStore, write_cuts
from vaak.audio.features.store import FeatureStore
from vaak.audio.simulation.folder import Written, write_conversations
from vaak.config.base import Section
from vaak.core.artifact import Artifact
from vaak.core.errors import DataError, FormatError, UserError
from vaak.core.storage.files import compute_fingerprint
from vaak.core.storage.lock import locked
from vaak.pipeline.execution import collect_dependencies, get_stage_status
from vaak.pipeline.rows import PipelineRowStore
from vaak.pipeline.stage import Stage, StageWork
from vaak.runs.distillation import Stored
from vaak.runs.prepared import PreparedFolder, Recipe, prepare_folder
from vaak.tasks.asr.utterances import Utterances
from vaak.text.corpora.stores import TokenStore


def made(folder: Path) -> Artifact:
    return Artifact(folder, "done.json", "things", keys={"number": int})


def test_it_is_made_once_and_leftovers_of_a_killed_process_go(tmp_path: Path) -> None:
    artifact = made(tmp_path / "new")
    for _ in range(2):
        with artifact.making(lambda: artifact.find() is not None) as needed:
            if needed:
                (artifact.folder / "file.bin").write_bytes(b"1234")
                artifact.finish({"number": 1})
            with pytest.raises(BlockingIOError), locked(artifact.folder / ".lock", patience=0):
                pass
    assert json.loads(artifact.path.read_text()) == {"number": 1, "sizes": {"file.bin": 4}}
    assert not needed
    (artifact.folder / ".file.bin.1.tmp").write_bytes(b"12")
    (artifact.folder / "below" / ".folder.1.tmp").mkdir(parents=True)
    with artifact.making(lambda: False) as needed:
        assert needed
        assert sorted(path.name for path in artifact.folder.iterdir()) == [".lock", "below", "file.bin"]
        assert not any((artifact.folder / "below").iterdir())


def test_damage_is_named(tmp_path: Path) -> None:
    artifact = made(tmp_path)
    (tmp_path / "file.bin").write_bytes(b"1234")
    artifact.finish({"number": 1})
    assert artifact.damage() is None
    (tmp_path / "file.bin").write_bytes(b"123")
    assert artifact.damage() == f"{tmp_path}/file.bin: this file has 3 bytes where 4 were written"
    assert artifact.damage(lambda name: name != "file.bin") is None
    artifact.path.write_text('{"number": 1}')
    assert artifact.damage() is None, "an earlier version recorded no sizes"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, r"the things are missing or incomplete \(no done\.json\); call us$"),
        ("{", r"done\.json: this is damaged \(.*\); call us$"),
        ("[]", r"done\.json: this version can't read these things: they are of an unknown format, and it reads 2"),
        ('{"format": "1"}', r"they are 1, and it reads 2; delete .* and run again$"),
        ('{"format": "2", "number": "1"}', r"done\.json: this is damaged; call us$"),
    ],
)
def test_a_marker_not_as_it_was_written_says_what_to_do(content: str | None, error: str, tmp_path: Path) -> None:
    artifact = Artifact(tmp_path, "done.json", "things", "2", {"number": int}, remedy="call us")
    if content is not None:
        artifact.path.write_text(content)
    with pytest.raises(DataError, match=error):
        artifact.read()
    assert artifact.find() is None


def test_without_a_format_the_keys_tell_the_version(tmp_path: Path) -> None:
    made(tmp_path).path.write_text("{}")
    with pytest.raises(FormatError, match="these things: they are without number, and it reads those with them"):
        made(tmp_path).read()


def test_a_folder_of_something_else_says_what_differs(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path, "study.json", "a sweep")
    artifact.require_same({"seed": 1}, "give another folder")
    artifact.claim({"configuration": {"model": {"layers": 2}}, "seed": 1, "extra": 0})
    artifact.require_same({"configuration": {"model": {"layers": 2}}, "seed": 1}, "give another folder")
    with pytest.raises(UserError) as said:
        artifact.require_same(
            {"configuration": {"model": {"layers": 3}}, "seed": 1, "new": None}, "give another folder"
        )
    assert str(said.value) == (
        f"{tmp_path} contains a sweep made with other options (configuration.model.layers was 2, is 3 now; new is new, "
        "null): give another folder"
    )


def test_a_folder_that_cannot_be_written_is_named_and_none_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    expected = pytest.raises(UserError, match=r"things can't be written to .*file: .*; free some space$")
    with expected, made(tmp_path / "file").making(lambda: False, "free some space"):
        pass
    for keeps_empty in (True, False):
        above = tmp_path / str(keeps_empty)
        artifact = made(above / "folder")
        with contextlib.suppress(KeyError), artifact.making(lambda: False, keeps_empty=keeps_empty):
            raise KeyError
        assert artifact.folder.exists() == above.exists() == keeps_empty


# Folders that earlier versions made.


def write(folder: Path, **files: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        name = name.replace("__", ".")
        if isinstance(content, str):
            (folder / name).write_text(content)
        else:
            (folder / name).write_bytes(np.asarray(content[1], content[0]).tobytes())
    return folder


@pytest.mark.parametrize(
    "about",
    [
        '{"fingerprint": "0123", "statistics": {"train": {}}}',
        '{"fingerprint": "0123", "options": {}, "statistics": {"train": {}}, "sizes": {"train/x.bin": 4}}',
    ],
)
def test_prepared_data(about: str, tmp_path: Path) -> None:
    write(tmp_path / "train", x__bin=("<i4", [1]))
    write(tmp_path, prepared__json=about)
    before = contents(tmp_path)

    def make(folder: Path) -> dict[str, Any]:
        raise AssertionError("it is there")

    prepare_folder(Recipe(make, lambda: "0123", {}), tmp_path)
    assert {name: one for name, one in contents(tmp_path).items() if name != ".lock"} == before
    assert PreparedFolder.open(tmp_path).split_folder("train") == tmp_path / "train"


def test_features(tmp_path: Path) -> None:
    about = """{
  "format": "vaak features 1", "fingerprint": "0123", "dims": 2, "frame_shift": 0.01, "storage_type": "float32",
  "shards": [1]
}
"""
    shard = np.concatenate([np.array([1, 2, 3, 4], "<f4").view("u1"), np.array([2], "<i8").view("u1")])
    write(tmp_path, features__json=about, lengths__bin=("<i8", [2]))
    (tmp_path / "shard-00000.bin").write_bytes(shard.tobytes())
    store = FeatureStore(tmp_path)
    assert store.frames(0).tolist() == [[1, 2], [3, 4]]
    assert not store.has_pitch


def test_tokens(tmp_path: Path) -> None:
    about = """{
  "format": "vaak tokens 2", "documents": 1, "reproduced": 1, "tokens": 3, "dtype": "<u2", "tokenizer": "ab",
  "fingerprint": "cd"
}
"""
    files: dict[str, Any] = {"tokens__bin": ("<u2", [7, 8, 9]), "offsets__bin": ("<i8", [0, 3])}
    store = TokenStore(write(tmp_path, store__json=about, num_bytes__bin=("<i8", [5]), **files))
    assert store.document(0).tolist() == [7, 8, 9]
    assert store.answers is None


def test_cuts_and_utterances(tmp_path: Path) -> None:
    cut = cut_of("a", segments=[(0, 10, "A"), (1, 2, "A")])
    write_cuts(tmp_path / "cuts", [cut])
    write(tmp_path / "cuts", store__json='{\n  "fingerprint": "0123",\n  "speakers": [\n    "A"\n  ]\n}\n')
    store = CutStore(tmp_path / "cuts")
    assert (list(store), store.speakers, store.lacks_times(cut)) == ([cut], ("A",), False)
    marker = '{\n  "groups": [\n    "all"\n  ],\n  "label": null\n}\n'
    write(tmp_path, utterances__json=marker, groups__bin=("<i4", [0]), used__bin=("<i8", [0]))
    assert Utterances(tmp_path).group_names == ("all",)


def test_rows(tmp_path: Path) -> None:
    index = '{"format": "vaak rows 1", "shape": [2], "dtype": "float32", "rows_per_shard": 100, "keys": ["a"]}'
    write(tmp_path, index__json=index)
    (tmp_path / "rows-00000.bin").write_bytes(np.array([1, 2], "<f4").tobytes())
    assert PipelineRowStore(tmp_path).row("a").tolist() == [1, 2]


def test_predictions_of_a_teacher(tmp_path: Path) -> None:
    about = '{"fingerprint": "0123", "options": {}, "shapes": [[2]], "units": 1, "sizes": {"logits.f32": 8}}'
    write(tmp_path, prepared__json=about, logits__f32=("<f4", [1, 2]))
    np.save(tmp_path / "places.npy", np.array([[0, 1]]))
    assert Stored.open(tmp_path).logits.tolist() == [[1, 2]]


class Options(Section):
    power: int = 2


def make_nothing(work: StageWork) -> None: ...


def test_stages(tmp_path: Path) -> None:
    stage = Stage("first", make_nothing, about="nothing", options=("power",), outputs=("out.txt",))
    parts = collect_dependencies(stage, Options(), {})
    begun = '{\n  "parts": {"options": {"power": %d}, "reads": {}, "sources": null, "code": %s}\n}\n'
    status: Callable[[], Any] = partial(get_stage_status, stage, tmp_path, parts)
    write(tmp_path, begun__json=begun % (2, json.dumps(parts["code"])))
    assert status().verdict == "continues"
    digest = "98ea6e4f216f2fb4b69fff9b3a44842c38686ca685f3f55dc48c5d3fb1107be4"  # of "hi\n"
    done = '{"stage": "first", "parts": %s, "outputs": {"out.txt": [3, "%s"]}, "figures": {}, "seconds": 1.0, '
    done += '"disk_bytes": 3, "memory_bytes": 0, "finished": "2026-01-01 00:00:00"}'
    write(tmp_path, manifest__json=done % (json.dumps(parts), digest), out__txt="hi\n")
    assert status().verdict == "done"
    write(tmp_path, out__txt="ho\n")
    assert status().why == f"{tmp_path}/out.txt: the content of this file has changed (SHA-256)"
    (tmp_path / "manifest.json").unlink()
    write(tmp_path, begun__json=begun % (3, json.dumps(parts["code"])))
    assert (status().verdict, status().why) == ("starts", "power was 3, is 2 now")


def test_manifests_of_a_recipe(tmp_path: Path) -> None:
    marker = '{"recipe": "yesno", "options": {}, "parts": {"all": "cuts/all.jsonl"}, "no_times": true}'
    write(tmp_path, cuts__json=marker)
    dataset = DatasetConfig(name="yesno", output_dir=str(tmp_path))
    assert prepare_corpus(dataset, AudioConfig()) == {"all": tmp_path / "cuts" / "all.jsonl"}


def test_simulated_conversations(tmp_path: Path) -> None:
    class Nothing:
        """A source of the folder's conversations that fails if one is simulated again."""

        fingerprint, durations, speakers = "tones", np.array([1.0]), ()

    mark = compute_fingerprint(["tones", 1, 1, __version__])
    line = '{"audio": "tone-0.flac", "duration": 1.0, "sampling_rate": 8000, "segments": []}\n'
    write(tmp_path, simulated__json=f'{{\n  "fingerprint": "{mark}"\n}}\n', manifest__jsonl=line)
    source: Any = Nothing()
    assert write_conversations(source, tmp_path, seed=1) == Written(1, 0, 1.0)
    with pytest.raises(UserError, match="made with other options or from other data: give another folder"):
        write_conversations(source, tmp_path, seed=2)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("sweep.json", '"sampler": "grid", "seed": 42, "prune": false, "dimensions": []'),
        ("crossval.json", '"folds": 2, "repeats": 1, "seed": 42, "folds.json": "0123"'),
    ],
)
def test_studies(name: str, own: str, tmp_path: Path) -> None:
    configuration = '{"task": "lm", "model": {"layers": 2}, "training": {"batch_size": 8}}'
    (tmp_path / name).write_text(f'{{"configuration": {configuration}, {own}}}')
    artifact = Artifact(tmp_path, name, "a study")
    identity = {"configuration": json.loads(configuration), "seed": 42}
    artifact.require_same(identity, "give another --output")
    identity["configuration"]["training"]["batch_size"] = 9
    with pytest.raises(UserError, match=r"\(configuration\.training\.batch_size was 8, is 9 now\): give another --out"):
        artifact.require_same(identity, "give another --output")
