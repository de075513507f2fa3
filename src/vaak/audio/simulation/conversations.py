"""Conversations simulated from utterances of single speakers: those of a cut store, or in memory (``simulate``).

Each speaker is a separate track: a pause, a piece of an utterance, a pause, another piece. The tracks are added:

    A  ──▓▓▓▓▓──────▓▓▓▓▓▓▓▓────▓▓▓──
    B  ─────▓▓▓▓▓▓▓▓▓▓────────▓▓▓▓───     shorter pauses give more overlap
       + noise, in a room

Pauses are exponential with mean ``beta``. Source: Fujita et al. 2019, "End-to-End Neural Speaker Diarization with
Self-Attention", algorithm 1. Differs: utterances are cut at their own pauses, and only speech is labelled; half of the
pieces keep some of the pauses around them, as recorded, because speech in a recording fades in and out, and the others
are cut a little inside their speech, so that the end of what is heard is learned as the end; a conversation has the
length that the plan knows, so speakers continue to its end, and the rest is cut off.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from vaak.audio.augmentation.effects import (
    at_snr,
    at_speed,
    babble,
    coloured_noise,
    file_noise,
    reverberated,
    room_responses,
)
from vaak.audio.config import AudioConfig, ConversationsConfig, NoiseConfig
from vaak.audio.cuts.reading import read_cut
from vaak.audio.cuts.sources import BoundedCache
from vaak.audio.cuts.store import CutStore
from vaak.audio.segments import LabelledAudio, Segment
from vaak.audio.simulation.folder import write_conversations
from vaak.audio.speech_regions import find_speech
from vaak.config.base import from_options
from vaak.core.errors import DataError, UserError
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.storage.files import compute_fingerprint

BABBLING_VOICES = 5
CUT = 0.5
"""The share of pieces without the pauses around them: speech that begins and ends at once, as where it was edited."""
CUT_INSIDE = 0.1
"""Seconds of their speech that are cut off at most, too, at each side: an end is where one hears nothing more."""
SPEECH_LEVEL = 10 ** (-26 / 20)
"""Root mean square of an utterance's speech: 26 dB under full scale, usual in tests of telephony (ITU-T P.56)."""


class Piece(NamedTuple):
    """A segment of speech: samples ``(time,)``, of which those from ``first`` to ``last`` (exclusive) are speech."""

    samples: np.ndarray
    first: int
    last: int

    @property
    def speech(self) -> np.ndarray:
        """The samples without the pauses around the speech."""
        return self.samples[self.first : self.last]

    def cut_inside(self, start: int, end: int) -> Piece:
        """Return the speech without up to ``start`` and ``end`` samples at its sides, at most a quarter at each."""
        most = (self.last - self.first) // 4
        samples = self.speech[min(start, most) : self.last - self.first - min(end, most)]
        return Piece(samples, 0, len(samples))

    def at_speed(self, factor: float) -> Piece:
        """Return the piece, ``factor`` times as fast and as high."""
        if factor == 1.0:
            return self
        return Piece(at_speed(self.samples, factor), round(self.first / factor), round(self.last / factor))


class Utterances(Protocol):
    """Recordings of single speakers (``vaak.audio.simulation.conversations`` makes them of cuts)."""

    speaker_names: tuple[str, ...]
    sampling_rate: int
    fingerprint: str

    def __len__(self) -> int: ...

    def get_speaker(self, index: int) -> int:
        """Return the number of the utterance's speaker in ``speaker_names``."""
        ...

    def pieces(self, index: int) -> list[Piece]:
        """Return the segments of speech of an utterance. Raises DataError, naming the file."""
        ...


