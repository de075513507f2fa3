"""Stored features: the examples are those that audio gives, except at the edges of windows, and audio isn't read."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny_diarizer
from tiny_audio import cut_of
from tiny_diarizer import RATE, write_corpus
from vaak.audio.config import AudioConfig
from vaak.audio.cuts.sources import UtteranceSources, WindowSource
from vaak.audio.cuts.store import write_cuts
from vaak.audio.features.store import StoredSource
from vaak.audio.formats.annotation_lines import write_rttm
from vaak.audio.segments import Segment
from vaak.config.load import load
from vaak.config.yaml.tree import ConfigError
from vaak.core.errors import DataError
from vaak.tasks.diarization.data import store_features
from vaak.tasks.diarization.labels import DiarizationExample
from vaak.tasks.diarization.task import DiarizationTask

SHIFT, WINDOW = 160, 400
"""Samples of the features' shift and window."""


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def prepared_task(folder: Path, run: Path, *overrides: str) -> DiarizationTask:
    experiment: Any = load([folder / "tiny.yml"], list(overrides)).experiment
    task = DiarizationTask(experiment, run, folder)
    task.prepare()
    return task


def store(task: DiarizationTask, *, skip_bad: bool = False) -> None:
    store_features(task.prepared, task.datasets, task.audio, task.data, torch.device("cpu"), skip_bad)


@pytest.fixture(scope="module")
def tasks(made_recordings: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, DiarizationTask]:
    """The tiny task with features from audio, and with stored ones."""
    folder = tmp_path_factory.mktemp("tasks")
    return {
        "audio": prepared_task(made_recordings, folder / "audio"),
        "stored": prepared_task(made_recordings, folder / "stored", f"global_config.storage_path={folder}/features"),
    }


def assert_alike(stored: DiarizationExample, wanted: DiarizationExample, *, whole: bool) -> None:
    """Equal in everything, but for frames whose window passes an edge of what isn't a whole recording."""
    assert (stored.name, stored.segments, stored.duration, stored.uem) == (
        wanted.name,
        wanted.segments,
        wanted.duration,
        wanted.uem,
    )
    assert stored.features.shape == wanted.features.shape
    begins = np.arange(len(wanted.features)) * SHIFT + SHIFT // 2 - WINDOW // 2
    inside = (begins >= 0) & (begins + WINDOW <= round(wanted.duration * RATE))
    assert inside.sum() >= len(inside) - 4
    compared = slice(None) if whole else inside
    np.testing.assert_allclose(stored.features[compared], wanted.features[compared], rtol=0, atol=2e-5)


@pytest.mark.parametrize("shift", [True, False])
def test_windows_are_those_of_audio_but_for_their_edges(tasks, shift: bool):
    datasets = {}
    for name, task in tasks.items():
        task.data = task.data.model_copy(update={"shift_windows": shift})
        datasets[name] = task.dataset("train")
    assert len(datasets["stored"].lengths) == 16
    for index in range(16):
        stored, wanted = (datasets[name].example(index, generator(index)) for name in ("stored", "audio"))
        assert_alike(stored, wanted, whole=False)
        assert stored.duration <= datasets["stored"].lengths[index] + 1e-9
    assert datasets["stored"].fingerprint != datasets["audio"].fingerprint


def test_edges_know_what_lies_beyond_them(tasks):
    task = tasks["stored"]
    task.data = task.data.model_copy(update={"shift_windows": False})
    train = task.dataset("train")
    before, after = (train.example(index, generator()) for index in (0, 1))
    whole = train.source.store.frames(0)
    np.testing.assert_array_equal(np.concatenate([before.features, after.features]), whole)


def test_recordings_of_evaluation_are_those_of_audio(tasks):
    stored, wanted = (tasks[name].dataset("valid") for name in ("stored", "audio"))
    assert isinstance(stored.source, StoredSource)
    for index in range(3):
        assert_alike(stored.example(index, generator()), wanted.example(index, generator()), whole=True)


def test_nothing_is_stored_of_test(tasks):
    assert not isinstance(tasks["stored"].dataset("test").source, StoredSource)


def test_they_are_made_once_and_audio_is_needed_no_more(tmp_path: Path):
    write_corpus(tmp_path)
    storage = f"global_config.storage_path={tmp_path}/features"
    task = prepared_task(tmp_path, tmp_path / "run", storage)
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "features").rglob("*")}
    wanted = task.dataset("train").example(3, generator())
    for path in tmp_path.rglob("*.wav"):
        path.write_bytes(b"")
    store(task)
    found = task.dataset("train").example(3, generator())
    np.testing.assert_array_equal(found.features, wanted.features)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "features").rglob("*")} == made


