"""A study of many runs: a configuration trained in variants, in a folder that is resumed only under the same."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from vaak.config.load import Loaded, load
from vaak.config.resolved import resolved_values

PLACE_OPTIONS = ("name", "run_dir")


@dataclass(frozen=True)
class StudyPlan:
    """The configuration of a study (files, overrides); ``trust_code``: user code that comes with a run may run."""

    files: tuple[str, ...]
    overrides: tuple[str, ...]
    trust_code: bool = field(default=False, kw_only=True)

    def load(self, *overrides: str) -> Loaded:
        """Return the configuration with more options."""
        return load([*map(Path, self.files)], [*self.overrides, *overrides], trust_code=self.trust_code)

    @cached_property
    def checkpoint(self) -> Any:
        """The section that says by which metric a run is the best."""
        return self.load().experiment.training.checkpoint


def make_identity(plan: StudyPlan, **own: Any) -> dict[str, Any]:
    """Return a study's ``own`` options and its configuration, without the places of its files, which may be moved."""
    configuration = resolved_values(plan.load().experiment)
    for name in PLACE_OPTIONS:
        configuration.pop(name, None)
    configuration["training"].pop("device", None)
    values: dict[str, Any] = json.loads(json.dumps({"configuration": configuration, **own}, default=str))
    # The values have the form of JSON that is read back.
    return values


OTHER_STUDY = "restore what it was started with to resume it, or give another --output"
"""Advice about a folder that has another study."""
