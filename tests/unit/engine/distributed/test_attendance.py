"""Who is missing or has ended is named; the first who finds out tells the others."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest
import torch

from vaak.core.errors import UserError
from vaak.engine.distributed import launcher
from vaak.engine.distributed.launcher import RankMonitor
from vaak.engine.distributed.ranks import Ranks


class Shelf:
    """A store in memory."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.requests = 0

    def set(self, key: str, value: str) -> None:
        self.requests += 1
        self.values[key] = value

    def get(self, key: str) -> bytes:
        self.requests += 1
        return self.values[key].encode()

    def check(self, keys: list[str]) -> bool:
        self.requests += 1
        return all(key in self.values for key in keys)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "STAYING_SECONDS", 0.01)
    monkeypatch.setattr(launcher, "ENDING_SECONDS", 0.2)


def at(store: Shelf, rank: int, pid: int, **place: str) -> None:
    """As if this rank had signed in."""
    own = launcher.own_place()
    store.set(f"vaak 0 rank {rank}", json.dumps(own | {"pid": pid} | place))


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_rank_that_does_not_start_is_named():
    store = Shelf()
    at(store, 2, pid=1)
    with pytest.raises(UserError, match=r"^rank 1 of 3 didn't start within 0 s"):
        RankMonitor(store, 0, 3).wait_for_all(0.2)


def test_a_rank_that_ended_while_the_others_start_is_named():
    store = Shelf()
    pid = ended_process()
    at(store, 2, pid)
    with pytest.raises(UserError, match=rf"^rank 2 \(process {pid} on {socket.gethostname()}\) ended while"):
        RankMonitor(store, 0, 3).wait_for_all(20)


@pytest.mark.slow
def test_a_thousand_ranks_ask_the_store_a_few_times_each(monkeypatch: pytest.MonkeyPatch):
    """Two million requests, when each of 1,024 looked for each."""
    store, ranks = Shelf(), 1024
    for rank in range(ranks):
        at(store, rank, pid=os.getpid())
    store.requests = 0
    monitors = [RankMonitor(store, rank, ranks) for rank in range(ranks)]
    for monitor in monitors:
        monitor.wait_for_all(20)
    assert store.requests <= 5 * ranks + 1
    assert monitors[-1].places == monitors[0].places
    assert sorted(monitors[0].places) == list(range(ranks))


def test_a_rank_looks_for_those_of_its_machine(monkeypatch: pytest.MonkeyPatch):
    """Rank 0, elsewhere, can't see that a process there has ended."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    store = Shelf()
    at(store, 2, ended_process())
    with pytest.raises(UserError, match=r"^rank 2 \(process .* ended while the others were starting"):
        RankMonitor(store, 3, 5).wait_for_all(20)


def test_one_that_ended_and_is_still_listed_has_ended():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert launcher.is_alive(process.pid)
        process.kill()
        while launcher.is_alive(process.pid):  # a zombie until it is waited for
            pass


def test_the_first_who_finds_out_tells_those_on_other_machines():
    store = Shelf()
    at(store, 1, ended_process())
    at(store, 2, pid=7, host="elsewhere")
    at(store, 0, pid=1)
    first, elsewhere, later = (RankMonitor(store, rank, 3) for rank in (0, 2, 0))
    for one in (first, elsewhere, later):
        one.places = {rank: json.loads(store.get(f"vaak 0 rank {rank}")) for rank in range(3)}
    elsewhere.places[1]["host"] = "far"  # seen from there, all others are far
    elsewhere.places[0]["host"] = "far"
    assert elsewhere.lost() == []
    assert first.lost() == [1]
    assert elsewhere.lost() == [1]
    later.places[2] = {**later.places[1]}  # it ended because of the first
    assert later.lost() == [1]
    assert later.describe([1]).startswith("rank 1 (process ")


def test_where_rank_0_has_ended_it_is_named_and_its_machine_is_not_blamed(monkeypatch: pytest.MonkeyPatch):
    """Both look the same to a rank that waits: nothing answers where they meet."""
    monkeypatch.setenv("MASTER_ADDR", "node0")
    store = Shelf()
    at(store, 0, ended_process())
    monitor = RankMonitor(store, 1, 2)
    monitor.places = {0: json.loads(store.get("vaak 0 rank 0"))}
    said = str(Ranks(torch.device("cpu"), 1, 2, monitor)._rank_0_lost())
    assert said.startswith("rank 0 (process ")
    assert "has ended, and so this one (rank 1)" in said
    for silent in (RankMonitor(Shelf(), 1, 2), None):
        said = str(Ranks(torch.device("cpu"), 1, 2, silent)._rank_0_lost())
        assert said.startswith("rank 0's machine (node0) no longer answers")


@pytest.mark.parametrize("of_torchrun", [False, True])
def test_a_store_that_ended_with_rank_0_is_not_asked(of_torchrun: bool, monkeypatch: pytest.MonkeyPatch):
    """Without torchrun, whose agent has the store, rank 0 has: each rank then finds out by itself."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", str(of_torchrun))
    store = Shelf()
    at(store, 0, ended_process())
    monitor = RankMonitor(store, 1, 2)
    monitor.places = {0: json.loads(store.get("vaak 0 rank 0"))}
    assert monitor.lost() == [0]
    assert store.check(["vaak 0 lost"]) is of_torchrun
