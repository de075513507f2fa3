"""Mistakes in configuration and data, two commands on one run, and a worker that is killed: one clear line each."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from commands import Command, Commands, Ended, wait_until


def write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


CORPUS = "task: lm\ndata:\n  corpus: {type: text, train: corpus.txt}\n  tokenizer: {type: character}\n"


@pytest.mark.parametrize(
    ("yaml", "corpus", "parts"),
    [
        (
            "task: lm\ntraining:\n  optimiser: adamw\n",
            None,
            ("job.yml:3", "training.optimiser", "did you mean optimizer"),
        ),
        ("task: lm\ntraining: [epochs\n", None, ("job.yml:3", "not valid YAML")),
        ("task: lm\ntraining: {epochs: many}\n", None, ("job.yml:2", "training.epochs", "many")),
        (CORPUS, None, ("corpus.train", "no such file", "corpus.txt")),
        (CORPUS, "", ("corpus", "no document")),
        (CORPUS, "राम\n".encode() * 9 + b"\xff\xfe broken\n", ("corpus.txt", "10", "UTF-8", "on_invalid_utf8")),
    ],
    ids=["unknown key", "bad YAML", "wrong type", "missing file", "empty corpus", "invalid UTF-8"],
)
def test_mistakes_are_told_in_a_line(
    commands: Commands, tmp_path: Path, yaml: str, corpus: bytes | str | None, parts: tuple[str, ...]
) -> None:
    job = write(tmp_path / "job.yml", yaml)
    if corpus is not None:
        write(tmp_path / "corpus.txt", corpus)
    ended = commands.start(["train", job, "run_dir=run"], tmp_path).wait()
    assert ended.status == 2, ended.errors
    assert "Traceback" not in ended.errors
    for part in parts:
        assert part in ended.errors
    assert not list((tmp_path / "run").glob("metrics.jsonl"))
    left = {path.name for path in (tmp_path / "run").glob("checkpoints/*")}
    assert left <= {".lock", "owner.json"}  # whose folder it is


def test_a_yaml_that_is_not_there_is_an_error(commands: Commands, tmp_path: Path) -> None:
    ended = commands.start(["train", "nowhere.yml"], tmp_path).wait()
    assert (ended.status, "nowhere.yml" in ended.errors, "Traceback" in ended.errors) == (2, True, False)


def test_two_commands_on_one_run_directory(
    start: Callable[..., Command], train: Callable[..., Ended], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    first = start(run, "training.epochs=99", "training.performance.num_workers=1")
    assert wait_until((run / "metrics.jsonl").exists, first)
    second = train(run)
    assert second.status == 2
    assert second.errors.startswith(f"{run} is being written by process {first.pid} on ")
    assert second.errors.strip().endswith(f" (end it: kill {first.pid}); wait for it, or give another run_dir=")
    first.send(signal.SIGKILL)  # its lock goes with it, though its worker may outlive it for a moment
    first.wait()
    third = train(run, "training.epochs=1")
    assert third.status == 0, third.errors


def test_an_existing_run_is_refused_and_left_as_it_is(train: Callable[..., Ended], reference: Path) -> None:
    def content() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(reference.rglob("*")) if path.is_file()}

    before = content()
    ended = train(reference, "training.checkpoint.resume=null", "training.epochs=9")
    assert ended.status == 2
    assert "already holds a run: add training.checkpoint.resume=auto" in ended.errors
    assert content() == before


def workers_of(pid: int) -> list[int]:
    """The processes that a process started."""
    return [int(number) for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_killed_worker_ends_the_run_with_a_clear_line(start: Callable[..., Command], tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = start(
        run, "training.epochs=99", "training.performance.num_workers=2", "training.validation.interval=9999"
    )
    assert wait_until((run / "checkpoints" / "last").exists, command)
    workers = workers_of(command.pid)
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGSTOP)  # as one that waits for the lock of a queue which the killed one holds
    os.kill(workers[0], signal.SIGKILL)
    ended = command.wait(60)
    assert ended.status == 2, ended.errors
    said = [line for line in ended.errors.splitlines() if line.startswith("a data loader worker was killed")]
    assert len(said) == 1, ended.errors
    assert "--resume auto" in said[0]
    assert json.loads((run / "status.json").read_text())["state"] == "failed"


def test_workers_end_with_the_process_that_is_killed(start: Callable[..., Command], tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = start(run, "training.epochs=99", "training.performance.num_workers=2")
    assert wait_until((run / "metrics.jsonl").exists, command)
    workers = workers_of(command.pid)
    assert workers
    command.send(signal.SIGKILL)
    command.wait()
    deadline = time.monotonic() + 5
    while any(is_alive(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [worker for worker in workers if is_alive(worker)]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
