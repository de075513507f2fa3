"""What unit tests share: tiny data, a language model and a diarizer trained on them, and the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tiny_diarizer
import tiny_runs
from vaak.cli.main import main


@pytest.fixture(scope="session")
def tiny_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``train.txt``, ``valid.txt``, ``test.txt``, and ``tiny.yml`` that names them."""
    folder = tmp_path_factory.mktemp("tiny_text")
    tiny_runs.write_corpus(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_run(tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of the tiny job, trained to its end; tests leave it as it is."""
    run = tmp_path_factory.mktemp("tiny_run") / "tiny"
    tiny_runs.train(tiny_text, run)
    return run


@pytest.fixture(scope="session")
def made_recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with recordings in ``train``, ``valid`` and ``test``, RTTM beside them, and ``tiny.yml`` for them."""
    folder = tmp_path_factory.mktemp("made_recordings")
    tiny_diarizer.write_corpus(folder)
    return folder


@pytest.fixture(scope="session")
def diarizer_run(made_recordings: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a tiny diarizer, trained to its end; tests leave it as it is."""
    run = tmp_path_factory.mktemp("tiny_diarizer") / "tiny"
    tiny_diarizer.train(made_recordings, run)
    return run


@pytest.fixture
def vaak(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """``vaak(*arguments)`` runs a command in this process and gives (exit code, stdout, stderr)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["vaak", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call
