"""Many audio files: the names of their recordings, who speaks when in each of them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from vaak.audio.config import AudioConfig
from vaak.core.errors import UserError
from vaak.core.progress import followed
from vaak.tasks.diarization.predict import Diarized, Diarizer

NO_FIELD = re.compile(r"[\s\x00-\x1f\x7f]+")
"""What a field of an RTTM line can't hold."""


def recording_names(files: Collection[Path], known: Collection[str] = ()) -> dict[Path, str]:
    """A unique name for each file that is valid in RTTM.

    It is the file's name without its ending, blanks replaced; or its part before the first dot, where that is ``known``
    (``ES2002a`` of ``ES2002a.Mix-Headset.wav``). Files of one name in several folders have their folders before it.
    """
    names = {path: _name(path, known) for path in files}
    for shared, number in Counter(names.values()).items():
        if number > 1:
            names |= _by_folder([path for path in files if names[path] == shared])
    taken: Counter[str] = Counter()
    for path, name in names.items():
        while taken[names[path].casefold()]:  # not every disk tells A from a
            taken[name.casefold()] += 1
            names[path] = f"{name}-{taken[name.casefold()]}"
        taken[names[path].casefold()] += 1
    return names


def _name(path: Path, known: Collection[str]) -> str:
    names = [_as_field(path.stem), _as_field(path.name.partition(".")[0])]
    return next((name for name in names if name in known), names[0])


def _by_folder(files: Collection[Path]) -> dict[Path, str]:
    """Names that begin with the folders in which the files differ."""
    root = os.path.commonpath([path.absolute().parent for path in files])
    parts = {path: path.absolute().relative_to(root).with_suffix("").parts for path in files}
    return {path: _as_field("-".join(folders)) for path, folders in parts.items()}


def _as_field(text: str) -> str:
    """The text as a field of RTTM.

    >>> _as_field("board meeting 3"), _as_field("; draft"), _as_field("<NA>")
    ('board_meeting_3', '_;_draft', '_<NA>')
    """
    text = NO_FIELD.sub("_", text.encode(errors="replace").decode())
    return f"_{text}" if text[:1] in ("", ";", "\ufeff") or text == "<NA>" else text


def diarize_files(
    diarizer: Diarizer, names: dict[Path, str], audio: AudioConfig
) -> Iterator[tuple[Path, Diarized | UserError]]:
    """Who speaks when in each file, under its name; or the error."""
    for path, name in followed(names.items(), "recordings", len(names)):
        try:
            yield path, replace(diarizer.diarize_file(path, audio), name=name)
        except UserError as error:
            yield path, error
