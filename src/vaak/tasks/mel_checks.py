"""Findings on the options of tasks that read mel spectrograms of single utterances."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from vaak.audio.mel_config import REPLACED_BY_MEL
from vaak.config.experiment import Experiment
from vaak.config.task_spec import CheckFinding, impossible, no_effect


def mel_findings(
    experiment: Experiment[Any, Any, Any, Any, Any], unread: Iterable[str], reason: str
) -> Iterator[CheckFinding]:
    """Other features, conversations, and options of audio that aren't ``unread`` without ``reason``."""
    audio = experiment.global_config
    if audio.feature_type != "mel":
        yield impossible(
            "global_config.feature_type", f"{audio.feature_type} is not for speech synthesis; expected mel"
        )
        return
    for name in REPLACED_BY_MEL:
        yield no_effect(f"global_config.{name}", "feature_type is mel: its options are in global_config.mel")
    for name in unread:
        yield no_effect(f"global_config.{name}", reason)
    for number, dataset in enumerate(experiment.datasets):
        if dataset.conversations is not None:
            yield impossible(
                f"datasets.{number}.conversations", "an utterance has one speaker; leave conversations out"
            )
