r"""The cuts of a split on disk: random access, none in memory.

FOLDER/
  cuts.jsonl           one line per cut, as Lhotse writes it (vaak.core.storage.mapped_lines)
  durations.bin        float64, seconds
  speaker_numbers.bin  int32: whose cut it is, a place in the list of speakers; -1 if there is none or several
  parts.bin            float64, rows of (cut, start, end): the scored regions of cuts that have a UEM
  store.json           the speakers and the fingerprint, and that labels without times say so; written last: it means
                       "complete"
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vaak.audio.cuts.reading import NO_TIMES, get_file, lacks_times, lhotse_object, read_segments, read_uem
from vaak.core.artifact import Artifact, suggest_remedy
from vaak.core.errors import DataError
from vaak.core.storage.files import sync_file
from vaak.core.storage.mapped_lines import MappedLines, cut_short, mapped, writing_lines

if TYPE_CHECKING:
    from lhotse.cut import Cut

CUTS, STORE_FILE = "cuts.jsonl", "store.json"
ARRAYS = {"durations": "<f8", "speaker_numbers": "<i4", "parts": "<f8"}


class CutStore:
    """The cuts of a folder: ``store[i]`` is one, and iterating gives all of them in order.

    Pickles as its path, so workers map the same pages of memory instead of copying them.
    """

    def __init__(self, folder: str | Path) -> None:
        """Map the cuts in ``folder``.

        Raises DataError if there are none, or they are truncated; FormatError if another version wrote them.
        """
        self.folder = Path(folder)
        about = _artifact_in(self.folder).read()
        try:
            arrays = {name: mapped(self.folder / f"{name}.bin", kind) for name, kind in ARRAYS.items()}
        except OSError as error:
            raise DataError(f"{error.filename}: {error.strerror}; {suggest_remedy(error)}") from error
        except ValueError as error:
            # It isn't a whole number of values.
            raise cut_short(self.folder) from error
        self._lines, self.durations = MappedLines(self.folder / CUTS, "cut"), arrays["durations"]
        self.speaker_numbers, self.parts = arrays["speaker_numbers"], arrays["parts"].reshape(-1, 3)
        self.speakers: tuple[str, ...] = tuple(about["speakers"])
        self.fingerprint: str = about["fingerprint"]
        self._says_no_times = bool(about.get(NO_TIMES))
        if len({len(self._lines), len(self.durations), len(self.speaker_numbers)}) > 1:
            raise cut_short(self.folder)

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> Cut:
        cut: Cut = lhotse_object(json.loads(self._lines[index]), f"{self.folder / CUTS}:{index + 1}")
        return cut

    def __iter__(self) -> Iterator[Cut]:
        return map(self.__getitem__, range(len(self)))

    def describe(self, index: int) -> str:
        """Return the cut's name and file, for messages."""
        cut = self[index]
        return f"{cut.id} ({get_file(cut)})"

    def lacks_times(self, cut: Cut) -> bool:
        """Return whether it is known who speaks in the cut, but not when.

        Raises DataError if a store of an earlier version doesn't tell: its labels don't say so.
        """
        if not self._says_no_times and len(cut.supervisions) == 1:
            raise DataError(
                f"{self.folder}: an earlier version prepared this, and guessed which labels have times; delete "
                f"{self.folder.resolve().parent.parent}, and it is prepared again"
            )
        return lacks_times(cut)

    def __reduce__(self) -> tuple[Any, ...]:
        return CutStore, (self.folder,)


def _artifact_in(folder: Path) -> Artifact:
    return Artifact(folder, STORE_FILE, "cuts", keys={"fingerprint": str, "speakers": list})


def write_cuts(folder: Path, cuts: Iterable[Cut]) -> CutStore:
    """Stream ``cuts`` to ``folder`` and return the store; an existing one is replaced.

    If this ends early, no store is left. Raises DataError for a cut that can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Remove the marker first: from here to the end, even after a crash, the folder isn't a store.
    (folder / STORE_FILE).unlink(missing_ok=True)
    numbers: dict[str, int] = {}
    digest = hashlib.blake2b(digest_size=8)
    paths = {name: folder / f"{name}.bin" for name in ARRAYS}
    with writing_lines(folder / CUTS) as lines, contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(open(path, "wb")) for name, path in paths.items()}
        for index, cut in enumerate(cuts):
            line = _to_line(cut)
            digest.update(line)
            lines.write(line)
            speakers = {segment.speaker for segment in read_segments(cut)}
            own = [numbers.setdefault(speaker, len(numbers)) for speaker in sorted(speakers)]
            parts = [(index, start, end) for start, end in read_uem(cut) or ()]
            row = {"durations": cut.duration, "speaker_numbers": own[0] if len(own) == 1 else -1}
            for name, value in {**row, "parts": parts}.items():
                files[name].write(np.asarray(value, ARRAYS[name]).tobytes())
    names = sorted(numbers)
    # Speakers were numbered in order of appearance; now they get their places in the sorted list. Index -1 (nobody, or
    # several) picks the table's last entry, which is -1 again.
    if paths["speaker_numbers"].stat().st_size:
        places = {numbers[name]: place for place, name in enumerate(names)}
        stored = np.memmap(paths["speaker_numbers"], ARRAYS["speaker_numbers"], mode="r+")
        stored[:] = np.array([places[number] for number in range(len(places))] + [-1], stored.dtype)[stored]
        stored.flush()
    # The data must be on disk before the marker is.
    for path in paths.values():
        sync_file(path)
    about = {"fingerprint": digest.hexdigest(), "speakers": names, NO_TIMES: True}
    _artifact_in(folder).finish(about, with_sizes=False)
    return CutStore(folder)


def _to_line(cut: Any) -> bytes:
    """The cut as a line of JSON. Raises DataError if that is impossible: samples in memory, a duration of NaN."""
    if not (math.isfinite(cut.duration) and cut.duration > 0):
        raise DataError(f"cut {cut.id}: its duration is {cut.duration} s; remove it")
    try:
        return json.dumps(cut.to_dict(), ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise DataError(f"cut {cut.id}: it can't be written as JSON: {error}") from error
