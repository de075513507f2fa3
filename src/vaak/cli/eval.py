"""``vaak eval``: a trained run's metrics on a split."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaak.cli.config import AsJson, Device, TrustCode, Weights, WhichWeights, files_and_overrides
from vaak.core.errors import UserError

if TYPE_CHECKING:
    from vaak.core.task import Meters
    from vaak.runs.open_run import OpenedRun


EMPTY = ("", "[]", "null")


def evaluate(
    run: Annotated[
        Path | None, typer.Argument(help="A run (its best checkpoint), or a checkpoint: a folder step-…, best or last.")
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DATA.yml… key=value…]", help="YAML files and options that override the run's own."),
    ] = None,
    split: Annotated[list[str] | None, typer.Option(help="The split to evaluate on; may be repeated.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "--output-dir",
            help="Write evaluation.json, and tables and pictures, if the task has some, to this folder.",
        ),
    ] = None,
    device: Device = "auto",
    weights: Weights = WhichWeights.auto,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
    model_path: Annotated[
        Path | None, typer.Option("--model-path", help="The run or checkpoint, instead of as the first argument.")
    ] = None,
    data_config: Annotated[
        list[str] | None, typer.Option("--data-config", help="A YAML of data; the same as DATA.yml; may be repeated.")
    ] = None,
) -> None:
    """Evaluate a run in fp32 and print its metrics with the evaluation protocol.

    Example: vaak eval runs/quickstart --split test --output evaluation
    """
    from vaak.callbacks.console.figures import percents
    from vaak.cli.output import create_folder
    from vaak.cli.results import print_figures
    from vaak.core.storage.files import write_json
    from vaak.runs.evaluate import evaluate_run

    given = [*(data_config or []), *(arguments or [])]
    if model_path is not None:  # so that the first argument is data
        run, given = model_path, [*([] if run is None else [str(run)]), *given]
    if run is None:
        raise UserError("give a run or a checkpoint: vaak eval RUN, or --model-path RUN")
    create_folder(output)
    files, overrides = files_and_overrides(given)
    paths = [Path(file) for file in files]
    splits = split or ["valid"]
    _demand_evaluated(overrides, splits)
    shown: dict[str, Meters] = {}

    def watched(opened: OpenedRun, name: str, meters: Meters) -> Meters:
        shown[name] = meters
        return meters

    how: dict[str, Any] = {"trust_code": trust_code, "watched": watched}
    report = evaluate_run(run, paths, overrides, splits, device, weights, **how)
    report["percent"] = percents(report["metrics"])
    if output is not None:
        write_json(output / "evaluation.json", report)
        for name, meters in shown.items():
            _write_tables(output, name, meters)
    if as_json:
        print(json.dumps(report, ensure_ascii=False))
        return
    print(f"{report['checkpoint']}")
    print_figures(report["metrics"])
    for name, protocol in report["protocol"].items():
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in protocol.items() if key != "split"))
    for line in report["below_baselines"]:
        print(line)


def _demand_evaluated(overrides: list[str], splits: list[str]) -> None:
    """Raise UserError where the command line names files of a split that isn't evaluated."""
    from vaak.core.errors import UserError

    for key, _, value in (override.partition("=") for override in overrides):
        section, _, name = key.rpartition(".")
        names_files = section == "data.corpus" or section.startswith("datasets.")
        if names_files and name in ("valid", "test", "out_of_scope") and name not in splits and value not in EMPTY:
            raise UserError(f"{key} is not read: {', '.join(splits)} is evaluated; add --split {name}, or leave it out")


def _write_tables(folder: Path, split: str, meters: Meters) -> None:
    """Write the tables of a split as CSV and, if there are any, its pictures as PNG."""
    from vaak.core.errors import UserError
    from vaak.core.storage.files import write_bytes, write_text

    tables = meters.tables()
    for name, content in tables.items():
        write_text(folder / f"{split}_{name}.csv", content)
    try:
        for name, picture in meters.pictures().items() if tables else ():
            write_bytes(folder / f"{split}_{name}.png", picture)
    except UserError as error:  # matplotlib is an extra
        print(f"warning: no pictures: {error}", file=sys.stderr)
