"""A diarizer's examples come from recordings, windows and conversations; skipped ones are reported."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from toy_speech import RATE, make_dataset_from, write_recordings, write_utterances
from vaak.audio.segments import Segment
from vaak.config.load import load
from vaak.config.yaml.text import yaml_text
from vaak.core.random_keys import Purpose
from vaak.data.loader import Address, MicrobatchReader
from vaak.tasks.diarization.data import training_speakers
from vaak.tasks.diarization.task import DiarizationTask
from vaak.testing.case import same

CONVERSATIONS = {"train": 6, "valid": 2, "test": 2, "duration": [0.8, 1.6], "beta": 0.3, "speed": [0.9, 1.0]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    write_recordings(folder / "recordings")
    write_utterances(folder / "utterances")
    return folder


def make_task(
    folder: Path, run: Path, datasets: list[dict[str, Any]] | None = None, *overrides: str
) -> DiarizationTask:
    """The task, prepared: recordings and conversations, unless ``datasets`` says otherwise."""
    both = [
        make_dataset_from(folder / "recordings"),
        make_dataset_from(folder / "utterances") | {"conversations": CONVERSATIONS},
    ]
    options = {
        "task": "diarization",
        "model": {"d_model": 16, "num_layers": 1, "num_heads": 2, "embedding_dim": 4},
        "global_config": {"sampling_rate": RATE, "num_mel_bins": 8, "high_freq": 0.0},
        "datasets": both if datasets is None else datasets,
        "data": {"window": 1.0},
        "training": {"eval_knobs": {"label_type": "multilabel"}, "device": "cpu"},
    }
    run.mkdir(parents=True)
    (run / "f.yml").write_text(yaml_text(options))
    experiment: Any = load([run / "f.yml"], list(overrides)).experiment
    task = DiarizationTask(experiment, run, run)
    task.prepare()
    return task


@pytest.fixture(scope="module")
def task(folder: Path) -> DiarizationTask:
    return make_task(folder, folder / "run")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_training_has_windows_and_conversations_and_evaluation_has_the_whole(task: DiarizationTask):
    train, valid = task.dataset("train"), task.dataset("valid")
    assert len(valid.lengths) == 5 + 2
    names = [valid.example(index, rng()).name for index in range(7)]
    assert names == [
        *(f"valid{number}" for number in range(5)),
        "valid-conversation-000000",
        "valid-conversation-000001",
    ]
    assert train.lengths[:-6].max() == 1.0, "a window is longer than data.window"
    assert train.describe(0).startswith("train0 (")
    assert len(train.lengths) - 6 > 18, "recordings longer than a window have several"


def test_an_example_is_what_its_recording_says(task: DiarizationTask, folder: Path):
    example = task.dataset("valid").example(0, rng())
    samples, _ = soundfile.read(folder / "recordings" / "valid0.wav", dtype="float32")
    line = json.loads((folder / "recordings" / "valid.jsonl").read_text().splitlines()[0])
    np.testing.assert_array_equal(example.features, task.features(samples))
    assert example.duration == len(samples) / RATE
    expected = sorted(Segment(**segment) for segment in line["segments"])
    for found, wanted in zip(example.segments, expected, strict=True):
        assert found.speaker == wanted.speaker
        assert (found.start, found.end) == pytest.approx((wanted.start, wanted.end), abs=1e-6)


def test_an_example_is_a_function_of_index_and_rng(folder: Path, task: DiarizationTask, tmp_path: Path):
    """A fresh task, another order of reading, no cache: the same bits."""
    other = make_task(folder, tmp_path / "run", None, "global_config.cache_gigabytes=0")
    there, again = task.dataset("train"), other.dataset("train")
    indices = range(len(there.lengths))
    first = {index: there.example(index, rng(index)) for index in indices}
    for index in reversed(indices):
        assert same(again.example(index, rng(index)), first[index])
    differ = [not same(there.example(index, rng(index + 1000)), first[index]) for index in indices]
    assert sum(differ) > len(differ) / 3  # a window at both ends of its recording can't be moved
    assert all(differ[-6:])
    assert first[0].duration <= there.lengths[0]


def test_any_worker_reads_the_same_batch(task: DiarizationTask):
    address = Address(step=1, number=0, epoch=2, rows=[[0], [5], [len(task.dataset("train").lengths) - 1]])
    batches = [MicrobatchReader(task.dataset("train"), (Purpose.DATA,), 1)[address].batch for _ in range(2)]
    assert same(batches[0], batches[1])


def test_augmentation_is_of_training_and_lengths_stay_upper_bounds(folder: Path, tmp_path: Path):
    augmentation = "data.augmentation={speed: [0.5, 2], volume: [-6, 6], spec_augment: {time_mask: 0.2}}"
    task = make_task(folder, tmp_path / "run", None, augmentation)
    plain, train = make_task(folder, tmp_path / "plain"), task.dataset("train")
    np.testing.assert_allclose(train.lengths, 2 * plain.dataset("train").lengths)
    for index in range(0, len(train.lengths), 5):
        assert train.example(index, rng(index)).duration <= train.lengths[index] + 0.5 / RATE
    assert same(task.dataset("valid").example(0, rng()), plain.dataset("valid").example(0, rng()))
    assert train.fingerprint != plain.dataset("train").fingerprint
    assert task.dataset("valid").fingerprint == plain.dataset("valid").fingerprint


def test_the_fingerprint_says_what_examples_are_made_of_not_where_they_lie(folder: Path, tmp_path: Path):
    def of(number: int, *overrides: str) -> str:
        return make_task(folder, tmp_path / f"run{number}", None, *overrides).dataset("train").fingerprint

    assert of(0) == of(1, "global_config.cache_gigabytes=0.1", "global_config.output_dir=elsewhere")
    assert (
        len(
            {of(2), of(3, "global_config.num_mel_bins=10"), of(4, "data.window=0.9"), of(5, "global_config.dither=0.1")}
        )
        == 4
    )


@pytest.mark.parametrize(
    "augmentation",
    [
        "{}",
        "{spec_augment: {time_mask: 0.2, frequency_mask: 3}}",
        "{speed: [0.9, 1.1], noise: coloured, spec_augment: {time_mask: 0.2}}",
    ],
    ids=["plain", "masked", "changed"],
)
def test_features_made_on_the_device_are_those_of_the_loader(folder: Path, tmp_path: Path, augmentation: str):
    """Up to rounding, with the same draws and labels; stored features aren't read, other splits are as they were."""
    is_plain = augmentation == "{}"
    options = (f"data.augmentation={augmentation}", f"global_config.dither={0 if is_plain else 0.001}")
    stored = (f"global_config.storage_path={tmp_path / 'stored'}",) if is_plain else ()
    tasks = [
        make_task(folder, tmp_path / "loader", None, *options),
        make_task(folder, tmp_path / "device", None, *options, *stored, "data.features_on=device"),
    ]
    indices = [0, 3, 8, len(tasks[0].dataset("train").lengths) - 1]  # the last one is a conversation
    batches, draws = [], []
    for task in tasks:
        train, drawn = task.dataset("train"), rng(3)
        batches.append(train.collate([[train.example(index, drawn)] for index in indices]))
        draws.append(drawn.random())
    of_loader, made = batches
    assert draws[0] == draws[1]
    assert "features" not in made.tensors
    assert all(one.samples is None for one in made.extra["examples"]), "workers would send them twice"
    found, expected = tasks[1].compute_features(made), tasks[0].compute_features(of_loader)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    if "spec_augment" in augmentation:
        assert len({tuple(masks) for masks in made["masks"].flatten(1).tolist()}) == 4, "each row has its own"
    _, alone = made.split(2)  # another number of rows, with the same padding
    torch.testing.assert_close(tasks[1].compute_features(alone), expected[2:], rtol=0, atol=1e-5)
    for name in set(of_loader.tensors) - {"features"}:
        assert torch.equal(made[name], of_loader[name]), name
    assert same(made.counts, of_loader.counts)
    model = tasks[0].model().eval()
    torch.testing.assert_close(
        {name: term.total for name, term in tasks[1].losses(model, made).items()},
        {name: term.total for name, term in tasks[0].losses(model, of_loader).items()},
        rtol=1e-4,
        atol=1e-5,
    )
    assert tasks[1].dataset("valid").example(0, rng()).features.shape[1] == 8


