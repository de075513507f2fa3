"""What makes a stage of ``moe-asr`` run again, and what it says: other data, another base, options that it reads."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiny_listener
import tiny_mixture
from tiny_whisper import write_whisper
from vaak.config.base import from_options
from vaak.core.storage.files import write_json
from vaak.pipeline.execution import BEGUN, collect_dependencies, get_stage_status
from vaak.tasks.asr.stages.pipeline import PIPELINE

Values = dict[str, Any]
SAME = "was cut"
"""Why a stage continues whose folder has no manifest yet."""


@pytest.fixture
def data(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus, tmp_path / "data"))


@pytest.fixture
def given(data: Path, whisper_folder: Path, tmp_path: Path) -> Values:
    shutil.copytree(whisper_folder, tmp_path / "whisper")
    return tiny_mixture.options(data, tmp_path / "whisper")


def reasons(before: Values, after: Values, folder: Path, change: Callable[[], object] = lambda: None) -> dict[str, str]:
    """Why each stage that reads data would run again, after a change, with other options."""
    stages = [PIPELINE.stage(name) for name in ("embeddings", "experts", "joint")]
    for stage in stages:
        parts = collect_dependencies(stage, from_options(PIPELINE.options, dict(before), ""), {})
        (folder / stage.name).mkdir(exist_ok=True)
        write_json(folder / stage.name / BEGUN, {"parts": parts})
    change()
    made = from_options(PIPELINE.options, dict(after), "")
    return {
        stage.name: get_stage_status(stage, folder / stage.name, collect_dependencies(stage, made, {})).why
        for stage in stages
    }


def everywhere(reason: str) -> dict[str, str]:
    return dict.fromkeys(("embeddings", "experts", "joint"), reason)


def test_other_weights_in_the_same_folder_are_noticed(given: Values, whisper_folder: Path, tmp_path: Path) -> None:
    weights = tmp_path / "whisper" / "model.safetensors"
    size = weights.stat().st_size
    other = write_whisper(tmp_path / "other", seed=1, seconds=tiny_listener.SECONDS)
    found = reasons(given, given, tmp_path, lambda: shutil.copy(other / weights.name, weights))
    assert weights.stat().st_size == size
    assert found == everywhere("the weights of the base changed")


def test_another_folder_of_the_same_name_and_sizes_is_noticed_and_a_moved_one_is_the_same(
    given: Values, tmp_path: Path
) -> None:
    moved, other = tmp_path / "moved" / "whisper", tmp_path / "other" / "whisper"
    shutil.copytree(tmp_path / "whisper", moved)
    shutil.copytree(tmp_path / "whisper", other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "activation_dropout": 0.5}))
    (other / "README.md").write_text("It's another.")
    assert reasons(given, {**given, "whisper_model": str(moved)}, tmp_path) == everywhere(SAME)
    changed = everywhere("the configuration or the vocabulary of the base changed")
    assert reasons(given, {**given, "whisper_model": str(other)}, tmp_path) == changed


def test_names_on_the_hub_are_compared_with_their_owners(given: Values, tmp_path: Path) -> None:
    mine, yours = ({**given, "whisper_model": f"{owner}/whisper"} for owner in ("mine", "yours"))
    assert reasons(mine, yours, tmp_path) == everywhere('whisper_model was "mine/whisper", is "yours/whisper" now')
    short, long = ({**given, "whisper_model": name} for name in ("v2", "openai/whisper-large-v2"))
    assert reasons(short, long, tmp_path) == everywhere(SAME)


def as_table(data: Path) -> Values:
    rows = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()]
    text = "".join(f"{one['audio']},{one['text']},{one['accent']}\n" for one in rows)
    (data / "train.csv").write_text(f"path,text,accent\n{text}")
    named = {"train": [f"{data}/train.csv"], "valid": [], "test": []}
    return {**tiny_listener.make_dataset_from(data), **named, "columns": {"audio": "path"}}


def as_cuts(data: Path) -> Values:
    source = {"type": "file", "channels": [0], "source": "train3.wav"}
    recording = {"id": "a", "sources": [source], "sampling_rate": 8000, "num_samples": 2000, "duration": 0.25}
    cut = {"id": "a", "start": 0, "duration": 0.25, "channel": 0, "recording": recording, "type": "MonoCut"}
    (data / "cuts.jsonl").write_text(json.dumps(cut) + "\n")
    return {"name": "tones", "type": "cuts", "train": [f"{data}/cuts.jsonl"]}


def as_recordings(data: Path) -> Values:
    as_cuts(data)
    cut = json.loads((data / "cuts.jsonl").read_text())
    (data / "recordings.jsonl").write_text(json.dumps(cut["recording"]) + "\n")
    return {"name": "tones", "type": "cuts", "train": [f"{data}/recordings.jsonl"]}


def as_splits(data: Path) -> Values:
    (data / "Train" / "ALS").mkdir(parents=True)
    (data / "train3.wav").rename(data / "Train" / "ALS" / "train3.wav")
    (data / "train3.wav").symlink_to(data / "Train" / "ALS" / "train3.wav")
    (data / "Train" / "ALS" / "train3.txt").write_text("ba")
    return {"name": "tones", "type": "splits", "corpus_dir": str(data)}


def as_speakers(data: Path) -> Values:
    files = [{"Filename": "train3.wav", "Prompt": {"Transcript": "ba"}}]
    as_splits(data)
    (data / "Train" / "ALS" / "ann.json").write_text(json.dumps({"Etiology": "ALS", "Files": files}))
    return {"name": "tones", "type": "splits", "corpus_dir": str(data)}


def as_ljspeech(data: Path) -> Values:
    (data / "wavs").symlink_to(data)
    (data / "metadata.csv").write_text("train3|ba|ba\n")
    return {"name": "tones", "type": "ljspeech", "corpus_dir": str(data)}


@pytest.mark.parametrize(
    "layout", [tiny_listener.make_dataset_from, as_table, as_cuts, as_recordings, as_splits, as_speakers, as_ljspeech]
)
@pytest.mark.parametrize("removed", [False, True])
def test_another_recording_is_noticed_in_every_layout(
    layout: Callable[[Path], Values], removed: bool, given: Values, data: Path, tmp_path: Path
) -> None:
    values = {**given, "datasets": [layout(data)]}
    path = (data / "train3.wav").resolve()

    def change() -> None:
        path.unlink() if removed and layout is not as_splits else path.write_bytes(path.read_bytes() + b"more")

    assert reasons(values, values, tmp_path) == everywhere(SAME)
    assert reasons(values, values, tmp_path, change) == everywhere("the data it reads changed")


@pytest.mark.parametrize("change", ["text", "group"])
def test_another_text_or_group_next_to_audio_is_noticed(change: str, given: Values, data: Path, tmp_path: Path) -> None:
    values = {**given, "datasets": [as_splits(data)]}
    group = data / "Train" / "ALS"
    changes = {
        "text": lambda: (group / "train3.txt").write_text("do"),
        "group": lambda: group.rename(data / "Train/PD"),
    }
    assert reasons(values, values, tmp_path, changes[change]) == everywhere("the data it reads changed")


def test_data_that_moved_are_the_same(given: Values, data: Path, tmp_path: Path) -> None:
    (data / "Train").mkdir()
    shutil.copy(data / "train.jsonl", data / "Train")
    values = {name: value for name, value in given.items() if name != "datasets"} | {"dataset_root": str(data)}
    os.utime(shutil.copytree(data, tmp_path / "moved") / "train3.wav")
    assert reasons(values, {**values, "dataset_root": str(tmp_path / "moved")}, tmp_path) == everywhere(SAME)


@pytest.mark.parametrize(
    ("name", "value", "reason", "concerns_embeddings"),
    [
        ("decoding", {"max_new_tokens": 5}, "data.decoding.max_new_tokens was 4, is 5 now", False),
        ("normaliser", "none", 'data.normaliser is new, "none"', False),
        ("augmentation", {"speed": {}}, 'data.augmentation is new, {"speed": {}}', False),
        ("cache_dir", "elsewhere", SAME, False),
        ("group", "speaker", 'data.group was "accent", is "speaker" now', True),
        ("too_long", "split", 'data.too_long is new, "split"', True),
    ],
)
def test_options_of_data_concern_the_stages_that_read_them(
    name: str, value: Any, reason: str, concerns_embeddings: bool, given: Values, tmp_path: Path
) -> None:
    found = reasons(given, {**given, "data": {**given["data"], name: value}}, tmp_path)
    assert found == {**everywhere(reason), "embeddings": reason if concerns_embeddings else SAME}
