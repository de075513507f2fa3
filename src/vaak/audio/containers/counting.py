"""How much audio a file holds, counted without decoding it, and how much its header says.

==========================  ==========================================================================
WAV, RF64, W64, AIFF, AU    the bytes of samples up to the end of the file (``containers.pcm``)
MP3, MP2                    its frames, one after another; a Xing, Info or VBRI frame is only compared
FLAC                        the number in the header of the last frame, at the end of the file
Ogg Opus, Ogg Vorbis        the position on the last page; Opus is shifted to begin at 0
other formats               libsndfile or FFmpeg
==========================  ==========================================================================

Where a header is wrong, libsndfile reads the file with another one in its place (``pieces``): nothing is written.
A count is kept for a file as long as its size and its time of change are the same, so training counts once.
"""

from __future__ import annotations

import functools
from pathlib import Path

from vaak.audio.containers import flac, mpeg, ogg, pcm
from vaak.audio.containers.contents import Contents, open_bytes
from vaak.audio.embedded import Part
from vaak.core.errors import DataError

HEAD = 64
"""Bytes that tell formats apart."""


def count_contents(path: Path | Part) -> Contents:
    """Count the samples of a file. Raises DataError for one that can't be read, is empty, or lacks its last page."""
    file = path if isinstance(path, Path) else path.path
    try:
        stamp = file.stat()
        return _count_contents(path, stamp.st_size, stamp.st_mtime_ns)
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror}") from error


@functools.lru_cache(2**16)
def _count_contents(path: Path | Part, size: int, changed: int) -> Contents:
    with open_bytes(path) as file:
        head = file.read(HEAD)
        if not head:
            raise DataError(f"{path}: the file is empty (0 bytes); download it again or remove it")
        if head[:4] == b"OggS":
            return ogg.count_pages(file, path)
        if head[:4] == b"fLaC":
            return flac.count_frames(file)
        if (found := pcm.count_bytes(file, head)) is not None:
            return found
        # By content first; the ending counts only for MP3, whose first frame may come after junk.
        if mpeg.may_begin(head) or file_name(path).endswith((".mp3", ".mp2", ".mpga")):
            return mpeg.count_frames(file)
        return Contents()


def file_name(path: Path | Part) -> str:
    """Return the name of the file, in lower case; empty for a part of a file."""
    return path.name.lower() if isinstance(path, Path) else ""
