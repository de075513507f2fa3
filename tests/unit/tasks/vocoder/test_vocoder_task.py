"""A tiny vocoder, trained: its objectives, its figures, its files, and its use by text-to-speech."""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

import tiny_vocoder
import tiny_voice
from vaak.config.load import load
from vaak.config.tasks import task_class
from vaak.config.yaml.text import yaml_text
from vaak.core.errors import UserError
from vaak.engine.trainer import Trainer
from vaak.runs.open_run import open_run
from vaak.testing.case import exact


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


# The two objectives.


@pytest.mark.parametrize("kind", ["hinge", "least_squares"])
def test_a_step_is_what_two_optimizers_do_by_hand(kind: str, tmp_path: Path):
    """Against the formulas of HiFi-GAN and Vocos in float64, with plain stochastic gradient descent."""
    rule = {"type": "sgd", "lr": 1e-3, "momentum": 0.0, "weight_decay": 0.0, "nesterov": False}
    training = {
        "optimizer": rule,
        "scheduler": {"type": "constant"},
        "loss": {"auxiliary": {"mel": 45.0, "feature_matching": 2.0}},
        "batch_size": 4,
    }
    model_options = {"discriminators": {**tiny_vocoder.DISCRIMINATORS, "resolutions": [128, 64], "loss": kind}}
    trainer = trainer_of(tmp_path, training=training, model=model_options)
    by_hand: Any = trainer.task.model()
    by_hand.load_state_dict(trainer.model.state_dict())
    others, generator = by_hand.discriminators, by_hand.generator
    high, low = {
        "hinge": (lambda score: (1 - score).clamp(min=0), lambda score: (1 + score).clamp(min=0)),
        "least_squares": (lambda score: (1 - score) ** 2, lambda score: score**2),
    }[kind]
    with closing(trainer.data.steps(trainer.position)) as steps:
        for data in itertools.islice(steps, 2):
            (real,) = [one.batch["samples"].double() for one in data.microbatches if one.batch is not None]
            mel = by_hand.mel(real)
            made = generator(mel)[:, : real.shape[1]].detach()
            pairs = list(zip(others(real), others(made), strict=True))
            loss = sum(high(theirs.scores).mean() + low(ours.scores).mean() for theirs, ours in pairs) / len(pairs)
            follow(loss, others)
            made = generator(mel)[:, : real.shape[1]]
            pairs = list(zip(others(real), others(made), strict=True))
            loss = 45 * (by_hand.compared(made) - by_hand.compared(real)).abs().mean()
            for theirs, ours in pairs:
                features = zip(theirs.features, ours.features, strict=True)
                loss = loss + high(ours.scores).mean() / len(pairs)
                loss = loss + 2 * sum((one.detach() - two).abs().mean() for one, two in features) / len(pairs)
            follow(loss, generator)
            trainer.take_step(data)
    for name, tensor in by_hand.state_dict().items():
        torch.testing.assert_close(trainer.model.state_dict()[name], tensor, rtol=1e-9, atol=1e-12, msg=name)


def test_an_auxiliary_loss_is_of_the_spectrograms_that_the_main_loss_compares(tmp_path: Path):
    auxiliary = {"mel": 45.0, "squares": {"type": "mse", "weight": 2.0}}
    trainer = trainer_of(tmp_path, training={"loss": {"auxiliary": auxiliary}, "batch_size": 4})
    model: Any = trainer.model
    with closing(trainer.data.steps(trainer.position)) as steps:
        (batch, *_) = [one.batch for one in next(iter(steps)).microbatches if one.batch is not None]
    real = batch["samples"].double()
    made = model.generator(model.mel(real))[:, : real.shape[1]]
    expected = (model.compared(made) - model.compared(real)).square().sum()
    torch.testing.assert_close(trainer.task.losses(model, batch)["squares"].total, expected)


def trainer_of(folder: Path, **more: Any) -> Trainer:
    """A trainer in float64."""
    file = folder / "vocoder.yml"
    file.write_text(yaml_text(tiny_vocoder.options(tiny_voice.write_voice(folder / "corpus"), **more)))
    experiment = load([file]).experiment
    task = task_class("vocoder")(experiment, folder / "run", folder)
    task.prepare()
    (folder / "run").mkdir(exist_ok=True)
    return Trainer(exact(task), experiment.training, folder / "run")


