"""What a run was made with: versions, commit, hardware, command line. No environment variables: they hold secrets."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import vaak

PACKAGES = ("torch", "accelerate", "numpy", "tokenizers", "safetensors", "transformers", "datasets")
SECRET = re.compile(r"(?i)((?:key|token|secret|passw(?:or)?d)=).+|(://[^/\s:@]*:)[^/\s@]+(?=@)", re.DOTALL)


def environment(device: torch.device, world_size: int) -> dict[str, Any]:
    """The environment of this process, as JSON."""
    return {
        "vaak": vaak.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "platform": platform.platform(),
        "processor": {"machine": platform.machine(), "cores": os.cpu_count(), "torch_threads": torch.get_num_threads()},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cuda": torch.version.cuda,
        "world_size": world_size,
        "command": [SECRET.sub(r"\1\2***", argument) for argument in sys.argv],
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of Vaak's own checkout, with ``+`` where it has changes; None for an installed package."""
    folder = Path(__file__).parent
    try:
        described = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return described.stdout.strip() or None