def test_speakers_at_other_speeds_are_others(task: DiarizationTask):
    found = training_speakers(task.prepared, task.datasets)
    assert found == ("ann", "ann@0.9", "ben", "ben@0.9", "cat", "cat@0.9")
    assert task.collator.options.training_speakers == found


def listed(folder: Path, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The options of a dataset of these lines, which are its train and its valid."""
    for split in ("train", "valid"):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"name": "made", "type": "json", **{split: [f"{folder}/{split}.jsonl"] for split in ("train", "valid")}}


@pytest.mark.parametrize("where", ["loader", "device"])
def test_a_window_shorter_than_half_a_frame_is_a_frame_of_silence(tmp_path: Path, where: str):
    """30 ms beyond a whole number of windows is a separate window; 3 ms too."""
    samples = 0.1 * rng().standard_normal(RATE + 24)
    soundfile.write(tmp_path / "a.wav", samples, RATE)
    dataset = listed(tmp_path, [{"audio": "a.wav", "segments": [{"start": 0, "end": 0.5, "speaker": "x"}]}])
    task = make_task(tmp_path, tmp_path / "run", [dataset], "data.shift_windows=false", f"data.features_on={where}")
    train = task.dataset("train")
    assert train.lengths.tolist() == [1.0, 0.003]
    example, longer = train.example(1, rng()), train.example(0, rng())
    assert example.num_frames == 1
    assert not task.compute_features(train.collate([[example], [longer]]))[0].any()
    batch = train.collate([[example]])
    assert not task.compute_features(batch).any()
    assert task.compute_features(batch).shape == (1, 2, 8)
    assert all(bool(term.total.isfinite()) for term in task.losses(task.model(), batch).values())


def test_what_is_left_out_and_what_doesnt_fit_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    segments = [{"start": 0.1 * number, "end": 0.1 * number + 0.3, "speaker": f"s{number}"} for number in range(4)]
    soundfile.write(tmp_path / "a.wav", 0.1 * rng().standard_normal(RATE), RATE)
    lines: list[dict[str, Any]] = [{"audio": "a.wav", "segments": segments}, {"audio": "a.wav", "id": "nothing"}]
    dataset = listed(tmp_path, lines)
    with caplog.at_level(logging.INFO, "vaak"):
        task = make_task(tmp_path, tmp_path / "run", [dataset])
    assert "train: made: 1 skipped: lines without speaker, text, segments or rttm" in caplog.text
    assert "train has recordings of up to 4 speakers: in a window with more than 2 (model.max_speakers)" in caplog.text
    about = json.loads((tmp_path / "run" / "prepared" / "prepared.json").read_text())["statistics"]["train"]
    assert (about["recordings"], about["most_speakers"], about["speakers"]) == (1, 4, 4)
    assert about["datasets"][0]["dropped"] == {"lines without speaker, text, segments or rttm": 1}
    assert task.dataset("train").example(0, rng()).segments
    caplog.clear()
    with caplog.at_level(logging.INFO, "vaak"):
        make_task(tmp_path, tmp_path / "roomy", [dataset], "model.max_speakers=4")
        make_task(tmp_path, tmp_path / "binary", [dataset], "training.eval_knobs.label_type=binary")
    assert "model.max_speakers" not in caplog.text
