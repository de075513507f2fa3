"""What one worker of pytest-xdist has trained is there for the others, too; with pictures and samples or without."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vaak.core.storage.lock import locked
from vaak.engine.evaluation import Pictures
from vaak.runs import start

SHOW = Pictures.show
SAMPLES = start.shown_samples


@contextlib.contextmanager
def evaluations_show(show: Callable[..., None] = SHOW) -> Iterator[None]:
    """Within this context, ``show`` is called with the pictures of an evaluation; by default, they are drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pictures, "show", show)
        yield


@contextlib.contextmanager
def runs_end_with(samples: Callable[..., list[str]] = SAMPLES) -> Iterator[None]:
    """Within this context, a run that has been trained shows these samples; by default, its task's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "shown_samples", samples)
        yield


def trained_once(factory: pytest.TempPathFactory, name: str, train: Callable[[Path], object]) -> Path:
    """Return a folder in which ``train(folder)`` has left something: this worker's copy of what the first one made."""
    own = factory.mktemp(name)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        train(own)
        return own
    shared = factory.getbasetemp().parent / f"shared_{name}"
    made = shared.with_suffix(".made")
    with locked(shared.with_suffix(".lock")):
        if not made.exists():
            shutil.rmtree(shared, ignore_errors=True)
            shared.mkdir()
            train(shared)
            made.touch()
    return Path(shutil.copytree(shared, own, symlinks=True, dirs_exist_ok=True))