class SimulatedConversations:
    """For training, different conversations in every epoch; for evaluation, always the same ones."""

    def __init__(self, utterances: Utterances, config: ConversationsConfig, split: str) -> None:
        """Raises DataError if there are fewer speakers than a conversation has."""
        self.utterances, self.config, self.split = utterances, config, split
        speakers = np.array([utterances.get_speaker(index) for index in range(len(utterances))], dtype=np.int64)
        self.split_utterances = [np.flatnonzero(speakers == number) for number in range(len(utterances.speaker_names))]
        self.speed = config.speed if split == "train" else ()
        self.speakers = at_speeds(utterances.speaker_names, self.speed)
        if len(utterances.speaker_names) < config.num_speakers[1]:
            raise DataError(
                f"{split} has utterances of {len(utterances.speaker_names)} speakers, too few for conversations of "
                f"{config.num_speakers[1]} (datasets.conversations.num_speakers)"
            )
        number = {"train": config.train, "valid": config.valid, "test": config.test}[split]
        lengths = np.random.default_rng(draw_key(Purpose.DURATIONS, config.seed, split))
        drawn = lengths.uniform(*config.durations(split), number)
        # whole samples, so that a duration in seconds stands for one number of them wherever it is rounded
        self.durations = np.ceil(drawn * utterances.sampling_rate) / utterances.sampling_rate
        options = config.model_dump(mode="json")
        self.fingerprint = compute_fingerprint([options, split, utterances.fingerprint])

    def load(self, index: int, rng: np.random.Generator) -> LabelledAudio:
        """Conversation ``index``; of valid and test always the same one, whatever ``rng`` is."""
        # Evaluation must not depend on the epoch or on the caller: its own generator, from seed and index.
        if self.split != "train":
            rng = np.random.default_rng(draw_key(Purpose.CONVERSATION, self.config.seed, self.split, index))
        num_samples = round(self.durations[index] * self.utterances.sampling_rate)
        if self.split == "train" and self.config.silence and rng.random() < self.config.silence:
            return LabelledAudio(self.describe(index), self._silence(num_samples, rng), self.utterances.sampling_rate)
        least, most = self.config.num_speakers
        number = int(rng.integers(least, most + 1))
        chosen = rng.choice(len(self.split_utterances), number, replace=False).tolist()
        tracks, segments = zip(*(self._track(speaker, num_samples, rng) for speaker in chosen), strict=True)
        reverb, noise = self.config.room, self.config.noise
        if reverb is not None and rng.random() < reverb.probability:
            t60 = rng.uniform(*reverb.t60)
            responses = room_responses(len(tracks), self.utterances.sampling_rate, t60, rng)
            tracks = tuple(reverberated(track, response) for track, response in zip(tracks, responses, strict=True))
        # Reverberated before they are added: each speaker has a different place in the room.
        mixed: np.ndarray = np.stack(tracks).sum(0)
        if noise is not None and rng.random() < noise.probability:
            mixed = at_snr(mixed, self._noise(noise, len(mixed), chosen, rng), rng.uniform(*noise.snr))
        together = sorted(segment for of_speaker in segments for segment in of_speaker)
        return LabelledAudio(self.describe(index), mixed, self.utterances.sampling_rate, tuple(together))

    def describe(self, index: int) -> str:
        return f"{self.split}-conversation-{index:06}"

    def _track(self, speaker: int, num_samples: int, rng: np.random.Generator) -> tuple[np.ndarray, list[Segment]]:
        """Return the track of one speaker in the conversation, ``(sample,)``, and its segments."""
        rate = self.utterances.sampling_rate
        factor = float(rng.choice(self.speed)) if self.speed else 1.0
        name = at_speed_name(self.utterances.speaker_names[speaker], factor)
        half_difference = self.config.level_difference / 2
        # in amplitude: two speakers are then never further apart than level_difference
        gain = 10 ** (rng.uniform(-half_difference, half_difference) / 20)
        track = np.zeros(num_samples, dtype=np.float32)
        segments: list[Segment] = []
        place = _pause(self.config.beta, rate, rng)
        pieces = self._pieces(speaker, rng)
        while place < num_samples:
            piece = next(pieces).at_speed(factor)
            if rng.random() < CUT:
                # So that the end of what is heard is learned as the end of speech: see the top of this file.
                piece = piece.cut_inside(*rng.integers(0, round(CUT_INSIDE * rate), 2, endpoint=True).tolist())
            # the speech begins at ``place``; the rest of the pause before it overlaps with the samples so far
            begin = place - piece.first
            first, last = max(begin, 0), min(begin + len(piece.samples), num_samples)
            track[first:last] += (piece.samples * np.float32(gain))[first - begin : last - begin]
            end = min(place + piece.last - piece.first, num_samples)
            segments.append(Segment(place / rate, end / rate, name))
            place = end + _pause(self.config.beta, rate, rng)
        return track, segments

    def _pieces(self, speaker: int, rng: np.random.Generator) -> Iterator[Piece]:
        """An endless stream of a speaker's speech: utterances in random order, and their pieces in random order."""
        while True:
            said = 0
            for index in rng.permutation(self.split_utterances[speaker]).tolist():
                pieces = self.utterances.pieces(index)
                said += len(pieces)
                yield from (pieces[place] for place in rng.permutation(len(pieces)).tolist())
            # Without this, a speaker whose utterances are all silent would loop forever.
            if not said:
                name = self.utterances.speaker_names[speaker]
                raise DataError(f"{name}: no speech was found in any utterance of this speaker")

    def _silence(self, num_samples: int, rng: np.random.Generator) -> np.ndarray:
        """Noise alone, without speech."""
        noise = self.config.noise
        if noise is None or rng.random() >= noise.probability:
            return np.zeros(num_samples, dtype=np.float32)
        found = self._noise(noise, num_samples, [], rng)
        power = float(np.mean(np.square(found, dtype=np.float64)))
        # as loud as it would be under speech: silence isn't known by its noise
        level = SPEECH_LEVEL * 10 ** (-rng.uniform(*noise.snr) / 20)
        return (found * (level / np.sqrt(power)) if power else found).astype(np.float32)

    def _noise(self, noise: NoiseConfig, num_samples: int, chosen: list[int], rng: np.random.Generator) -> np.ndarray:
        if noise.type == "files":
            assert noise.folder is not None
            return file_noise(noise.folder, num_samples, self.utterances.sampling_rate, rng)
        if noise.type == "coloured":
            return coloured_noise(num_samples, rng)
        # Babble of the conversation's own speakers would be speech that the labels miss.
        others = np.setdiff1d(np.arange(len(self.split_utterances)), chosen)
        if not len(others):
            raise DataError(f"{self.split}: babble requires voices other than the speakers'; use another type of noise")
        return babble(
            lambda: next(self._pieces(int(rng.choice(others)), rng)).samples, num_samples, BABBLING_VOICES, rng
        )


