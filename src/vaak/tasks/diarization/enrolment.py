"""Speakers of a recording by name: those who sound like one who was enrolled with a recording of theirs.

    names ──files──▶ embeddings ─┐
    segments ──alone──▶ embeddings of the recording's speakers ──nearest, below a threshold──▶ names

An embedding is of speech in which nobody else speaks, the longest stretches first, up to a minute; of one who never
speaks alone, of all of it. Each speaker has the nearest name; two of the same name are one person. Whoever is further
from every name than the threshold stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vaak.audio.audio_file import AudioFile
from vaak.audio.config import AudioConfig
from vaak.audio.segments import Segment, merged
from vaak.core.errors import UserError
from vaak.tasks.diarization.clustering import cosine_distances, unit_vectors
from vaak.tasks.diarization.predict import Diarized
from vaak.tasks.diarization.speaker_encoder import SpeakerEncoder
from vaak.tasks.diarization.stitching import LEAST_SECONDS

if TYPE_CHECKING:
    from vaak.runs.open_run import OpenedRun

ENROL_OPTION = "--enrol"
GIVE_ENCODER = "give --speaker-encoder, or data.inference.speaker_encoder in the YAML of a run"
MOST_SECONDS = 60.0
"""The most speech from which an embedding is computed."""
UNKNOWN_SPEAKER_NAME = re.compile(r"speaker_\d+")
"""How speakers without a name are called."""


def parse_enrolled(given: Sequence[str]) -> dict[str, list[Path]]:
    """Return the files of each name in ``NAME=FILE``. Raises UserError for anything else.

    >>> parse_enrolled(["anna=a.wav", "anna=b.wav"])
    {'anna': [PosixPath('a.wav'), PosixPath('b.wav')]}
    """
    files: dict[str, list[Path]] = {}
    for one in given:
        name, equals, file = one.partition("=")
        if not (name and equals and file):
            raise UserError(f"{ENROL_OPTION} {one}: expected NAME=FILE, such as anna=anna.wav")
        require_speaker_name(name, f"{ENROL_OPTION} {one}")
        files.setdefault(name, []).append(Path(file))
    return files


def require_speaker_name(name: str, given: str) -> None:
    """Raise UserError, which begins with what was ``given``, for what can't be the name of a known speaker."""
    if name.split() != [name] or UNKNOWN_SPEAKER_NAME.fullmatch(name):
        is_of_unknown = UNKNOWN_SPEAKER_NAME.fullmatch(name)
        reason = "unknown speakers are called so" if is_of_unknown else "RTTM separates its columns by it"
        raise UserError(f"{given}: {name!r} can't be a name: {reason}")


@dataclass(frozen=True)
class Named:
    """A recording whose speakers have names; by speaker as found, the nearest name, its distance, and whether given."""

    diarized: Diarized
    nearest: Mapping[str, tuple[str, float, bool]]

    def to_line(self) -> str:
        """Return who was known, and who wasn't.

        Distances are of the cosine: 0 is the same direction.
        """
        said = [
            f"{speaker} is {name} ({distance:.2f})"
            if given
            else f"{speaker} is unknown (nearest {name}, {distance:.2f})"
            for speaker, (name, distance, given) in self.nearest.items()
        ]
        return ", ".join(said) or "nobody speaks"

    def to_json(self) -> list[dict[str, Any]]:
        keys = ("nearest", "distance", "named")
        rows = ((speaker, dict(zip(keys, found, strict=True))) for speaker, found in self.nearest.items())
        return [{"speaker": speaker, **values} for speaker, values in rows]


