"""The one console that log lines and the progress bar share, so that neither writes over the other."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

FORCING = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""Variables that make rich treat any output as a terminal."""


@functools.cache
def console() -> Any:
    """The console on standard error."""
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True)


def is_terminal() -> bool:
    """Whether the console is a terminal; rich is asked, and imported, only where it may be one."""
    may_be = (sys.stderr is not None and sys.stderr.isatty()) or any(name in os.environ for name in FORCING)
    return may_be and bool(console().is_terminal)
