"""However workers start, they read the same; they end with the run; the script that started them isn't run again."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from read_by_workers import ADDRESSES, Answers, Unsendable, parents, read
from toy import ToyDataset
from vaak.config.components import import_file
from vaak.config.training import PerformanceConfig
from vaak.core.errors import UserError
from vaak.core.random_keys import Purpose
from vaak.data import workers
from vaak.data.loader import Address, MicrobatchReader, load
from vaak.data.workers import NotSendableError, Sent
from vaak.testing.case import same

METHODS = ("fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow))
SUPPORT = [str(room) for room in (Path(__file__).parents[2] / "support").iterdir()]


@pytest.mark.parametrize("method", METHODS)
def test_they_read_what_this_process_reads(method: str):
    assert same(read(ToyDataset(16, noise=0.5), method), read(ToyDataset(16, noise=0.5), None, num_workers=0))


def test_they_are_forked_until_cuda_has_started(monkeypatch: pytest.MonkeyPatch):
    """Also where Python itself would take another way, as from 3.14 on."""
    assert parents(Answers(16), None) == {os.getpid()}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert os.getpid() not in parents(Answers(16), None)


def test_what_cant_be_sent_is_read_by_a_fork_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(workers, "_said", set())
    with caplog.at_level(logging.INFO, "vaak"):
        assert parents(Unsendable(16), None) == parents(Unsendable(16), None) == {os.getpid()}
    (line,) = caplog.messages
    assert line.startswith(
        "processes that load data are forked, though forkserver is safer here: Unsendable can't be sent"
    )


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_what_cant_be_sent_is_refused_where_the_way_is_named(method: str):
    with pytest.raises(UserError, match=rf"multiprocessing_context: {method}: Unsendable can't be sent .*; set .*fork"):
        read(Unsendable(16), method)


def test_a_way_that_the_system_doesnt_have_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(UserError, match="this system has no forkserver; choose from spawn"):
        read(ToyDataset(16), "forkserver")


def test_much_in_memory_is_copied_only_if_the_way_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(workers, "LARGEST_SENT", 1 << 20)
    large = Answers(16)
    large.reads = np.zeros(1 << 21, np.uint8)  # type: ignore[assignment]
    assert parents(large, None) == {os.getpid()}
    assert os.getpid() not in parents(large, "forkserver")
    with pytest.raises(NotSendableError, match="more than 1 MiB"):
        Sent(large, workers.LARGEST_SENT)


class OfThisFile(Answers):
    """Pytest imports this file in its own way, so no other process can."""


def test_a_module_that_only_this_process_can_import_isnt_sent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert parents(OfThisFile(16), None) == {os.getpid()}
    with pytest.raises(UserError, match=r"OfThisFile is in the module .*, which another process can't import"):
        read(OfThisFile(16), "forkserver")


@pytest.mark.parametrize("offset", [0, 24])
def test_arrays_mapped_from_files_are_sent_as_their_place(offset: int, tmp_path: Path):
    file = tmp_path / "numbers"
    np.arange(100_003, dtype="<i8").tofile(file)
    whole = np.memmap(file, "<i8", "r", offset)
    plain = np.asarray(whole)
    views = [whole, plain, plain[7:], whole[1:][2:], plain[1::3], plain[::-1], plain[:99_000].reshape(-1, 10).T]
    sent = Sent([*views, plain[5:6].view("<i4"), plain[:0]])
    assert len(sent.content) < 3000
    received = sent.received()
    for view, other in zip([*views, plain[5:6].view("<i4"), plain[:0]], received, strict=True):
        assert same(np.asarray(view), other)
        assert not other.flags.writeable
    changed = np.memmap(file, "<i8", "r+")
    changed[3 + offset // 8] = -5
    assert received[0][3] == -5, "it is mapped, not copied"


def test_arrays_that_are_written_to_are_sent_as_they_are(tmp_path: Path):
    file = tmp_path / "numbers"
    np.arange(10).tofile(file)
    own = np.memmap(file, np.int64, "c")
    own[3] = -1
    assert Sent(own).received()[3] == -1


def test_a_class_in_a_file_of_the_users_is_imported_from_it(tmp_path: Path):
    file = tmp_path / "words.py"
    file.write_text("from toy import ToyDataset\nclass Words(ToyDataset):\n    pass\n")
    words = import_file(file).Words(16)
    assert same(read(words, "forkserver"), read(words, None, num_workers=0))


def test_what_a_worker_cant_receive_is_said(tmp_path: Path):
    file = tmp_path / "numbers"
    np.arange(10).tofile(file)
    dataset = ToyDataset(16)
    dataset.reads = np.memmap(file, np.int64, "r")  # type: ignore[assignment]
    reader = MicrobatchReader(dataset, (Purpose.DATA,), 1)
    options = PerformanceConfig(num_workers=1, multiprocessing_context="forkserver")
    batches = load(reader, ADDRESSES, options, pin_memory=False)
    sent = Sent(reader)
    file.unlink()
    with pytest.raises(UserError, match=r"can't read what it was sent \(FileNotFoundError"):
        sent.received()
    with pytest.raises(UserError, match=r"multiprocessing_context: fork"):
        next(batches)


UNGUARDED = """
import sys
sys.path[:0] = PATHS
print("the script runs", flush=True)
from read_by_workers import Answers, parents
from vaak.core.errors import UserError
class Own(Answers): pass
assert len(parents(Answers(16), METHOD)) == 1
try:
    parents(Own(16), METHOD)
