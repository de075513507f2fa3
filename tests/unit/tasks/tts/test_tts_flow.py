"""A tiny voice with flow matching, pitch, energy and learned durations: its losses, what it shows, and its controls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from vaak.audio.features.mel import MelSpectrogram, reconstruct_voice
from vaak.audio.features.pitch import interpolate_pitch
from vaak.config.load import load
from vaak.config.yaml.text import yaml_text
from vaak.core.errors import UserError
from vaak.runs.open_run import open_run

LOSSES = ("mel", "flow", "duration", "pitch", "voicing", "energy", "alignment")
PICTURES = ("val_speech", "val_alignment")


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if line["kind"] == kind]


def test_losses_are_logged_apart_and_add_up(flow_run: Path):
    steps, evaluation = records(flow_run, "step"), records(flow_run, "evaluation")[-1]
    for name in LOSSES:
        assert steps[0][name] > steps[-1][name] or name == "pitch"  # most of these tones are above any voice
    assert steps[-1]["loss"] == pytest.approx(sum(steps[-1][name] for name in LOSSES), rel=1e-4)
    assert evaluation["val_loss"] == pytest.approx(sum(evaluation[f"val_{name}"] for name in LOSSES), rel=1e-5)


def test_every_evaluation_leaves_pictures_and_audio(flow_run: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(flow_run / "tensorboard"), size_guidance={"images": 0, "audio": 0})
    accumulator.Reload()
    for name in PICTURES:
        files = sorted((flow_run / "pictures" / name).iterdir())
        assert [path.name for path in files] == ["step-00000015.png", "step-00000030.png"]
        images = accumulator.Images(f"evaluation/{name}")
        assert [image.encoded_image_string for image in images] == [path.read_bytes() for path in files]
    files = sorted((flow_run / "pictures" / "val_sample-1").iterdir())
    assert [path.name for path in files] == ["step-00000015.wav", "step-00000030.wav"]
    samples, rate = soundfile.read(files[-1])
    assert len(samples) / rate > 0.1
    heard = accumulator.Audio("evaluation/val_sample-1")
    assert [(one.step, one.sample_rate, one.length_frames) for one in heard][-1] == (30, rate, len(samples))
    assert [one.encoded_audio_string for one in heard] == [path.read_bytes() for path in files]


def test_controls_change_what_is_spoken(flow_run: Path):
    opened = open_run(flow_run)
    usual, high = (opened.task.speaker(opened.model, pitch=pitch) for pitch in (0, 12))
    one, other = (speaker.speech("He saw me.").sentences[0] for speaker in (usual, high))
    np.testing.assert_allclose(other.pitch, 2 * one.pitch, rtol=1e-5)
    assert one.pitch.any()
    again = usual.speech("He saw me. He saw me.").sentences
    np.testing.assert_array_equal(usual.speech("He saw me.").samples, one.samples)
    for spoken in again:  # two sentences are one batch, whose products are rounded otherwise
        np.testing.assert_allclose(spoken.samples, one.samples, atol=1e-3 * np.abs(one.samples).max())
    for options in ({"energy": 4.0}, {"temperature": 0.0}, {"num_steps": 3}, {"method": "midpoint"}):
        changed = opened.task.speaker(opened.model, **options).speech("He saw me.").sentences[0]
        assert not np.array_equal(changed.mel, one.mel)


def test_phases_of_the_predicted_pitch_are_those_of_pulses_at_it(flow_run: Path):
    opened = open_run(flow_run)
    speaker = opened.task.speaker(opened.model, phases="pitch")
    (one,) = speaker.speech("He saw me.").sentences
    (other,) = opened.task.speaker(opened.model).speech("He saw me.").sentences
    np.testing.assert_array_equal(one.mel, other.mel)
    f0 = interpolate_pitch(one.pitch, one.durations)
    expected = reconstruct_voice(torch.from_numpy(one.mel), MelSpectrogram(speaker.mel), f0)
    np.testing.assert_array_equal(one.samples, expected.clip(-1, 1))
    assert not np.array_equal(one.samples, other.samples)
    # Batches and texts of several sentences sound the same.
    for spoken in speaker.speech("He saw me. He saw me.").sentences:
        np.testing.assert_allclose(spoken.samples, one.samples, atol=1e-3 * np.abs(one.samples).max())


def test_a_control_without_its_predictor_is_an_error(voice_run: Path, tmp_path: Path):
    opened = open_run(voice_run)
    with pytest.raises(UserError, match=r"data.speaking.pitch: 2, but the model predicts no pitch"):
        opened.task.speaker(opened.model, pitch=2.0)
    (tmp_path / "a.yml").write_text(yaml_text({"task": "tts", "data": {"speaking": {"energy": 2.0}}}))
    with pytest.raises(UserError, match=r"data.speaking.energy: 2, but the model predicts no energy"):
        load([tmp_path / "a.yml"])
    (tmp_path / "a.yml").write_text(yaml_text({"task": "tts", "data": {"speaking": {"phases": "pitch"}}}))
    with pytest.raises(UserError, match=r"data.speaking.phases: pitch, but the model predicts no pitch"):
        load([tmp_path / "a.yml"])
    with pytest.raises(UserError, match=r"data.speaking.phases: pitch, but the model predicts no pitch"):
        opened.task.speaker(opened.model, phases="pitch")


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        ({"pitch": True}, {"speaking": {"phases": "pitch", "num_iterations": 9}}, "which has no iterations"),
        ({}, {"speaking": {"vocoder": "a/b", "phases": "random"}}, "which makes its own phases"),
        ({"flow_matching": {"width": 8}}, {}, "only flow_matching has a field"),
        ({}, {"speaking": {"num_steps": 3}}, "decoder_type is transformer, which has no noise"),
        (
            {"decoder_type": "flow_matching", "flow_matching": {"vector_field": "transformer", "width": 8}},
            {},
            "it is sized by model.decoder",
        ),
        ({"decoder_type": "flow_matching", "decoder": {"d_model": 64}}, {}, "it is sized by model.flow_matching"),
        ({}, {"front_end": {"unknown_words": "rules"}}, "phonemizer is espeak, which has no lexicon"),
        ({}, {"front_end": {"phonemizer": "characters", "stress": False}}, "characters, so nothing is pronounced"),
    ],
)
def test_options_that_the_model_does_not_read_have_no_effect(
    model: dict[str, Any], data: dict[str, Any], message: str, tmp_path: Path
):
    (tmp_path / "a.yml").write_text(yaml_text({"task": "tts", "model": model, "data": data}))
    (said,) = map(str, load([tmp_path / "a.yml"]).warnings)
    assert message in said


def test_options_for_both_stacks_have_an_effect_where_one_of_them_is_read(tmp_path: Path):
    """The encoder reads them, whatever the decoder is."""
    sizes: dict[str, Any] = {"d_model": 64, "num_heads": 2}
    (tmp_path / "a.yml").write_text(
        yaml_text({"task": "tts", "model": {"decoder_type": "flow_matching", "global_config": sizes}})
    )
    assert load([tmp_path / "a.yml"]).warnings == []
    assert load([tmp_path / "a.yml"], ["model.global_config={num_layers: 2, dropout: 0.0}"]).warnings == []
    said = load([tmp_path / "a.yml"], ["model.global_config={window: 8, dropout: 0.0}"]).warnings
    assert any("only local has a window" in one for one in said)
    assert all("window" in one for one in said)
    (only,) = load([tmp_path / "a.yml"], ["model.decoder.d_model=32"]).warnings
    assert "it is sized by model.flow_matching" in only


@pytest.mark.parametrize(
    ("name", "model"),
    [("stop", {"decoder_type": "flow_matching"}), ("flow", {}), ("pitch", {"energy": True}), ("alignment", {})],
)
def test_losses_that_the_model_hasnt_cant_be_weighed(name: str, model: dict[str, Any], tmp_path: Path):
    options = {"task": "tts", "model": model, "training": {"loss": {"auxiliary": {name: 0.5}}}}
    (tmp_path / "a.yml").write_text(yaml_text(options))
    with pytest.raises(UserError, match=rf"training.loss.auxiliary.{name}: model\."):
        load([tmp_path / "a.yml"])


@pytest.mark.parametrize("name", ["z_loss", "focal"])
def test_losses_of_classes_are_not_of_spectrograms(name: str, tmp_path: Path):
    path = tmp_path / "voice.yml"
    path.write_text(yaml_text({"task": "tts", "training": {"loss": {"auxiliary": {name: 0.5}}}}))
    with pytest.raises(UserError, match=rf"training.loss.auxiliary.{name}: {name} doesn't fit what the task tts"):
        load([path])
