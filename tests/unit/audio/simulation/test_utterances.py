"""Utterances of a store as pieces of speech: cut at their pauses, at one level, the same with and without a cache."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.audio.cuts.store import CutStore, write_cuts
from vaak.audio.simulation.conversations import CONTEXT, SPEECH_LEVEL, CutUtterances, Piece
from vaak.core.errors import DataError

RATE = 16000
SPEECH = [(0.3, 1.2), (1.9, 2.6)]


def make_samples(regions: list[tuple[float, float]], seconds: float, level: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    samples = 1e-5 * rng.standard_normal(round(seconds * RATE))
    for start, end in regions:
        first, last = round(start * RATE), round(end * RATE)
        samples[first:last] += level * rng.standard_normal(last - first)
    return samples


@pytest.fixture
def store(tmp_path: Path) -> CutStore:
    """Ann's two utterances, of different levels; Ben's, with times of speech; one of both; one of silence."""
    lines: list[dict[str, Any]] = []
    utterances: list[tuple[str, float, dict[str, Any]]] = [
        ("ann1", 0.3, {"speaker": "Ann"}),
        ("ann2", 0.01, {"speaker": "Ann"}),
        ("ben", 0.1, {"segments": [{"start": 0.5, "end": 1.0, "speaker": "Ben"}]}),
        ("both", 0.1, {"segments": [{"start": n, "end": n + 1, "speaker": who} for n, who in enumerate("AB")]}),
        ("mute", 0.0, {"speaker": "Mute"}),
    ]
    for name, level, labels in utterances:
        soundfile.write(tmp_path / f"{name}.wav", make_samples(SPEECH, 3.0, level, len(lines)), RATE, "FLOAT")
        lines.append({"audio": f"{name}.wav", **labels})
    (tmp_path / "list.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    listed = (str(tmp_path / "list.jsonl"),)
    dataset = DatasetConfig(name="made", type="json", train=listed, train_fraction=1.0, valid_fraction=0.0)
    return write_cuts(tmp_path / "store", AudioCorpus(dataset, AudioConfig()).cuts("train"))


def utterances(store: CutStore, find_speech: bool = True, **audio: Any) -> CutUtterances:
    return CutUtterances(store, AudioConfig(**audio), find_speech=find_speech)


def power(pieces: list[Piece]) -> float:
    return float(np.mean(np.square(np.concatenate([piece.speech for piece in pieces]), dtype=np.float64)))


def content(pieces: list[Piece]) -> list[tuple[bytes, int, int]]:
    return [(piece.samples.tobytes(), piece.first, piece.last) for piece in pieces]


def test_an_utterance_is_cut_at_its_pauses_and_brought_to_one_level(store: CutStore):
    found = utterances(store)
    for index in (0, 1):
        pieces = found.pieces(index)
        assert [len(piece.speech) / RATE for piece in pieces] == pytest.approx([0.99, 0.79], abs=0.06)
        assert power(pieces) == pytest.approx(SPEECH_LEVEL**2, rel=1e-5)
        assert all(piece.samples.dtype == np.float32 and not piece.samples.flags.writeable for piece in pieces)


def test_a_piece_keeps_the_pauses_around_it_as_recorded(store: CutStore):
    found = utterances(store)
    first, second = found.pieces(0)
    context = round(CONTEXT * RATE)
    assert first.first == second.first == len(second.samples) - second.last == context
    assert len(first.samples) - first.last == context
    quiet = np.concatenate([first.samples[: context // 2], first.samples[first.last + context // 2 :]])
    assert 0 < float(np.abs(quiet).max()) < 0.01 * float(np.abs(first.speech).max())


def test_neighbours_share_a_short_pause(tmp_path: Path):
    samples = make_samples([(0.0, 1.0), (1.3, 2.0)], 2.0, 0.1, 0)
    soundfile.write(tmp_path / "a.wav", samples, RATE, "FLOAT")
    segments = [{"start": 0.0, "end": 1.0}, {"start": 1.3, "end": 2.0}]
    line = {"audio": "a.wav", "segments": [{**one, "speaker": "Ann"} for one in segments]}
    (tmp_path / "list.jsonl").write_text(json.dumps(line))
    dataset = DatasetConfig(
        name="made", type="json", train=(str(tmp_path / "list.jsonl"),), train_fraction=1.0, valid_fraction=0.0
    )
    first, second = utterances(
        write_cuts(tmp_path / "store", AudioCorpus(dataset, AudioConfig()).cuts("train"))
    ).pieces(0)
    assert (first.first, len(first.samples) - first.last) == (0, round(0.15 * RATE))
    assert (second.first, len(second.samples) - second.last) == (round(0.15 * RATE), 0)
    np.testing.assert_allclose(
        np.concatenate([first.samples, second.samples]), samples * (first.samples[5000] / samples[5000]), rtol=1e-4
    )


def test_an_utterance_stays_whole_where_pauses_arent_looked_for(store: CutStore):
    [piece] = utterances(store, find_speech=False).pieces(0)
    assert len(piece.speech) == 3 * RATE
    assert power([piece]) == pytest.approx(SPEECH_LEVEL**2, rel=1e-5)


@pytest.mark.parametrize("find_speech", [True, False])
def test_times_of_speech_that_are_given_are_kept(store: CutStore, find_speech: bool):
    [piece] = utterances(store, find_speech).pieces(2)
    assert len(piece.speech) == RATE // 2


def test_silence_has_no_pieces(store: CutStore):
    found = utterances(store)
    soundfile.write(store[4].recording.sources[0].source, np.zeros(3 * RATE), RATE, "FLOAT")
    assert found.pieces(4) == []
    assert found.speaker_names[found.get_speaker(4)] == "Mute"


def test_who_speaks(store: CutStore):
    found = utterances(store)
    assert len(found) == 5
    assert [found.speaker_names[found.get_speaker(index)] for index in (0, 1, 2)] == ["Ann", "Ann", "Ben"]
    with pytest.raises(DataError, match=r"both .*both\.wav\) has no speaker or several; an utterance must have"):
        found.get_speaker(3)


@pytest.mark.parametrize("gigabytes", [0.0, 2e-4, 1.0])
def test_a_cache_changes_nothing(store: CutStore, gigabytes: float):
    expected = {index: content(utterances(store).pieces(index)) for index in (0, 1, 2)}
    found = utterances(store, cache_gigabytes=gigabytes)
    for index in (0, 1, 2, 1, 0, 0):
        assert content(found.pieces(index)) == expected[index]
    there = pickle.loads(pickle.dumps(found))
    assert content(there.pieces(1)) == expected[1]


def test_the_fingerprint_follows_what_changes_the_pieces(store: CutStore):
    others = utterances(store, find_speech=False), utterances(store, sampling_rate=8000)
    assert len({one.fingerprint for one in (utterances(store), *others)}) == 3
    assert utterances(store, cache_gigabytes=0.0).fingerprint == utterances(store).fingerprint
