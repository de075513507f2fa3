"""Reset the warnings about odd files for each test, as a process reports them once, and only the first few."""

from __future__ import annotations

import pytest

from vaak.audio import audio_file


@pytest.fixture(autouse=True)
def nothing_was_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio_file, "_reported", set())
