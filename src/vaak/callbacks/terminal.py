"""The one console that log lines and the progress bar share, so that neither writes over the other."""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def console() -> Any:
    """The console on standard error."""
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True)
