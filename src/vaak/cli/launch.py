"""``vaak launch``: train on a cluster, by SLURM or Ray."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaak.cli.arguments import Arguments, TrustCode, files_and_overrides, load_for_processes
from vaak.core.errors import UserError
from vaak.core.secrets import hide_arguments

if TYPE_CHECKING:
    from vaak.config.experiment import Experiment

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Train on a cluster. On one machine: vaak train --processes.\n\nExample: vaak launch slurm FILE --nodes 2",
)
Nodes = Annotated[int, typer.Option(min=1, help="Number of machines.")]


@app.command()
def slurm(
    arguments: Arguments,
    nodes: Nodes = 1,
    processes: Annotated[int, typer.Option(min=1, help="Number of processes on each machine.")] = 1,
    gpus: Annotated[
        int | None, typer.Option(min=0, help="GPUs of each machine; default: one for each process, 0 on a CPU.")
    ] = None,
    time: Annotated[str | None, typer.Option(help="Time limit, as sbatch reads it, such as 24:00:00.")] = None,
    sbatch: Annotated[
        list[str] | None, typer.Option(help="Further options of sbatch, such as --sbatch=--partition=gpu.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="The file to write; default: NAME.sbatch.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Submit it.")] = False,
    trust_code: TrustCode = False,
) -> None:
    """Write a SLURM job file for training, and submit it with --yes; a job stopped before its end is queued again.

    Example: vaak launch slurm configs/quickstart.yml --nodes 2 --processes 4 --time 24:00:00
    """
    from vaak.core.storage.files import write_text
    from vaak.runs.clusters import slurm_script, submit

    experiment, given = _checked(arguments, trust_code)
    for argument, shown in zip(given, hide_arguments(given), strict=True):
        if argument != shown:
            raise UserError(
                f"{shown} is a secret, and the job's file would have it: give a variable in its place, such as "
                "'api_key=${MY_KEY}' in single quotes, and export that variable before you submit"
            )
    number = (0 if experiment.training.device == "cpu" else processes) if gpus is None else gpus
    requests = [f"--nodes={nodes}", f"--ntasks-per-node={processes}"]
    requests += [*([f"--gpus-per-node={number}"] if number else []), *([f"--time={time}"] if time else [])]
    requests += sbatch or ()
    # A line break in an option would begin another line of the script.
    if broken := [one for one in requests if not one.startswith("-") or not one.isprintable()]:
        raise UserError(f"--sbatch {broken[0]!r}: this isn't an option of sbatch; write it as --sbatch=--partition=gpu")
    output = output or Path(f"{experiment.name}.sbatch")
    script = slurm_script(experiment, given, requests)
    try:
        write_text(output, script)
    except OSError as error:
        raise UserError(f"--output {output} can't be written: {error.strerror or error}") from error
    print(script)
    print(submit(output) if yes else f"written to {output}, not submitted: sbatch {output}, or this with --yes, does")


@app.command()
def ray(
    arguments: Arguments,
    processes: Annotated[int, typer.Option(min=1, help="Processes, one for each GPU.")] = 1,
    min_processes: Annotated[
        int | None,
        typer.Option(min=1, help="Continue with this many if the cluster has no more; default: --processes."),
    ] = None,
    cpus: Annotated[float, typer.Option(min=0.1, help="Cores that Ray reserves for each process.")] = 1.0,
    max_failures: Annotated[int, typer.Option(min=0, help="Number of times that lost processes are restarted.")] = 3,
    trust_code: TrustCode = False,
) -> None:
    """Train on the Ray cluster that RAY_ADDRESS names, or one on this machine; lost processes are started again.

    Example: vaak launch ray configs/quickstart.yml --processes 4
    """
    experiment, given = _checked(arguments, trust_code)
    if min_processes is not None and min_processes > processes:
        raise UserError(f"--min-processes {min_processes} is more than --processes {processes}")
    from vaak.runs.clusters import train_on_ray

    train_on_ray(experiment, given, (min_processes or processes, processes), cpus, max_failures)
    print(f"the run is in {experiment.run_dir}")


def _checked(arguments: list[str], trust_code: bool) -> tuple[Experiment[Any, Any], list[str]]:
    """Return what a configuration asks for, and the arguments of ``vaak train``. Raises UserError for a mistake."""
    files, overrides = files_and_overrides(arguments)
    experiment = load_for_processes(files, overrides, trust_code).experiment
    return experiment, [*files, *overrides, *(["--trust-code"] if trust_code else [])]