def follow(loss: torch.Tensor, part: torch.nn.Module) -> None:
    """One step down the gradient by the part's own weights."""
    weights = list(part.parameters())
    for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
        weight.data -= 1e-3 * gradient


def test_discriminators_begin_at_their_step(vocoder_run: Path):
    steps = records(vocoder_run, "step")
    assert [one["step"] for one in steps if "discriminator" in one] == [9, 10, 11, 12]
    for one in steps:
        assert ("adversarial" in one, "feature_matching" in one) == ("discriminator" in one,) * 2
        parts = ("discriminator", "adversarial", "feature_matching")
        assert one["loss"] == pytest.approx(45 * one["mel"] + sum(one.get(name, 0.0) for name in parts), rel=1e-4)


def test_without_discriminators_there_are_none(tmp_path: Path):
    corpus = tiny_voice.write_voice(tmp_path / "corpus")
    run = tiny_vocoder.train(corpus, tmp_path / "run", "training.max_steps=2", model={"discriminators": None})
    assert set(records(run, "step")[-1]) >= {"mel"}
    assert not any(name.startswith("discriminators") for name in open_run(run).model.state_dict())
    with pytest.raises(UserError, match=r"adversarial: model\.discriminators is null, so this loss isn't computed"):
        tiny_vocoder.train(
            corpus, tmp_path / "other", "training.loss.auxiliary.adversarial=1", model={"discriminators": None}
        )


# Figures and files.


def test_figures_are_distances_next_to_those_of_griffin_lim(vocoder_run: Path):
    found = {name.removeprefix("val_"): value for name, value in records(vocoder_run, "evaluation")[-1].items()}
    for kind in ("mel", "spectral"):
        own, other = found[f"{kind}_distance"], found[f"griffin_lim_{kind}_distance"]
        assert own > 0 < other
        assert found[f"{kind}_vs_griffin_lim"] == pytest.approx(own / other)
    assert found["loss"] == pytest.approx(found["mel_distance"] + found["spectral_distance"])


@pytest.mark.slow
def test_a_vocoder_learns_to_be_nearer_than_griffin_lim(tmp_path: Path):
    training = {
        "max_steps": 200,
        "optimizer": {"lr": 3e-3},
        "gradient_clipping": {"norm": 10.0},
        "loss": {"auxiliary": {"stft": 30.0}},
        "validation": {"interval": 20, "interval_epochs": None},
    }
    sizes = {"width": 64, "num_layers": 3, "inner_width": 128, "discriminators": None}
    corpus = tiny_voice.write_voice(tmp_path / "corpus")
    run = tiny_vocoder.train(corpus, tmp_path / "run", "data.num_samples=0", model=sizes, training=training)
    first, *_, last = records(run, "evaluation")
    assert last["val_spectral_vs_griffin_lim"] < 0.95 < 1 < first["val_spectral_vs_griffin_lim"]
    assert last["val_mel_distance"] < 0.7 * first["val_mel_distance"]


def test_samples_are_in_the_run_and_recordings_can_be_vocoded(vocoder_run: Path, vaak):
    lengths = {
        soundfile.info(vocoder_run / f"sample-1{kind}.wav").frames for kind in ("", "-griffin-lim", "-recording")
    }
    assert len(lengths) == 1
    code, out, err = vaak("predict", vocoder_run, vocoder_run / "sample-1-recording.wav")
    assert code == 0, err
    assert "sample-1-recording: spectral distance " in out
    code, out, err = vaak("predict", vocoder_run, vocoder_run / "sample-1-recording.wav", "--json")
    assert code == 0, err
    assert 0 < json.loads(out)["vocoder"]["spectral"] < 10
    code, _, err = vaak("predict", vocoder_run, "gone.wav")
    assert code == 2
    assert "gone.wav" in err


def test_the_vocoder_gives_the_samples_up_to_the_last_frame(vocoder_run: Path):
    opened = open_run(vocoder_run)
    mel = torch.randn(9, tiny_voice.MEL["n_mels"], generator=torch.Generator().manual_seed(0))
    [samples] = opened.task.vocoder(opened.model)([mel])
    assert samples.shape == (8 * tiny_voice.MEL["hop_length"],)
    with torch.no_grad():
        torch.testing.assert_close(samples, opened.model(mel[None])[0, : len(samples)])


# Speaking.


