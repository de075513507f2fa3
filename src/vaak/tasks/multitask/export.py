"""A run of several tasks, exported: each task in a folder of its own name, in a format that it has."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from vaak.core.storage.files import whole_folder
from vaak.core.task import Task
from vaak.nn.lora import merged
from vaak.tasks.exports import FORMATS, formats_of, why_not

log = logging.getLogger("vaak")


def refused_by_all(parts: Mapping[str, Task]) -> dict[str, str]:
    """The formats that none of the tasks has, with the reason of each."""
    found = {}
    for format in FORMATS:
        if not any(format in formats_of(part) for part in parts.values()):
            reasons = {name: why_not(part, format) for name, part in parts.items()}
            found[format] = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    return found


def export_parts(parts: Mapping[str, Task], models: nn.ModuleDict, format: str, folder: Path) -> None:
    """Write ``folder`` with a folder for each task, completely or not at all: in the format, or in one that it has.

    ``models`` are those of the tasks.
    """
    with whole_folder(folder) as made:
        for name, part in parts.items():
            formats = formats_of(part)
            own = format if format in formats else next((one for one in formats if one != "peft"), None)
            if own != format:
                instead = f"it is written as {own}" if own else "it is left out"
                log.warning("%s: --format %s: %s; %s", name, format, why_not(part, format), instead)
            if own is not None:
                writer: Any = getattr(part, f"export_{own}")
                writer(models[name] if own == "peft" else merged(models[name]), made / name)
