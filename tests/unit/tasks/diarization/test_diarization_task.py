"""The task as the engine and the command line use it: label types, losses, a user's own labels."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quick_cases import mostly_slow
from toy_speech import RATE, make_dataset_from, write_recordings, write_utterances
from vaak.config.load import load
from vaak.config.yaml.text import yaml_text
from vaak.core.batch import Batch
from vaak.core.errors import DataError, UserError
from vaak.tasks.diarization.model import DiarizationOutputs
from vaak.tasks.diarization.task import DiarizationTask

Vaak = Callable[..., tuple[int, str, str]]

OWN = """
import numpy as np

from vaak.tasks.diarization.labels import DiarizationCollator, activity


class Overlap(DiarizationCollator):
    '''Several speak at once, or at most one does.'''

    num_outputs = 1
    names = ("overlap",)

    def __init__(self, options, least=2):
        super().__init__(options)
        self.least = least

    def labels(self, example, num_frames):
        names = sorted({segment.speaker for segment in example.segments})
        speaking = activity(example.segments, names, num_frames, self.options.frame_seconds)
        return np.float32(speaking.sum(1, keepdims=True) >= self.least)
"""


CUSTOM = """
import torch

from vaak.tasks.diarization.labels import DiarizationCollator


class CustomCollator(DiarizationCollator):
    def __call__(self, cuts):
        labels = torch.zeros(len(cuts), max(cut.num_frames for cut in cuts), 2)
        for row, cut in enumerate(cuts):
            assert cut.load_features().shape[0] == cut.num_frames
            for supervision in cut.supervisions:
                first, last = (int(100 * time) for time in (supervision.start, supervision.end))
                labels[row, first:last, 0 if supervision.speaker < "b" else 1] = 1
        return {"labels": labels}


class Everything(DiarizationCollator):
    '''What people use of Lhotse: cuts, supervisions, features and recordings.'''

    num_outputs = 2

    def __call__(self, cuts):
        labels = torch.zeros(len(cuts), max(cut.num_frames for cut in cuts), 2)
        names = sorted(cuts.speakers)
        assert list(cuts.ids) == [cut.id for cut in cuts] and cuts[cuts[0].id] is cuts[0]
        for row, cut in enumerate(cuts):
            assert cut.start == 0 and cut.end == cut.duration and cut.channel == 0
            assert cut.has_features and cut.num_features == 8 and cut.features.num_frames == cut.num_frames
            assert cut.sampling_rate == 8000 and abs(cut.frame_shift - 0.01) < 1e-9
            assert cut.has_recording and cut.load_audio().shape == (1, cut.recording.num_samples)
            assert cut.speakers_feature_mask().shape[1] == cut.num_frames
            for supervision in cut.supervisions:
                assert abs(supervision.start + supervision.duration - supervision.end) < 1e-6
                assert supervision.recording_id == cut.id and supervision.text is None
                part = supervision.trim(cut.duration)
                first, last = (int(round(time / cut.frame_shift)) for time in (part.start, part.end))
                labels[row, first:last, 0 if supervision.speaker < "b" else 1] = 1
            assert cut.truncate(duration=cut.duration / 2).duration < cut.duration
        batch = super().__call__(cuts.sort_by_duration())
        assert [example.id for example in batch.extra["examples"]] == list(cuts.sort_by_duration().ids)
        return {"labels": labels}


class Changed(DiarizationCollator):
    def __call__(self, cuts):
        batch = super().__call__(cuts)
        batch.tensors["labels"] = 1 - batch["labels"]
        return batch


