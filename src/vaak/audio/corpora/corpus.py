"""A corpus of recordings as Lhotse cuts: read, checked, split and counted.

type      where its cuts come from
recipe    a corpus for which Lhotse has a recipe (vaak.audio.corpora.lhotse_manifests)
cuts      Lhotse's manifests (vaak.audio.corpora.lhotse_manifests)
folder    audio files next to RTTM, UEM, CTM and TextGrid files (vaak.audio.corpora.folders)
json      JSON lines and tables (vaak.audio.corpora.json_manifest)
ljspeech  metadata.csv and wavs, as LJ Speech has them (vaak.audio.corpora.folders)
splits    folders Train, Dev and Test (vaak.audio.corpora.json_manifest)
others    corpora as downloaded (vaak.audio.corpora.downloads)
voices    speech of espeak-ng (vaak.audio.corpora.voices)

Splits that are given are kept; others are split off from train by the hash of a recording's name, or of its
speaker's (vaak.core.corpus). By speaker, no speaker is in two splits: a recording with speakers of several splits
belongs to none. What can't be used is an error that names the place, or is dropped and counted; nothing is lost
silently. Everything streams: only one recording, the labels of a folder's files, and a digest of each cut's name are in
memory.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.entries import CorpusReader, with_local_copies
from vaak.audio.corpora.folders import UNLABELLED_FILES, AlignmentFolder, LJSpeechReader, ljspeech_dataset
from vaak.audio.cuts.reading import get_label, list_labels, read_segments
from vaak.audio.cuts.recordings import BAD_LABELS, ReadRecording
from vaak.audio.segments import Segment
from vaak.core.corpus import SplitCorpus
from vaak.core.errors import DataError
from vaak.core.left_out import FirstNames, SplitContents
from vaak.core.progress import track
from vaak.core.splits import OTHER_SHARES, hash_text
from vaak.core.storage.url_cache import cache_folder

if TYPE_CHECKING:
    from lhotse.cut import Cut

log = logging.getLogger("vaak")

UNALIGNED = "recordings without a file in alignments"
SEVERAL_SPLITS = "recordings whose speakers belong to several splits (split_by: speaker)"


@dataclass
class AudioStatistics:
    """The contents of a split, and counts by reason of items dropped, items fixed and items worth knowing about."""

    sampling_rate: int
    """The features' rate: cuts of another are resampled."""
    cuts: int = 0
    seconds: float = 0.0
    speech_seconds: float = 0.0
    overlap_seconds: float = 0.0
    segments: int = 0
    resampled: int = 0
    most_speakers: int = 0
    speakers: set[str] = field(default_factory=set)
    dropped: Counter[str] = field(default_factory=Counter)
    remarks: Counter[str] = field(default_factory=Counter)
    first_names: FirstNames = field(default_factory=FirstNames)
    """Names of the first dropped recordings."""

    def __len__(self) -> int:
        return self.cuts

    def drop(self, name: str, reasons: Iterable[str]) -> None:
        """Count and name a recording that is left out."""
        for reason in reasons:
            self.dropped[reason] += 1
            self.first_names.add(reason, name)

    def contents(self, unit: str = "recordings") -> SplitContents:
        """How many recordings there are, and which are left out; labels that are left out are counted, too."""
        labels = {BAD_LABELS: number} if (number := self.remarks[BAD_LABELS]) else {}
        return SplitContents(unit, self.cuts, {**self.dropped, **labels}, dict(self.first_names))

    def add(self, cut: Cut) -> None:
        segments = read_segments(cut)
        speech, overlap = covered(segments)
        self.cuts += 1
        self.seconds += cut.duration
        self.speech_seconds += speech
        self.overlap_seconds += overlap
        self.segments += len(segments)
        own = {segment.speaker for segment in segments}
        self.speakers |= own
        self.most_speakers = max(self.most_speakers, len(own))
        self.resampled += cut.sampling_rate != self.sampling_rate

    def to_json(self) -> dict[str, Any]:
        """Return the figures for a JSON file; seconds to the millisecond."""
        numbers = {name: round(getattr(self, name), 3) for name in ("seconds", "speech_seconds", "overlap_seconds")}
        counts = {"cuts": self.cuts, "segments": self.segments, "resampled": self.resampled}
        return {
            **counts,
            **numbers,
            "speakers": len(self.speakers),
            "most_speakers": self.most_speakers,
            "dropped": dict(self.dropped),
            "remarks": dict(self.remarks),
        }


def _fail(error: DataError, name: str) -> None:
    raise error


