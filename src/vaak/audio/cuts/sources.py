"""Sources of examples: the cuts of a store, windows of long recordings, or several sources as one.

Windows begin at a frame of the features of the whole recording, so that stored features can be used for them.

Samples are cached, up to ``cache_gigabytes`` (``BoundedCache``). Windows that begin at different places each time
are never read twice, so they are cached only if the whole split fits: then whole recordings are, and windows are cut
from them.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vaak.audio.audio_file import samples_in
from vaak.audio.config import AudioConfig, to_samples
from vaak.audio.cuts.reading import get_language, get_text, merge_alignments, read_samples, read_segments, read_uem
from vaak.audio.cuts.store import CutStore
from vaak.audio.embedded import find_bytes, place_of_source
from vaak.audio.segments import Alignment, AudioSource, LabelledAudio, Segment, cropped, cut_window, words_within
from vaak.audio.speech_regions import find_speech
from vaak.core.storage.files import compute_fingerprint

if TYPE_CHECKING:
    from lhotse.cut import Cut

KEPT_LABELS = 256
"""Cuts whose segments are kept: to parse a meeting of an hour takes longer than to read a window of it."""
BYTES_PER_SAMPLE = 4


class CutSpan(NamedTuple):
    """A section of a cut: samples ``first`` to ``last``, counted at the features' rate."""

    cut: int
    first: int
    last: int


class CutLabels(NamedTuple):
    """The labels of a section, without its audio; times in seconds from its start."""

    name: str
    segments: tuple[Segment, ...]
    text: str | None = None
    uem: tuple[tuple[float, float], ...] | None = None
    language: str | None = None
    alignment: Alignment | None = None


class Labels(NamedTuple):
    """A cut without its supervisions, and what they say."""

    cut: Cut
    spoken: CutLabels
    lack_times: bool


class CutSource:
    """Whole cuts (``vaak.audio.segments.AudioSource``)."""

    def __init__(self, store: CutStore, audio: AudioConfig, *, find_speech: bool = False) -> None:
        """With ``find_speech``, the segment of a cut without times of speech is cut at its pauses."""
        self.store, self.audio, self.finds_speech = store, audio, find_speech
        self.durations, self.speakers = store.durations, store.speakers
        self.fingerprint = compute_fingerprint([store.fingerprint, audio.sampling_rate, audio.channels, find_speech])
        self._cache = BoundedCache(audio.cache_gigabytes * 2**30)

    def place(self, index: int, rng: np.random.Generator) -> CutSpan:
        """Return all of cut ``index``; nothing is drawn."""
        return CutSpan(index, 0, samples_in(self.durations[index], self.audio.sampling_rate))

    def hides_pauses(self, cut: int) -> bool:
        """Return whether the labels only say that there is speech, and pauses must be found."""
        return self.finds_speech and self.store.lacks_times(self.store[cut])

    def spoken(self, place: CutSpan) -> CutLabels:
        """Return the labels of a cut."""
        return read_labels(self.store, place.cut).spoken

    def at(self, place: CutSpan) -> LabelledAudio:
        """Return a cut, read."""
        labels = read_labels(self.store, place.cut)
        samples = self._cache.get(place.cut, lambda: read_samples(labels.cut, self.audio))
        found = labelled(samples, self.audio.sampling_rate, labels.spoken)
        return at_its_pauses(found) if labels.lack_times and self.finds_speech else found

    def load(self, index: int, rng: np.random.Generator) -> LabelledAudio:
        """Cut ``index``; nothing is drawn."""
        return self.at(self.place(index, rng))

    def describe(self, index: int) -> str:
        return self.store.describe(index)

    def list_bytes(self, indices: Sequence[int]) -> Iterator[tuple[Path, int, int]]:
        """Yield the file sections of these cuts."""
        return list_bytes(self.store, indices)


def list_bytes(store: CutStore, cuts: Iterable[int]) -> Iterator[tuple[Path, int, int]]:
    """Yield the files that cuts are read from, each with its first byte and number of bytes (``Dataset.list_bytes``).

    A section's place within a file is estimated as if all seconds took as many bytes.
    """
    for index in cuts:
        cut: Any = store[index]
        recording: Any = getattr(cut, "recording", None)
        for source in () if recording is None else recording.sources:
            path, first, size = find_bytes(place_of_source(source.type, source.source))
            begin, end = (int(size * min(seconds / recording.duration, 1)) for seconds in (cut.start, cut.end))
            yield path, first + begin, end - begin