class Nothing(DiarizationCollator):
    def __call__(self, cuts):
        return {"labels": torch.zeros(len(cuts), 3)}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``f.yml``: a tiny diarizer of recordings next to it; ``own.py``: a label type."""
    folder = tmp_path_factory.mktemp("toy")
    write_recordings(folder / "recordings")
    options = {
        "task": "diarization",
        "model": {"d_model": 16, "num_layers": 1, "num_heads": 2, "embedding_dim": 4, "dropout": 0.1},
        "global_config": {"sampling_rate": RATE, "num_mel_bins": 8, "high_freq": 0.0},
        "datasets": [make_dataset_from(folder / "recordings")],
        "data": {"window": 1.5},
        "training": {
            "eval_knobs": {"label_type": "multilabel"},
            "device": "cpu",
            "max_steps": 4,
            "batch_size": 4,
            "logging": {"interval": 1, "tensorboard": False, "progress_bar": False},
        },
    }
    (folder / "f.yml").write_text(yaml_text(options))
    (folder / "own.py").write_text(OWN)
    (folder / "custom.py").write_text(CUSTOM)
    return folder


def make_task(folder: Path, run: Path, *overrides: str) -> DiarizationTask:
    loaded = load([folder / "f.yml"], list(overrides))
    run.mkdir()
    experiment: Any = loaded.experiment
    task = DiarizationTask(experiment, run, loaded.folder)
    task.prepare()
    return task


def test_too_few_speakers_for_conversations_are_said_before_training(tmp_path_factory, tmp_path: Path):
    folder = tmp_path_factory.mktemp("utterances")
    write_utterances(folder)
    (folder / "f.yml").write_text("task: diarization\nglobal_config: {num_mel_bins: 20}\n")
    many = f"datasets=[{json.dumps(make_dataset_from(folder) | {'conversations': {'num_speakers': 50}})}]"
    with pytest.raises(DataError, match="too few for conversations of 50"):
        make_task(folder, tmp_path / "run", many)


@pytest.mark.parametrize(
    ("label_type", "loss"),
    [("binary", "bce"), ("multilabel", "bce"), ("speaker_id", "cross_entropy"), ("powerset", "cross_entropy")],
)
def test_cross_entropy_is_the_binary_one_of_what_are_no_classes(
    folder: Path, tmp_path: Path, label_type: str, loss: str
):
    task = make_task(folder, tmp_path / "run", f"training.eval_knobs.label_type={label_type}")
    terms = task.losses(task.model(), batch_of(task))
    assert list(terms) == [loss]
    assert terms[loss].per == "frame"


def batch_of(task: DiarizationTask, size: int = 3) -> Batch:
    dataset = task.dataset("train")
    return dataset.collate([[dataset.example(index, np.random.default_rng(index))] for index in range(size)])


def test_the_order_of_speakers_changes_no_loss_at_all(folder: Path, tmp_path: Path):
    """Labels whose speakers change places, with everything that goes by them."""
    auxiliary = "training.loss.auxiliary={clustering: 0.5, speaker: 0.5}"
    task = make_task(folder, tmp_path / "run", auxiliary)
    model, batch = task.model().double().eval(), batch_of(task)
    expected = task.losses(model, batch)
    for name in ("labels", "activity"):
        batch.tensors[name] = batch[name].flip(-1)
    batch.tensors["speaker_numbers"] = batch["speaker_numbers"].flip(-1)
    found = task.losses(model, batch)
    assert list(found) == ["bce", "clustering", "speaker"]
    for name, term in found.items():
        torch.testing.assert_close(term.total, expected[name].total, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_a_compiled_model_has_the_same_losses(folder: Path, tmp_path: Path):
    task = make_task(folder, tmp_path / "run", "training.loss.auxiliary={clustering: 0.5, speaker: 0.5}")
    model, batch = task.model().eval(), batch_of(task)
    compiled_model: Any = torch.compile(model, backend="eager")
    compiled = task.losses(compiled_model, batch)
    for name, term in task.losses(model, batch).items():
        torch.testing.assert_close(compiled[name].total, term.total)


def test_mixed_precision_trains_attractors(folder: Path, tmp_path: Path):
    options = ("model.head=attractors", "training.loss.auxiliary={attractor: 1, clustering: 1}")
    task = make_task(folder, tmp_path / "run", *options)
    model, batch = task.model(), batch_of(task)
    with torch.autocast("cpu", torch.bfloat16):
        terms = task.losses(model, batch)
    torch.stack([term.total for term in terms.values()]).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or bool(parameter.grad.isfinite().all()), name


def test_a_speaker_in_an_output_that_inference_does_not_read_is_a_loss(folder: Path, tmp_path: Path, monkeypatch):
    """One speaker, whom only the second attractor finds: the loss was zero, and inference dropped the speaker."""
    options = ("model.head=attractors", "training.loss.auxiliary={attractor: 1}")
    task = make_task(folder, tmp_path / "run", *options)
    model, batch = task.model().eval(), batch_of(task)
    number = len(batch["labels"])
    speaker = torch.zeros_like(batch["labels"])
    speaker[:, ::2, 0] = 1.0
    logits = torch.full_like(speaker, -20.0)
    logits[:, ::2, 1] = 20.0
    existence = torch.tensor([[9.0, *[-9.0] * speaker.shape[-1]]]).expand(number, -1)

    wrong_outputs = DiarizationOutputs(logits.requires_grad_(), torch.zeros(*logits.shape[:2], 16), existence)
    monkeypatch.setattr(model, "forward", lambda *_, **__: wrong_outputs)
    batch = replace(batch, tensors={**batch.tensors, "labels": speaker})
    wrong = task.losses(model, batch)["bce"].total
    wrong.backward()
    frames = float(speaker[..., 0][batch["mask"]].sum())
    assert float(wrong.detach()) == pytest.approx(20 * frames, rel=1e-4)
    assert logits.grad is not None
    assert not logits.grad[..., 1:].any()
    assert logits.grad[..., 0].any()


def test_a_line_for_each_row_says_who_speaks(folder: Path, tmp_path: Path):
    task = make_task(folder, tmp_path / "run")
    [line, *_] = task.show(batch_of(task))
    assert re.fullmatch(r"train0@0\.\d{3}: 1\.\d\d s, (ann|ben|cat), (ann|ben|cat)", line)


def test_a_label_type_of_ones_own_trains_and_is_kept_with_the_run(
    vaak: Vaak, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    run = tmp_path / "run"
    overrides = ("training.eval_knobs.label_type={type: ./own.py:Overlap, least: 2}", f"run_dir={run}")
    code, out, errors = vaak("train", folder / "f.yml", *overrides)
    assert code == 0, errors
    assert "val_frame_accuracy" in out
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["kind"] == "step"] == [1, 2, 3, 4]
    assert (run / "code" / "own.py").read_text() == OWN
    assert "./code/own.py:Overlap" in (run / "config.yml").read_text()
    code, out, errors = vaak("train", run / "config.yml", f"run_dir={tmp_path / 'again'}")
    assert code == 2
    assert "--trust-code" in errors


@pytest.mark.parametrize(
    ("name", "outputs"), mostly_slow([("Everything", 2), ("CustomCollator", 2), ("Changed", 1)], "Everything")
)
def test_a_label_type_of_a_call_alone_trains(
    vaak: Vaak, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, outputs: int
):
    monkeypatch.chdir(folder)
    label_type = f"training.eval_knobs.label_type=./custom.py:{name}"
    task = make_task(folder, tmp_path / "made", label_type)
    batch = batch_of(task)
    assert batch["labels"].shape == (*batch["mask"].shape, outputs)
    assert 0 < batch["labels"][batch["mask"]].mean() < 1
    code, _, errors = vaak("train", folder / "f.yml", label_type, f"run_dir={tmp_path / 'run'}")
    assert code == 0, errors


def test_labels_of_another_length_are_a_users_mistake(
    vaak: Vaak, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    overrides = ("training.eval_knobs.label_type=./custom.py:Nothing", f"run_dir={tmp_path / 'run'}")
    code, _, errors = vaak("train", folder / "f.yml", *overrides)
    assert code == 2
    assert "__call__ of the label type Nothing gives labels of shape (1, 3); expected them to begin" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("label_type", "expected"),
    [
        (
            "custom",
            "label_type: custom means your own label type: give its class, a DiarizationCollator, as ./file.py",
        ),
        ("./own.py:np", "./own.py:np is not a subclass of vaak.tasks.diarization.labels:DiarizationCollator"),
        ("multi", "'multi' is not known; expected one of binary, custom, multilabel, powerset, speaker_id"),
    ],
)
def test_what_is_no_label_type_is_one_line(
    vaak: Vaak, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, label_type: str, expected: str
):
    monkeypatch.chdir(folder)
    overrides = (f"training.eval_knobs.label_type={label_type}", f"run_dir={tmp_path / 'run'}")
    code, _, errors = vaak("train", folder / "f.yml", *overrides)
    assert code == 2
    assert expected in errors.splitlines()[-1]
    assert "Traceback" not in errors


def test_wrong_options_of_a_label_type_are_a_users_mistake(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=r"Overlap can't be created: .*unexpected keyword argument 'most'"):
        make_task(folder, tmp_path / "run", "training.eval_knobs.label_type={type: ./own.py:Overlap, most: 1}")


def test_windows_of_inference_are_as_long_as_training_s(folder: Path, tmp_path: Path):
    task = make_task(folder, tmp_path / "run")
    model = task.model()
    assert task.diarizer(model).inference.window == 1.5
    told = make_task(folder, tmp_path / "told", "data.inference.window=9")
    assert told.diarizer(model).inference.window == 9
