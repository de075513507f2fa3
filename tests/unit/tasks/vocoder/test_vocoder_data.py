"""Crops of recordings, and what is reported of recordings that no vocoder can be trained on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

import tiny_vocoder
import tiny_voice
from tiny_voice import RATE, cut, write_cuts
from vaak.config.load import load
from vaak.config.tasks import task_class
from vaak.config.yaml.text import yaml_text

HOP = tiny_voice.MEL["hop_length"]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return tiny_voice.write_voice(tmp_path / "corpus")


def prepared(corpus: Path, *overrides: str):
    """The task on a corpus, prepared."""
    file = corpus.parent / "vocoder.yml"
    file.write_text(yaml_text(tiny_vocoder.options(corpus)))
    task = task_class("vocoder")(load([file], list(overrides)).experiment, corpus.parent / "run", corpus.parent)
    task.prepare()
    return task


def place_in(samples: np.ndarray, recording: np.ndarray) -> int | None:
    """Where a recording has these samples."""
    windows = np.lib.stride_tricks.sliding_window_view(recording, len(samples))
    places = np.flatnonzero(np.abs(windows - samples).max(1) < 1e-6)
    return int(places[0]) if len(places) else None


def test_crops_are_parts_of_recordings_at_places_that_the_draw_decides(corpus: Path):
    dataset = prepared(corpus, "data.gain=null").dataset("train")
    places = set()
    for key in range(30):
        example = dataset.example(3, np.random.default_rng(key))
        again = dataset.example(3, np.random.default_rng(key))
        np.testing.assert_array_equal(example.samples, again.samples)
        assert len(example.samples) == tiny_vocoder.CROP
        recording, _ = soundfile.read(corpus / f"{example.name.split('@')[0]}.wav", dtype="float32")
        place = place_in(example.samples, recording)
        assert place is not None
        assert place % HOP == 0
        places.add(place)
    assert len(places) > 5
    assert dataset.lengths == pytest.approx(tiny_vocoder.CROP / RATE)


def test_gain_is_drawn_in_decibels(corpus: Path):
    plain, loud = (prepared(corpus, f"data.gain={gain}").dataset("train") for gain in ("null", "[-6,0]"))
    gains = []
    for key in range(20):
        first, second = (one.example(0, np.random.default_rng(key)).samples for one in (plain, loud))
        factor = float(second @ first / (first @ first))
        np.testing.assert_allclose(second, factor * first, atol=1e-6)
        gains.append(20 * np.log10(factor))
    assert -6 <= min(gains) < -4 < -2 < max(gains) <= 0


def test_an_epoch_has_as_many_crops_as_the_recordings_have_room_for(corpus: Path):
    task = prepared(corpus)
    seconds = [soundfile.info(path).duration for path in corpus.glob("train*.wav")]
    assert len(task.dataset("train").lengths) == sum(int(np.ceil(one / (tiny_vocoder.CROP / RATE))) for one in seconds)
    valid = sum(soundfile.info(path).duration for path in corpus.glob("valid*.wav"))
    assert task.dataset("valid").lengths.sum() == pytest.approx(valid, abs=1e-3)


def test_what_is_shorter_than_a_crop_ends_in_silence(corpus: Path, tmp_path: Path):
    short = np.random.default_rng(0).uniform(-0.5, 0.5, 300).astype(np.float32)
    soundfile.write(tmp_path / "a.wav", short, RATE, subtype="FLOAT")
    write_cuts(corpus / "train.jsonl", [cut("a", tmp_path / "a.wav", None, [])])
    dataset = prepared(corpus, "data.gain=null").dataset("train")
    samples = dataset.example(0, np.random.default_rng(0)).samples
    np.testing.assert_array_equal(samples, np.pad(short, (0, tiny_vocoder.CROP - 300)))


def rewrite(corpus: Path, change: Callable[[np.ndarray], np.ndarray], rate: int = RATE) -> None:
    """Change the second recording of train."""
    samples, _ = soundfile.read(corpus / "train1.wav", dtype="float32")
    soundfile.write(corpus / "train1.wav", change(samples), rate, subtype="FLOAT")
    lines = (corpus / "train.jsonl").read_text().splitlines()
    lines[1] = json.dumps(cut("train1", corpus / "train1.wav", None, []).to_dict())
    (corpus / "train.jsonl").write_text("\n".join(lines) + "\n")


def with_nan(samples: np.ndarray) -> np.ndarray:
    samples[len(samples) // 2] = np.nan
    return samples


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "too low a rate": (
        lambda corpus: rewrite(corpus, lambda samples: samples[::2], RATE // 2),
        "train1.wav): it has 4,000 Hz, so nothing above 2,000 Hz, but global_config.mel.f_max is 4,000 Hz",
    ),
    "NaN": (lambda corpus: rewrite(corpus, with_nan), "s is nan, not a number; fix the file"),
    "silence": (lambda corpus: rewrite(corpus, np.zeros_like), "train1.wav): it is silent; remove it"),
    "missing": (lambda corpus: (corpus / "train1.wav").unlink(), "train1.wav"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_recording_is_one_line_or_is_skipped(vaak, corpus: Path, name: str):
    change, message = BAD[name]
    change(corpus)
    file = corpus.parent / "vocoder.yml"
    file.write_text(yaml_text(tiny_vocoder.options(corpus)))
    code, _, err = vaak("data", "preprocess", file, f"run_dir={corpus.parent / 'run'}")
    assert code == 2
    assert sum(message in line for line in err.splitlines()) == 1
    assert "Traceback" not in err
    if name != "missing":
        assert len(prepared(corpus, "data.on_bad_example=skip").prepared.stores("train")[0][1]) == 19


def test_an_8_khz_recording_does_not_fit_the_usual_spectrogram(vaak, corpus: Path):
    file = corpus.parent / "vocoder.yml"
    file.write_text(yaml_text({**tiny_vocoder.options(corpus), "global_config": {}}))
    code, _, err = vaak("train", file, f"run_dir={corpus.parent / 'run'}")
    assert code == 2
    assert "it has 8,000 Hz, so nothing above 4,000 Hz, but global_config.mel.f_max is 8,000 Hz" in err
