"""Recordings made of noise, as a source of audio: importable, so that other processes can be given one."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

from vaak.audio.config import AudioConfig
from vaak.audio.features import store as feature_store
from vaak.audio.segments import LabelledAudio
from vaak.core.errors import DataError


class ToyRecordings:
    """Recordings with these numbers of samples. ``deadly`` kills the process that loads it; ``loaded`` lists those."""

    speakers: tuple[str, ...] = ()

    def __init__(self, lengths: list[int], *, deadly: int | None = None, fingerprint: str = "toy") -> None:
        self.lengths, self.deadly, self.fingerprint = lengths, deadly, fingerprint
        self.durations = np.array(lengths) / 16000
        self.loaded: list[int] = []

    def load(self, index: int, rng: np.random.Generator) -> LabelledAudio:
        if index == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        self.loaded.append(index)
        samples = np.random.default_rng(index).standard_normal(self.lengths[index]) * 0.1
        return LabelledAudio(self.describe(index), samples.astype(np.float32), 16000)

    def describe(self, index: int) -> str:
        return f"toy-{index}"


class OneBreaksWhileAnotherIsRead(ToyRecordings):
    """Recording 0 can't be read once recording 3, which takes its time, is being read."""

    def __init__(self, lengths: list[int], folder: Path) -> None:
        super().__init__(lengths)
        self.begun = folder / "begun"

    def load(self, index: int, rng: np.random.Generator) -> LabelledAudio:
        if index == 3:
            self.begun.touch()
            time.sleep(1)
        while index == 0:
            if self.begun.exists():
                raise DataError("zero.wav: this isn't audio")
            time.sleep(0.01)
        return super().load(index, rng)


def extract_in_small_shards(source: ToyRecordings, audio: AudioConfig, folder: Path, seconds: float) -> None:
    """What a separate process does: extract features into shards of some seconds, a recording at a time."""
    feature_store.SHARD_SECONDS, feature_store.BATCH_SECONDS = seconds, 0.0
    feature_store.extract(source, audio, folder)