@dataclass(frozen=True)
class Enrolment:
    """Voices by name, with their embeddings ``(name, dim)``."""

    names: tuple[str, ...]
    embeddings: np.ndarray
    threshold: float
    embed: Callable[[np.ndarray], np.ndarray]
    audio: AudioConfig

    @classmethod
    def open(
        cls, files: Mapping[str, Sequence[Path]], opened: OpenedRun, threshold: float | None, option: str = ENROL_OPTION
    ) -> Enrolment:
        """Return the voices in ``files``, as a diarization run hears them; by default with its encoder's threshold.

        Raises UserError, which begins with the ``option`` by which they were given, where the run can't tell voices.
        """
        inference = opened.experiment.data.inference
        encoder = opened.task.diarizer(opened.model, inference).encoder
        if encoder is None:
            named = opened.task.collator.names is not None
            why = "this model finds speakers by name itself" if named else GIVE_ENCODER
            raise UserError(f"{option} compares voices by a speaker encoder: {why}")
        if threshold is None:
            threshold = inference.get_clustering_threshold() if encoder.same_below is None else encoder.same_below
        return cls.of_files(files, encoder, opened.task.audio, threshold, option)

    @classmethod
    def of_files(
        cls,
        files: Mapping[str, Sequence[Path]],
        encoder: SpeakerEncoder,
        audio: AudioConfig,
        threshold: float,
        option: str = ENROL_OPTION,
    ) -> Enrolment:
        """Return the voices in ``files``; several with one name are averaged.

        Raises UserError for a file that can't be read, or has too little in it.
        """
        found = []
        for name, paths in files.items():
            own = [unit_vectors(encoder(_read_enrolled(path, audio, f"{option} {name}={path}"))) for path in paths]
            found.append(np.mean(own, axis=0))
        return cls(tuple(files), unit_vectors(np.stack(found)), threshold, encoder, audio)

    def name_speakers(self, path: Path, found: Diarized) -> Named:
        """Return the recording at ``path`` with the names of those who are known."""
        speakers = list(dict.fromkeys(one.speaker for one in found.segments))
        if not speakers:
            return Named(found, {})
        with AudioFile(path, self.audio.sampling_rate, self.audio.channels) as opened:
            spoken = [self.embed(self._read_speech(opened, found.segments, one)) for one in speakers]
        distances = cosine_distances(np.stack(spoken), self.embeddings)
        nearest = {}
        for speaker, row in zip(speakers, distances, strict=True):
            least = float(row.min())
            nearest[speaker] = (self.names[int(row.argmin())], round(least, 4), least < self.threshold)
        new = {speaker: name for speaker, (name, _, is_known) in nearest.items() if is_known}
        renamed = [one._replace(speaker=new.get(one.speaker, one.speaker)) for one in found.segments]
        return Named(replace(found, segments=merged(renamed)), nearest)

    def _read_speech(self, opened: AudioFile, segments: Sequence[Segment], speaker: str) -> np.ndarray:
        """The samples in which one speaks, alone where that is enough."""
        own = [(one.start, one.end) for one in segments if one.speaker == speaker]
        alone = without_others(own, [(one.start, one.end) for one in segments if one.speaker != speaker])
        chosen = alone if sum(end - start for start, end in alone) >= LEAST_SECONDS else own
        parts, left = [], MOST_SECONDS
        for start, end in sorted(chosen, key=lambda part: part[0] - part[1]):
            if left <= 0:
                break
            parts.append(opened.read(start, min(end, start + left)))
            left -= end - start
        return np.concatenate(parts)


def without_others(
    own: Sequence[tuple[float, float]], others: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Return the parts of ``own`` in which none of ``others`` is.

    >>> without_others([(0.0, 4.0)], [(1.0, 2.0), (3.5, 9.0)])
    [(0.0, 1.0), (2.0, 3.5)]
    """
    left = list(own)
    for first, last in others:
        cut = [((start, min(end, first)), (max(start, last), end)) for start, end in left]
        left = [part for pair in cut for part in pair if part[1] > part[0]]
    return left


def _read_enrolled(path: Path, audio: AudioConfig, given: str) -> np.ndarray:
    """The samples of a file of one voice, up to MOST_SECONDS; errors begin with how it was ``given``."""
    if not path.is_file():
        raise UserError(f"{given}: no such file")
    with AudioFile(path, audio.sampling_rate, audio.channels) as opened:
        samples = opened.read(0.0, min(opened.duration, MOST_SECONDS))
    if len(samples) < LEAST_SECONDS * audio.sampling_rate or not np.abs(samples).max() > 0:
        raise UserError(f"{given}: it needs {LEAST_SECONDS} s of speech at least, and isn't silent")
    return samples
