"""Which process is which rank and where, so that one that is missing or has ended can be named."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from vaak.core.errors import UserError
from vaak.engine.distributed.comparison import name_ranks

LOOK_AGAIN_SECONDS = 0.1
ENDING_SECONDS = 3.0
"""How long a process may take from closing its connections to its end."""
STAYING_SECONDS = 1.0


class Store(Protocol):
    """What the ranks' common store (torch's) does."""

    def set(self, key: str, value: str) -> Any: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...


class Attendance:
    """Every rank signs in at the common store; ``lost`` then gives the ranks that have ended.

    A process that shares this one's machine is looked up in the system's table. One elsewhere is known from what a rank
    there wrote into the store.
    """

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        self.store, self.rank, self.world_size = store, rank, world_size
        self.places: dict[int, dict[str, Any]] = {}
        self._prefix = f"vaak {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"

    def wait_for_all(self, seconds: float) -> None:
        """Sign in and wait until every rank has. Raises UserError, naming the missing ranks, after a timeout."""
        self.store.set(self._key(self.rank), json.dumps(own_place()))
        begun = time.monotonic()
        while len(self.places) < self.world_size:
            for rank in range(self.world_size):
                if rank not in self.places and self.store.check([self._key(rank)]):
                    self.places[rank] = json.loads(self.store.get(self._key(rank)))
            missing = [rank for rank in range(self.world_size) if rank not in self.places]
            if lost := self._ended_here():
                raise UserError(f"{self.describe(lost)} ended while the others were starting; start all of them again")
            if missing and time.monotonic() - begun > seconds:
                raise UserError(
                    f"{name_ranks(missing)} of {self.world_size} didn't start within {seconds:.0f} s: look at their "
                    "output, and start all of them again"
                )
            if missing:
                time.sleep(LOOK_AGAIN_SECONDS)

    def lost(self) -> list[int]:
        """The ranks that have ended, as far as any rank knows; this waits some seconds where none does yet.

        The first rank to find out tells the others, and stays for a moment: otherwise they would count it as ended
        too.
        """
        deadline = time.monotonic() + ENDING_SECONDS
        while True:
            found = self._ended_here()
            if 0 not in found or _store_is_of_launcher():  # else the store ended with rank 0
                found = self._told(found)
            if found:
                time.sleep(STAYING_SECONDS)
            if found or time.monotonic() > deadline:
                return found
            time.sleep(LOOK_AGAIN_SECONDS)

    def describe(self, ranks: list[int]) -> str:
        """Ranks, with process and machine.

        Their end is reported in one sentence: "rank 1 (process 4711 on node7)".
        """
        described = []
        for rank in ranks:
            place = self.places.get(rank)
            described.append(f"rank {rank}" + (f" (process {place['pid']} on {place['host']})" if place else ""))
        return ", ".join(described)

    def _told(self, found: list[int]) -> list[int]:
        """What the first rank to find out wrote, which may be this rank now; empty where none has."""
        with contextlib.suppress(RuntimeError):  # a store that ended, too
            key = f"{self._prefix} lost"
            if self.store.check([key]):
                return [int(rank) for rank in json.loads(self.store.get(key))]
            if found:
                self.store.set(key, json.dumps(found))
        return found

    def _ended_here(self) -> list[int]:
        """The ranks of this machine whose process has ended."""
        return [rank for rank, place in sorted(self.places.items()) if rank != self.rank and has_ended(place)]

    def _key(self, rank: int) -> str:
        return f"{self._prefix} rank {rank}"


def wait_for_an_answer(address: str, port: int, seconds: float) -> bool:
    """Whether an address accepts a connection before the timeout."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((address, port), timeout=max(1.0, min(seconds, 10.0))).close()
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_AGAIN_SECONDS)
        else:
            return True


def _store_is_of_launcher() -> bool:
    """Whether torchrun, rather than rank 0, keeps the store."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def own_place() -> dict[str, Any]:
    """This process, its machine, and which table lists it there: containers of a machine may share its name."""
    system = ""
    with contextlib.suppress(OSError):
        system = os.readlink("/proc/self/ns/pid")
    return {"pid": os.getpid(), "host": socket.gethostname(), "system": system}


def has_ended(place: Mapping[str, Any]) -> bool:
    """Whether the process of a place has ended, as far as this machine can tell: not of one on another machine."""
    own = own_place()
    is_here = (place["host"], place["system"]) == (own["host"], own["system"])
    return is_here and not is_alive(place["pid"])


def is_alive(pid: int) -> bool:
    """Whether a process of this machine runs; one that has ended and is still listed doesn't."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return not Path("/proc/self/stat").exists()
