"""``vaak find-lr``: try learning rates and suggest one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from vaak.cli.config import Arguments, AsJson, TrustCode, files_and_overrides


def find_lr(
    arguments: Arguments,
    num_iter: Annotated[int, typer.Option(help="Number of steps, each with a larger learning rate.")] = 100,
    start_lr: Annotated[float, typer.Option(help="The first learning rate.")] = 1e-7,
    end_lr: Annotated[float, typer.Option(help="The last learning rate; the test stops when the loss explodes.")] = 1.0,
    linear: Annotated[
        bool, typer.Option("--linear", help="Increase the learning rate linearly, not exponentially.")
    ] = False,
    output_dir: Annotated[Path, typer.Option(help="Folder for the curve and the plot.")] = Path("find-lr"),
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Run a learning-rate range test of a configuration; write the curve, print a suggestion.

    Example: vaak find-lr configs/quickstart.yml training.optimizer=adamw --num-iter 60
    """
    from vaak.config.load import load

    files, overrides = files_and_overrides(arguments)
    loaded = load(files, overrides, trust_code=trust_code)

    if not trust_code:
        from vaak.runs.folder.user_code import demand_trust

        demand_trust(loaded.experiment, map(Path, files))

    from vaak.study.drawing import short
    from vaak.study.find_lr import find_lr as tested
    from vaak.study.find_lr import write_curve
    from vaak.study.lr_range import RateRange

    for warning in loaded.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    curve = tested(loaded, RateRange(start_lr, end_lr, num_iter, "linear" if linear else "exponential"))
    written = write_curve(curve, output_dir)
    if as_json:
        print(json.dumps({**curve.as_json(), "files": [str(path) for path in written]}))
        return
    end = "the loss exploded" if curve.diverged else "the end of the range"
    print(f"{len(curve.losses)} steps until {end}; {', '.join(map(str, written))}")
    if not any(path.suffix == ".png" for path in written):
        print("no plot was drawn: this requires matplotlib (pip install 'vaak[plot]')", file=sys.stderr)
    suggestion = curve.suggestion()
    if suggestion is None:
        print("no suggestion: the loss never fell clearly; raise --end-lr or --num-iter")
    else:
        print(f"training.optimizer.lr={short(suggestion)}")
