"""Conversations whose writing is killed again and again are in the end as if nobody had disturbed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from folders import contents
from toy_speech import RATE, write_utterances

NUMBER = 24


@pytest.mark.parametrize("killed_at", [(6,), pytest.param((1, 6, 14), marks=pytest.mark.slow)], ids=len)
def test_what_was_killed_goes_on_to_the_same_bits(tmp_path: Path, killed_at: tuple[int, ...]):
    """Each time, so many conversations exist when the process is killed, during the next one."""
    write_utterances(tmp_path / "speech")
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    assert simulating(tmp_path, undisturbed).wait() == 0
    for number in killed_at:
        process = simulating(tmp_path, killed)
        while len(list(killed.glob("*.flac"))) < number and process.poll() is None:
            time.sleep(0.001)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it ended before it was killed: let it write more"
    assert simulating(tmp_path, killed).wait() == 0
    assert contents(killed) == contents(undisturbed)


def simulating(folder: Path, out: Path) -> subprocess.Popen[bytes]:
    speech = folder / "speech"
    dataset = (
        f"datasets=[{{name: tones, type: json, train: [{speech}/train.jsonl], valid: [{speech}/valid.jsonl], "
        f"test: [{speech}/test.jsonl], conversations: {{test: {NUMBER}, duration: 40}}}}]"
    )
    command = [sys.executable, "-c", "from vaak.cli.main import main; main()", "data", "simulate", str(out), dataset]
    return subprocess.Popen(
        [*command, f"global_config.sampling_rate={RATE}", "task=diarization"],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
