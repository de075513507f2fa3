"""A tracker that can't be reached holds a run up for a bounded time, is reported once, and the run is the same."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commands import Ended, stat_records

wandb = pytest.importorskip("wandb")

ONLINE = ("training.logging.wandb=true", "wandb.mode=online")


@pytest.fixture(params=["closed", "silent"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where nobody listens, and where somebody takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if request.param == "silent":
            listener.listen(100)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def environment_at(folder: Path, **variables: str) -> dict[str, str]:
    """W&B's own folders elsewhere, and as little patience as it has."""
    names = ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "NETRC")
    return {**{name: str(folder / "elsewhere") for name in names}, "WANDB_INIT_TIMEOUT": "1", **variables}


def warnings_of(run: Path) -> list[str]:
    lines = (run / "train.log").read_text().splitlines()
    return [line.partition(" WARNING ")[2] for line in lines if " WARNING " in line]


@pytest.mark.slow
def test_weights_and_biases_out_of_reach(address: str, train: Callable[..., Ended], reference: Path, tmp_path: Path):
    """W&B gives up after the bound and some 10 seconds more; then each step is as quick as without."""
    variables = environment_at(tmp_path, WANDB_BASE_URL=address, WANDB_API_KEY="k" * 40)
    ended = train(tmp_path / "run", *ONLINE, environment=variables)
    assert ended.status == 0, ended.errors
    (warning,) = warnings_of(tmp_path / "run")
    assert warning.startswith("Weights & Biases can't begin (")
    assert stat_records(tmp_path / "run") == stat_records(reference)


@pytest.mark.slow
def test_nobody_logged_in(train: Callable[..., Ended], reference: Path, tmp_path: Path):
    variables = environment_at(tmp_path, WANDB_BASE_URL="http://127.0.0.1:9", WANDB_API_KEY="")
    ended = train(tmp_path / "run", *ONLINE, environment=variables)
    assert ended.status == 0, ended.errors
    (warning,) = warnings_of(tmp_path / "run")
    assert warning.startswith("Weights & Biases can't begin (")
    assert stat_records(tmp_path / "run") == stat_records(reference)
