"""``vaak eval``: a trained run's metrics on a split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vaak.cli.config import AsJson, Device, TrustCode, Weights, WhichWeights, files_and_overrides


def evaluate(
    run: Annotated[
        Path, typer.Argument(help="A run (its best checkpoint), or a checkpoint: a folder step-…, best or last.")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DATA.yml… key=value…]", help="YAML files and options that override the run's own."),
    ] = None,
    split: Annotated[list[str] | None, typer.Option(help="The split to evaluate on; may be repeated.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "--output-dir", help="Write evaluation.json to this folder.")
    ] = None,
    device: Device = "auto",
    weights: Weights = WhichWeights.auto,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run in fp32 and print its metrics with the evaluation protocol.

    Example: vaak eval runs/quickstart --split test --output evaluation
    """
    from vaak.cli.results import print_figures
    from vaak.core.errors import UserError
    from vaak.core.storage.files import write_json
    from vaak.runs.evaluate import evaluate_run

    try:
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output {output} can't be created: {error.strerror}") from error
    files, overrides = files_and_overrides(arguments or [])
    paths = [Path(file) for file in files]
    report = evaluate_run(run, paths, overrides, split or ["valid"], device, weights, trust_code=trust_code)
    if output is not None:
        write_json(output / "evaluation.json", report)
    if as_json:
        print(json.dumps(report, ensure_ascii=False))
        return
    print(f"{report['checkpoint']}")
    print_figures(report["metrics"])
    for name, protocol in report["protocol"].items():
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in protocol.items() if key != "split"))
