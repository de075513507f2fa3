"""``vaak inspect``: the parameters of a run, and how a step of training moves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from vaak.cli.config import AsJson, TrustCode


def inspect(
    run: Annotated[Path, typer.Argument(help="A run directory, or a checkpoint.")],
    device: Annotated[str | None, typer.Option(help="auto, cuda, mps or cpu; default: the run's own.")] = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Show a run's parameters, and on a training batch the gradients, updates and units that give nothing.

    Example: vaak inspect runs/quickstart
    """
    from vaak.runs.replay.checkpoint_view import inspect_run

    found = inspect_run(run, device=device, trust_code=trust_code)
    print(json.dumps(found, ensure_ascii=False) if as_json else "\n".join(_lines(found)))


def _lines(found: dict[str, Any]) -> list[str]:
    from vaak.cli.tools.replay import shown_number, table

    header = ("parameter", "shape", "count", "device", "dtype", "trainable", "gradient", "update/weights")
    rows = [
        (
            *(one["name"], "x".join(map(str, one["shape"])) or "-", f"{one['count']:,}", one["device"], one["dtype"]),
            *("yes" if one["trainable"] else "no", shown_number(one["gradient_norm"])),
            shown_number(one["update_to_weight"]),
        )
        for one in found["parameters"]
    ]
    clipped = f", clipped by {found['clip_factor']:.4g}" if found["clip_factor"] != 1.0 else ""
    trainable = sum(one["count"] for one in found["parameters"] if one["trainable"])
    dead = [(one["module"], f"{len(one['dead'])} of {one['units']}") for one in found["dead_units"] if one["dead"]]
    return [
        f"{found['checkpoint']}, and a step at a learning rate of {found['learning_rate']:.4g}",
        *table([header, *rows]),
        f"{sum(one['count'] for one in found['parameters']):,} parameters, of which {trainable:,} are trainable",
        f"gradient norm {shown_number(found['gradient_norm'])}{clipped}; by layer:",
        *table([(one["module"], shown_number(one["gradient_norm"])) for one in found["layers"]]),
        "inputs that are 0 in the whole batch, by layer:" if dead else "no layer has an input that is 0 everywhere",
        *(table(dead) if dead else ()),
    ]
