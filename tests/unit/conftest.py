"""Shared fixtures of unit tests: tiny recordings, and runs that are trained once for all workers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tiny_diarizer
from trained_once import evaluations_show, runs_end_with, trained_once

if TYPE_CHECKING:
    from served_runs import TinyRun


@pytest.fixture(scope="session")
def made_recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with recordings in ``train``, ``valid`` and ``test``, RTTM next to them, and ``tiny.yml`` for them."""
    folder = tmp_path_factory.mktemp("made_recordings")
    tiny_diarizer.write_corpus(folder)
    return folder


@pytest.fixture(scope="session")
def diarizer_run(made_recordings: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a tiny diarizer, trained to its end, with pictures; tests don't change it."""
    run = tmp_path_factory.mktemp("tiny_diarizer") / "tiny"
    with evaluations_show():
        tiny_diarizer.train(made_recordings, run)
    return run


@pytest.fixture(scope="session")
def voice_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a tiny text-to-speech model, trained to its end; tests don't change it."""
    import tiny_voice

    def train(folder: Path) -> None:
        with runs_end_with():
            tiny_voice.train(tiny_voice.write_voice(folder / "corpus"), folder / "voice")

    return trained_once(tmp_path_factory, "tiny_voice", train) / "voice"


@pytest.fixture(scope="session")
def flow_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, with pictures, of a voice with all that one may have: flow matching, pitch, energy, learned durations."""
    import tiny_voice

    model = {
        "decoder_type": "flow_matching",
        "flow_matching": {"width": 32},
        "pitch": True,
        "energy": True,
        "durations": "learned",
        "encoder": {"d_model": 32, "num_layers": 1, "num_heads": 2, "dropout": 0.0},
        "global_config": {},
    }
    overrides = ("training.logging.tensorboard=true", "training.validation.interval=15")

    def train(folder: Path) -> None:
        with evaluations_show():
            tiny_voice.train(tiny_voice.write_voice(folder / "corpus"), folder / "voice", *overrides, model=model)

    return trained_once(tmp_path_factory, "tiny_flow", train) / "voice"


@pytest.fixture(scope="session")
def vocoder_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a tiny vocoder of the same spectrograms, whose discriminators begin in its ninth step."""
    import tiny_vocoder
    import tiny_voice

    late = {"discriminators": {**tiny_vocoder.DISCRIMINATORS, "start_step": 9}}

    def train(folder: Path) -> None:
        with runs_end_with():
            tiny_vocoder.train(tiny_voice.write_voice(folder / "corpus"), folder / "vocoder", model=late)

    return trained_once(tmp_path_factory, "tiny_vocoder", train) / "vocoder"


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyRun]:
    """Gives a tiny run of a task, or of a case of the contract; tests don't change it.

    It is trained when it is first asked for.
    """
    from served_runs import find_task, train_task

    @cache
    def find(task: str) -> TinyRun:
        name = f"served_{task.replace(', ', '_')}"
        folder = trained_once(tmp_path_factory, name, lambda folder: train_task(folder, task))
        return find_task(folder, task)

    return find
