"""Runs of all tasks, and servers of them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn
from starlette.testclient import TestClient

from served_runs import wait_until
from vaak.core.storage.files import scratch_folder
from vaak.runs.open_run import OpenedRun
from vaak.serve.app import make_app
from vaak.serve.batching import Batching
from vaak.serve.gate import Gate, Limits
from vaak.serve.metrics import Metrics
from vaak.serve.models import Server, open_model, serve_models
from vaak.serve.running import listen, make_config


@contextmanager
def make_gate(
    *runs: Path | OpenedRun,
    limits: Limits | None = None,
    batching: Batching | None = None,
    token: str | None = None,
    log_texts: bool = False,
) -> Iterator[Gate]:
    """Serve runs in this process."""
    metrics = Metrics()
    opened = [
        (run.directory, run) if isinstance(run, OpenedRun) else (run, open_model(run, device="cpu", precision="auto"))
        for run in runs
    ]
    with scratch_folder("serve") as folder:
        models = serve_models(opened, metrics, batching or Batching())
        server = Server(models, limits or Limits(), metrics, folder, log_texts)
        try:
            yield Gate(make_app(server), server.limits, metrics, token, ("127.0.0.1",), log_texts)
        finally:
            server.close()


@pytest.fixture(scope="module")
def client_of() -> Iterator[Callable[..., TestClient]]:
    """Makes clients, whose servers end with the module."""
    with ExitStack() as stack:

        def make(*runs: Path | OpenedRun, **how: object) -> TestClient:
            gate = stack.enter_context(make_gate(*runs, **how))  # type: ignore[arg-type]
            return TestClient(gate, base_url="http://127.0.0.1:8000", raise_server_exceptions=False)

        yield make


@dataclass(frozen=True)
class Live:
    """A server that listens, in a thread of this process."""

    address: str
    gate: Gate
    port: int


@pytest.fixture
def live() -> Iterator[Callable[..., Live]]:
    """Makes servers, which end with the test."""
    with ExitStack() as stack:

        def make(*runs: Path, **how: object) -> Live:
            gate = stack.enter_context(make_gate(*runs, **how))  # type: ignore[arg-type]
            listening = stack.enter_context(listen("127.0.0.1", 0, None))
            # Connections inherit it: little of an answer is held by the system for a client that doesn't read.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
            port = listening.getsockname()[1]
            server = uvicorn.Server(make_config(gate))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
            thread.start()

            def end() -> None:
                server.should_exit = True
                thread.join(60)

            stack.callback(end)
            wait_until(lambda: server.started)
            return Live(f"http://127.0.0.1:{port}", gate, port)

        yield make
