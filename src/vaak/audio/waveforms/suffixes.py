"""Which files in a folder are audio, by their suffixes: those that are read, and those that have to be converted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from vaak.core.errors import DataError, UserError

log = logging.getLogger("vaak")

AUDIO = frozenset({".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif", ".au", ".sph", ".w64", ".caf"})
"""What libsndfile reads."""
NOT_READ = frozenset(
    {".m4a", ".m4b", ".aac", ".mp4", ".3gp", ".amr", ".wma", ".webm", ".mka", ".weba", ".ac3", ".ape", ".wv", ".tta"}
)
"""Audio, sometimes with pictures, for which libsndfile has no decoder."""


def is_audio(path: Path) -> bool:
    """Whether the suffix is that of a format that is read."""
    return path.suffix.lower() in AUDIO


def not_read(files: Iterable[Path]) -> list[Path]:
    """The files of formats that aren't read, without those that were converted to a file next to them."""
    files = list(files)
    converted = {path.with_suffix("") for path in files if is_audio(path)}
    return [path for path in files if path.suffix.lower() in NOT_READ and path.with_suffix("") not in converted]


def why_not(skipped: Iterable[Path]) -> dict[Path, str]:
    """For each file that isn't read, the reason and what to do; the same for all files of a format.

    >>> list(why_not([Path("b.m4a"), Path("a.m4a")]).values())[0]
    "audio files in a format that can't be read (.m4a); convert them, such as: ffmpeg -i a.m4a a.flac"
    """
    paths = sorted(skipped)
    first: dict[str, Path] = {}
    for path in paths:
        first.setdefault(path.suffix.lower(), path)
    reasons = {
        kind: f"audio files in a format that can't be read ({kind}); convert them, such as: ffmpeg -i {path} "
        f"{path.with_suffix('.flac')}"
        for kind, path in first.items()
    }
    return {path: reasons[path.suffix.lower()] for path in paths}


def in_words(skipped: Iterable[Path]) -> str:
    """How many files aren't read, for each reason."""
    return "; ".join(f"{number:,} {reason}" for reason, number in Counter(why_not(skipped).values()).items())


def audio_files(paths: Iterable[Path]) -> tuple[list[Path], dict[Path, UserError]]:
    """The files, and those in folders, searched recursively, each once; and the folders without any.

    A file that is named may have any extension; in a folder, the extension tells which files are audio. Audio of
    formats that can't be read is reported.
    """
    found: dict[Path, Path] = {}
    without: dict[Path, UserError] = {}
    for path in paths:
        inside = _in_folder(path) if path.is_dir() else []
        files = [file for file in inside if is_audio(file)] if path.is_dir() else [path]
        found |= {file.resolve(): file for file in files if file.resolve() not in found}
        others = in_words(not_read(inside))
        if not files:
            formats = " ".join(sorted(AUDIO))
            without[path] = DataError(f"{path}: no audio in this folder ({formats}){others and '; there are '}{others}")
        elif others:
            log.warning("%s: skipped %s", path, others)
    return list(found.values()), without


def _in_folder(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if not path.name.startswith(".") and path.is_file())
