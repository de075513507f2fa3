"""Recordings that are kept with their texts, in a folder that ``vaak init`` and ``vaak train`` read.

    FOLDER/recordings.jsonl        a line for each: {"audio_filepath": "wavs/NAME.wav", "text": …, "duration": …}
    FOLDER/wavs/NAME.wav           16 bits, at the recording's own sampling rate, all channels mixed

The WAV file is whole on the disk before its line is; lines are added under a lock, by replacing the whole file. So
after a kill there may be a WAV file without a line, never a line without one, and no recording is overwritten.

Whoever keeps a recording, sees a slip in its text and keeps it again has corrected it: of the same samples there is one
file and one line. Two, of which one is wrong, would be trained on, and might be on both sides of a split.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from vaak.audio.audio_file import AudioFile, encode_wav, read_header
from vaak.core.errors import UserError
from vaak.core.storage.files import name_temporary, sync_directory, write_bytes
from vaak.core.storage.lock import locked

MANIFEST, WAVS, LOCK = "recordings.jsonl", "wavs", ".lock"
PATIENCE_SECONDS = 30.0


class Kept(NamedTuple):
    """The file of a recording, and the text that it had ``before``; None if it wasn't kept yet."""

    path: Path
    before: str | None


@dataclass(frozen=True)
class KeptRecordings:
    """A folder of recordings with texts."""

    folder: Path

    def add(self, recording: Path, text: str) -> Kept:
        """Keep a recording with its transcript; one that is kept already gets this transcript.

        Raises UserError for one that can't be read, and if it can't be written.
        """
        text = " ".join(text.split())
        if not text:
            raise UserError("the recording has no transcript to be kept with: write one")
        header = read_header(recording)
        with AudioFile(recording, header.sampling_rate) as file:
            samples = file.read(0.0, file.duration)
        content = encode_wav(samples.clip(-1, 1), header.sampling_rate)
        try:
            (self.folder / WAVS).mkdir(parents=True, exist_ok=True)
            with locked(self.folder / LOCK, PATIENCE_SECONDS):
                path = self._find(content) or self._write_new(content)
                about: dict[str, Any] = {"audio_filepath": f"{WAVS}/{path.name}", "text": text}
                about |= {"duration": round(len(samples) / header.sampling_rate, 4)}
                before = self._write_line(about)
        except OSError as error:
            raise UserError(f"{self.folder}: the recording can't be kept: {error.strerror or error}") from error
        return Kept(path, before)

    def _find(self, content: bytes) -> Path | None:
        """Return the file that has this content."""
        alike = (one for one in (self.folder / WAVS).glob("*.wav") if one.stat().st_size == len(content))
        return next((one for one in sorted(alike) if one.read_bytes() == content), None)

    def _write_new(self, content: bytes) -> Path:
        """Write a WAV file under a name that no file has; ``link`` fails where one has it."""
        begun, number = time.strftime("%Y%m%d-%H%M%S"), 1
        made = name_temporary(self.folder / WAVS / f"{begun}.wav")
        try:
            write_bytes(made, content)
            while True:
                path = self.folder / WAVS / f"{begun}-{number:03d}.wav"
                try:
                    os.link(made, path)
                except FileExistsError:
                    number += 1
                    continue
                sync_directory(path.parent)
                return path
        finally:
            made.unlink(missing_ok=True)

    def _write_line(self, about: dict[str, Any]) -> str | None:
        """Write the line of a recording, in place of the one that it has, and return the text of that."""
        manifest = self.folder / MANIFEST
        lines = (manifest.read_bytes() if manifest.exists() else b"").split(b"\n")
        lines = lines if lines[-1] else lines[:-1]
        before = {number: text for number, line in enumerate(lines) if (text := _read_text(line, about)) is not None}
        number, text = max(before.items(), default=(len(lines), None))
        if text != about["text"]:
            lines[number : number + 1] = [json.dumps(about, ensure_ascii=False).encode()]
            write_bytes(manifest, b"\n".join(lines) + b"\n")
        return text


def _read_text(line: bytes, about: dict[str, Any]) -> str | None:
    """Return the text of a line, if it is that of the same file."""
    with contextlib.suppress(ValueError):
        found = json.loads(line)
        if isinstance(found, dict) and found.get("audio_filepath") == about["audio_filepath"]:
            return str(found.get("text"))
    return None
