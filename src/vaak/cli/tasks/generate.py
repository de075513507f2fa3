"""``vaak generate``: continue a text with a trained language model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from vaak.cli.config import AsJson, Weights, WhichWeights


def generate(
    run: Annotated[Path, typer.Argument(help="A run (its best checkpoint) or a checkpoint.")],
    text: Annotated[str, typer.Argument(help="The prompt; may be empty.")] = "",
    temperature: Annotated[float, typer.Option(help="0 always takes the most probable token.")] = 0.8,
    top_k: Annotated[int, typer.Option(help="Sample from the K most probable tokens only; 0 for all.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Nucleus sampling: only the most probable tokens with this total probability.")
    ] = 1.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1, tokens that already occurred become less probable.")
    ] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of new tokens.")] = 100,
    samples: Annotated[int, typer.Option(min=1, help="Number of continuations.")] = 1,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cuda, mps or cpu.")] = "auto",
    weights: Weights = WhichWeights.auto,
    as_json: AsJson = False,
) -> None:
    """Continue a text, printing it as it comes.

    Example: vaak generate runs/quickstart "लड़की" --temperature 0.7 --samples 3
    """
    from vaak.core.errors import UserError
    from vaak.runs.open_run import open_run

    opened = open_run(run, device=device, weights=weights)
    if opened.experiment.task != "lm":
        raise UserError(
            f"{run} is a run of task {opened.experiment.task}; vaak generate requires a language model (task lm)"
        )
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "repetition_penalty": repetition_penalty}
    for number in range(samples):
        settings = opened.task.sampling(max_new_tokens=max_new_tokens, seed=seed + number, **options)
        pieces = opened.task.stream(opened.model, text, settings)
        if as_json:
            print(json.dumps({"text": text + "".join(pieces), "seed": seed + number}, ensure_ascii=False))
            continue
        for place, piece in enumerate(pieces):
            sys.stdout.write(piece if place else text + piece)
            sys.stdout.flush()
        sys.stdout.write("\n")