class AudioCorpus(SplitCorpus[ReadRecording, "Cut", AudioStatistics]):
    """The cuts of one of ``datasets``, by split.

    ``on_bad`` is told of each recording that can't be read, and its name; it is then left out. By default, it raises
    the error. With ``requires_text``, one whose text is given as empty is there, without a text.
    """

    def __init__(self, dataset: DatasetConfig, audio: AudioConfig) -> None:
        """Look up the sources; a recipe's manifests are made if there are none.

        Raises DataError for files, folders and corpora that don't exist.
        """
        dataset = with_local_copies(dataset)
        dataset = ljspeech_dataset(dataset, audio) if dataset.type == "ljspeech" else dataset
        self.dataset, self.audio = dataset, audio
        self.on_bad: Callable[[DataError, str], None] = _fail
        self.requires_text = False
        self.alignments = None if dataset.alignments is None else AlignmentFolder(dataset)
        self.reader = _open_reader(dataset, audio)
        super().__init__(self.reader, dataset, f"datasets, {dataset.name}")

    @property
    def files(self) -> list[Path]:
        return [*super().files, *(self.alignments.files if self.alignments else ())]

    def named_files(self) -> Iterator[tuple[str, Path]]:
        """The files that its ``files`` name, such as the audio of a manifest: their names there, and where they are.

        Raises DataError for a manifest that can't be read.
        """
        return self.reader.named_files()

    def digest_of_named(self) -> str:
        """Return a digest of the names and sizes of ``named_files``."""
        digest = hashlib.sha256()
        for name, path in self.named_files():
            digest.update(f"{name}\0{get_size(path)}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()

    def require_text(self) -> None:
        """Keep recordings whose text is given as empty. Raises DataError for a table without a column for texts."""
        self.requires_text = True
        if self.alignments is None:
            self.reader.require_texts()

    def cuts(self, split: str) -> Iterator[Cut]:
        """Return the cuts of ``split``: recordings or utterances, with speakers and texts.

        ``custom["uem"]`` has the scored regions, if that isn't everything. Raises DataError for what can't be read, for
        two cuts with the same name, and at the end if train or a given split has none; one that is split off from a
        small train may be empty. Warns of a split of a folder of splits that is split off from its Train.
        """
        if split in self.cut_splits and self.reader.folders_there:
            log.warning(
                "%s: %s is split off from Train by %s, since its folder doesn't exist; there are %s",
                self.where,
                split,
                self.dataset.split_by,
                self.reader.folders_there,
            )
        return self.read(split)

    def new_statistics(self) -> AudioStatistics:
        return AudioStatistics(self.audio.sampling_rate)

    def choose_split(self, entry: ReadRecording, split: str, counts: AudioStatistics) -> str | None:
        # A recording without a name has only its path, which must not decide: a corpus may be moved.
        if not entry.is_named:
            return "train"
        own = self.division.of(*self._deciding_names(entry))
        # Its speakers belong to different splits. Every split reads the same entries, so count it only once.
        if own is None and split == "train":
            counts.drop(entry.name, (SEVERAL_SPLITS,))
        return own

    def deciding(self) -> Iterator[str]:
        for entry in self.iterate_sources("train"):
            if self._is_kept(entry):
                yield from self._deciding_names(entry)

    def _deciding_names(self, entry: ReadRecording) -> list[str]:
        known = {one.speaker for one in entry.cut.supervisions if one.speaker} if entry.cut is not None else set()
        return deciding_names(self.dataset.split_by, entry.name, known)

    def name_entry(self, entry: ReadRecording) -> tuple[str | None, str]:
        return entry.name if self._is_kept(entry) else None, entry.name

    def _is_kept(self, entry: ReadRecording) -> bool:
        """Whether it can be used; without a text only where texts are learned, of recordings without speech, too."""
        return entry.cut is not None and (entry.problem is None or self.requires_text)

    def column(self, split: str, name: str) -> Iterator[Any]:
        """Yield the values that each recording's supervisions have under a name: speaker, language, gender, own."""
        for entry in self.source.read(split):
            labels = entry.cut.supervisions if entry.cut is not None else ()
            yield sorted({str(value) for one in labels if (value := get_label(one, name)) is not None})

    def find_label_names(self, split: str) -> set[str]:
        cuts = (entry.cut for entry in self.source.read(split) if entry.cut is not None)
        return {name for cut in cuts for one in cut.supervisions for name in list_labels(one)}

    def items(self, split: str, entries: Iterator[ReadRecording], counts: AudioStatistics) -> Iterator[Cut]:
        seen = set[int]()
        for name, cut, remarks, problem in entries:
            if cut is None or (problem is not None and not self.requires_text):
                if problem is not None and not remarks:
                    self.on_bad(problem, name)
                else:
                    counts.drop(name, remarks)
                continue
            # With a problem, its text is empty, and they say why others leave it out.
            counts.remarks.update(() if problem is not None else remarks)
            try:
                # 64-bit digests instead of names: a split may have millions of cuts.
                if hash_text(cut.id) in seen:
                    remedy = "give each its own id, or remove the doubled ones"
                    raise DataError(
                        f"{self.where}: {split} has two cuts with the name {cut.id}; names must be unique: {remedy}"
                    )
                seen.add(hash_text(cut.id))
                left_out = None if self.alignments is None else self.alignments.attach(cut)
                counts.remarks.update(left_out or ())
                if self.alignments is not None and left_out is None:
                    # Folders let recordings without labels through, because an alignment could still give them some.
                    if self.dataset.type == "folder" and not cut.supervisions:
                        counts.drop(name, (UNLABELLED_FILES,))
                        continue
                    counts.remarks[UNALIGNED] += 1
            except DataError as error:
                self.on_bad(error, name)
                continue
            yield cut

    def may_be_empty(self, split: str) -> bool:
        return split != "train" and split not in self.division.given

    def why_empty(self, split: str, counts: AudioStatistics) -> str:
        if counts.dropped:
            reasons = "; ".join(f"{number:,}: {reason}" for reason, number in counts.dropped.items())
            return f"everything was dropped ({reasons})"
        if self.division.is_all_of_its_source(split):
            return "its files have no recordings"
        return f"no {self.dataset.split_by} fell into it; give more recordings, {OTHER_SHARES}"


def get_size(path: Path) -> int | None:
    """Return the size of a file in bytes; None if it doesn't exist."""
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        # ValueError: no file can have such a name.
        return None


def deciding_names(split_by: str, recording: str, speakers: Iterable[str]) -> list[str]:
    """Return the names whose hashes decide to which split recordings given as train belong.

    >>> deciding_names("speaker", "a", {"Bela", "Ann"}), deciding_names("speaker", "a", ())
    (['speaker Ann', 'speaker Bela'], ['recording a'])
    """
    names = [f"speaker {name}" for name in sorted(set(speakers))] if split_by == "speaker" else []
    return names or [f"recording {recording}"]


def covered(segments: tuple[Segment, ...]) -> tuple[float, float]:
    """Seconds in which someone speaks, and in which several do.

    >>> covered((Segment(0.0, 3.0, "A"), Segment(2.0, 4.0, "B"), Segment(6.0, 7.0, "A")))
    (5.0, 1.0)
    """
    # At equal times, ends (-1) sort before starts, so segments that touch don't overlap.
    events = sorted([(s.start, 1) for s in segments] + [(s.end, -1) for s in segments])
    speech = overlap = 0.0
    speaking, before = 0, 0.0
    for time, change in events:
        speech += (time - before) * (speaking > 0)
        overlap += (time - before) * (speaking > 1)
        speaking, before = speaking + change, time
    return speech, overlap


def _open_reader(dataset: DatasetConfig, audio: AudioConfig) -> CorpusReader:
    if dataset.type == "recipe":
        from vaak.audio.corpora.lhotse_manifests import RecipeReader

        return RecipeReader(dataset, audio)
    if dataset.type == "cuts":
        from vaak.audio.corpora.lhotse_manifests import ManifestReader

        return ManifestReader(dataset)
    if dataset.type == "folder":
        from vaak.audio.corpora.folders import FolderReader

        return FolderReader(dataset)
    if dataset.type == "json":
        from vaak.audio.corpora.json_manifest import JsonReader

        return JsonReader(dataset)
    if dataset.type == "splits":
        from vaak.audio.corpora.json_manifest import SplitFolderReader

        return SplitFolderReader(dataset)
    if dataset.type in ("ljspeech", "voices"):
        return LJSpeechReader(dataset) if dataset.type == "ljspeech" else VoicesReader(dataset, audio)
    from vaak.audio.corpora.downloads import READERS

    return READERS[dataset.type](dataset, audio)


class VoicesReader(CorpusReader):
    """Sentences of synthesised voices; they depend on no files."""

    given = ("train",)

    def __init__(self, dataset: DatasetConfig, audio: AudioConfig) -> None:
        super().__init__(dataset)
        folder = Path(dataset.output_dir or Path(audio.output_dir or cache_folder()) / dataset.name)
        self.folder = folder.expanduser().absolute()
        self.files: list[Path] = []

    def read(self, split: str) -> Iterator[ReadRecording]:
        from vaak.audio.corpora.voices import voice_cuts

        number = self.dataset.num_voices * self.dataset.num_sentences
        for cut in track(voice_cuts(self.dataset, self.folder), "sentences of voices", number):
            yield ReadRecording(cut.id, cut)
