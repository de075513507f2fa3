"""Which of a test's parameters are tried by `make test`; `make test-slow` tries the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_slow(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Return parameters of which all but ``quick`` are slow; a tuple is recognised by its first value."""
    found = []
    for value in values:
        first, *others = value if isinstance(value, tuple) else (value,)
        found.append(pytest.param(first, *others, marks=[] if first in quick else [pytest.mark.slow]))
    return found
