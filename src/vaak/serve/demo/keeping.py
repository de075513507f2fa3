"""Recordings that are kept with their texts, in a folder that ``vaak init`` and ``vaak train`` read.

    FOLDER/recordings.jsonl        a line for each: {"audio_filepath": "wavs/NAME.wav", "text": …, "duration": …}
    FOLDER/wavs/NAME.wav           16 bits, at the recording's own sampling rate, all channels mixed

The WAV file is whole on the disk before its line is; lines are added under a lock, by replacing the whole file. So
after a kill there may be a WAV file without a line, never a line without one, and nothing is overwritten.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaak.audio.audio_file import AudioFile, encode_wav, read_header
from vaak.core.errors import UserError
from vaak.core.storage.files import name_temporary, sync_directory, write_bytes
from vaak.core.storage.lock import locked

MANIFEST, WAVS, LOCK = "recordings.jsonl", "wavs", ".lock"
PATIENCE_SECONDS = 30.0


@dataclass(frozen=True)
class KeptRecordings:
    """A folder of recordings with texts."""

    folder: Path

    def add(self, recording: Path, text: str) -> Path:
        """Keep a recording with its transcript, and return its new file.

        Raises UserError for one that can't be read, and where it can't be written.
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
                path = self._write_new(content)
                about: dict[str, Any] = {"audio_filepath": f"{WAVS}/{path.name}", "text": text}
                about |= {"duration": round(len(samples) / header.sampling_rate, 4)}
                self._add_line(json.dumps(about, ensure_ascii=False))
        except OSError as error:
            raise UserError(f"{self.folder}: the recording can't be kept: {error.strerror or error}") from error
        return path

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

    def _add_line(self, line: str) -> None:
        manifest = self.folder / MANIFEST
        before = manifest.read_bytes() if manifest.exists() else b""
        if before and not before.endswith(b"\n"):
            before += b"\n"
        write_bytes(manifest, before + line.encode() + b"\n")
