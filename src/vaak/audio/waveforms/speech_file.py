"""Audio files of speech, written sentence by sentence: however long a text is, only one sentence is in memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vaak.core.errors import UserError, optional_import
from vaak.core.storage.files import sync_directory, sync_file

FORMATS = {".wav": "WAV", ".flac": "FLAC"}


class SpeechFile:
    """A file that audio is appended to, with ``pause`` seconds between its parts."""

    def __init__(self, file: Any, sampling_rate: int, pause: float) -> None:
        self._file, self.sampling_rate, self.pause = file, sampling_rate, pause
        self.num_samples = 0

    @property
    def duration(self) -> float:
        """Seconds so far."""
        return self.num_samples / self.sampling_rate

    def append(self, samples: np.ndarray) -> None:
        """Add samples ``(time,)`` within ±1."""
        if self.num_samples:
            self._write(np.zeros(round(self.pause * self.sampling_rate), np.float32))
        self._write(samples)

    def _write(self, samples: np.ndarray) -> None:
        self._file.write(samples)
        self.num_samples += len(samples)


@contextlib.contextmanager
def speech_file(path: Path, sampling_rate: int, pause: float) -> Iterator[SpeechFile]:
    """A file at ``path``, 16 bits; it is there when all of it is, or not at all.

    Raises UserError for one that can't be written, or that isn't called .wav or .flac.
    """
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"{path}: expected a file that ends in {' or '.join(FORMATS)}")
    with optional_import("audio files require soundfile", "audio"):
        import soundfile
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        file = soundfile.SoundFile(temporary, "w", sampling_rate, 1, "PCM_16", format=FORMATS[path.suffix.lower()])
        with file:
            yield SpeechFile(file, sampling_rate, pause)
        sync_file(temporary)
        os.replace(temporary, path)
        sync_directory(path.parent)
    except (OSError, soundfile.LibsndfileError) as error:
        raise UserError(f"{path} can't be written: {getattr(error, 'strerror', None) or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
