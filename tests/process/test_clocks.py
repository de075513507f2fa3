"""Clocks that jump, forward and back, change nothing that is trained, and no rate becomes negative."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import tiny_runs
from vaak.callbacks import progress_bar as progress
from vaak.core import console as terminal

HOUR = 3600.0
JUMPS = (0.0, 5 * HOUR, -3 * HOUR, 0.0, -9e5, 1e9, 2.0, -1e9)
WITH_ALL = (
    "training.logging.tensorboard=true",
    "training.logging.progress_bar=true",
    "training.profiling=true",
    "training.checkpoint.interval_minutes=1",
    "training.checkpoint.save_total_limit=1",
)


def jumping(clock: Callable[[], float]) -> Callable[[], float]:
    """The clock, set forward or back whenever it is read."""
    jumps = cycle(JUMPS)
    return lambda: clock() + next(jumps)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    tiny_runs.write_corpus(folder)
    return folder


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal by a clock that jumps, on which the progress bar is drawn."""
    drawn = io.StringIO()
    shown = Console(file=drawn, force_terminal=True, width=160, get_time=jumping(time.monotonic))
    monkeypatch.setenv("FORCE_COLOR", "1")  # the console is asked only where it may be a terminal
    for module in (terminal, progress):
        monkeypatch.setattr(module, "console", lambda: shown)
    return drawn


def stat_records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def without_clocks(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of training itself, without those parts that depend on a clock."""
    kinds = ("step", "evaluation", "epoch")
    kept = [record for record in records if record["kind"] in kinds]
    return [{name: value for name, value in record.items() if not isinstance(value, dict)} for record in kept]


def numbers_in(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number below a value, with its name."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers_in(inner, f"{name}/{key}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)


def test_clocks_that_jump_change_nothing(
    corpus: Path, tmp_path: Path, screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_runs.train(corpus, tmp_path / "quiet", *WITH_ALL)
    screen.truncate(0)
    with monkeypatch.context() as patched:
        for name in ("time", "monotonic", "perf_counter"):
            patched.setattr(time, name, jumping(getattr(time, name)))
        outcome = tiny_runs.train(corpus, tmp_path / "jumping", *WITH_ALL)
    assert outcome.reason == "finished"
    weights = [tmp_path / run / "checkpoints" / "step-00000008" / "model.safetensors" for run in ("quiet", "jumping")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    quiet, jumped = (stat_records(tmp_path / run) for run in ("quiet", "jumping"))
    assert without_clocks(quiet) == without_clocks(jumped)
    measured = [entry for record in jumped for entry in numbers_in(record)]
    assert any(name.endswith("tokens_per_second") for name, _ in measured)
    for name, value in measured:
        assert math.isfinite(value), name
        assert value >= 0 or name.startswith("/val_"), f"{name} is {value}"
    assert "steps/s" in screen.getvalue()


@pytest.mark.parametrize(("speed", "shown"), [(12.34, "12.3 steps/s"), (-12.34, "- steps/s"), (None, "- steps/s")])
def test_the_bar_shows_no_rate_below_zero(speed: float | None, shown: str) -> None:
    task: Any = SimpleNamespace(speed=speed)
    assert progress.Speed().render(task).plain == shown
