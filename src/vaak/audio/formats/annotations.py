"""Annotations of the recordings of a folder, in RTTM, UEM, CTM and TextGrid files.

An annotation belongs to a recording with the name of the audio file, or its name up to the first dot, as
``ES2002a`` of ``ES2002a.Mix-Headset.wav``. If several files match, the one with exactly this name is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from vaak.audio.formats.alignments import checked, kind_of_tier
from vaak.audio.formats.ctm import Word, read_ctm
from vaak.audio.formats.rttm import read_rttm
from vaak.audio.formats.textgrid import Interval, read_textgrid
from vaak.audio.formats.uem import read_uem
from vaak.audio.labelled import Segment
from vaak.audio.segments import merged
from vaak.audio.waveforms.reading import NO_TIMES
from vaak.audio.waveforms.recordings import OVERLAPPING, Labelled, Times, aligned, times_of
from vaak.core.errors import DataError


def _read_textgrid(path: Path) -> dict[str, Any]:
    return {path.stem: read_textgrid(path, keep_empty=True)}


READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".rttm": read_rttm,
    ".uem": read_uem,
    ".ctm": read_ctm,
    ".textgrid": _read_textgrid,
}


class Annotations:
    """The contents of the files, by kind and name of recording."""

    def __init__(self, files: Iterable[Path]) -> None:
        """Read the files. Raises DataError with file and line."""
        self._said: dict[str, dict[str, dict[Path, Any]]] = {kind: {} for kind in READERS}
        self._silent: set[str] = set()
        for path in files:
            kind = path.suffix.lower()
            said = READERS[kind](path)
            for name, annotation in said.items():
                self._said[kind].setdefault(name, {})[path] = annotation
            if kind == ".rttm" and not said:
                self._silent.add(path.stem)

    def name_of(self, audio: Path) -> str:
        """The recording's name in the annotations; its own name if there are none."""
        for name in names_of(audio):
            if name in self._silent or any(name in said for said in self._said.values()):
                return name
        return audio.stem

    def labels_of(self, name: str) -> tuple[list[Labelled] | None, list[str]]:
        """Who speaks when, by RTTM or by the tiers of a TextGrid, and remarks; None if there is neither.

        A TextGrid with nothing but words and phones of one speaker is an utterance.
        """
        segments: list[Segment] | None = self._of(".rttm", name)
        tiers: dict[str, list[Interval]] = self._of(".textgrid", name) or {}
        remarks: list[str] = []
        if segments is None and name in self._silent:
            segments = []
        if segments is not None:
            joined = merged(segments)
            remarks = [OVERLAPPING] if len(joined) < sum(one.end > one.start for one in segments) else []
            labels = [Labelled(segment) for segment in joined]
        else:
            labels = [
                Labelled(Segment(start, end, tier), text)
                for tier, intervals in tiers.items()
                if kind_of_tier(tier) is None
                for start, end, text in intervals
                if start < end and text
            ]
            if not labels:
                return _utterance(tiers, name), []
        return list(aligned(sorted(labels, key=lambda one: one.segment), self._words_of(name, tiers))), remarks

    def uem_of(self, name: str) -> list[tuple[float, float]] | None:
        """The scored regions; None without a UEM."""
        parts: list[tuple[float, float]] | None = self._of(".uem", name)
        return parts

    def without_audio(self, names: Iterable[str]) -> list[str]:
        """Recordings of RTTM files that aren't among ``names``."""
        return sorted(set(self._said[".rttm"]) - set(names))

    def _words_of(self, name: str, tiers: dict[str, list[Interval]]) -> list[tuple[str, str | None, Times]]:
        """Kind, speaker (None is anyone) and times of what is aligned."""
        words: list[Word] = self._of(".ctm", name) or []
        found: list[tuple[str, str | None, Times]] = [("word", None, (w.text, w.start, w.end)) for w in words]
        for tier, intervals in tiers.items():
            kind = kind_of_tier(tier)
            if kind is not None:
                speaker = tier.rpartition(" - ")[0] or None
                found += [(kind, speaker, (text, start, end)) for start, end, text in intervals if text]
        return found

    def _of(self, kind: str, name: str) -> Any:
        found = self._said[kind].get(name, {})
        own = [path for path in found if path.stem == name] or list(found)
        if len(own) > 1:
            raise DataError(f"{own[1]}: recording {name} is also in {own[0]}; keep it in one of them")
        return found[own[0]] if own else None


def names_of(audio: Path) -> Iterator[str]:
    """The possible names of its recording."""
    yield audio.stem
    yield audio.name.partition(".")[0]


def _utterance(tiers: dict[str, list[Interval]], name: str) -> list[Labelled] | None:
    """All of a recording as what one speaker says, with its pauses; None if nothing is aligned, or several speak."""
    own = {str(kind_of_tier(tier)): intervals for tier, intervals in tiers.items() if kind_of_tier(tier) is not None}
    speakers = {tier.rpartition(" - ")[0] for tier in tiers if kind_of_tier(tier) is not None}
    end = max((interval.end for intervals in own.values() for interval in intervals), default=0.0)
    if len(speakers) != 1 or not end:
        return None
    whole = Labelled(Segment(0.0, end, *speakers), custom={NO_TIMES: True})
    return list(aligned([whole], times_of(checked(own, name))))
