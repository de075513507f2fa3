"""Clipped, silent and interrupted recordings are found, and no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import Recording

from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.audio.corpora.voices import make_voices, utter
from vaak.audio.cuts import findings as module
from vaak.audio.cuts.findings import cut_findings
from vaak.audio.cuts.store import CutStore, write_cuts
from vaak.core.task import DataFinding

RATE = 16000


def speech(level: float = 0.5) -> np.ndarray:
    """A sentence of which the maximum is ``level``."""
    samples = utter(make_voices(2, 3)[1], "please bring the small boat").samples
    return samples * np.float32(level / np.abs(samples).max())


def stored(folder: Path, **recordings: np.ndarray) -> CutStore:
    cuts = []
    for name, samples in recordings.items():
        soundfile.write(folder / f"{name}.wav", samples, RATE)
        cut = Recording.from_file(folder / f"{name}.wav").to_cut()
        cut.id = name
        cuts.append(cut)
    return write_cuts(folder / "store", cuts)


def found_in(store: CutStore, rate: int = RATE) -> dict[str, DataFinding]:
    return {one.example.split(" (")[0]: one for one in cut_findings(store, AudioConfig(sampling_rate=rate))}


@pytest.mark.parametrize("rate", [RATE, 22050])
def test_each_fault_and_what_is_right(tmp_path: Path, rate: int):
    whole = speech()
    gap = np.concatenate([whole, np.zeros(RATE * 3 // 2, np.float32), whole])
    store = stored(
        tmp_path,
        fine=whole,
        quiet=speech(0.01),
        full=speech(0.999),
        clipped=np.clip(speech(2.0), -1, 1),
        clipped_then_quieter=0.3 * np.clip(speech(2.0), -1, 1),
        zeros=np.zeros(RATE, np.float32),
        hiss=1e-3 * np.random.default_rng(0).standard_normal(RATE).clip(-2, 2),
        gap=gap,
        silence_around=np.pad(whole, 3 * RATE),
    )
    found = found_in(store, rate)
    assert {name: (one.kind, one.mark) for name, one in found.items()} == {
        "clipped": ("clipped", "warning"),
        "clipped_then_quieter": ("clipped", "warning"),
        "zeros": ("silent", "problem"),
        "hiss": ("silent", "problem"),
        "gap": ("gap", "warning"),
    }
    assert "peaks are cut off at 1.000, the first at " in found["clipped"].message
    assert found["zeros"].message.startswith("all samples are 0; ")
    assert "the loudest sample is at -54 dB" in found["hiss"].message
    assert found["gap"].message.startswith("2.0")
    assert found["zeros"].example == f"zeros ({tmp_path}/zeros.wav)"


def test_long_recordings_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = stored(tmp_path, a=np.concatenate([speech(), np.clip(speech(2.0), -1, 1)]))
    monkeypatch.setattr(module, "SECONDS_AT_ONCE", 1)
    [found] = cut_findings(store, AudioConfig())
    assert found.kind == "clipped"
    first = float(found.message.rpartition(" at ")[2].removesuffix(" s"))
    assert first >= len(speech()) / RATE


def test_a_gap_over_several_parts_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = speech()
    store = stored(tmp_path, a=np.pad(np.concatenate([whole, np.zeros(RATE * 5 // 2, np.float32), whole]), 2 * RATE))
    [at_once] = cut_findings(store, AudioConfig())
    monkeypatch.setattr(module, "SECONDS_AT_ONCE", 1)
    assert [*cut_findings(store, AudioConfig())] == [at_once]
    assert at_once.kind == "gap"


def test_what_cannot_be_read_is_left_to_who_reads_examples(tmp_path: Path):
    store = stored(tmp_path, a=speech(), b=np.zeros(RATE, np.float32))
    (tmp_path / "a.wav").write_bytes(b"")
    assert list(found_in(store)) == ["b"]


@pytest.mark.parametrize("corpus", ["ljspeech_mini/wavs", "read_speech/audio"])
def test_nothing_is_wrong_with_real_speech(vaak_data: Callable[[str], Path], tmp_path: Path, corpus: str):
    folder = vaak_data(corpus)
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in (".wav", ".flac")][:60]
    store = write_cuts(tmp_path, (Recording.from_file(path, recording_id=path.stem).to_cut() for path in files))
    assert len(store) > 20
    assert not [one for one in cut_findings(store, AudioConfig()) if one.kind != "clipped"]
    clipped = [one for one in cut_findings(store, AudioConfig()) if one.kind == "clipped"]
    assert len(clipped) <= len(store) / 20, clipped


def test_the_voices_are_fine(tmp_path: Path):
    dataset = DatasetConfig(name="v", type="voices", num_voices=4, num_sentences=2, output_dir=str(tmp_path / "v"))
    corpus = AudioCorpus(dataset.model_copy(update={"train_fraction": 1.0, "valid_fraction": 0.0}), AudioConfig())
    assert not list(cut_findings(write_cuts(tmp_path / "store", corpus.cuts("train")), AudioConfig()))
