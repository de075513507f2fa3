"""Fixtures of the stages' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny_listener
from tiny_whisper import write_whisper


@pytest.fixture(scope="session")
def whisper_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Whisper that reads no more than the tones have: the stages encode them many times."""
    return write_whisper(tmp_path_factory.mktemp("whisper"), seconds=tiny_listener.SECONDS)