def test_a_voice_speaks_with_a_vocoder(vaak, voice_run: Path, vocoder_run: Path, tmp_path: Path):
    spoken = {}
    for name, options in {"plain": (), "own": ("--vocoder", vocoder_run)}.items():
        code, _, err = vaak("speak", voice_run, "He saw me.", "-o", tmp_path / f"{name}.wav", *options)
        assert code == 0, err
        spoken[name], _ = soundfile.read(tmp_path / f"{name}.wav")
    assert len(spoken["own"]) == len(spoken["plain"])
    opened = open_run(voice_run, overrides=[f"data.speaking.vocoder={vocoder_run}"])
    speech = opened.task.speaker(opened.model).speech("He saw me.")
    np.testing.assert_allclose(spoken["own"], speech.samples, atol=2 / 2**15)
    assert np.abs(spoken["own"] - spoken["plain"]).max() > 1e-3


@pytest.mark.parametrize("absolute", [False, True])
def test_the_vocoder_of_a_run_is_found_from_anywhere_and_after_both_moved(
    voice_run: Path, vocoder_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absolute: bool
):
    project = tmp_path / "project"
    voice, vocoder = (shutil.copytree(run, project / "runs" / run.name) for run in (voice_run, vocoder_run))
    given = {"run_dir": voice, "vocoder": vocoder}
    for file in (voice / "config.yml", *voice.glob("sessions/*.yml")):
        text = file.read_text()
        for key, path in given.items():
            path = path if absolute else path.relative_to(project)
            text = re.sub(rf"^( *{key}:) .*$", rf"\1 {path}", text, count=1, flags=re.MULTILINE)
        file.write_text(text)
    monkeypatch.chdir(tmp_path)
    for place in (project, tmp_path / "moved"):
        if place != project:
            project.rename(place)
        opened = open_run(place / "runs" / voice.name)
        assert len(opened.task.speaker(opened.model).speech("He saw me.").samples)
    shutil.rmtree(place / "runs" / vocoder.name)
    with pytest.raises(UserError, match=rf"data\.speaking\.vocoder: no run .*{vocoder.name}; looked for .*moved"):
        opened.task.speaker(opened.model)


@pytest.mark.slow
def test_a_vocoder_of_other_spectrograms_is_refused(vaak, voice_run: Path, vocoder_run: Path, tmp_path: Path):
    other = {"global_config": {"mel": {**tiny_voice.MEL, "hop_length": 32}}}
    corpus = tiny_voice.write_voice(tmp_path / "corpus")
    run = tiny_vocoder.train(corpus, tmp_path / "other", "training.max_steps=1", "data.num_samples=0", **other)
    for vocoder, message in {
        run: "was trained with global_config.mel {hop_length: 32}, but the spectrograms here have {hop_length: 64}",
        voice_run: f"{voice_run} is a run of task tts; data.speaking.vocoder requires a run of task vocoder",
        tmp_path / "gone": f"data.speaking.vocoder: no run {tmp_path / 'gone'}; looked for {tmp_path / 'gone'}",
    }.items():
        code, _, err = vaak("speak", voice_run, "He saw me.", "-o", tmp_path / "a.wav", "--vocoder", vocoder)
        assert code == 2
        assert message in err
        assert len(err.strip().splitlines()) == 1
    with pytest.raises(UserError, match="hop_length: 32"):
        tiny_voice.train(corpus, tmp_path / "voice", f"data.speaking.vocoder={run}")
    assert list((tmp_path / "voice").rglob("step-*")) == []


@pytest.mark.slow
def test_an_exported_vocoder_is_the_same_in_onnxruntime(vaak, vocoder_run: Path, tmp_path: Path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    code, _, err = vaak("export", vocoder_run, "--format", "onnx", "--output", tmp_path / "onnx")
    assert code == 0, err
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "model.onnx")
    assert json.loads(session.get_modelmeta().custom_metadata_map["mel"])["hop_length"] == tiny_voice.MEL["hop_length"]
    mel = np.random.default_rng(0).standard_normal((2, 31, tiny_voice.MEL["n_mels"]), np.float32)
    (samples,) = session.run(None, {"mel": mel})
    opened = open_run(vocoder_run)
    with torch.no_grad():
        expected = opened.model(torch.from_numpy(mel)).numpy()
    np.testing.assert_allclose(samples, expected, atol=1e-3 * max(1.0, float(np.abs(expected).max())))
    assert math.isfinite(float(np.abs(samples).max()))
