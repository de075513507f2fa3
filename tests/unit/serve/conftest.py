"""Runs of all tasks, and servers of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from served_runs import TinyRun, find_task, train_task
from trained_once import trained_once
from vaak.core.storage.files import scratch_folder
from vaak.runs.open_run import open_run
from vaak.serve.app import make_app
from vaak.serve.batching import Batching
from vaak.serve.gate import Gate, Limits
from vaak.serve.metrics import Metrics
from vaak.serve.models import Server, serve_models


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyRun]:
    """Gives a tiny run of a task, which is trained when it is first asked for; tests leave it as it is."""

    @cache
    def find(task: str) -> TinyRun:
        return find_task(
            trained_once(tmp_path_factory, f"served_{task}", lambda folder: train_task(folder, task)), task
        )

    return find


@contextmanager
def make_client(
    runs: Sequence[Path], limits: Limits | None = None, batching: Batching | None = None, token: str | None = None
) -> Iterator[TestClient]:
    """A client of a server in this process."""
    metrics = Metrics()
    opened = [(run, open_run(run, device="cpu", precision="auto")) for run in runs]
    with scratch_folder("serve") as folder:
        models = serve_models(opened, metrics, batching or Batching())
        server = Server(models, limits or Limits(), metrics, folder)
        gate = Gate(make_app(server), server.limits, metrics, token, hosts=("127.0.0.1",))
        try:
            yield TestClient(gate, base_url="http://127.0.0.1:8000")
        finally:
            server.close()


@pytest.fixture(scope="module")
def client_of() -> Iterator[Callable[..., TestClient]]:
    """Makes clients, whose servers end with the module."""
    with ExitStack() as stack:
        yield lambda *runs, **how: stack.enter_context(make_client(runs, **how))
