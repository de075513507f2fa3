"""Each test hears of odd files anew: they are reported once in a process, and not for more than some."""

from __future__ import annotations

import pytest

from vaak.audio import audio_file


@pytest.fixture(autouse=True)
def nothing_was_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio_file, "_reported", set())