except UserError as error:
    print(error)
"""


def script(tmp_path: Path, text: str, **words: Any) -> list[str]:
    file = tmp_path / "train.py"
    for word, value in {"PATHS": SUPPORT, **words}.items():
        text = text.replace(word, repr(value))
    file.write_text(text)
    return [sys.executable, "-W", "error::UserWarning", str(file)]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_script_without_a_guard_runs_once(method: str, tmp_path: Path):
    command = script(tmp_path, UNGUARDED, METHOD=method)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, ""), "no semaphores are left, and nothing is logged"
    once, refused = ended.stdout.splitlines()
    assert once == "the script runs"
    assert "Own is defined in the script itself" in refused


WAITING = """
import os, signal, sys, time
sys.path[:0] = PATHS
from read_by_workers import ADDRESSES, Answers, MicrobatchReader, PerformanceConfig, Purpose, load
import multiprocessing, multiprocessing.forkserver as server
signal.signal(signal.SIGTERM, lambda *_: None)
options = PerformanceConfig(num_workers=2, multiprocessing_context="forkserver")
batches = load(MicrobatchReader(Answers(16), (Purpose.DATA,), 1), ADDRESSES, options, pin_memory=False)
next(batches)
started = [one.pid for one in multiprocessing.active_children()]
print(server._forkserver._forkserver_pid, *started, flush=True)
sys.stdin.readline()
print(len(list(batches)), flush=True)
sys.stdin.readline()
"""


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_none_ends_by_sigterm_and_none_survives_the_run(tmp_path: Path):
    command = script(tmp_path, WAITING)
    run = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert run.stdin is not None
    assert run.stdout is not None
    others = [int(word) for word in run.stdout.readline().split()]
    try:
        assert len(others) == 3
        os.killpg(run.pid, signal.SIGTERM)  # as a scheduler does, to all processes of a job
        time.sleep(0.3)
        assert all(map(is_alive, others))
        run.kill()
        run.wait()
        end = time.monotonic() + 20
        while any(map(is_alive, others)) and time.monotonic() < end:
            time.sleep(0.05)
        assert not any(map(is_alive, others))
    finally:
        for process in filter(is_alive, others):
            os.kill(process, signal.SIGKILL)
        run.kill()
        run.communicate()


def test_the_loss_of_one_is_said_in_a_line():
    reader = MicrobatchReader(Answers(1000), (Purpose.DATA,), 1)
    addresses = [Address(1, number, 0, [[number]]) for number in range(1000)]
    options = PerformanceConfig(num_workers=2, multiprocessing_context="forkserver")
    batches = load(reader, addresses, options, pin_memory=False)
    pids = {int(one.batch["targets"][0, 0]) for one in islice(batches, 2) if one.batch is not None}
    os.kill(pids.pop(), signal.SIGKILL)
    with pytest.raises(UserError, match="a data loader worker was killed from outside"):
        list(batches)
