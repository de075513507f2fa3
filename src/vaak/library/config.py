"""A configuration from files and from Python."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from vaak.config.experiment import Experiment
from vaak.config.load import load_layers
from vaak.core.errors import UserError

Layer = str | PathLike[str] | Mapping[str, Any]
"""A YAML file, or sections."""


def load_config(*layers: Layer, trust_code: bool = False, **options: Any) -> Experiment[Any, Any]:
    """Return the validated experiment of YAML files and dicts, the later over the earlier, and of ``options`` over all.

    ``load_config("run.yml", {"model": {"d_model": 64}}, epochs=3, learning_rate=1e-3)``: options are sections, or, as
    in a YAML, those of ``training`` by themselves. Raises ConfigError with every mistake. A task of a user's own is
    imported; that of a run only with ``trust_code``.
    """
    return load_layers(as_layers([*layers, options]), trust_code=trust_code).experiment


def as_layers(layers: list[Layer]) -> list[Path | Mapping[str, Any]]:
    """Files as paths, and sections in the values that a YAML has. Raises UserError for what is neither."""
    found: list[Path | Mapping[str, Any]] = []
    for layer in layers:
        if isinstance(layer, str | PathLike):
            found.append(Path(layer))
        elif isinstance(layer, Mapping):
            found.append(as_plain(layer, ""))
        else:
            raise UserError(f"a configuration is a YAML file or a dict of sections, not a {type(layer).__name__}")
    return found


def as_plain(value: Any, key: str) -> Any:
    """Return a value as a YAML would have it. Raises UserError, naming its ``key``, for one that no YAML can have."""
    if isinstance(value, Mapping):
        return {str(name): as_plain(part, f"{key}.{name}".lstrip(".")) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(part, key) for part in value]
    if isinstance(value, PathLike):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, str | int | float):
        return value
    raise UserError(f"{key} is a {type(value).__name__}; expected a number, a text, a list or a dict")
