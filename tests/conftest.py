"""Fixtures of all tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# No test is timed: what is quick on a quiet machine takes seconds on a busy one. `make test` tries the same examples
# every time; `make test-slow` looks for new ones (HYPOTHESIS_PROFILE=search).
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def vaak_data() -> Callable[[str], Path]:
    """Gives a folder of real data by its name, or skips the test where there is none.

    The data lie in the folder that the environment's VAAK_DATA names; here alone stands its default.
    """
    root = Path(os.environ.get("VAAK_DATA", REPOSITORY.parent / "shared" / "data"))

    def folder(name: str) -> Path:
        if not (root / name).is_dir():
            pytest.skip(f"real data: there is no {root / name} (VAAK_DATA names the folder that holds {name})")
        return root / name

    return folder
