"""A line on the terminal before the seconds that importing torch takes."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any


class TorchNotice:
    """Stands first among the finders of modules, and finds none: it says when torch is looked for, once."""

    def find_spec(self, name: str, *others: Any) -> None:
        if name == "torch":
            sys.meta_path.remove(self)
            if sys.stderr.isatty() and os.environ.get("RANK", "0") == "0":
                with contextlib.suppress(OSError):
                    print("loading torch …", file=sys.stderr, flush=True)


def say_before_importing_torch() -> None:
    """From here on, whatever imports torch first says so on standard error, if that is a terminal."""
    if "torch" not in sys.modules and not any(isinstance(finder, TorchNotice) for finder in sys.meta_path):
        sys.meta_path.insert(0, TorchNotice())
