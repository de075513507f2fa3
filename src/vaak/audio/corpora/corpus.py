"""A corpus of recordings as Lhotse cuts: read, checked, split and counted.

type      where its cuts come from
recipe    a corpus for which Lhotse has a recipe (vaak.audio.corpora.recipe_corpus)
cuts      Lhotse's manifests (vaak.audio.corpora.lhotse_manifests)
folder    audio files next to RTTM, UEM, CTM and TextGrid files (vaak.audio.corpora.annotated_folder)
json      JSON lines (vaak.audio.corpora.json_manifest)
voices    speech of espeak-ng (vaak.audio.synthesis.voices)

Splits that are given are kept; others are split off from train (vaak.audio.corpora.splits). What can't be
used is an error that names the place, or is dropped and counted; nothing is lost silently. Everything streams:
only one recording, the labels of a folder's files, and a digest of each cut's name are in memory.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.splits import CorpusSplits
from vaak.audio.labelled import Segment
from vaak.audio.waveforms.reading import segments_of
from vaak.audio.waveforms.recordings import ReadRecording
from vaak.core.errors import DataError

if TYPE_CHECKING:
    from lhotse.cut import Cut

SEVERAL_SPLITS = "recordings whose speakers belong to several splits (split_by: speaker)"


@dataclass
class AudioStatistics:
    """The contents of a split; what was dropped, and what was fixed or is worth knowing, by reason."""

    cuts: int = 0
    seconds: float = 0.0
    speech_seconds: float = 0.0
    overlap_seconds: float = 0.0
    segments: int = 0
    resampled: int = 0
    most_speakers: int = 0
    """Add one cut."""
    speakers: set[str] = field(default_factory=set)
    dropped: Counter[str] = field(default_factory=Counter)
    mended: Counter[str] = field(default_factory=Counter)

    def add(self, cut: Cut, sampling_rate: int) -> None:
        segments = segments_of(cut)
        speech, overlap = covered(segments)
        self.cuts += 1
        self.seconds += cut.duration
        self.speech_seconds += speech
        self.overlap_seconds += overlap
        self.segments += len(segments)
        own = {segment.speaker for segment in segments}
        self.speakers |= own
        self.most_speakers = max(self.most_speakers, len(own))
        self.resampled += cut.sampling_rate != sampling_rate

    def to_json(self) -> dict[str, Any]:
        """The figures for a JSON file; seconds to the millisecond."""
        numbers = {name: round(getattr(self, name), 3) for name in ("seconds", "speech_seconds", "overlap_seconds")}
        counts = {"cuts": self.cuts, "segments": self.segments, "resampled": self.resampled}
        return {
            **counts,
            **numbers,
            "speakers": len(self.speakers),
            "most_speakers": self.most_speakers,
            "dropped": dict(self.dropped),
            "mended": dict(self.mended),
        }


class CutReader(Protocol):
    """Reads the ``given`` splits; ``files`` are those that determine what is read."""

    @property
    def given(self) -> tuple[str, ...]: ...
    @property
    def files(self) -> list[Path]: ...
    @property
    def lacks_train(self) -> str:
        """The message if there is no training data."""
        ...

    def read(self, split: str) -> Iterator[ReadRecording]: ...


class AudioCorpus:
    """The cuts of one of ``datasets``, by split; the same ones in the same order each time they are read.

    ``statistics`` has those of the splits that have been read completely.
    """

    def __init__(self, dataset: DatasetConfig, audio: AudioConfig) -> None:
        """Look up the sources; a recipe's manifests are made if there are none.

        Raises DataError for files, folders and corpora that don't exist.
        """
        self.dataset, self.audio = dataset, audio
        self.statistics: dict[str, AudioStatistics] = {}
        self._reader = _open_reader(dataset, audio)
        self._splits = CorpusSplits(self._reader.given, dataset)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits, given or split off from train."""
        return self._splits.names

    @property
    def files(self) -> list[Path]:
        """The files it reads, to detect whether they have changed."""
        return self._reader.files

    def cuts(self, split: str) -> Iterator[Cut]:
        """The cuts of ``split``: recordings or utterances, with speakers and texts.

        ``custom["uem"]`` has the scored regions, if that isn't everything. Raises DataError for what can't be read, for
        two cuts with the same name, and at the end if train or a given split has none; one that is split off from a
        small train may be empty.
        """
        if split not in self.splits:
            raise DataError(self._there_is_no(split))
        counts, seen = AudioStatistics(), set[bytes]()
        for cut in self._of(split, counts):
            digest = hashlib.blake2b(cut.id.encode(), digest_size=8).digest()
            if digest in seen:
                raise DataError(f"{self._name}: {split} has two cuts with the name {cut.id}; names must be unique")
            seen.add(digest)
            counts.add(cut, self.audio.sampling_rate)
            yield cut
        if not counts.cuts and (split == "train" or split in self._splits.given):
            raise DataError(self._why_empty(split, counts))
        self.statistics[split] = counts

    def _of(self, split: str, counts: AudioStatistics) -> Iterator[Cut]:
        for name, cut, remarks in self._reader.read(self._splits.source_of(split)):
            if split in self._splits.ranges and not self._belongs(name, cut, split, counts):
                continue
            if cut is None:
                counts.dropped.update(remarks)
            else:
                counts.mended.update(remarks)
                yield cut

    def _belongs(self, name: str, cut: Cut | None, split: str, counts: AudioStatistics) -> bool:
        """Whether what was given as train falls in the split."""
        known = set() if cut is None else {s.speaker for s in cut.supervisions if s.speaker}
        own = self._splits.of(name, known)
        if own is None and split == "train":
            counts.dropped[SEVERAL_SPLITS] += 1
        return own == split

    @property
    def _name(self) -> str:
        return f"datasets, {self.dataset.name}"

    def _there_is_no(self, split: str) -> str:
        if split == "train":
            return f"{self._name}: {self._reader.lacks_train}"
        return f"{self._name}: there is no split {split}; expected one of {', '.join(self.splits)}"

    def _why_empty(self, split: str, counts: AudioStatistics) -> str:
        if counts.dropped:
            reasons = "; ".join(f"{number:,}: {reason}" for reason, number in counts.dropped.items())
            return f"{self._name}: {split} is empty: everything was dropped ({reasons})"
        if len(self._splits.ranges) > 1 and split in self._splits.ranges:
            return (
                f"{self._name}: {split} is empty: no {self.dataset.split_by} fell into it; give more recordings, other "
                "fractions, or files for this split"
            )
        return f"{self._name}: {split} is empty: its files have no recordings"