def at_speed_name(speaker: str, factor: float) -> str:
    """Another speed has another pitch, so it is another speaker: ``name@0.9``."""
    return speaker if factor == 1.0 else f"{speaker}@{factor:g}"


def at_speeds(speakers: Sequence[str], factors: Sequence[float]) -> tuple[str, ...]:
    """Return the names of the speakers at these speeds, sorted; without speeds, unchanged."""
    return tuple(sorted(at_speed_name(speaker, factor) for speaker in speakers for factor in factors or (1.0,)))


def _pause(mean: float, sampling_rate: int, rng: np.random.Generator) -> int:
    """Samples."""
    return round(rng.exponential(mean) * sampling_rate)


CONTEXT = 0.25
"""Seconds of the pauses around a piece that stay with it, at most half of each pause."""


class CutUtterances:
    """Utterances of single speakers (``vaak.audio.simulation.conversations.Utterances``)."""

    def __init__(self, store: CutStore, audio: AudioConfig, *, find_speech: bool) -> None:
        """With ``find_speech``, utterances without times of speech are cut at their pauses."""
        self.store, self.audio, self.finds_speech = store, audio, find_speech
        self.sampling_rate = audio.sampling_rate
        self.speaker_names = store.speakers
        self.fingerprint = compute_fingerprint(
            [store.fingerprint, audio.sampling_rate, audio.channels, find_speech, CONTEXT]
        )
        self._samples = BoundedCache(int(audio.cache_gigabytes * 2**30))
        self._regions: dict[int, list[tuple[int, int]]] = {}

    def __len__(self) -> int:
        return len(self.store)

    def get_speaker(self, index: int) -> int:
        number = int(self.store.speaker_numbers[index])
        if number < 0:
            raise DataError(
                f"{self.store.describe(index)} has no speaker or several; an utterance must have one to be used in "
                "conversations"
            )
        return number

    def pieces(self, index: int) -> list[Piece]:
        samples = self._samples.get(index, lambda: self._levelled(index))
        return cut_pieces(samples, self._regions[index], self.sampling_rate)

    def _levelled(self, index: int) -> np.ndarray:
        """Return the utterance with its speech at one level; the regions of speech are remembered."""
        cut = self.store[index]
        audio = read_cut(cut, self.audio)
        times = [(segment.start, segment.end) for segment in audio.segments]
        if not times or (self.store.lacks_times(cut) and self.finds_speech):
            times = find_speech(audio.samples, audio.sampling_rate)
        samples = [(round(start * self.sampling_rate), round(end * self.sampling_rate)) for start, end in times]
        regions = sorted((first, last) for first, last in samples if last > first)
        self._regions[index] = regions
        return at_level(audio.samples, regions)


