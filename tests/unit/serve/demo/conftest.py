"""Pages of runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vaak.runs.open_run import open_run
from vaak.serve.batching import Batching
from vaak.serve.gate import Limits
from vaak.serve.metrics import Metrics
from vaak.serve.models import Server, serve_models


@pytest.fixture
def server_of(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Server]:
    """Makes what is served of runs, which ends with the test."""

    def make(*runs: Path, **limits: Any) -> Server:
        opened = [(run, open_run(run, device="cpu", precision="auto")) for run in runs]
        metrics = Metrics()
        server = Server(serve_models(opened, metrics, Batching()), Limits(**limits), metrics, tmp_path)
        request.addfinalizer(server.close)
        return server

    return make
