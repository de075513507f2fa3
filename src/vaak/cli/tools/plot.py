"""``vaak plot``: a run as a picture."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Picture(StrEnum):
    """What is drawn."""

    history = "history"
    gate = "gate"
    experts = "experts"
    asr = "asr"


def plot(
    run: Annotated[Path, typer.Argument(help="A run; for gate and experts the folder of vaak pipeline moe-asr.")],
    picture: Annotated[
        Picture,
        typer.Argument(
            help="history: losses and figures of a run over its steps; of a pipeline moe-asr: gate (confusion, "
            "reliability), experts (use and word error rate of each) or asr (the history of its joint training)."
        ),
    ] = Picture.history,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file; its ending gives its kind. Default: RUN/PICTURE.png."),
    ] = None,
) -> None:
    """Draw the training of a run, or what a pipeline of speech recognition made. It requires matplotlib.

    Example: vaak plot runs/asr-quickstart --output history.png
    """
    from vaak.core.errors import UserError

    path = output or run / f"{picture}.png"
    if picture in (Picture.gate, Picture.experts):
        from vaak.tasks.asr.pictures import draw_experts, draw_gate

        (draw_gate if picture is Picture.gate else draw_experts)(run, path)
    else:
        from vaak.library.drawing import draw_history, read_history

        places = (run, run / "joint" / "run") if picture is Picture.asr else (run,)
        directory = next((place for place in places if (place / "metrics.jsonl").is_file()), None)
        if directory is None:
            raise UserError(f"{run} has no metrics.jsonl: it is not a run, or it hasn't been trained")
        draw_history(read_history(directory), str(directory), path)
    print(path)