def test_masks_are_those_of_features_from_audio(tasks):
    found = {}
    for name, task in tasks.items():
        dataset = task.dataset("train")
        options = {"spec_augment": {"num_frequency_masks": 2, "frequency_mask": 8, "num_time_masks": 0}}
        dataset.augmentation = type(dataset.augmentation).model_validate(options)
        example = dataset.example(2, generator(4))
        found[name] = (example.features == example.features[0]).all(0)
    assert 0 < found["audio"].sum() < 24
    np.testing.assert_array_equal(found["stored"], found["audio"])


def test_augmented_audio_is_read_and_what_is_evaluated_is_stored(made_recordings: Path, tmp_path: Path):
    overrides = f"global_config.storage_path={tmp_path}/features", "data.augmentation.volume=[-6, 6]"
    task = prepared_task(made_recordings, tmp_path / "run", *overrides)
    assert not isinstance(task.dataset("train").source, StoredSource)
    assert isinstance(task.dataset("valid").source, StoredSource)
    assert len(list((tmp_path / "features").iterdir())) == 1


def single_speakers(folder: Path, with_pause: bool) -> None:
    """Utterances of one speaker: RTTM labels them as speech throughout, ``list.jsonl`` knows no times."""
    folder.mkdir()
    lines = []
    for number in range(4):
        rng = generator(number)
        samples = 0.1 * rng.standard_normal(3 * RATE)
        if with_pause:
            samples[RATE : 2 * RATE] *= 1e-3
        soundfile.write(folder / f"u{number}.wav", samples, RATE)
        write_rttm(folder / f"u{number}.rttm", {f"u{number}": [Segment(0, 3, f"speaker{number % 2}")]})
        lines.append(json.dumps({"audio": f"u{number}.wav", "speaker": f"speaker{number % 2}"}) + "\n")
    (folder / "list.jsonl").write_text("".join(lines))


def test_speech_is_found_where_labels_say_only_that_there_is_some(tmp_path: Path):
    write_corpus(tmp_path)
    single_speakers(tmp_path / "single", with_pause=True)
    text = (tmp_path / "tiny.yml").read_text()
    single = "  - {name: single, type: json, train_fraction: 1, valid_fraction: 0, "
    single += f"train: [{tmp_path}/single/list.jsonl]}}\n"
    (tmp_path / "tiny.yml").write_text(text.replace("data: {", f"{single}data: {{"))
    run, stored = tmp_path / "run", f"global_config.storage_path={tmp_path}/features"
    found = prepared_task(tmp_path, run, stored).dataset("train")
    wanted = prepared_task(tmp_path, run).dataset("train")
    places = [index for index in range(len(found.lengths)) if found.describe(index).startswith("u")]
    assert len(places) == 4
    for index in places:
        example = found.example(index, generator())
        assert_alike(example, wanted.example(index, generator()), whole=True)
        assert len(example.segments) == 2


def test_conversations_beside_recordings_are_made_as_they_are_needed(tmp_path: Path):
    write_corpus(tmp_path)
    single_speakers(tmp_path / "single", with_pause=False)
    text = (tmp_path / "tiny.yml").read_text()
    simulated = f"  - {{name: single, type: folder, train: [{tmp_path}/single], train_fraction: 1, valid_fraction: 0, "
    simulated += "conversations: {train: 5, num_speakers: 2, duration: 4}}\n"
    (tmp_path / "tiny.yml").write_text(text.replace("data: {", f"{simulated}data: {{"))
    storage = f"global_config.storage_path={tmp_path}/features"
    warnings = load([tmp_path / "tiny.yml"], [storage]).warnings
    assert any("no features of single are stored" in line for line in warnings)
    dataset = prepared_task(tmp_path, tmp_path / "run", storage).dataset("train")
    assert isinstance(dataset.source, UtteranceSources)
    assert [type(source).__name__ for source in dataset.source.sources] == ["StoredSource", "SimulatedConversations"]
    assert len(list((tmp_path / "features").iterdir())) == 2  # of train and of valid
    names = [dataset.example(index, generator()).name for index in (0, 15, 16, 20)]
    assert [name.partition("@")[0] for name in names] == [
        "train0",
        "train7",
        "train-conversation-000000",
        "train-conversation-000004",
    ]


