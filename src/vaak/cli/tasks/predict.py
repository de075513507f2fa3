"""``vaak predict``: a trained model of any task, run on new inputs."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, is_dataclass
from typing import Annotated, Any

import typer

from vaak.cli.arguments import BatchSize, ModelInUse, Output, on_a_run
from vaak.cli.output import print_or_write


@on_a_run
def predict(
    chosen: ModelInUse,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(help="Inputs of the task: texts or files; default: lines of stdin."),
    ] = None,
    output: Output = None,
    batch_size: BatchSize = None,
) -> None:
    """Print one line per input: the prediction as text or, with --json, as JSON.

    The commands of the tasks (generate, translate, diarize, transcribe, speak) have more options; speak writes audio.

    Example: vaak predict runs/en_hi "The boy is good."
    """
    opened = chosen.open()
    given = {} if batch_size is None else {"batch_size": batch_size}  # a task of a user's own may not have it
    results = opened.task.predict(opened.model, inputs or (line.rstrip("\n") for line in sys.stdin), **given)
    lines = (json.dumps(_plain(result), ensure_ascii=False) if chosen.as_json else str(result) for result in results)
    with opened.precision.autocast():
        print_or_write(lines, output, len(inputs) if inputs else None)


def _plain(result: Any) -> Any:
    """A result that can be written as JSON."""
    if hasattr(result, "to_json"):
        return result.to_json()
    if is_dataclass(result) and not isinstance(result, type):
        return asdict(result)
    return result if isinstance(result, str | int | float | bool | list | dict | None) else str(result)