class WindowSource:
    """Windows of the cuts, within the scored regions (UEM); a cut without any segment in a window is silence there.

    Window ``k`` of a part begins at ``k * window``; the last one ends with the part, shorter than the others. With
    ``shift``, each begins up to half a window earlier or later, at random each time, and the last is as long as the
    others if its part is long enough.
    """

    def __init__(
        self,
        store: CutStore,
        audio: AudioConfig,
        window: float,
        shift: bool,
        *,
        find_speech: bool = False,
        alignments: bool = True,
    ) -> None:
        """``window`` in seconds; with ``find_speech``, windows of a cut without times are cut at their pauses.

        ``store`` has the cuts; ``audio`` says how they are read. ``alignments`` of many meetings take memory: megabytes
        each, for those whose labels are kept.
        """
        self.store, self.audio, self.window, self.shift, self.finds_speech = store, audio, window, shift, find_speech
        self.has_alignments = alignments
        self.speakers = store.speakers
        options = [audio.sampling_rate, audio.frame_shift, audio.channels, window, shift, find_speech]
        self.fingerprint = compute_fingerprint([store.fingerprint, *options])
        self.cuts, self.parts, self.starts = plan_windows(store, window)
        lengths = self.parts[:, 1] - (self.parts[:, 0] if shift else self.starts)
        self.durations = np.floor(np.minimum(lengths, window) * audio.sampling_rate + 0.5) / audio.sampling_rate
        cache_bytes = audio.cache_gigabytes * 2**30
        self._cache = BoundedCache(cache_bytes)
        # Cache whole recordings only if all fit: otherwise random order evicts each before its next window.
        self.all_fit = store.durations.sum() * audio.sampling_rate * BYTES_PER_SAMPLE <= cache_bytes
        self._labels = functools.lru_cache(KEPT_LABELS)(lambda cut: read_labels(store, cut, alignments))

    def place(self, index: int, rng: np.random.Generator) -> CutSpan:
        """Return the position of window ``index``, shifted by ``rng``."""
        rate, length = self.audio.sampling_rate, samples_in(self.durations[index], self.audio.sampling_rate)
        begin, end = (samples_in(seconds, rate) for seconds in self.parts[index])
        first = samples_in(self.starts[index], rate)
        step = to_samples(self.audio.frame_shift, rate)
        if self.shift:
            half = samples_in(self.window, rate) // 2
            first = min(first + int(rng.integers(-half, half + 1)), end - length)
            # Windows begin at whole frames, like stored features: round down, or up where that would leave the part.
            first -= first % step
        first = max(first, begin)
        first += -first % step
        if first >= end:
            # Less than a frame is left.
            first -= step
        return CutSpan(int(self.cuts[index]), first, min(first + length, end))

    def hides_pauses(self, cut: int) -> bool:
        """Return whether the labels only say that there is speech, and pauses must be found."""
        return self.finds_speech and self._labels(cut).lack_times

    def spoken(self, place: CutSpan) -> CutLabels:
        """Return the labels of a window.

        A word or phone at its edge is cropped. The text is that of the words whose middle is in the window; without
        their times, it is known of whole cuts only.
        """
        rate, (cut, labels, _) = self.audio.sampling_rate, self._labels(place.cut)
        start, end = place.first / rate, place.last / rate
        inside = tuple(
            Segment(round(begun - start, 9), round(ended - start, 9), speaker)
            for begun, ended, speaker in cropped(labels.segments, start, end)
        )
        text, alignment = labels.text, labels.alignment
        if place.first > 0 or place.last < samples_in(cut.duration, rate):
            # Without word times, the text belongs to the whole cut: a part of it has none.
            text = words_within(alignment["word"], start, end) if alignment and "word" in alignment else None
        cropped_alignment = None if alignment is None else cut_window(alignment, start, end)
        return CutLabels(f"{cut.id}@{start:.3f}", inside, text, None, labels.language, cropped_alignment)

    def at(self, place: CutSpan) -> LabelledAudio:
        """Return a window, read."""
        cut = self._labels(place.cut).cut
        if self.all_fit:
            samples = self._cache.get(place.cut, lambda: read_samples(cut, self.audio))[place.first : place.last]
        else:
            samples = read_samples(cut, self.audio, place.first, place.last)
        found = labelled(samples, self.audio.sampling_rate, self.spoken(place))
        return at_its_pauses(found) if self.hides_pauses(place.cut) else found

    def load(self, index: int, rng: np.random.Generator) -> LabelledAudio:
        """Window ``index``, shifted by ``rng``."""
        return self.at(self.place(index, rng))

    def describe(self, index: int) -> str:
        return f"{self.store.describe(int(self.cuts[index]))}, {self.starts[index]:.2f} s"

    def list_bytes(self, indices: Sequence[int]) -> Iterator[tuple[Path, int, int]]:
        """Yield the file sections of the whole cuts of these windows."""
        return list_bytes(self.store, sorted({int(self.cuts[index]) for index in indices}))

    def __reduce__(self) -> tuple[Any, ...]:
        make = functools.partial(WindowSource, find_speech=self.finds_speech, alignments=self.has_alignments)
        return make, (self.store, self.audio, self.window, self.shift)


