"""Alignments in a folder of their own, such as an aligner writes: files named after utterances or recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vaak.audio.config import DatasetConfig
from vaak.audio.formats.alignments import ENDINGS, alignments_of_ctm, read_alignment
from vaak.audio.labelled import Alignment, Segment
from vaak.audio.segments import window_of
from vaak.audio.waveforms.reading import NO_TIMES
from vaak.audio.waveforms.recordings import Labelled, aligned, alignment_items, label, times_of
from vaak.core.errors import DataError


class AlignmentFolder:
    """The files below a folder, by name; ``files`` are all of them."""

    def __init__(self, dataset: DatasetConfig) -> None:
        """Look up the files of ``dataset.alignments``. Raises DataError if there are none, or two of one name."""
        assert dataset.alignments is not None
        self.folder = Path(dataset.alignments).expanduser()
        where = f"datasets, {dataset.name}, alignments"
        if not self.folder.is_dir():
            raise DataError(f"{where}: no such folder: {self.folder}")
        self.files = sorted(path for path in self.folder.rglob("*") if path.suffix.lower() in ENDINGS)
        if not self.files:
            raise DataError(f"{where}: no files in {self.folder} end with .TextGrid, .ctm or .json")
        self._paths: dict[str, Path] = {}
        self._words: dict[str, Alignment] = {}
        for path in self.files:
            words = alignments_of_ctm(path) if path.suffix.lower() == ".ctm" else {}
            for name in words or (path.stem,):
                if name in self._paths:
                    raise DataError(f"{path}: {name} is also in {self._paths[name]}; keep one of them")
                self._paths[name] = path
            self._words |= words

    def attach(self, cut: Any) -> bool:
        """Give a cut's labels what is aligned in them, in place of what they had; whether there was a file of it.

        A file is named after the cut, or after its recording: then its times count from the recording's start.
        """
        if hasattr(cut, "tracks"):
            return False
        name = cut.id if cut.id in self._paths else cut.recording_id
        if name not in self._paths:
            return False
        alignment = self._words[name] if name in self._words else read_alignment(self._paths[name])
        if name != cut.id and cut.start > 0:
            alignment = window_of(alignment, cut.start, cut.end)
        if not cut.supervisions:
            label(cut, [Labelled(Segment(0.0, cut.duration, ""), custom={NO_TIMES: True})])
        alone = len(cut.supervisions) == 1
        for one in cut.supervisions:
            segment = Segment(0.0, float("inf"), "") if alone else Segment(one.start, one.end, "")
            [found] = aligned([Labelled(segment, one.text)], times_of(alignment))
            one.text, one.alignment = found.text, alignment_items(found.alignment)
        return True
