"""``vaak predict``: a trained model of any task, run on new inputs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from vaak.cli.arguments import (
    AsJson,
    BatchSize,
    Device,
    Output,
    Precision,
    TrustCode,
    Weights,
    WhichPrecision,
    WhichWeights,
)


def predict(
    run: Annotated[Path, typer.Argument(help="A run (its best checkpoint) or a checkpoint.")],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(help="Inputs of the task: texts or files; default: lines of stdin."),
    ] = None,
    output: Output = None,
    device: Device = "auto",
    precision: Precision = WhichPrecision.auto,
    batch_size: BatchSize = None,
    weights: Weights = WhichWeights.auto,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Print one line per input: the prediction as text or, with --json, as JSON.

    The commands of the tasks (generate, translate, diarize, transcribe, speak) have more options; speak writes audio.

    Example: vaak predict runs/en_hi "The boy is good."
    """
    from vaak.cli.output import print_or_write
    from vaak.runs.open_run import open_run

    opened = open_run(run, device=device, weights=weights, precision=precision, trust_code=trust_code)
    given = {} if batch_size is None else {"batch_size": batch_size}  # a task of a user's own may not have it
    results = opened.task.predict(opened.model, inputs or _lines(), **given)
    lines = (json.dumps(_plain(result), ensure_ascii=False) if as_json else str(result) for result in results)
    with opened.precision.autocast():
        print_or_write(lines, output, len(inputs) if inputs else None)


def _lines() -> Iterator[str]:
    return (line.rstrip("\n") for line in sys.stdin)


def _plain(result: Any) -> Any:
    """A result that can be written as JSON."""
    if hasattr(result, "to_json"):
        return result.to_json()
    if is_dataclass(result) and not isinstance(result, type):
        return asdict(result)
    return result if isinstance(result, str | int | float | bool | list | dict | None) else str(result)
