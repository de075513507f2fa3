"""pyannote.audio's segmentation network: its filters by their formula, its checkpoints, a run that begins with one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from tiny_pyannote import SMALL, save_pyannote
from toy_speech import make_dataset_from, write_recordings
from vaak.audio.config import AudioConfig
from vaak.config.yaml.text import yaml_text
from vaak.core.errors import UserError
from vaak.tasks.diarization.pyannote import (
    FRAME_SAMPLES,
    RATE_HZ,
    RECEPTIVE_SAMPLES,
    PyanNet,
    SampleFrames,
    SincFilters,
    read_checkpoint,
)

Vaak = Callable[..., tuple[int, str, str]]


def test_filters_are_the_difference_of_two_low_passes_under_a_hamming_window():
    filters = SincFilters().double()
    found = filters.filters().detach().numpy()[:, 0]
    low = 50 + np.abs(filters.low_hz_.detach().numpy())
    high = low + 50 + np.abs(filters.band_hz_.detach().numpy())
    times, window = np.arange(-125, 126) / RATE_HZ, np.hamming(251)
    even = (2 * high * np.sinc(2 * high * times) - 2 * low * np.sinc(2 * low * times)) * window
    with np.errstate(invalid="ignore"):
        odd = (np.cos(2 * np.pi * low * times) - np.cos(2 * np.pi * high * times)) / (np.pi * times) * window
    odd[:, 125] = 0
    # pyannote.audio keeps the window and the times in 32 bits
    expected = np.concatenate([even, odd]) / (2 * np.concatenate([high - low] * 2))
    np.testing.assert_allclose(found, expected, atol=5e-6)
    assert np.abs(found).max() == pytest.approx(1.0)


def test_an_output_is_at_the_middle_of_its_frame_and_padding_changes_nothing():
    """The first layers see RECEPTIVE_SAMPLES, so a click changes those outputs alone that see it."""
    torch.manual_seed(0)
    network = PyanNet(SMALL).eval()
    network.lstm.forward = lambda x: (x, None)  # type: ignore[assignment,method-assign]
    network.linear = torch.nn.ModuleList()
    network.classifier = torch.nn.Identity()  # type: ignore[assignment]
    network.classifier.in_features = 60
    for norm in (network.sincnet.wav_norm1d, *network.sincnet.norm1d):
        norm.forward = lambda x: x  # they spread a click over all of time
    frames, click = 40, 20 * FRAME_SAMPLES + FRAME_SAMPLES // 2
    samples = torch.zeros(1, frames * FRAME_SAMPLES)
    samples[0, click] = 1.0
    mask = torch.ones(1, frames, dtype=torch.bool)

    def score(given: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return network(given.unflatten(1, (-1, FRAME_SAMPLES)), real)[1]

    changed = (score(samples, mask) - score(torch.zeros_like(samples), mask)).abs().sum(-1)[0]
    heard = (changed > 1e-4 * changed.max()).nonzero()[:, 0]
    reach = RECEPTIVE_SAMPLES / 2 / FRAME_SAMPLES
    assert abs(float(heard.float().mean()) - 20) <= 0.5
    assert len(heard) <= 2 * reach + 1
    network = PyanNet(SMALL).eval()
    rows = torch.randn(2, 30 * FRAME_SAMPLES)
    rows[1, 17 * FRAME_SAMPLES :] = 5.0
    lengths = torch.arange(30) < torch.tensor([[30], [17]])
    together = score(rows, lengths)
    alone = score(rows[1:, : 17 * FRAME_SAMPLES], torch.ones(1, 17, dtype=torch.bool))
    torch.testing.assert_close(together[1:, :17], alone)
    assert not together[1, 17:].any()
    for length in (1, 2, 5):  # shorter than the network sees
        assert score(rows[:1, : length * FRAME_SAMPLES], torch.ones(1, length, dtype=torch.bool)).isfinite().all()


def test_frames_hold_all_samples():
    make = SampleFrames(AudioConfig())
    samples = np.random.default_rng(0).normal(0, 0.1, 1000).astype(np.float32)
    frames = make(samples)
    assert frames.shape == (make.num_frames(1000), 270) == (4, 270)
    np.testing.assert_array_equal(frames.ravel()[:1000], samples)
    with pytest.raises(UserError, match=r"sampling_rate is 8000, but model.base reads 16000 Hz"):
        SampleFrames(AudioConfig(sampling_rate=8000))


@pytest.mark.parametrize("sizes", [SMALL, replace(SMALL, num_outputs=7, max_set=2, duration=10.0)])
def test_a_checkpoint_has_its_sizes_and_exactly_its_weights(tmp_path: Path, sizes: Any):
    network = save_pyannote(tmp_path / "pytorch_model.bin", sizes)
    for source in (tmp_path, tmp_path / "pytorch_model.bin"):
        found, weights = read_checkpoint(str(source))
        assert found == sizes
        assert found.label_type == ("multilabel" if sizes.max_set is None else "powerset")
        assert weights.keys() == network.state_dict().keys()
        PyanNet(found).load_state_dict(weights)


class Calls:
    """Calls a function where it is unpickled as it asks for."""

    def __init__(self, function: Callable[..., Any], *arguments: str) -> None:
        self.called = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.called


def test_nothing_that_a_checkpoint_names_is_run(tmp_path: Path):
    there, ran = tmp_path / "there", tmp_path / "ran"
    there.write_text("")
    save_pyannote(tmp_path / "pytorch_model.bin", further=Calls(shutil.copy, str(there), str(ran)))
    assert read_checkpoint(str(tmp_path))[0] == SMALL
    save_pyannote(tmp_path / "pytorch_model.bin", further=Calls(os.system, f"touch {ran}"))
    with pytest.raises(UserError, match=r"can't be read as a checkpoint of pyannote.audio: .*system whose module"):
        read_checkpoint(str(tmp_path))
    assert not ran.exists()


def test_what_is_no_segmentation_network_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="no such file or folder: nowhere"):
        read_checkpoint("nowhere")
    torch.save({"weight": torch.zeros(1)}, tmp_path / "other.bin")
    with pytest.raises(UserError, match=r"pickle, which can run code.*expected a segmentation network of pyannote"):
        read_checkpoint(str(tmp_path / "other.bin"))
    save_pyannote(tmp_path / "fast.bin", sample_rate=8000)
    with pytest.raises(UserError, match="reads 1 channels at 8000 Hz; expected one at 16000"):
        read_checkpoint(str(tmp_path / "fast.bin"))
    save_pyannote(tmp_path / "stride.bin", sincnet={"stride": 5})
    with pytest.raises(UserError, match="only PyanNet's usual form"):
        read_checkpoint(str(tmp_path / "stride.bin"))


def experiment(folder: Path, **training: Any) -> dict[str, Any]:
    return {
        "task": "diarization",
        "name": "begun",
        "run_dir": str(folder / "run"),
        "model": {"base": str(folder / "base"), "max_speakers": 3},
        "datasets": [make_dataset_from(folder)],
        "data": {"window": 1.0, "inference": {"window": 1.0}},
        "training": {"max_steps": 2, "batch_size": 2, "eval_knobs": {"label_type": "multilabel"}, **training},
    }


@pytest.mark.slow  # two trainings
def test_a_run_begins_with_it_trains_it_and_no_longer_needs_it(tmp_path: Path, vaak: Vaak):
    audio = write_recordings(tmp_path)
    (tmp_path / "base").mkdir()
    save_pyannote(tmp_path / "base" / "pytorch_model.bin")
    (tmp_path / "a.yml").write_text(yaml_text(experiment(tmp_path)))
    code, said, error = vaak("train", tmp_path / "a.yml")
    assert code == 0, error
    (tmp_path / "base" / "pytorch_model.bin").unlink()
    run = tmp_path / "run"
    code, said, error = vaak("train", tmp_path / "a.yml", "training.max_steps=3", "training.checkpoint.resume=auto")
    assert code == 0, error
    code, said, error = vaak("diarize", run, audio[0], "--json")
    assert code == 0, error
    found = json.loads(said)["recordings"][0]
    assert found["duration"] == pytest.approx(soundfile.info(audio[0]).duration, abs=0.01)
    code, _, error = vaak("export", run, "--format", "onnx")
    assert code == 2
    assert "pyannote.audio exports its own networks" in error


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"training.eval_knobs.label_type": "binary"}, "scores speakers, or sets of them: give multilabel or powerset"),
        ({"global_config.sampling_rate": 8000}, "model.base reads 16000 Hz, but it is 8000"),
        ({"global_config.storage_path": "s"}, "so features can't be stored"),
        ({"data.features_on": "device"}, "so features can't be computed on a device"),
        ({"model.subsampling": 4}, "subsampling is 4, but a base has an output for each of its frames"),
        ({"model.max_speakers": 2}, "3 outputs for 3 speakers: that is label_type multilabel and model.max_speakers 3"),
    ],
)
def test_options_that_a_base_can_t_have_are_refused(tmp_path: Path, vaak: Vaak, change: dict[str, Any], expected: str):
    write_recordings(tmp_path)
    (tmp_path / "base").mkdir()
    save_pyannote(tmp_path / "base" / "pytorch_model.bin")
    (tmp_path / "a.yml").write_text(yaml_text(experiment(tmp_path)))
    code, _, error = vaak("train", tmp_path / "a.yml", *(f"{name}={value}" for name, value in change.items()))
    assert code == 2
    assert expected in error, error


def test_it_is_used_and_evaluated_as_it_is(tmp_path: Path, vaak: Vaak):
    """Two windows, the second of which is joined by the speakers of both; a run that begins with it says the same."""
    sizes = replace(SMALL, num_outputs=7, max_set=2, duration=1.0)
    save_pyannote(tmp_path / "pytorch_model.bin", sizes)
    audio = write_recordings(tmp_path / "audio")
    code, said, error = vaak("diarize", tmp_path / "pytorch_model.bin", audio[0], "--json", "--threshold", "0.3")
    assert code == 0, error
    found = json.loads(said)
    assert (found["inference"]["window"], found["inference"]["window_overlap"]) == (1.0, 0.9)
    assert [one["file"] for one in found["recordings"]] == [str(audio[0])]
    data = "datasets=" + json.dumps([make_dataset_from(tmp_path / "audio")])
    code, said, error = vaak("eval", tmp_path / "pytorch_model.bin", "--split", "test", "--json", data)
    assert code == 0, error
    assert 0 < json.loads(said)["metrics"]["test_der"] <= 2
    code, _, error = vaak("transcribe", tmp_path / "pytorch_model.bin", audio[0])
    assert code == 2
    assert "is a model of task diarization" in error


def real(name: str) -> Path:
    folder = Path(os.environ.get("VAAK_WEIGHTS", "nowhere")) / name
    if not folder.exists():
        pytest.skip(f"VAAK_WEIGHTS names no folder with {name}: real weights are needed")
    return folder


def test_the_published_network_is_read_whole(tmp_path: Path):
    sizes, weights = read_checkpoint(str(real("pyannote")))
    network = PyanNet(sizes).eval()
    network.load_state_dict(weights)
    assert sum(parameter.numel() for parameter in network.parameters()) == 1_472_749
    with torch.inference_mode():  # two seconds of silence: nobody speaks
        silence = torch.zeros(1, 120, FRAME_SAMPLES)
        scores = network(silence, torch.ones(1, 120, dtype=torch.bool))[0].sigmoid()
    assert scores.max() < 0.5
