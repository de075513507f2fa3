"""``vaak train``: train the model that a YAML file describes. ``vaak fork``: branch a new run off a step of another."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vaak.cli.arguments import (
    Arguments,
    TrainingDevice,
    TrustCode,
    files_and_overrides,
    load_for_processes,
    load_trusted,
    run_argument,
)
from vaak.core.errors import UserError
from vaak.runs.launching import run_processes, train_command

if TYPE_CHECKING:
    from vaak.runs.start import Outcome

JsonLines = Annotated[
    bool, typer.Option("--json", help="Print everything as JSON lines, like training.logging.json_lines=true.")
]


def train(
    arguments: Arguments,
    resume: Annotated[
        str | None, typer.Option(help="auto: resume from the newest checkpoint, if any; or the path of a checkpoint.")
    ] = None,
    no_mixed_precision: Annotated[
        bool, typer.Option("--no-mixed-precision", help="Train in fp32, like training.mixed_precision=no.")
    ] = False,
    device: TrainingDevice = None,
    trust_code: TrustCode = False,
    short: Annotated[
        bool,
        typer.Option(
            "--try",
            help="Try the configuration: 4 steps, an evaluation and a checkpoint, in a temporary folder.",
        ),
    ] = False,
    processes: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Train on several processes of this machine, one for each GPU.")
    ] = None,
    as_json: JsonLines = False,
) -> None:
    """Train the model that the YAML files describe; print the results and the run directory.

    Example: vaak train configs/quickstart.yml training.optimizer.lr=1e-3 --resume auto
    """
    if short and resume is not None:
        raise UserError("--try can't be combined with --resume: a try starts from scratch and leaves the run unchanged")
    files, overrides = files_and_overrides(arguments, device)
    if resume is not None:
        # Quoted, because YAML may parse a path as another type.
        overrides.append(f'training.checkpoint.resume="{resume}"')
    if no_mixed_precision:
        overrides.append("training.mixed_precision=no")
    if as_json:
        overrides.append("training.logging.json_lines=true")
    if processes is None or processes == 1:
        run_training(files, overrides, trust_code, short)
    elif short:
        raise UserError("--try can't be combined with --processes: a try runs in one process")
    elif int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("--processes was given, but several processes were started: leave it out with another launcher")
    else:
        # Reports mistakes once, before the processes start.
        load_for_processes(files, overrides, trust_code)
        command = train_command([*files, *overrides, *(["--trust-code"] if trust_code else [])])
        if code := run_processes(command, processes):
            raise typer.Exit(code)


def fork(
    run: Annotated[Path, run_argument("A run directory.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Options of the fork from that step on.")
    ] = None,
    step: Annotated[int, typer.Option(min=1, help="The last step that the two runs share.")] = ...,  # type: ignore[assignment]
    run_dir: Annotated[
        Path | None, typer.Option(help="The directory of the fork; default: next to RUN, named after it and the step.")
    ] = None,
    no_train: Annotated[
        bool, typer.Option("--no-train", help="Only create the run, and print the command that trains it.")
    ] = False,
    device: TrainingDevice = None,
    trust_code: TrustCode = False,
    as_json: JsonLines = False,
) -> None:
    """Start a new run from a step of another run, and train it with other options.

    Checkpoints and data are linked, not copied. Steps between the nearest checkpoint and the step are recomputed.

    Example: vaak fork runs/quickstart --step 100 training.optimizer.lr=1e-3
    """
    from vaak.runs.folder.directory import command_to_go_on, finishing_fork
    from vaak.runs.fork import fork_run

    changes = [*(overrides or ()), *([f"training.device={device}"] if device else [])]
    if as_json:
        changes.append("training.logging.json_lines=true")
    directory = fork_run(run, step, run_dir, changes, trust_code=trust_code, finishes=no_train)
    if no_train:
        print(" ".join([command_to_go_on(directory), *map(shlex.quote, changes)]))
        return
    with finishing_fork():
        run_training([str(directory / "config.yml")], ['training.checkpoint.resume="auto"', *changes], trust_code)


def run_training(files: list[str], overrides: list[str], trust_code: bool = False, short: bool = False) -> None:
    """Load a configuration, train, write the report and print the outcome.

    Code that comes with a run is executed only with ``trust_code``. With ``short`` the configuration is only tried
    (``vaak.runs.preflight.trial``).
    """
    loaded = load_trusted(files, overrides, trust_code)

    from vaak.cli.output import print_outcome, print_trial
    from vaak.runs.preflight.trial import try_run
    from vaak.runs.start import train as train_run

    if short:
        outcome = try_run(loaded)
        print_trial(outcome, loaded.experiment.training.logging.json_lines)
        _exit_if_interrupted(outcome)
        return
    from vaak.report.page import report_of_trained, stat_records

    directory = loaded.experiment.run_dir
    before = stat_records(directory)
    try:
        outcome = train_run(loaded)
    except Exception:
        # The report shows the steps that were taken before the failure.
        if os.environ.get("RANK", "0") == "0" and stat_records(directory) != before:
            report_of_trained(directory)
        raise
    if outcome.is_main:
        report = report_of_trained(outcome.directory)
        print_outcome(outcome, loaded.experiment.training.logging.json_lines, report)
        _exit_if_interrupted(outcome)


def _exit_if_interrupted(outcome: Outcome) -> None:
    """Raise KeyboardInterrupt if Ctrl-C stopped training: the exit status is 130, so ``train && eval`` stops, too.

    Only rank 0 calls this, once everything is written, because launchers kill the other ranks when one has failed.
    After a scheduler's signal (SIGTERM, SIGUSR1, …) the status stays 0: another would count as a failure of the job.
    """
    if outcome.reason == "SIGINT":
        raise KeyboardInterrupt
