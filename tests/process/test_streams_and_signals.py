"""Commands whose streams are closed or full, whose locale is ASCII, or that Ctrl-C meets at any moment."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiny_runs
import vaak
from commands import Commands

VAAK = [sys.executable, "-c", "from vaak.cli.main import main; main()"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(vaak.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
SLOW_PREPARATION = "training.max_steps=100000"


@contextlib.contextmanager
def started(arguments: list[str], folder: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command in its own process group, which is ended where the test fails."""
    with subprocess.Popen(
        [*VAAK, *arguments],
        cwd=folder,
        env=ENVIRONMENT | environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        try:
            yield command
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGKILL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_runs.write_corpus(tmp_path)
    return tmp_path


CLOSED = (">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-")
ENDINGS = (("config check tiny.yml", 0), ("config check gone.yml", 2), ("eval gone", 2))
QUICK = {(">&-", 0), ("2>&-", 1), (CLOSED[-1], 0), (CLOSED[-1], 1)}
"""Each stream and all of them, for a command that ends well and for one that says what is wrong."""


@pytest.mark.parametrize(
    ("closed", "arguments", "code"),
    [
        pytest.param(closed, *ending, marks=[] if (closed, number) in QUICK else [pytest.mark.slow])
        for closed in CLOSED
        for number, ending in enumerate(ENDINGS)
    ],
)
def test_closed_streams_change_no_exit_code(folder: Path, closed: str, arguments: str, code: int) -> None:
    """And no file that the command opens takes their place."""
    command = " ".join(f"'{word}'" for word in VAAK) + f" {arguments} {closed}"
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "seconds", [pytest.param(0.5, marks=pytest.mark.slow), 1.0, pytest.param(2.0, marks=pytest.mark.slow)]
)
def test_an_interrupt_at_the_start_is_answered_without_a_traceback(folder: Path, seconds: float) -> None:
    with started(["train", "tiny.yml", SLOW_PREPARATION, f"run_dir={folder}/run"], folder) as command:
        time.sleep(seconds)
        os.killpg(command.pid, signal.SIGINT)
        said = command.communicate(timeout=60)[1]
    assert command.returncode in (0, 130), said
    assert "Traceback" not in said
    assert "interrupted: stopping" in said


@pytest.mark.parametrize(
    "environment", [pytest.param({"LC_ALL": "C"}, marks=pytest.mark.slow), {"LC_ALL": "C", "PYTHONUTF8": "0"}]
)
def test_devanagari_in_an_ascii_locale(folder: Path, environment: dict[str, str]) -> None:
    with started(["config", "check", "tiny.yml", "name=लड़की"], folder, **environment) as command:
        out, said = command.communicate(timeout=60)
    assert "Traceback" not in said
    if "PYTHONUTF8" in environment:
        assert (command.returncode, said.count("\n")) == (2, 1), said
        assert "LC_ALL=C.UTF-8" in said
    else:
        assert command.returncode == 0, said
        assert "लड़की" in out


def test_a_port_that_is_used_is_named(commands: Commands, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        places = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ended = commands.start(["train", "tiny.yml", "training.gradient_accumulation_steps=2"], folder, places).wait()
    assert ended.status == 2, ended.errors
    assert ended.errors.splitlines()[-1].startswith(f"port {port} is used by another program; give a free one")
    assert "Traceback" not in ended.errors
