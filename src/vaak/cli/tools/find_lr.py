"""``vaak find-lr``: try learning rates and suggest one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from vaak.cli.config import Arguments, AsJson, TrainingDevice, TrustCode, files_and_overrides


def find_lr(
    arguments: Arguments,
    num_iter: Annotated[int, typer.Option(help="Number of steps, each with a larger learning rate.")] = 100,
    start_lr: Annotated[float, typer.Option(help="The first learning rate.")] = 1e-7,
    end_lr: Annotated[float, typer.Option(help="The last learning rate; the test stops when the loss explodes.")] = 1.0,
    linear: Annotated[
        bool, typer.Option("--linear", help="Increase the learning rate linearly, not exponentially.")
    ] = False,
    output: Annotated[Path, typer.Option("--output", "--output-dir", help="Folder for the curve and the plot.")] = Path(
        "find-lr"
    ),
    device: TrainingDevice = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Run a learning-rate range test of a configuration; print and write the curve, and how sure its suggestion is.

    Example: vaak find-lr configs/quickstart.yml training.optimizer=adamw --num-iter 60
    """
    from vaak.cli.output import create_folder
    from vaak.config.load import load

    files, overrides = files_and_overrides(arguments, device)
    loaded = load(files, overrides, trust_code=trust_code)
    from vaak.runs.folder.user_code import demand_trust

    demand_trust(loaded)

    from vaak.study.certainty import certainty_of
    from vaak.study.curve_table import in_words, table
    from vaak.study.drawing import short
    from vaak.study.find_lr import described, write_curve
    from vaak.study.find_lr import find_lr as tested
    from vaak.study.lr_range import RateRange

    for warning in loaded.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    rates = RateRange(start_lr, end_lr, num_iter, "linear" if linear else "exponential")
    create_folder(output)
    curve = tested(loaded, rates)
    written = write_curve(curve, output)
    if as_json:
        print(json.dumps({**described(curve), "files": [str(path) for path in written]}))
        return
    print("\n".join(table(curve)))
    end = "the loss exploded" if curve.diverged else "the end of the range"
    print(f"{len(curve.losses)} steps until {end}; {', '.join(map(str, written))}")
    if not any(path.suffix == ".png" for path in written):
        print("no plot was drawn: this requires matplotlib (pip install 'vaak[plot]')", file=sys.stderr)
    certainty = certainty_of(curve)
    suggestion = certainty.suggestion
    if suggestion is None:
        print("no suggestion: the loss never fell clearly; raise --end-lr or --num-iter")
        print("".join(f"warning: {doubt}\n" for doubt in certainty.doubts), end="")
    else:
        print("\n".join(in_words(certainty)))
        print(f"training.optimizer.lr={short(suggestion)}")
