"""How results are printed: a table for people, a line of JSON for programs."""

from __future__ import annotations

import shlex
from typing import Any

from vaak.callbacks.console.json_lines import print_line
from vaak.runs.folder.directory import command_to_go_on
from vaak.runs.start import Outcome


def print_outcome(outcome: Outcome, as_json: bool) -> None:
    """Print how training ended, its last metrics, and the command that resumes the run."""
    if as_json:
        values = {"reason": outcome.reason, "run": str(outcome.directory), "step": outcome.step}
        print_line({"kind": "result", **values, **outcome.metrics})
        return
    if outcome.metrics:
        print_figures(outcome.metrics)
    for line in outcome.samples:
        print(f"  {line}")
    if outcome.reason != "finished":
        print(f"stopped at step {outcome.step} of {outcome.total_steps} ({outcome.reason})")
        print(f"resume with: {command_to_go_on(outcome.directory)}")
    else:
        print(f"finished step {outcome.step}; the run is in {shlex.quote(str(outcome.directory))}")


def print_figures(figures: dict[str, Any]) -> None:
    """Names and values, one per line."""
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:<{width}}  {value:.4f}" if isinstance(value, float) else f"{name:<{width}}  {value}")
