"""Voice activity by silero-vad: the network is the package's own, and finds speech in noise where energy doesn't."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from vaak.audio import silero
from vaak.audio.silero import CONTEXT, WINDOW, SileroActivity, SileroNetwork, find_weights, make_voice_activity
from vaak.audio.speech_regions import find_runs
from vaak.audio.voice_activity import VoiceActivity

WEIGHTS = find_weights()
needs_weights = pytest.mark.skipif(WEIGHTS is None, reason="silero-vad isn't installed: pip install silero-vad")


def test_without_the_package_energy_decides(monkeypatch):
    monkeypatch.setattr(silero, "find_weights", lambda: None)
    assert type(make_voice_activity(0.5, 8000)) is VoiceActivity


def test_frames_of_any_rate_become_whole_windows(tmp_path: Path):
    from safetensors.torch import save_file

    torch.manual_seed(0)
    save_file(SileroNetwork().state_dict(), tmp_path / "weights")
    for rate in (8000, 16_000, 44_100):
        voice, seen = SileroActivity(0.5, rate, tmp_path / "weights"), set[float]()
        for frame in np.random.default_rng(0).normal(0, 0.1, (100, rate // 100)).astype(np.float32):
            voice.hear(frame)
            seen.add(voice.probability)
        # A second has 31 windows; the resampler holds some samples back.
        assert 28 <= len(seen) <= 32


@needs_weights
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_the_network_is_that_of_the_package():
    assert WEIGHTS is not None
    # Its weights in safetensors are of another training.
    theirs = torch.jit.load(WEIGHTS.with_name("silero_vad.jit"), map_location="cpu")._model
    names = {f"encoder.{number}.reparam_conv": f"conv{number + 1}" for number in range(4)}
    names |= {"decoder.rnn": "lstm_cell", "decoder.decoder.2": "final_conv"}
    weights = {
        f"{own}.{kind}": value
        for name, value in theirs.state_dict().items()
        for prefix, own in names.items()
        if (kind := name.removeprefix(f"{prefix}.")) != name
    }
    network = SileroNetwork()
    network.load_state_dict({**weights, "stft_conv.weight": theirs.state_dict()["stft.forward_basis_buffer"]})
    samples = torch.randn(1, CONTEXT + 9 * WINDOW, generator=torch.Generator().manual_seed(0)) / 10
    state, known = None, torch.zeros(2, 1, 128)
    with torch.inference_mode():
        for begin in range(0, 9 * WINDOW, WINDOW):
            window = samples[:, begin : begin + CONTEXT + WINDOW]
            found, state = network(window, state)
            expected, known = theirs(window, known)
            torch.testing.assert_close(found, expected[:, 0], rtol=0, atol=1e-5)


@needs_weights
@pytest.mark.slow
def test_speech_as_loud_as_noise_is_found(vaak_data):
    import soundfile

    files = sorted((vaak_data("read_speech") / "audio").rglob("*.flac"))
    long = [file for file in files if soundfile.info(file).duration > 4][:3]
    spoken = [soundfile.read(file, dtype="float32")[0][: 4 * 16_000] for file in long]
    pause = np.zeros(2 * 16_000, np.float32)
    clean = np.concatenate([part for one in spoken for part in (pause, one / np.sqrt(np.square(one).mean()) / 20)])
    clean = np.concatenate((clean, pause))
    noisy = clean + np.random.default_rng(0).normal(0, 1 / 20, len(clean)).astype(np.float32)

    def find(voice: VoiceActivity) -> list[tuple[int, int]]:
        return find_runs(np.array([voice.hear(frame) for frame in noisy.reshape(-1, 160)]))

    assert WEIGHTS is not None
    found = find(SileroActivity(0.5, 16_000, WEIGHTS))
    middles = [400 + 600 * number for number in range(3)]
    assert all(any(start < middle < end for start, end in found) for middle in middles)
    # Each in a separate region, of which most is speech.
    assert len({next((start, end) for start, end in found if start < middle < end) for middle in middles}) == 3
    seconds = [sum(end - start for start, end in regions) / 100 for regions in (found, find(VoiceActivity(0.5)))]
    assert seconds[0] > 9.0 > 4.0 > seconds[1]
