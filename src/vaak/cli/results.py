"""How figures are printed: a table for people, one JSON object for programs."""

from __future__ import annotations

import json
import shlex
from typing import Any

from vaak.runs.start import Outcome
from vaak.runs.user_code import CODE


def print_outcome(outcome: Outcome, as_json: bool) -> None:
    """Say how a training ended, its last figures, and what can be done with the run."""
    if as_json:
        values = {"reason": outcome.reason, "run": str(outcome.directory), "step": outcome.step, **outcome.metrics}
        print(json.dumps(values, ensure_ascii=False))
        return
    if outcome.metrics:
        print_figures(outcome.metrics)
    for line in outcome.showcase:
        print(f"  {line}")
    run = shlex.quote(str(outcome.directory))
    if outcome.reason != "finished":
        print(f"stopped at step {outcome.step} of {outcome.total_steps} ({outcome.reason})")
        trust = " --trust-code" if (outcome.directory / CODE).is_dir() else ""
        print(f"go on with: vaak train {run}/config.yml --resume auto{trust}")
    else:
        print(f"finished step {outcome.step}; the run is in {run}")


def print_figures(figures: dict[str, Any]) -> None:
    """Names and values, one a line."""
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:<{width}}  {value:.4f}" if isinstance(value, float) else f"{name:<{width}}  {value}")
