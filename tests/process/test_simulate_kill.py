"""Conversations whose writing is killed again and again are in the end as if nobody had disturbed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from commands import Command, Commands, wait_until
from folders import contents
from toy_speech import RATE, write_utterances

NUMBER = 24


@pytest.mark.slow
@pytest.mark.parametrize("killed_at", [(6,), pytest.param((1, 6, 14), marks=pytest.mark.slow)], ids=len)
def test_what_was_killed_goes_on_to_the_same_bits(commands: Commands, tmp_path: Path, killed_at: tuple[int, ...]):
    """The process is killed once ``killed_at`` conversations exist, during the next one, each time it is started."""
    write_utterances(tmp_path / "speech")
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    assert simulating(commands, tmp_path, undisturbed).wait().status == 0
    for number in killed_at:
        command = simulating(commands, tmp_path, killed)
        wait_until(lambda number=number: len(list(killed.glob("*.flac"))) >= number, command)
        command.send(signal.SIGKILL, to_all=True)
        assert command.wait().status == -signal.SIGKILL, "it ended before it was killed: let it write more"
    assert simulating(commands, tmp_path, killed).wait().status == 0
    assert contents(killed) == contents(undisturbed)


def simulating(commands: Commands, folder: Path, out: Path) -> Command:
    speech = folder / "speech"
    dataset = (
        f"datasets=[{{name: tones, type: json, train: [{speech}/train.jsonl], valid: [{speech}/valid.jsonl], "
        f"test: [{speech}/test.jsonl], conversations: {{test: {NUMBER}, duration: 40}}}}]"
    )
    options = [dataset, f"global_config.sampling_rate={RATE}", "task=diarization"]
    return commands.start(["data", "simulate", out, *options], folder)
