"""By what a corpus is split: recordings, or the speakers of simulated conversations."""

from __future__ import annotations

from typing import Any

from vaak.audio.config import DatasetConfig


def dataset(**options: Any) -> DatasetConfig:
    return DatasetConfig.model_validate({"name": "d", "type": "json", **options})


def test_simulated_conversations_share_no_speakers_unless_they_are_told_to():
    """They did in silence: the test figures were of voices that training had heard."""
    assert dataset().split_by == "recording"
    assert dataset(conversations={"train": 3}).split_by == "speaker"
    assert dataset(conversations={"train": 3}, split_by="recording").split_by == "recording"