def at_level(samples: np.ndarray, regions: list[tuple[int, int]]) -> np.ndarray:
    """``samples`` (time,) with the speech in ``regions`` (first and last + 1 sample of each) at ``SPEECH_LEVEL``."""
    speech = [samples[first:last] for first, last in regions]
    power = np.mean(np.square(np.concatenate(speech), dtype=np.float64)) if speech else 0.0
    return samples * np.float32(SPEECH_LEVEL / np.sqrt(power)) if power > 0 else samples


def cut_pieces(samples: np.ndarray, regions: list[tuple[int, int]], sampling_rate: int) -> list[Piece]:
    """Return each region of ``samples`` (time,), in order, with at most ``CONTEXT`` of the pauses around it."""
    context = round(CONTEXT * sampling_rate)
    # Each pause is divided in the middle, so that it isn't in two pieces.
    middles = [(end + start) // 2 for (_, end), (start, _) in pairwise(regions)]
    pieces = []
    for (first, last), before, after in zip(regions, [0, *middles], [*middles, len(samples)], strict=False):
        low, high = min(first, max(before, first - context)), max(last, min(after, last + context))
        pieces.append(Piece(samples[low:high], first - low, last - low))
    return pieces


class SpokenArrays:
    """Utterances of single speakers in memory, at one level (``vaak.audio.simulation.conversations.Utterances``)."""

    def __init__(self, spoken: Mapping[str, Sequence[np.ndarray]], sampling_rate: int) -> None:
        """``spoken`` has each speaker's utterances, each ``(time,)``. Raises UserError for samples of another shape."""
        self.sampling_rate = sampling_rate
        self.speaker_names = tuple(sorted(spoken))
        self._speakers = [number for number, name in enumerate(self.speaker_names) for _ in spoken[name]]
        self._pieces = [self._levelled(samples, name) for name in self.speaker_names for samples in spoken[name]]
        content = [hashlib.sha256(piece.samples.tobytes()).hexdigest() for pieces in self._pieces for piece in pieces]
        self.fingerprint = compute_fingerprint([self.speaker_names, self._speakers, content, sampling_rate])

    def __len__(self) -> int:
        return len(self._pieces)

    def get_speaker(self, index: int) -> int:
        return self._speakers[index]

    def pieces(self, index: int) -> list[Piece]:
        return self._pieces[index]

    def _levelled(self, samples: np.ndarray, speaker: str) -> list[Piece]:
        """Return the stretches of speech of an utterance."""
        found = np.asarray(samples, np.float32)
        if found.ndim != 1:
            raise UserError(f"an utterance of {speaker} has the shape {found.shape}; expected (time,)")
        times = find_speech(found, self.sampling_rate)
        regions = [(round(start * self.sampling_rate), round(end * self.sampling_rate)) for start, end in times]
        return cut_pieces(at_level(found, regions), regions, self.sampling_rate)


def simulate(
    spoken: Mapping[str, Sequence[np.ndarray]],
    sampling_rate: int,
    number: int,
    *,
    seed: int = 0,
    folder: str | PathLike[str] | None = None,
    **options: Any,
) -> Iterator[LabelledAudio]:
    """``number`` conversations of these speakers, each with who speaks when; the same seed gives the same ones.

    ``spoken`` has each speaker's utterances, samples ``(time,)`` within 1 and -1. ``options`` are those of
    ``datasets.conversations`` (``num_speakers``, ``beta``, ``duration``, ``noise``, ...). With a ``folder`` they are
    written there first, with RTTM, a manifest and Lhotse's cuts.

    ``sampling_rate`` in Hz is that of what is spoken and of the conversations.

    Raises UserError for options that aren't right, DataError if there are too few speakers.
    """
    config = from_options(ConversationsConfig, {**options, "train": number}, "conversations")
    source = SimulatedConversations(SpokenArrays(spoken, sampling_rate), config, "train")
    if folder is not None:
        write_conversations(source, Path(folder), seed=seed)
    return (
        source.load(index, np.random.default_rng(draw_key(Purpose.DATA, seed, 0, index, 0))) for index in range(number)
    )
