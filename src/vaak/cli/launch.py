"""``vaak launch``: train on a cluster, by SLURM or Ray, or in a cloud, by SkyPilot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaak.cli.arguments import Arguments, TrustCode, files_and_overrides, load_for_processes
from vaak.core.errors import UserError
from vaak.core.secrets import REFERENCE, hide_arguments

if TYPE_CHECKING:
    from vaak.config.experiment import Experiment

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Train on a cluster or in a cloud. On one machine: vaak train --processes.\n\n"
    "Example: vaak launch slurm FILE --nodes 2",
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
    _require_no_secrets(given)
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


@app.command()
def sky(
    arguments: Arguments,
    gpus: Annotated[
        str | None, typer.Option(help="Kind and number of GPUs, such as H100:8; default: a machine without.")
    ] = None,
    infra: Annotated[
        str | None,
        typer.Option(help="Cloud, region or Kubernetes context, as SkyPilot reads it, such as aws/us-east-1."),
    ] = None,
    on_demand: Annotated[
        bool, typer.Option("--on-demand", help="A machine that isn't taken away; default: a spot instance.")
    ] = False,
    mount: Annotated[
        list[str] | None,
        typer.Option(help="A bucket that is seen as a folder, such as --mount /data=s3://my-bucket/data."),
    ] = None,
    secret: Annotated[
        list[str] | None, typer.Option(help="Name of a variable that the job needs, such as AWS_ACCESS_KEY_ID.")
    ] = None,
    extras: Annotated[str, typer.Option(help="Extras of Vaak to install besides cloud, such as audio,asr.")] = "",
    output: Annotated[Path | None, typer.Option(help="The file to write; default: NAME.sky.yml.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Launch it.")] = False,
    trust_code: TrustCode = False,
) -> None:
    """Write a SkyPilot file for training on a machine that may be taken away, and launch it with --yes.

    Example: vaak launch sky configs/quickstart.yml training.checkpoint.upload_to=s3://my-bucket/run --gpus L4:1
    """
    from vaak.core.storage.files import write_text
    from vaak.runs.clusters import SkyRequest, require_seen_by_sky, sky_file, sky_setup, submit

    files, overrides = files_and_overrides(arguments)
    loaded = load_for_processes(files, overrides, trust_code)
    experiment, mounts, wanted = loaded.experiment, dict(map(_split_mount, mount or ())), _split_extras(extras)
    number = (gpus or "").partition(":")[2]
    processes = ["--processes", number] if number.isdecimal() and int(number) > 1 else []
    given = [*files, *overrides, *(["--trust-code"] if trust_code else []), *processes]
    _require_no_secrets(given)
    secrets = [*dict.fromkeys([*(secret or ()), *(name for one in given for name in REFERENCE.findall(one))])]
    if wrong := [name for name in secrets if not name.isidentifier()]:
        raise UserError(f"--secret {wrong[0]}: this isn't the name of a variable; its value is given at the launch")
    require_seen_by_sky(loaded, files, mounts)
    request = SkyRequest(gpus, infra, not on_demand, mounts, secrets, sky_setup(wanted))
    output = output or Path(f"{experiment.name}.sky.yml")
    text = sky_file(experiment, given, request, str(output))
    try:
        write_text(output, text)
    except OSError as error:
        raise UserError(f"--output {output} can't be written: {error.strerror or error}") from error
    print(text)
    command = ["sky", "jobs", "launch", "--yes", *(f"--secret={name}" for name in request.secrets)]
    if yes:
        print(submit(output, command, "SkyPilot"))
    else:
        print(f"written to {output}, not launched: its first line, or this with --yes, does")


def _split_mount(text: str) -> tuple[str, str]:
    """Return the folder and the URL of a bucket."""
    place, _, url = text.partition("=")
    if not place.startswith(("/", "~")) or "://" not in url or not text.isprintable():
        raise UserError(f"--mount {text}: expected FOLDER=URL, such as /data=s3://my-bucket/data")
    return place, url


def _split_extras(text: str) -> list[str]:
    """Return the names of extras. Raises UserError for an unknown one."""
    from vaak.core.extras import requirements
    from vaak.core.names import require_known

    named = [one.strip() for one in text.split(",") if one.strip()]
    require_known(named, sorted({extra for extra, _ in requirements() if extra}), "--extras: unknown")
    return named


def _require_no_secrets(given: list[str]) -> None:
    """Raise UserError for an argument that holds a secret, which a job's file would have."""
    for argument, shown in zip(given, hide_arguments(given), strict=True):
        if argument != shown:
            raise UserError(
                f"{shown} is a secret, and the job's file would have it: give a variable in its place, such as "
                "'api_key=${MY_KEY}' in single quotes, and export that variable before you submit"
            )


def _checked(arguments: list[str], trust_code: bool) -> tuple[Experiment[Any, Any], list[str]]:
    """Return the checked configuration, and the arguments of ``vaak train``. Raises UserError for a mistake."""
    files, overrides = files_and_overrides(arguments)
    experiment = load_for_processes(files, overrides, trust_code).experiment
    return experiment, [*files, *overrides, *(["--trust-code"] if trust_code else [])]
