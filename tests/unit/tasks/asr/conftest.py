"""A tiny Whisper in a folder, and a tiny run of a recogniser."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny_listener
from tiny_whisper import write_whisper


@pytest.fixture(scope="session")
def whisper_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the Hub's files of a Whisper; tests don't change it."""
    return write_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Utterances of tones; tests don't change them."""
    folder = tmp_path_factory.mktemp("tones")
    tiny_listener.write_listener(folder)
    return folder
