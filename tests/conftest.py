"""Fixtures of all tests."""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

import shards
import tiny_runs
from commands import Commands
from trained_once import evaluations_show, runs_end_with, trained_once
from vaak.cli.main import main
from vaak.config.base import REGISTERED
from vaak.config.tasks import _CACHED_SPECS, REGISTERED_TASKS, built_in
from vaak.core import progress
from vaak.runs.preflight.doctor import packages

# No test is timed: one that is quick on a quiet machine takes seconds on a busy one. `make test` tries the same
# examples every time; `make test-slow` looks for new ones (HYPOTHESIS_PROFILE=search).
UNTIMED = [HealthCheck.too_slow]
settings.register_profile("same", deadline=None, derandomize=True, max_examples=15, suppress_health_check=UNTIMED)
settings.register_profile("search", deadline=None, max_examples=200)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

REPOSITORY = Path(__file__).resolve().parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-durations", action="store_true", help="measure what tests/durations.json has")


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C acts on the commands of tests that a script runs in its background, where a shell ignores it."""
    if hasattr(config, "workerinput"):
        shards.share_compiling(config)
    elif config.getoption("write_durations"):
        config.pluginmanager.register(shards.Stopwatch())
    gc.disable()  # until all tests are collected, which leaves millions of objects and next to no garbage
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup; a run keeps it so, and its tests would wait
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Several workers begin with what takes longest, so that they end together."""
    if hasattr(config, "workerinput"):
        shards.longest_first(items, shards.measured())


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the one of ``--dist loadfile``; any other way to share tests is xdist's own."""
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return shards.WholeFiles(config, log)


def pytest_collection_finish() -> None:
    """Leave what the tests imported out of garbage collections, of which the code under test asks for many.

    Those that nobody asks for come seldom.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


@pytest.fixture(autouse=True)
def _imports_are_not_collected() -> Iterator[None]:
    """The same for what a test imports: transformers alone are a million objects."""
    before = len(sys.modules)
    yield
    if len(sys.modules) > before + 20:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def _nothing_stays_registered() -> Iterator[None]:
    """What a test registers under a short name, tasks too, is gone after it; so are the specs of tasks it looked up.

    The metrics that these declare would give units to figures of later tests.
    """
    before, tasks = {key: dict(names) for key, names in REGISTERED.items()}, dict(REGISTERED_TASKS)
    looked_up = set(_CACHED_SPECS)
    yield
    for name in _CACHED_SPECS.keys() - looked_up - built_in():
        del _CACHED_SPECS[name]
    for registered, found in ((REGISTERED, before), (REGISTERED_TASKS, tasks)):
        registered.clear()
        registered.update(found)


@pytest.fixture(autouse=True)
def _threads_stay() -> Iterator[None]:
    """A test that left torch another number of threads would change the bits of what later ones train."""
    before = torch.get_num_threads()
    yield
    now = torch.get_num_threads()
    if now != before:
        torch.set_num_threads(before)
        pytest.fail(f"the test left torch {now} threads where there were {before}")


@pytest.fixture(autouse=True)
def _gradients_stay() -> Iterator[None]:
    """A generator that is dropped within ``no_grad`` leaves it on, and later trainings learn nothing."""
    yield
    if not torch.is_grad_enabled():
        torch.set_grad_enabled(True)
        pytest.fail("the test left gradients off")


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Built-in voices are made once, and not in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VAAK_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _files_are_not_forced_to_the_disk() -> Iterator[None]:
    """No test of this process takes away the power, and a tiny run waits for the disk 50 times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # which fails for what isn't open, too
        yield


@pytest.fixture(scope="session", autouse=True)
def _evaluations_draw_nothing() -> Iterator[None]:
    """Pictures take longer than all else in a tiny run; tests of them have the fixture ``pictures``."""
    with evaluations_show(lambda self, step, draw, best=None: None):
        yield


@pytest.fixture(scope="session", autouse=True)
def _runs_end_without_samples() -> Iterator[None]:
    """So do texts, audio and timelines at the end of a run; tests of them have the fixture ``samples``."""
    with runs_end_with(lambda task, model: []):
        yield


@pytest.fixture(scope="session", autouse=True)
def _packages_are_tried_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The doctor imports every package in another process, which takes 8 seconds and finds the same each time."""
    try_imports = packages.try_imports

    def write(folder: Path) -> None:
        found = {name: (one.there, one.error) for name, one in try_imports().items()}
        (folder / "imports.json").write_text(json.dumps(found), encoding="utf-8")

    @functools.cache
    def all_packages() -> dict[str, packages.Import]:
        found = json.loads((trained_once(tmp_path_factory, "imports", write) / "imports.json").read_text("utf-8"))
        return {name: packages.Import(*one) for name, one in found.items()}

    def tried(names: Sequence[str] | None = None) -> dict[str, packages.Import]:
        return dict(all_packages()) if names is None else try_imports(names)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packages, "try_imports", tried)
        yield


@pytest.fixture(scope="module")
def pictures(_evaluations_draw_nothing: None) -> Iterator[None]:
    """Evaluations draw their pictures in all tests of the module, as they do for users."""
    with evaluations_show():
        yield


@pytest.fixture
def samples(_runs_end_without_samples: None) -> Iterator[None]:
    """Runs end with their samples, as they do for users."""
    with runs_end_with():
        yield


@pytest.fixture(scope="session")
def vaak_data() -> Callable[[str], Path]:
    """Gives a folder of real data by its name, or skips the test where there is none.

    The data is in the folder named by the environment variable VAAK_DATA; its default is only here.
    """
    root = Path(os.environ.get("VAAK_DATA", REPOSITORY.parent / "shared" / "data"))

    def folder(name: str) -> Path:
        if not (root / name).is_dir():
            pytest.skip(f"real data: {root / name} is missing (VAAK_DATA names the folder that holds {name})")
        return root / name

    return folder


@pytest.fixture(scope="session")
def tiny_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``train.txt``, ``valid.txt``, ``test.txt``, and ``tiny.yml`` that names them."""
    folder = tmp_path_factory.mktemp("tiny_text")
    tiny_runs.write_corpus(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_run(tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of the tiny job, trained to its end; tests don't change it."""
    run = tmp_path_factory.mktemp("tiny_run") / "tiny"
    tiny_runs.train(tiny_text, run)
    return run


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Starts ``vaak`` commands as separate processes."""
    server = Commands(tmp_path_factory.mktemp("said"))
    yield server
    server.close()


@pytest.fixture
def vaak(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """``vaak(*arguments)`` runs a command in this process and gives (exit code, stdout, stderr).

    On a busy machine, too, it prints no line about what takes half a minute.
    """
    monkeypatch.setattr(progress, "LINE_SECONDS", 3600.0)

    def call(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["vaak", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call
