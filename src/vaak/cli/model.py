"""``vaak model``: the model that a configuration describes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from vaak.cli.arguments import Arguments, AsJson, TrainingDevice, TrustCode, files_and_overrides, load_trusted

if TYPE_CHECKING:
    from vaak.runs.preflight.estimate import Branch, ModelEstimate

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
    gpus: Annotated[int | None, typer.Option(min=1, help="Show the memory that each of N GPUs needs.")] = None,
    memory: Annotated[float | None, typer.Option(min=0.1, help="Memory of each GPU in GiB.")] = None,
) -> None:
    """Show the model's modules, parameters, operations per token, and the memory training needs. No data is read.

    Example: vaak model show configs/quickstart.yml model.num_layers=6 --gpus 8 --memory 80
    """
    files, overrides = files_and_overrides(arguments, device)
    loaded = load_trusted(files, overrides, trust_code)

    from vaak.runs.preflight.estimate import estimate_model

    estimate = estimate_model(loaded)
    if as_json:
        each = {"bytes_on_each_gpu": estimate.estimate_on_each(gpus)} if gpus else {}
        print(json.dumps(estimate.as_json() | each, ensure_ascii=False))
        return
    print_tree(estimate.tree)
    print_totals(estimate, memory)
    if gpus:
        print_each(estimate, gpus, memory)


def print_tree(tree: list[Branch]) -> None:
    """A line for each module: name, class, shapes, parameters."""
    heads = [f"{'  ' * branch.depth}{branch.name}" for branch in tree]
    kinds = [branch.kind + (f" × {branch.repeats}" if branch.repeats > 1 else "") for branch in tree]
    widths = max(map(len, heads)), max(map(len, kinds))
    for head, kind, branch in zip(heads, kinds, tree, strict=True):
        shapes = ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in branch.tensors.items())
        number = f"tied to {branch.same_as}" if branch.same_as else f"{branch.parameters:,}"
        print(f"{head:<{widths[0]}}  {kind:<{widths[1]}}  {number:>13}  {shapes}".rstrip())


def print_totals(estimate: ModelEstimate, memory: float | None = None) -> None:
    """The totals below the tree; ``memory`` is that of a device that isn't here, in GiB."""
    from vaak.core.machine import format_bytes

    print(f"\nparameters     {estimate.parameters:,}, of which {estimate.trained:,} are trainable")
    rest = estimate.at_rest
    if estimate.work is not None and estimate.flops is not None:
        unit = estimate.work.unit
        print(f"work           {estimate.flops / 1e6:,.1f} MFLOPs per {unit} in training, counted")
        print(f"microbatch     {estimate.rows} rows of maximum length: {estimate.work.count:,.0f} {unit}s")
    limit = estimate.limit if estimate.limit is not None or memory is None else round(memory * 2**30)
    absent = "" if estimate.limit is not None else " (this machine has none: counted as on a CPU)"
    print(f"\nmemory of training on {estimate.device}{absent}, precision {estimate.precision}")
    lines = {"weights": rest.weights, "gradients": rest.gradients, "optimizer": rest.optimizer}
    if rest.average:
        lines["average"] = rest.average
    if rest.exact_sums:
        lines["exact sums"] = rest.exact_sums
    for name, number in lines.items():
        print(f"  {name:<12} {format_bytes(number):>10}")
    if estimate.needed is None:
        print(f"  activations     unknown  {estimate.unknown}; the total depends on them")
    else:
        print(f"  activations  {format_bytes(estimate.activations):>10}  counted in a dry pass of that microbatch")
        there = "" if limit is None else f"of {format_bytes(limit)}; "
        print(f"  total        {format_bytes(estimate.needed):>10}  {there}the libraries' own memory is extra")


def print_each(estimate: ModelEstimate, gpus: int, memory: float | None) -> None:
    """Print the peak memory of each of several GPUs, by how the model is divided over them."""
    from vaak.core.machine import format_bytes

    print(f"\nmemory of each of {gpus} GPUs, by training.distributed.strategy")
    for strategy, needed in estimate.estimate_on_each(gpus).items():
        verdict = ""
        if memory is not None:
            verdict = f"  {'fits' if needed < memory * 2**30 else 'too much'} for {memory:g} GiB"
        print(f"  {strategy:<12} {format_bytes(needed):>10}{verdict}")
    if estimate.needed is None:
        print(f"  without activations, which are unknown: {estimate.unknown}")
