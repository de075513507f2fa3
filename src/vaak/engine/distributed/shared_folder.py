"""Whether all ranks see the folder that rank 0 writes a run into."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from vaak.core.errors import SaidByMainProcessError, UserError

if TYPE_CHECKING:
    from vaak.engine.distributed.ranks import Ranks

PATIENCE_SECONDS = 10.0
"""A network file system may take so long to show other machines a new file."""


def demand_shared(ranks: Ranks, folder: Path) -> None:
    """Raise UserError on every rank, with those that don't see it, where rank 0's folder isn't also theirs."""
    if ranks.world_size == 1:
        return
    witness = folder / ranks.decide_on_main(lambda: _leave_witness(folder))
    seen = ranks.is_main or _appears(witness)
    told = ranks.gather(None if seen else f"rank {ranks.rank} on {socket.gethostname()}")
    if ranks.is_main:
        with contextlib.suppress(OSError):
            witness.unlink()
    if blind := [said for said in told if said]:
        verb = "doesn't" if len(blind) == 1 else "don't"
        raise (UserError if ranks.is_main else SaidByMainProcessError)(
            f"{', '.join(blind)} {verb} see {folder} as rank 0 writes it: the run directory must be the same for all "
            "processes, on storage that all machines share; give such a run_dir="
        )


def _leave_witness(folder: Path) -> str:
    """The name of a file that was never looked up, so that no cache has it as missing."""
    name = f".seen-by-all-{os.urandom(8).hex()}"
    try:
        (folder / name).touch()
    except OSError as error:
        raise UserError(
            f"the run directory {folder} can't be written: {error.strerror}; give another run_dir="
        ) from error
    return name


def _appears(path: Path) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
