"""``vaak tune``: tune a diarizer's settings on development recordings."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaak.callbacks.console.figures import percent
from vaak.cli.config import AsJson, Device, TrustCode, Weights, WhichWeights, files_and_overrides

if TYPE_CHECKING:
    from vaak.audio.scoring.pieces import ErrorSeconds
    from vaak.tasks.diarization.inference.tuning import Tuning


def tune(
    run: Annotated[Path, typer.Argument(help="A run (its best checkpoint) or a checkpoint.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DATA.yml… key=value…]", help="YAML files and options that override the run's own."),
    ] = None,
    split: Annotated[str, typer.Option(help="The development recordings; test is not allowed.")] = "valid",
    device: Device = "auto",
    weights: Weights = WhichWeights.auto,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Find the threshold, median filter and minimum durations with the lowest DER on development recordings.

    They are written to RUN/tuned.yml with all of data.inference. vaak eval and vaak diarize use them unless their
    command line overrides them; training doesn't use them. To undo, delete the file.

    Example: vaak tune runs/diarizer
    """
    from vaak.core.errors import UserError
    from vaak.runs.open_run import open_run
    from vaak.runs.tuned_options import write_tuned

    files, overrides = files_and_overrides(arguments or [])
    with tempfile.TemporaryDirectory(prefix="vaak-tune-") as temporary_folder:
        how: dict[str, Any] = {
            "weights": weights,
            "temporary_folder": Path(temporary_folder),
            "splits": (split,),
            "trust_code": trust_code,
        }
        opened = open_run(run, [Path(file) for file in files], overrides, device, **how)
        if not hasattr(opened.task, "tune"):
            raise UserError(f"{run} is a run of task {opened.experiment.task}; vaak tune requires a diarization run")
        found: Tuning = opened.task.tune(opened.model, split)
    inference = found.inference.model_dump(mode="json")
    remarks = [
        f"By vaak tune, on {split} ({found.recordings} recordings), with {opened.checkpoint.name}.",
        f"DER {_rate(found.before)} before, {_rate(found.after)} with these options.",
    ]
    path = write_tuned(opened.directory, {"data": {"inference": inference}}, remarks)
    before = opened.experiment.data.inference.model_dump(mode="json")
    if as_json:
        about = {
            "split": split,
            "recordings": found.recordings,
            "file": str(path),
            "checkpoint": str(opened.checkpoint),
        }
        errors = {name: _values(getattr(found, name)) for name in ("before", "after")}
        print(json.dumps({**about, **errors, "inference": inference, "protocol": opened.task.meters(split).protocol}))
        return
    print(f"{split}: recordings {found.recordings}")
    for name in ("before", "after"):
        print(f"{name:<7} {_line(getattr(found, name))}")
    for name, value in inference.items():
        if value != before[name]:
            print(f"{name:<17} {before[name]} → {value}")
    print(f"in {path}: vaak eval and vaak diarize use these from now on; report metrics on test, not on this split")


def _rate(error: ErrorSeconds) -> str:
    return "-" if error.rate is None else f"{100 * error.rate:.2f} %"


def _line(error: ErrorSeconds) -> str:
    if not error.scored:
        return "DER -: no speech to score"
    names = {"miss": error.miss, "false alarm": error.false_alarm, "confusion": error.confusion}
    return f"DER {_rate(error)}: " + ", ".join(
        f"{name} {100 * part / error.scored:.2f}" for name, part in names.items()
    )


def _values(error: ErrorSeconds) -> dict[str, float | None]:
    rates = {"der": error.rate, "der_percent": percent(error.rate)}
    parts = {"scored_seconds": error.scored, "miss_seconds": error.miss}
    return {**rates, **parts, "false_alarm_seconds": error.false_alarm, "confusion_seconds": error.confusion}