def test_a_recording_that_cannot_be_read_is_named_or_left_for_training_to_skip(tmp_path: Path, caplog):
    write_corpus(tmp_path)
    run = tmp_path / "run"
    task = prepared_task(tmp_path, run)
    good = (tmp_path / "train" / "train1.wav").read_bytes()
    (tmp_path / "train" / "train1.wav").write_bytes(good[:1000])
    task.audio = task.audio.model_copy(update={"storage_path": str(tmp_path / "features")})
    with pytest.raises(DataError, match=r"train1\.wav"):
        store(task)
    with caplog.at_level(logging.WARNING, logger="vaak"):
        store(task, skip_bad=True)
    assert len([line for line in caplog.messages if "its features aren't stored" in line]) == 1
    dataset = task.dataset("train")
    bad = next(index for index in range(16) if dataset.describe(index).startswith("train1 "))
    with pytest.raises(DataError, match=r"train1\.wav"):
        dataset.example(bad, generator())
    (tmp_path / "train" / "train1.wav").write_bytes(good)
    assert dataset.example(bad, generator()).features.any()


def test_what_is_gone_is_computed_and_said(made_recordings: Path, tmp_path: Path, caplog):
    task = prepared_task(made_recordings, tmp_path / "run", f"global_config.storage_path={tmp_path}/features")
    shutil.rmtree(tmp_path / "features")
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="vaak"):
        assert len(task.dataset("train").example(0, generator()).features)
        assert len(task.dataset("valid").example(0, generator()).features)
    assert len(caplog.messages) == 1
    assert "features of train are no longer in" in caplog.messages[0]


def test_an_evaluation_finds_what_the_one_before_has_read(made_recordings: Path, tmp_path: Path, monkeypatch):
    task = prepared_task(made_recordings, tmp_path / "run")
    first = [task.dataset("valid").example(index, generator()) for index in range(3)]
    monkeypatch.setattr(task.features, "batch", None)
    for index, wanted in enumerate(first):
        found = task.dataset("valid").example(index, generator())
        assert_alike(found, wanted, whole=True)
        assert not found.features.flags.writeable
    task.prepare_eval_data(task.experiment, tmp_path / "others", ())
    with pytest.raises(TypeError):
        task.dataset("valid").example(0, generator())


@given(
    parts=st.lists(st.tuples(st.floats(0, 40), st.floats(0.004, 20)), min_size=1, max_size=4),
    window=st.floats(0.3, 15),
    shift=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_windows_begin_at_frames(tmp_path_factory, parts, window: float, shift: bool, seed: int):
    uem, place = [], 0.0
    for gap, length in parts:
        uem.append([place + gap, place + gap + length])
        place = uem[-1][1]
    store = write_cuts(tmp_path_factory.mktemp("s"), [cut_of("a", place + 1, uem=uem)])
    source = WindowSource(store, AudioConfig(), window, shift)
    for index in range(len(source.durations)):
        found, part = source.place(index, generator(seed)), np.floor(source.parts[index] * RATE + 0.5)
        assert found.first % SHIFT == 0
        assert found.first < found.last <= part[1]
        assert found.last - found.first <= round(source.durations[index] * RATE)
        assert found.first >= part[0] or found.last - found.first < SHIFT + (part[1] - part[0]) < 2 * SHIFT


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["global_config.storage_path=f", "data.augmentation.speed=[0.9]"], "only features of valid are stored"),
        (["global_config.storage_type=float16"], "storage_path is null, so no features are stored"),
        (["global_config.storage_path=f", "data.augmentation.spec_augment.num_time_masks=1"], None),
        (["global_config.storage_path=f"], None),
    ],
)
def test_what_is_not_stored_is_said(made_recordings: Path, overrides: list[str], expected: str | None):
    lines = [line for line in load([made_recordings / "tiny.yml"], overrides).warnings if "global_config" in line]
    assert len(lines) == (expected is not None)
    assert expected is None or expected in lines[0]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["global_config.storage_path=f", "global_config.dither=1e-3"], "dither is random each time"),
        (
            ["global_config.feature_type=mel", "global_config.num_mel_bins=80"],
            "global_config.feature_type: mel is for speech synthesis",
        ),
        (["global_config.snip_edges=true"], "global_config.snip_edges: true drops the frames at the ends"),
    ],
)
def test_what_cannot_be_is_refused(made_recordings: Path, overrides: list[str], expected: str):
    with pytest.raises(ConfigError, match=expected):
        load([made_recordings / "tiny.yml"], overrides)


@pytest.mark.slow
def test_a_run_trains_on_them(made_recordings: Path, tmp_path: Path):
    """With the same bits whatever the number of processes that read."""
    finals = []
    for workers in (0, 2):
        overrides = f"global_config.storage_path={tmp_path}/features", f"training.performance.num_workers={workers}"
        run = tmp_path / str(workers)
        tiny_diarizer.train(made_recordings, run, "training.max_steps=3", *overrides)
        finals.append((run / "checkpoints" / "step-00000003" / "model.safetensors").read_bytes())
    assert finals[0] == finals[1]
