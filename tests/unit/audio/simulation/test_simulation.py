"""Simulated conversations: labels are exact to the sample, draws come from the rng, statistics are those asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from vaak.audio.augmentation.effects import active_power
from vaak.audio.config import ConversationsConfig, NoiseConfig, RoomConfig
from vaak.audio.segments import LabelledAudio
from vaak.audio.simulation.conversations import CUT_INSIDE, Piece, SimulatedConversations, at_speeds
from vaak.core.errors import DataError

RATE = 1000
QUIET: dict[str, Any] = {"noise": None, "level_difference": 0.0}


class Spoken:
    """Utterances of speakers a, b, c, ...: ``voice(speaker, rng)`` gives the samples of a piece."""

    fingerprint = "spoken"

    def __init__(
        self,
        num_speakers: int = 3,
        each: int = 4,
        voice: Callable[..., np.ndarray] | None = None,
        rate: int = RATE,
        breath: float = 0.0,
    ) -> None:
        self.sampling_rate, self.each, self.breath = rate, each, np.full(rate // 5, breath, np.float32)
        self.speaker_names = tuple("abcdefgh"[:num_speakers])
        self.voice = voice or constant
        self.read: set[int] = set()

    def __len__(self) -> int:
        return len(self.speaker_names) * self.each

    def get_speaker(self, index: int) -> int:
        return index // self.each

    def pieces(self, index: int) -> list[Piece]:
        self.read.add(self.get_speaker(index))
        rng = np.random.default_rng(index)
        said = [self.voice(self.get_speaker(index), rng, self.sampling_rate) for _ in range(2)]
        size = len(self.breath) if self.breath[0] else 0
        breath = self.breath[:size]
        return [Piece(np.concatenate([breath, one, breath]), size, size + len(one)) for one in said]


def constant(speaker: int, rng: np.random.Generator, rate: int) -> np.ndarray:
    """As loud as the value of a separate bit: the sum of voices says who speaks in each sample."""
    return np.full(int(rng.integers(rate // 2, 2 * rate)), 2.0**speaker, np.float32)


def hiss(speaker: int, rng: np.random.Generator, rate: int) -> np.ndarray:
    return rng.standard_normal(int(rng.integers(rate // 2, 2 * rate))).astype(np.float32)


def conversations(utterances: Spoken | None = None, split: str = "train", **options: Any) -> SimulatedConversations:
    config = ConversationsConfig(**{"train": 20, "valid": 5, "test": 5, "duration": (10.0, 20.0), **QUIET, **options})
    return SimulatedConversations(utterances or Spoken(), config, split)


def draw(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def spoken_in(audio: LabelledAudio) -> np.ndarray:
    """Who speaks in each sample by the segments, as bits."""
    bits = np.zeros(len(audio.samples), dtype=np.int64)
    for start, end, speaker in audio.segments:
        first, last = (round(seconds * audio.sampling_rate, 6) for seconds in (start, end))
        assert (first % 1, last % 1) == (0, 0), "a boundary is between samples"
        bits[int(first) : int(last)] += 1 << "abcdefgh".index(speaker)
    return bits


@given(seed=st.integers(0, 2**32 - 1), beta=st.sampled_from([0.1, 1.0, 5.0]), speakers=st.integers(1, 4))
def test_segments_say_of_every_sample_who_speaks(seed: int, beta: float, speakers: int):
    source = conversations(Spoken(5), beta=beta, num_speakers=(1, speakers))
    audio = source.load(3, draw(seed))
    np.testing.assert_array_equal(audio.samples, spoken_in(audio))
    assert audio.segments == tuple(sorted(audio.segments))


def test_what_surrounds_speech_is_heard_and_not_labelled():
    source = conversations(Spoken(2, breath=0.0625), num_speakers=(2, 2))
    heard: set[float] = set()
    for index in range(20):
        audio = source.load(index, draw(index))
        np.testing.assert_array_equal(np.floor(audio.samples), spoken_in(audio))
        heard |= set((audio.samples % 1).tolist())
    assert {0.0, 0.0625} <= heard


def test_a_cut_is_inside_the_speech_and_leaves_at_least_half_of_it():
    piece = Piece(np.concatenate([np.zeros(100), np.arange(1.0, 801.0), np.zeros(50)]), 100, 900)
    cut = piece.cut_inside(100, 30)
    np.testing.assert_array_equal(cut.samples, np.arange(101.0, 771.0))
    np.testing.assert_array_equal(cut.speech, cut.samples)
    assert len(piece.cut_inside(5000, 5000).samples) == 400


def test_a_piece_at_another_speed_has_its_speech_in_the_same_place():
    slower = Piece(np.concatenate([np.zeros(100), np.ones(800), np.zeros(50)]), 100, 900).at_speed(0.8)
    assert (len(slower.samples), slower.first, slower.last) == (1188, 125, 1125)
    np.testing.assert_allclose(slower.speech[20:-20], 1.0, atol=0.02)
    assert float(np.abs(slower.samples[:105]).max()) < 0.02


def test_the_same_rng_gives_the_same_bits_and_another_one_another_conversation():
    options: dict[str, Any] = {"noise": NoiseConfig(), "room": RoomConfig(t60=(0.2, 0.3)), "speed": (0.9, 1.0)}
    first, again = (conversations(Spoken(voice=hiss), **options).load(2, draw(1)) for _ in range(2))
    assert first.samples.tobytes() == again.samples.tobytes()
    assert (first.name, first.segments) == (again.name, again.segments)
    source = conversations(Spoken(voice=hiss), **options)
    source.load(0, draw(5))
    assert source.load(2, draw(1)).samples.tobytes() == first.samples.tobytes(), "it remembers another conversation"
    assert source.load(2, draw(2)).segments != first.segments


@pytest.mark.parametrize("split", ["valid", "test"])
def test_conversations_for_evaluation_never_depend_on_the_rng(split: str):
    source = conversations(Spoken(voice=hiss), split, noise=NoiseConfig())
    first, again = source.load(1, draw(1)), source.load(1, draw(2))
    assert first.samples.tobytes() == again.samples.tobytes()
    assert first.segments == again.segments
    assert source.load(2, draw(1)).segments != first.segments
    other = conversations(Spoken(voice=hiss), split, noise=NoiseConfig(), seed=1)
    assert other.load(1, draw(1)).segments != first.segments


def test_the_splits_are_not_alike():
    valid, test = (conversations(split=split) for split in ("valid", "test"))
    assert not np.array_equal(valid.durations, test.durations)
    assert valid.fingerprint != test.fingerprint
    assert valid.describe(3) == "valid-conversation-000003"


def test_durations_are_exact_and_in_their_range():
    source = conversations(Spoken(rate=16000), duration=(1.0, 1.5), train_duration=(2.0, 3.0))
    assert len(source.durations) == 20
    for index, seconds in enumerate(source.durations):
        audio = source.load(index, draw(index))
        assert audio.duration == seconds
        assert 2.0 <= seconds <= 3.0
        assert audio.samples.dtype == np.float32
    assert conversations(split="valid", duration=(4.0, 4.0)).durations.tolist() == [4.0] * 5


def test_the_mean_pause_is_beta():
    pauses = []
    for index, beta in enumerate((0.5, 2.0)):
        source = conversations(Spoken(1, rate=200), num_speakers=(1, 1), beta=beta, duration=(20000.0, 20000.0))
        segments = source.load(0, draw(index)).segments
        ends = [0.0, *(segment.end for segment in segments)]
        waited = [segment.start - end for segment, end in zip(segments, ends[:-1], strict=True)]
        assert len(waited) > 4000
        assert np.mean(waited) == pytest.approx(beta, rel=0.06)
        assert np.std(waited) == pytest.approx(beta, rel=0.1), "not exponential"
        pauses.append(np.mean(waited))


def test_overlap_grows_as_pauses_get_shorter():
    parts = []
    for beta in (8.0, 2.0, 0.5):
        audio = conversations(beta=beta, duration=(3000.0, 3000.0)).load(0, draw(1))
        spoken = audio.samples[audio.samples > 0].astype(int)
        several = spoken & (spoken - 1) != 0
        parts.append(several.mean())
    assert parts == sorted(parts)
    assert parts[0] < 0.2 < 0.5 < parts[2]


def test_as_many_speak_as_the_config_says():
    source = conversations(Spoken(6), num_speakers=(2, 4), beta=0.2)
    found = {len({segment.speaker for segment in source.load(0, draw(seed)).segments}) for seed in range(40)}
    assert found == {2, 3, 4}


def test_levels_differ_by_no_more_than_the_config_says():
    source = conversations(Spoken(2, voice=lambda _, rng, rate: np.ones(rate, np.float32)), level_difference=6.0)
    differences = []
    for seed in range(60):
        audio = source.load(0, draw(seed))
        alone = {bit: audio.samples[spoken_in(audio) == bit] for bit in (1, 2)}
        assert all(len(np.unique(samples)) == 1 for samples in alone.values()), "a speaker's level changes"
        differences.append(float(20 * np.log10(alone[1][0] / alone[2][0])))
    assert max(map(abs, differences)) <= 6.0
    assert min(differences) < -3.0
    assert max(differences) > 3.0


def test_another_speed_is_another_speaker_of_another_length():
    utterances = Spoken(2, voice=lambda _, rng, rate: np.ones(rate, np.float32))
    source = conversations(utterances, speed=(0.8, 1.0, 1.25))
    assert source.speakers == ("a", "a@0.8", "a@1.25", "b", "b@0.8", "b@1.25")
    names = set()
    for seed in range(30):
        audio = source.load(0, draw(seed))
        for start, end, speaker in audio.segments:
            factor = float(speaker.partition("@")[2] or 1)
            whole = end == audio.duration or end - start == pytest.approx(1 / factor)
            assert whole or 1 / factor - 2 * CUT_INSIDE <= end - start <= 1 / factor
        names |= {segment.speaker for segment in audio.segments}
    assert names == set(source.speakers)
    assert conversations(utterances, "valid", speed=(0.8,)).speakers == ("a", "b"), "only training is sped up"
    assert at_speeds(["b", "a"], ()) == ("a", "b")


def test_a_room_leaves_labels_where_they_are():
    utterances = Spoken(2, voice=hiss, rate=16000)
    dry, wet = (
        conversations(utterances, duration=(8.0, 8.0), beta=3.0, room=reverb).load(0, draw(4))
        for reverb in (None, RoomConfig(t60=(0.4, 0.4)))
    )
    assert wet.segments == dry.segments
    begins = round(min(segment.start for segment in wet.segments) * 16000)
    assert np.abs(wet.samples[:begins]).max() < 1e-4, "something sounds before anyone speaks"
    assert np.abs(wet.samples[begins : begins + 4]).max() > 1e-2
    likeness = {lag: float(dry.samples @ np.roll(wet.samples, -lag)) for lag in range(-30, 31)}
    assert max(likeness, key=likeness.__getitem__) == 0
    ends = round(max(segment.end for segment in wet.segments) * 16000)
    assert not np.allclose(wet.samples[ends - 4000 : ends], dry.samples[ends - 4000 : ends])


def test_noise_lies_as_far_below_the_speech_as_the_config_says():
    utterances = Spoken(2, voice=hiss, rate=16000)
    for snr in (0.0, 12.0):
        clean, noisy = (
            conversations(utterances, noise=noise).load(0, draw(4)).samples.astype(np.float64)
            for noise in (None, NoiseConfig(snr=(snr, snr)))
        )
        noise_power = np.mean((noisy - clean) ** 2)
        assert 10 * np.log10(active_power(clean.astype(np.float32)) / noise_power) == pytest.approx(snr, abs=0.05)
    never = conversations(utterances, noise=NoiseConfig(probability=0.0)).load(0, draw(4)).samples
    np.testing.assert_array_equal(never, clean.astype(np.float32))


def test_who_babbles_is_none_of_those_who_speak():
    utterances = Spoken(5, voice=hiss)
    for seed in range(10):
        source = conversations(utterances, noise=NoiseConfig(type="babble"), num_speakers=(2, 2), beta=0.2)
        utterances.read.clear()
        audio = source.load(0, draw(seed))
        speaking = {"abcde".index(segment.speaker) for segment in audio.segments}
        assert len(speaking) == 2
        assert utterances.read > speaking, "nobody babbled"


def test_noise_of_a_folder(tmp_path: Path):
    soundfile.write(tmp_path / "tone.wav", np.sin(np.arange(30 * RATE) * 0.5), RATE)
    source = conversations(noise=NoiseConfig(type="files", folder=str(tmp_path), snr=(0.0, 0.0)))
    audio = source.load(0, draw(1))
    rest = audio.samples - spoken_in(audio)
    assert np.abs(rest).max() > 0.1
    spectrum = np.abs(np.fft.rfft(rest * np.hanning(len(rest))))
    assert np.argmax(spectrum) / len(rest) == pytest.approx(0.5 / (2 * np.pi), rel=0.01)


def test_what_is_too_few():
    with pytest.raises(DataError, match="train has utterances of 2 speakers, too few for conversations of 3"):
        conversations(Spoken(2), num_speakers=(2, 3))
    babbling = conversations(Spoken(2), noise=NoiseConfig(type="babble"))
    with pytest.raises(DataError, match="babble requires voices other than the speakers'"):
        babbling.load(0, draw(1))
    silent = Spoken(2)
    silent.pieces = lambda index: []  # type: ignore[method-assign]
    with pytest.raises(DataError, match="no speech was found in any utterance of this speaker"):
        conversations(silent).load(0, draw(1))


def test_the_fingerprint_follows_the_options_and_the_utterances():
    others = conversations(beta=1.0), conversations(speed=(0.9,)), conversations(split="valid"), conversations(seed=3)
    different = Spoken()
    different.fingerprint = "other"
    found = {source.fingerprint for source in (conversations(), *others, conversations(different))}
    assert len(found) == 6
    assert conversations().fingerprint == conversations().fingerprint


def test_in_part_of_training_nobody_speaks():
    source = conversations(silence=0.3, noise=NoiseConfig(snr=(20.0, 20.0)), train=200, duration=(1.0, 1.0), beta=0.01)
    loaded = [source.load(index, np.random.default_rng(index)) for index in range(200)]
    silent = [audio for audio in loaded if not audio.segments]
    assert 40 < len(silent) < 80
    for audio in silent:  # noise as there is under speech at 26 dB under full scale
        assert 10 * np.log10(np.mean(np.square(audio.samples, dtype=np.float64))) == pytest.approx(-46, abs=0.01)
    still = conversations(silence=0.99)
    assert not still.load(0, np.random.default_rng(1)).samples.any()
    spoken = conversations(split="valid", silence=0.99)
    assert all(spoken.load(index, np.random.default_rng(0)).segments for index in range(5))


def test_no_more_utterances_are_read_than_are_said():
    utterances = Spoken(num_speakers=2, each=50)
    asked: list[int] = []
    pieces = utterances.pieces
    utterances.pieces = lambda index: (asked.append(index), pieces(index))[1]  # type: ignore[method-assign]
    audio = conversations(utterances, beta=0.5).load(0, np.random.default_rng(0))
    assert 0 < len(asked) <= len(audio.segments)
