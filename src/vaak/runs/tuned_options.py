"""Options that were found after training: ``RUN/tuned.yml``, which overrides ``RUN/config.yml`` wherever a run is used.

Training doesn't read it, so a resumed run is evaluated as at its start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vaak.config.yaml.writer import yaml_text
from vaak.core.errors import UserError
from vaak.core.storage.files import write_text

TUNED = "tuned.yml"


def layers_of(directory: Path) -> list[Path]:
    """The files that a run's configuration for use is made of, the later over the earlier."""
    return [directory / "config.yml", *(path for path in (directory / TUNED,) if path.exists())]


def write_tuned(directory: Path, options: Mapping[str, Any], remarks: Sequence[str]) -> Path:
    """The file written: sections of options below remarks. Raises UserError where it can't be written."""
    path = directory / TUNED
    try:
        write_text(path, "".join(f"# {line}\n" for line in remarks) + yaml_text(dict(options)))
    except OSError as error:
        raise UserError(f"{path} can't be written: {error.strerror or error}") from error
    return path