def plan_windows(store: CutStore, window: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each window the number of its cut, its part ``(start, end)`` of it, and where it starts in the cut."""
    has_parts = np.zeros(len(store), bool)
    has_parts[store.parts[:, 0].astype(np.int64)] = True
    whole = np.flatnonzero(~has_parts)
    cuts = np.concatenate([whole, store.parts[:, 0].astype(np.int64)])
    parts = np.zeros((len(cuts), 2))
    parts[: len(whole), 1] = store.durations[whole]
    parts[len(whole) :] = store.parts[:, 1:]
    order = np.lexsort((parts[:, 0], cuts))
    cuts, parts = cuts[order], parts[order]
    # A millisecond more than a whole number of windows is rounding, not another window.
    numbers = np.maximum(np.ceil((parts[:, 1] - parts[:, 0] - 1e-3) / window), 1).astype(np.int64)
    rows = np.repeat(np.arange(len(cuts)), numbers)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(numbers) - numbers, numbers)
    return cuts[rows], parts[rows], parts[rows, 0] + place * window


def read_labels(store: CutStore, index: int, alignments: bool = True) -> Labels:
    """Return a cut's labels, with or without ``alignments``, separated from its audio."""
    cut = store[index]
    alignment = merge_alignments(cut) if alignments else None
    spoken = CutLabels(cut.id, read_segments(cut), get_text(cut), read_uem(cut), get_language(cut), alignment)
    return Labels(cut.drop_supervisions(), spoken, store.lacks_times(cut))


def labelled(samples: np.ndarray, sampling_rate: int, spoken: CutLabels) -> LabelledAudio:
    """Samples ``(time,)`` with what is known about them."""
    name, segments, text, uem, language, alignment = spoken
    return LabelledAudio(name, samples, sampling_rate, segments, text, uem, language, alignment)


def at_its_pauses(audio: LabelledAudio) -> LabelledAudio:
    """Return the audio with its one segment cut at its pauses; silence is unchanged."""
    if not audio.segments:
        return audio
    speaker = audio.segments[0].speaker
    found = tuple(Segment(*region, speaker) for region in find_speech(audio.samples, audio.sampling_rate))
    return replace(audio, segments=found)


class BoundedCache:
    """Keeps arrays by key; the least recently used are removed first, and one larger than the limit is never kept.

    Arrays are read-only, cached or not, so that a cache changes no result. Pickles empty: each process has its own.
    """

    def __init__(self, max_bytes: float) -> None:
        self.max_bytes = int(max_bytes)
        self.num_bytes = 0
        self.arrays: OrderedDict[Hashable, np.ndarray] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the array of ``key``, made if it isn't cached; the result of ``make`` then belongs to the cache."""
        if key in self.arrays:
            self.arrays.move_to_end(key)
            return self.arrays[key]
        array = make()
        # A view would keep its whole base in memory, uncounted.
        if array.base is not None:
            array = array.copy()
        array.flags.writeable = False
        if array.nbytes <= self.max_bytes:
            while self.num_bytes + array.nbytes > self.max_bytes:
                self.num_bytes -= self.arrays.popitem(last=False)[1].nbytes
            self.arrays[key] = array
            self.num_bytes += array.nbytes
        return array

    def __len__(self) -> int:
        return len(self.arrays)

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundedCache, (self.max_bytes,)


class UtteranceSources:
    """The examples of each source, one source after another (``vaak.audio.segments.AudioSource``)."""

    def __init__(self, sources: Sequence[AudioSource]) -> None:
        self.sources = list(sources)
        self.durations = np.concatenate([source.durations for source in sources])
        self.speakers = tuple(sorted({name for source in sources for name in source.speakers}))
        self.fingerprint = compute_fingerprint([source.fingerprint for source in sources])
        self._starts = np.cumsum([0, *(len(source.durations) for source in sources)])

    def load(self, index: int, rng: np.random.Generator) -> LabelledAudio:
        source, within = self.find(index)
        return source.load(within, rng)

    def describe(self, index: int) -> str:
        source, within = self.find(index)
        return source.describe(within)

    def find(self, index: int) -> tuple[AudioSource, int]:
        """Whose example it is, and its index there."""
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self.sources[number], index - int(self._starts[number])
