"""A speaker near an enrolled voice gets its name, others stay unknown; unusable files and names are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from tiny_pyannote import save_pyannote
from vaak.audio.config import AudioConfig
from vaak.audio.segments import Segment
from vaak.core.errors import UserError
from vaak.tasks.diarization.enrolment import Enrolment, parse_enrolled
from vaak.tasks.diarization.predict import Diarized
from vaak.tasks.diarization.speaker_encoder import GE2E

Vaak = Callable[..., tuple[int, str, str]]
RATE = 16000
PITCHES = {"anna": 200, "ben": 450, "cleo": 800}


def voice(name: str, seconds: float) -> np.ndarray:
    return np.sin(2 * np.pi * PITCHES[name] * np.arange(round(seconds * RATE)) / RATE).astype(np.float32) / 4


class Spectrum:
    """An encoder whose embedding is the power in bands of 100 Hz; it notes what it heard."""

    def __init__(self) -> None:
        self.heard: list[np.ndarray] = []

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        self.heard.append(samples)
        powers = np.abs(np.fft.rfft(samples, RATE)) ** 2 if len(samples) >= RATE else np.abs(np.fft.rfft(samples, RATE))
        return powers[:1000].reshape(10, 100).sum(1)


def write_talk(path: Path) -> list[Segment]:
    """Anna, Cleo, Anna and Cleo at once, Anna again: found as three speakers."""
    parts = [voice("anna", 2), voice("cleo", 2), voice("anna", 1) + voice("cleo", 1), voice("anna", 1)]
    soundfile.write(path, np.concatenate(parts), RATE)
    return [
        Segment(0.0, 2.0, "speaker_1"),
        Segment(2.0, 5.0, "speaker_2"),
        Segment(4.0, 5.0, "speaker_1"),
        Segment(5.0, 6.0, "speaker_3"),
    ]


def enrol(folder: Path, *names: str) -> tuple[Enrolment, Any]:
    encoder: Any = Spectrum()
    for name in names:
        soundfile.write(folder / f"{name}.wav", voice(name, 1.5), RATE)
    files = {name: [folder / f"{name}.wav"] for name in names}
    return Enrolment.of_files(files, encoder, AudioConfig(), 0.3), encoder


def test_whose_voice_is_near_gets_the_name_and_others_stay_unknown(tmp_path: Path):
    segments = write_talk(tmp_path / "talk.wav")
    enrolment, encoder = enrol(tmp_path, "anna", "ben")
    encoder.heard.clear()
    named = enrolment.name_speakers(tmp_path / "talk.wav", Diarized("talk", segments, 6.0, 0.1))
    # speaker_1 and speaker_3 are one person
    assert [one.speaker for one in named.diarized.segments] == ["anna", "speaker_2", "anna", "anna"]
    assert [len(one) / RATE for one in encoder.heard] == [2.0, 2.0, 1.0]  # without what both say at once
    np.testing.assert_allclose(encoder.heard[1], voice("cleo", 2), atol=1e-4)
    assert [row["named"] for row in named.to_json()] == [True, False, True]
    said = r"speaker_1 is anna \(0.00\), speaker_2 is unknown \(nearest \w+, 1.00\), speaker_3 is anna \(0.00\)"
    assert re.fullmatch(said, named.to_line())


def test_nobody_needs_no_name(tmp_path: Path):
    enrolment, _ = enrol(tmp_path, "anna")
    named = enrolment.name_speakers(tmp_path / "anna.wav", Diarized("x", [], 6.0, 0.1))
    assert named.diarized.segments == []
    assert named.to_line() == "nobody speaks"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("anna", "expected NAME=FILE, such as anna=anna.wav"),
        ("=a.wav", "expected NAME=FILE"),
        ("Anna B=a.wav", "'Anna B' can't be a name: RTTM separates its columns by it"),
        ("speaker_2=a.wav", "'speaker_2' can't be a name: unknown speakers are called so"),
    ],
)
def test_what_is_no_name_and_file_is_refused(given: str, expected: str):
    with pytest.raises(UserError, match=re.escape(expected)):
        parse_enrolled([given])


def test_a_file_with_nothing_to_hear_is_refused(tmp_path: Path):
    soundfile.write(tmp_path / "a.wav", np.zeros(RATE), RATE)
    soundfile.write(tmp_path / "b.wav", voice("ben", 0.1), RATE)
    for name in ("a", "b"):
        with pytest.raises(UserError, match=rf"--enrol {name}=.*{name}.wav: it needs 0.5 s of speech at least"):
            Enrolment.of_files({name: [tmp_path / f"{name}.wav"]}, Spectrum(), AudioConfig(), 0.3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"--enrol c=nowhere.wav: no such file"):
        Enrolment.of_files({"c": [Path("nowhere.wav")]}, Spectrum(), AudioConfig(), 0.3)  # type: ignore[arg-type]


def test_the_command_writes_names(tmp_path: Path, vaak: Vaak):
    """With a network and an encoder that were never trained, and a threshold below which everyone is known."""
    save_pyannote(tmp_path / "pytorch_model.bin")
    torch.manual_seed(0)
    torch.save({"model_state": GE2E().state_dict()}, tmp_path / "encoder.pt")
    soundfile.write(tmp_path / "talk.wav", np.concatenate([voice("anna", 4), voice("cleo", 4)]), RATE)
    soundfile.write(tmp_path / "anna.wav", voice("anna", 2), RATE)
    given = ["diarize", tmp_path / "pytorch_model.bin", tmp_path / "talk.wav", "--threshold", 0.2]
    code, _, error = vaak(*given, "--enrol", f"anna={tmp_path / 'anna.wav'}")
    assert code == 2
    assert "--enrol compares voices by a speaker encoder: give --speaker-encoder" in error
    given += ["--speaker-encoder", tmp_path / "encoder.pt"]
    code, said, error = vaak(*given, "--enrol", f"anna={tmp_path / 'anna.wav'}", "--enrol-threshold", 2, "--json")
    assert code == 0, error
    [recording] = json.loads(said)["recordings"]
    assert recording["speakers"] == ["anna"]
    assert all(one["named"] and one["nearest"] == "anna" for one in recording["enrolled"])
    assert "speaker_1 is anna (" in error
    assert "; threshold 2" in error
    code, _, error = vaak(*given, "--enrol-threshold", 0.3)
    assert code == 2
    assert "--enrol-threshold is for known speakers" in error
