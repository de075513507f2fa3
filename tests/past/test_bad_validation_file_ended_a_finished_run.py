"""A bad validation file ended a finished run with exit 2, though bad examples were to be skipped: samples read them."""

from __future__ import annotations

from pathlib import Path

import pytest
import soundfile
from torch import nn

import tiny_diarizer
import tiny_runs
from vaak.config.load import load
from vaak.core.errors import DataError
from vaak.runs.start import Outcome, train
from vaak.tasks.lm.task import LanguageModelTask

pytestmark = pytest.mark.usefixtures("samples")


def damage(folder: Path, name: str) -> None:
    """A recording as FLAC, whose header is whole and whose middle isn't."""
    wav, flac = folder / "valid" / f"{name}.wav", folder / "valid" / f"{name}.flac"
    soundfile.write(flac, *soundfile.read(wav))
    wav.unlink()
    content = bytearray(flac.read_bytes())
    content[len(content) // 3 : len(content) // 2] = bytes(len(content) // 2 - len(content) // 3)
    flac.write_bytes(content)


def trained(folder: Path, run: Path, *overrides: str) -> Outcome:
    short = ("training.max_steps=2", "training.validation.interval=1", "training.logging.tensorboard=false")
    return train(load([folder / "tiny.yml"], [f"run_dir={run}", *short, *overrides]))


@pytest.mark.slow
def test_a_diarizer_shows_the_recordings_that_can_be_read(tmp_path: Path):
    tiny_diarizer.write_corpus(tmp_path)
    damage(tmp_path, "valid0")
    with pytest.raises(DataError, match=r"valid0.flac.*data.on_bad_example: skip"):
        trained(tmp_path, tmp_path / "strict")
    outcome = trained(tmp_path, tmp_path / "run", "data.on_bad_example=skip")
    assert outcome.reason == "finished"
    assert outcome.metrics["val_skipped"] == 1
    shown = [line.partition(":")[0] for line in outcome.samples]
    assert shown == ["valid1", "valid2", "timelines"]


@pytest.mark.parametrize("error", [DataError("line 3 has no text"), OSError(28, "No space left on device")])
def test_what_a_task_can_not_show_is_no_error_of_the_run(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    def samples(task: LanguageModelTask, model: nn.Module) -> list[str]:
        raise error

    monkeypatch.setattr(LanguageModelTask, "samples", samples)
    tiny_runs.write_corpus(tmp_path)
    outcome = tiny_runs.train(tmp_path, tmp_path / "run", "training.max_steps=2")
    assert (outcome.reason, outcome.samples) == ("finished", [])
    assert f"its samples can't be shown: {error}" in capfd.readouterr().err