def covered(segments: tuple[Segment, ...]) -> tuple[float, float]:
    """Seconds in which someone speaks, and in which several do.

    >>> covered((Segment(0.0, 3.0, "A"), Segment(2.0, 4.0, "B"), Segment(6.0, 7.0, "A")))
    (5.0, 1.0)
    """
    events = sorted([(s.start, 1) for s in segments] + [(s.end, -1) for s in segments])
    speech = overlap = 0.0
    speaking, before = 0, 0.0
    for time, change in events:
        speech += (time - before) * (speaking > 0)
        overlap += (time - before) * (speaking > 1)
        speaking, before = speaking + change, time
    return speech, overlap


def _open_reader(dataset: DatasetConfig, audio: AudioConfig) -> CutReader:
    if dataset.type == "recipe":
        from vaak.audio.corpora.recipe_corpus import RecipeReader

        return RecipeReader(dataset, audio)
    if dataset.type == "cuts":
        from vaak.audio.corpora.lhotse_manifests import ManifestReader

        return ManifestReader(dataset)
    if dataset.type == "folder":
        from vaak.audio.corpora.annotated_folder import FolderReader

        return FolderReader(dataset)
    if dataset.type == "json":
        from vaak.audio.corpora.json_manifest import JsonReader

        return JsonReader(dataset)
    return VoicesReader(dataset, audio)


class VoicesReader:
    """Sentences of synthesised voices; they depend on no files."""

    given = ("train",)
    lacks_train = ""

    def __init__(self, dataset: DatasetConfig, audio: AudioConfig) -> None:
        self.dataset = dataset
        self.folder = Path(dataset.output_dir or Path(audio.output_dir) / dataset.name).expanduser().absolute()
        self.files: list[Path] = []

    def read(self, split: str) -> Iterator[ReadRecording]:
        from vaak.audio.synthesis.voices import voice_cuts

        for cut in voice_cuts(self.dataset, self.folder):
            yield ReadRecording(cut.id, cut)
