"""Workers ignore SIGTERM: if an exception kept their loader alive, each took ten seconds, or Python never ended."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from toy import ToyDataset
from vaak.config.training import PerformanceConfig
from vaak.core.errors import DataError
from vaak.core.random_keys import Purpose
from vaak.data.loader import Address, Microbatch, MicrobatchReader, load

ADDRESSES = [Address(1, 0, 0, [[1]]), Address(1, 1, 0, [[3]])]
ABANDONED = """
import gc
from test_workers_outlived_their_loader import reading
gc.disable()
class Holder: pass
holder = Holder()
holder.itself, holder.read = holder, reading()
next(holder.read)
"""


def reading() -> Generator[Microbatch, None, None]:
    reader = MicrobatchReader(ToyDataset(8, bad=[3]), (Purpose.DATA,), 0, skip_bad=False)
    return load(reader, ADDRESSES, PerformanceConfig(num_workers=1), pin_memory=False)


def test_they_end_where_an_error_is_raised():
    read = reading()
    next(read)
    (worker,) = multiprocessing.active_children()
    with pytest.raises(DataError):
        next(read)
    assert worker.exitcode == 0


@pytest.mark.slow
def test_they_end_where_python_does_though_the_loader_was_not_closed():
    paths = f"import sys; sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}\n"
    done = subprocess.run([sys.executable, "-c", paths + ABANDONED], timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_they_end_when_they_are_told_to():
    read = reading()
    next(read)
    (worker,) = multiprocessing.active_children()
    worker.terminate()
    worker.join(30)
    assert worker.exitcode == -9
    read.close()
