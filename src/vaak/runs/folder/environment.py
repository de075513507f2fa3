"""What a run was made with: versions, commit, hardware, command line. No environment variables: they hold secrets."""

from __future__ import annotations

import os
import platform
import re
import sys
from typing import Any

import torch

import vaak
from vaak.core.versions import commit, installed_versions

SECRET = re.compile(r"(?i)((?:key|token|secret|passw(?:or)?d)=).+|(://[^/\s:@]*:)[^/\s@]+(?=@)", re.DOTALL)


def environment(device: torch.device, world_size: int) -> dict[str, Any]:
    """The environment of this process, as JSON."""
    return {
        "vaak": vaak.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "packages": installed_versions(),
        "platform": platform.platform(),
        "processor": {"machine": platform.machine(), "cores": os.cpu_count(), "torch_threads": torch.get_num_threads()},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cuda": torch.version.cuda,
        "world_size": world_size,
        "command": [SECRET.sub(r"\1\2***", argument) for argument in sys.argv],
    }
