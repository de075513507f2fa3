"""How torch chooses kernels is the process's: what a run sets is put back, or what comes next has other bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_runs
import vaak as library
from vaak.engine.checkpoint.files import read_state
from vaak.engine.precision import keeping_kernels

Command = Callable[..., tuple[int, str, str]]


def kernels() -> tuple[Any, ...]:
    """What the bits of a process depend on, and a run sets."""
    cudnn = torch.backends.cudnn
    return (
        torch.get_num_threads(),
        torch.get_deterministic_debug_mode(),
        (torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
    )


@pytest.fixture
def a_users_own() -> Iterator[tuple[Any, ...]]:
    """Settings that are none of Vaak's."""
    with keeping_kernels():
        torch.set_deterministic_debug_mode("default")
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = True, False
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
        yield kernels()


@pytest.mark.slow
def test_what_a_run_sets_is_its_own(
    tiny_text: Path, tmp_path: Path, vaak: Command, a_users_own: tuple[Any, ...]
) -> None:
    """In training, and in whatever is done with the run afterwards."""
    run, threads = tmp_path / "run", torch.get_num_threads() + 1
    outcome = tiny_runs.train(tiny_text, run, f"training.performance.num_threads={threads}")
    assert kernels() == a_users_own
    conditions = read_state(run / "checkpoints" / f"step-{outcome.step:08}")["conditions"]
    assert (conditions["threads"], conditions["deterministic"]) == (threads, True)
    for arguments in (("eval", run, "--split", "valid"), ("replay", run, "--step", 6)):
        code, out, err = vaak(*arguments)
        assert code == 0, out + err
        assert kernels() == a_users_own, arguments[0]
    library.open(run, device="cpu").evaluate("valid")
    assert kernels() == a_users_own
