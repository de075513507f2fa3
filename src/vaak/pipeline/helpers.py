"""A pipeline on several processes, started by torchrun: rank 0 runs the stages, the others help to train and embed.

PIPELINE/.orders/WORD/000001.json     a function that all the others call next (to train, to make rows), or the end
                      rank-1.json     where a helper is: its process and machine

Orders are files in the pipeline's folder, which all machines must share: the network brings the helpers no more than
the word that names the folder. What isn't ordered (clusters, pictures, exports) rank 0 does alone while they wait.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vaak.core.errors import SaidByMainProcessError, UserError
from vaak.core.storage.files import read_json, write_json

log = logging.getLogger("vaak")

ORDERS = ".orders"
LOOK_AGAIN_SECONDS = 0.1
LEAVING_SECONDS = 10.0
"""How long rank 0 waits at the end for the others to have read that it is the end."""


class Helpers:
    """The other processes, as rank 0 sees them; each order is carried out by all of them at once."""

    def __init__(self, directory: Path, world_size: int) -> None:
        """Begin a folder of orders. Raises UserError where the processes don't meet."""
        from vaak.engine.distributed.ranks import common_word

        shutil.rmtree(directory / ORDERS, ignore_errors=True)
        self.world_size, self.number = world_size, 0
        word = os.urandom(8).hex()
        self.folder = directory / ORDERS / word
        self.folder.mkdir(parents=True)
        common_word(word)

    def order(self, function: Callable[..., object], **values: Any) -> None:
        """Have each of the others call a function of a module with these values, of JSON."""
        self._write({"call": f"{function.__module__}:{function.__name__}", "values": values})

    def wait_for(self, is_done: Callable[[], bool]) -> None:
        """Wait for what the others do. Raises UserError where one of them has ended."""
        while not is_done():
            if lost := [rank for rank in range(1, self.world_size) if _has_ended(self.folder / f"rank-{rank}.json")]:
                raise UserError(f"rank {lost[0]} has ended, and so this one; see its output, then add --resume")
            time.sleep(LOOK_AGAIN_SECONDS)

    def close(self, has_failed: bool) -> None:
        """Let the others end, with an error if the pipeline ``has_failed``."""
        with contextlib.suppress(OSError):
            self._write({"end": has_failed})
            deadline = time.monotonic() + LEAVING_SECONDS
            while any(self.folder.glob("rank-*.json")) and time.monotonic() < deadline:
                time.sleep(LOOK_AGAIN_SECONDS)
            shutil.rmtree(self.folder.parent, ignore_errors=True)

    def _write(self, what: dict[str, Any]) -> None:
        self.number += 1
        write_json(self.folder / f"{self.number:06d}.json", what)


def help_rank_0(directory: Path) -> None:
    """Carry out the orders of rank 0 until it says that the pipeline has ended.

    Raises UserError where it has ended without a word, and SaidByMainProcessError after its error.
    """
    from vaak.engine.distributed.attendance import own_place
    from vaak.engine.distributed.ranks import common_word, use_own_device

    use_own_device()
    word, place_of_main = common_word(None)
    rank, folder = int(os.environ["RANK"]), directory / ORDERS / word
    write_json(own := folder / f"rank-{rank}.json", own_place())
    number = 0
    while True:
        number += 1
        order = _next_order(folder / f"{number:06d}.json", place_of_main)
        if "end" in order:
            own.unlink(missing_ok=True)
            if order["end"]:
                raise SaidByMainProcessError("the pipeline has failed on rank 0")
            return
        module, _, name = order["call"].partition(":")
        getattr(importlib.import_module(module), name)(**order["values"])


def _next_order(path: Path, place_of_main: Mapping[str, Any]) -> dict[str, Any]:
    from vaak.engine.distributed.attendance import has_ended

    while not path.exists():
        if has_ended(place_of_main) and not path.exists():
            raise UserError("rank 0 has ended, and so this process; add --resume")
        time.sleep(LOOK_AGAIN_SECONDS)
    order: dict[str, Any] = read_json(path)
    return order


def _has_ended(file: Path) -> bool:
    """Whether the process that a file names was on this machine and has ended."""
    from vaak.engine.distributed.attendance import has_ended

    try:
        return has_ended(read_json(file))
    except FileNotFoundError:  # it hasn't come yet
        return False
