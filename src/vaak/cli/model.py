"""``vaak model``: the model that a configuration describes; ``vaak export``: a trained one for other software."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaak.cli.arguments import (
    Arguments,
    AsJson,
    TrainingDevice,
    TrustCode,
    Weights,
    WhichWeights,
    files_and_overrides,
    load_trusted,
)
from vaak.core.errors import UserError

if TYPE_CHECKING:
    from vaak.runs.estimate import Branch, ModelEstimate

app = typer.Typer(
    help="Inspect the model that a configuration describes.",
    epilog="Example: vaak model show configs/quickstart.yml",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def model() -> None:
    """Inspect the model that a configuration describes."""


@app.command()
def show(
    arguments: Arguments,
    device: TrainingDevice = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Show the model's modules, parameters, operations per token, and the memory training needs. No data is read.

    Example: vaak model show configs/quickstart.yml model.num_layers=6
    """
    files, overrides = files_and_overrides(arguments, device)
    loaded = load_trusted(files, overrides, trust_code)

    from vaak.runs.estimate import estimate_model

    estimate = estimate_model(loaded)
    if as_json:
        print(json.dumps(estimate.as_json(), ensure_ascii=False))
        return
    print_tree(estimate.tree)
    print_figures(estimate)


def print_tree(tree: list[Branch]) -> None:
    """A line for each module: name, class, shapes, parameters."""
    heads = [f"{'  ' * branch.depth}{branch.name}" for branch in tree]
    kinds = [branch.kind + (f" × {branch.repeats}" if branch.repeats > 1 else "") for branch in tree]
    widths = max(map(len, heads)), max(map(len, kinds))
    for head, kind, branch in zip(heads, kinds, tree, strict=True):
        shapes = ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in branch.tensors.items())
        number = f"tied to {branch.same_as}" if branch.same_as else f"{branch.parameters:,}"
        print(f"{head:<{widths[0]}}  {kind:<{widths[1]}}  {number:>13}  {shapes}".rstrip())


def print_figures(estimate: ModelEstimate) -> None:
    """The totals below the tree."""
    from vaak.core.machine import format_bytes

    print(f"\nparameters     {estimate.parameters:,}, of which {estimate.trained:,} are trainable")
    rest = estimate.at_rest
    if estimate.work is not None and estimate.flops is not None:
        unit = estimate.work.unit
        print(f"work           {estimate.flops / 1e6:,.1f} MFLOPs per {unit} in training, counted")
        print(f"microbatch     {estimate.rows} rows of maximum length: {estimate.work.count:,.0f} {unit}s")
    print(f"\nmemory of training on {estimate.device}, precision {estimate.precision}")
    lines = {"weights": rest.weights, "gradients": rest.gradients, "optimizer": rest.optimizer}
    if rest.average:
        lines["average"] = rest.average
    for name, number in lines.items():
        print(f"  {name:<12} {format_bytes(number):>10}")
    if estimate.needed is None:
        print(f"  activations     unknown  {estimate.unknown}; the total depends on them")
    else:
        print(f"  activations  {format_bytes(estimate.activations):>10}  counted in a dry pass of that microbatch")
        print(
            f"  total        {format_bytes(estimate.needed):>10}  of {format_bytes(estimate.limit)}; "
            "the libraries' own memory is extra"
        )


class Format(StrEnum):
    """The available formats."""

    hf = "hf"
    onnx = "onnx"
    peft = "peft"
    mixture = "mixture"


def export(
    run: Annotated[Path, typer.Argument(help="A run (its best checkpoint) or a checkpoint.")],
    format: Annotated[
        Format,
        typer.Option(
            help="hf: for transformers; onnx: for onnxruntime; peft: low-rank adapters alone; mixture: "
            "all experts with their gate."
        ),
    ] = Format.hf,
    output: Annotated[Path | None, typer.Option(help="The folder to write; default: RUN/export/FORMAT.")] = None,
    expert: Annotated[int | None, typer.Option(help="Of a mixture of experts, the one to write, from 0.")] = None,
    expert_weight: Annotated[
        float | None,
        typer.Option(
            help="What the change of --expert is multiplied by; default: the mean weight that the gate gives it in the "
            "validation utterances that chose it."
        ),
    ] = None,
    weights: Weights = WhichWeights.auto,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Write a run for other software.

    Example: vaak export runs/quickstart --format hf --output quickstart-hf
    """
    from vaak.nn.lora import merged
    from vaak.runs.open_run import open_run
    from vaak.tasks.base import demand_format

    opened = open_run(run, device="cpu", weights=weights, trust_code=trust_code)
    demand_format(opened.task, format.value)
    if expert is not None and getattr(opened.experiment.model, "experts", None) is None:
        raise UserError("--expert: this model is not a mixture of experts; leave it out")
    if expert is None and expert_weight is not None:
        raise UserError("--expert-weight is of one expert: give --expert, too, or leave it out")
    if expert is not None and format in (Format.onnx, Format.mixture):
        raise UserError(f"--expert: --format {format.value} writes the whole mixture; leave it out, or use hf or peft")
    chosen: dict[str, Any] = {}
    if expert is not None:
        known = opened.task.expert_weight(expert, opened.checkpoint) if expert_weight is None else expert_weight
        chosen = {"expert": expert, "weight": known}
    folder = output or opened.directory / "export" / format.value
    model = opened.model if format in (Format.peft, Format.mixture) else merged(opened.model)
    writer = getattr(opened.task, f"export_{format.value}")
    writer(model, folder, **chosen)
    if as_json:
        print(json.dumps({"folder": str(folder), **chosen}))
    else:
        about = f": expert {expert}, its change multiplied by {chosen['weight']:.4g}" if chosen else ""
        print(f"exported {opened.checkpoint} to {folder}{about}")
