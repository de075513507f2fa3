"""The acoustic model in onnxruntime speaks a text as ``vaak speak`` does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from vaak.runs.open_run import open_run
from vaak.tasks.tts.model import Controls, Text
from vaak.tasks.tts.predict import AcousticFunction
from vaak.text.speech.processor import PhonemeProcessor


@pytest.mark.parametrize("name", ["voice_run", pytest.param("flow_run", marks=pytest.mark.slow)])
def test_what_is_exported_speaks_as_the_model(name: str, request: pytest.FixtureRequest):
    """As a function of tensors, before it is written, on two texts, with each of the model's controls."""
    opened = open_run(request.getfixturevalue(name), device="cpu")
    task: Any = opened.task
    model: Any = opened.model.eval()
    speech = AcousticFunction(model, task.experiment.data.speaking)
    symbols, lengths, speakers = torch.arange(14).reshape(2, 7) % 5 + 1, torch.tensor([7, 4]), torch.tensor([0, 0])
    values = {"speed": 0.8, "pitch": 3.0, "energy": 1.5, "temperature": 0.0}
    given: dict[str, Any] = {control: values[control] for control in speech.controls}
    assert list(given) == (list(values) if name == "flow_run" else ["speed"])
    with torch.no_grad():
        mel, frame_lengths, durations = speech(symbols, lengths, speakers, *map(torch.tensor, given.values()))
        spoken = model.speak(Text(symbols, lengths, speakers), speech.usual._replace(**given))
    assert frame_lengths.tolist() == spoken.plan.frame_lengths.tolist()
    assert torch.equal(durations, spoken.plan.durations)
    torch.testing.assert_close(mel, spoken.mel, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["voice_run", "flow_run"])
def test_the_exported_model_says_the_same(name: str, vaak, request: pytest.FixtureRequest, tmp_path: Path):
    run = request.getfixturevalue(name)
    code, _, err = vaak("export", run, "--format", "onnx", "--output", tmp_path / "onnx")
    assert code == 0, err
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "acoustic.onnx")
    processor = PhonemeProcessor.load(tmp_path / "onnx" / "processor.json")
    ids = [processor.pause_id, *processor.process("She saw me, now.").ids, processor.pause_id]
    speed, pitch, energy = np.float32(0.8), np.float32(3), np.float32(1.5)
    given = {"symbols": [ids], "symbol_lengths": [len(ids)], "speakers": [0]}
    inputs = {name: np.array(value) for name, value in given.items()} | {"speed": speed}
    controls = Controls(speed=float(speed))
    if name == "flow_run":
        inputs |= {"pitch": pitch, "energy": energy, "temperature": np.float32(0)}
        controls = Controls(float(speed), float(pitch), float(energy), temperature=0.0)
    mel, frame_lengths, durations = session.run(None, {name: np.asarray(value) for name, value in inputs.items()})
    opened = open_run(run, device="cpu")
    model: Any = opened.model
    spoken = model.speak(Text(torch.tensor([ids]), torch.tensor([len(ids)]), torch.tensor([0])), controls)
    assert frame_lengths.tolist() == spoken.plan.frame_lengths.tolist() == [mel.shape[1]]
    assert durations.tolist() == spoken.plan.durations.tolist()
    np.testing.assert_allclose(mel, spoken.mel.numpy(), atol=1e-3)
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["mel"])["hop_length"] == opened.task.audio.mel.hop_length


def test_another_format_names_this_one(vaak, voice_run: Path):
    code, _, err = vaak("export", voice_run)
    assert code == 2
    assert err == "--format hf: a run of task tts can't be exported so; use --format onnx or sherpa-onnx\n"
