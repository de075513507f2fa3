"""Group tests for the workers of pytest-xdist, the slowest group first.

Tests of a group share the data and runs of module-scoped fixtures.
``pytest --write-durations`` measures the seconds of each and writes them into ``tests/durations.json``.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

DURATIONS = Path(__file__).parents[2] / "durations.json"
SHORT = 1.0
"""Seconds below which what runs together isn't recorded; it comes last."""


OF_RANKS = (
    *(f"tests/process/test_{name}.py" for name in ("accumulation_ranks", "meetings", "precision_ranks", "rank_faults")),
    "tests/unit/audio/features/test_feature_store.py",
)
"""Files whose processes are forks of one that takes seconds to start: one worker starts it."""


def together(nodeid: str) -> str:
    """Return a test's group: its file or, in the contract, its case, which prepares its data once."""
    file, _, test = nodeid.partition("::")
    if file in OF_RANKS:
        return "several ranks"
    return f"{file}: {test.partition('[')[2].rpartition('-check_')[0]}" if "-check_" in test else file


def share_compiling(config: pytest.Config) -> None:
    """Let every other worker collect the last file first: it finds compiled what the others began with, and they its.

    Every worker collects all tests, and half of its time goes into the assertions, which pytest rewrites, unless it
    finds them in a ``__pycache__``.
    """
    number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    if number % 2 and config.args == config.getini("testpaths"):
        found = [path for folder in config.args for path in (config.rootpath / folder).rglob("test_*.py")]
        config.args = [str(path) for path in sorted(found, reverse=True)]


def longest_first(items: list[pytest.Item], seconds: dict[str, float]) -> None:
    """Sort the tests by the seconds of what they run together with; those that weren't measured come last."""
    items.sort(key=lambda item: (-seconds.get(together(item.nodeid), 0.0), item.nodeid.partition("::")[0]))


def measured() -> dict[str, float]:
    """Return the recorded seconds, by what runs together."""
    found: dict[str, float] = json.loads(DURATIONS.read_text(encoding="utf-8"))
    return found


class WholeFiles(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """Gives a worker that has nothing to do the next file or case, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return together(nodeid)


class Stopwatch:
    """A plugin that writes ``tests/durations.json`` at the end of all tests."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[together(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        write(self.seconds)


def write(seconds: dict[str, float]) -> None:
    """Write the seconds of what isn't short, over those of an earlier time."""
    found = {**measured(), **seconds}
    kept = {name: round(found[name], 1) for name in sorted(found) if found[name] >= SHORT}
    DURATIONS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
