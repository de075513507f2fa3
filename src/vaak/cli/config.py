"""``vaak config``: check a configuration, show it resolved, give its JSON Schema."""

from __future__ import annotations

import json
import os
import sys
from enum import StrEnum
from typing import Annotated

import typer

app = typer.Typer(help="Check and show configurations.", no_args_is_help=True, add_completion=False)

Arguments = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE… key=value…", help="YAML files, later ones override earlier ones, and options that override both."
    ),
]
OptionalArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE… key=value…]",
        help="YAML files, later ones override earlier ones, and options that override both.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class WhichWeights(StrEnum):
    """Which weights of a run to use."""

    auto = "auto"
    own = "own"
    average = "average"


Weights = Annotated[
    WhichWeights,
    typer.Option("--weights", help="own, or their average (training.ema); auto: those that the run evaluated."),
]
TrustCode = Annotated[
    bool, typer.Option("--trust-code", help="Execute Python code that comes with the run, if it needs any.")
]
TaskName = Annotated[str, typer.Option(help="The task whose options to print.")]


def files_and_overrides(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Arguments that name files, and ``key=value``; a file whose name contains ``=`` is still a file."""
    overrides = [text for text in arguments if "=" in text and not os.path.exists(text)]
    return [text for text in arguments if text not in overrides], overrides


@app.command()
def check(arguments: Arguments, trust_code: TrustCode = False, as_json: AsJson = False) -> None:
    """Check a configuration; report every mistake with its line (exit code 2).

    Example: vaak config check configs/lm/hindi.yml training.epochs=3
    """
    from vaak.config.load import load

    loaded = load(*files_and_overrides(arguments), trust_code=trust_code)
    if as_json:
        experiment = loaded.experiment
        report = {"task": experiment.task, "name": experiment.name, "run_dir": str(experiment.run_dir)}
        print(json.dumps({**report, "warnings": loaded.warnings}, ensure_ascii=False))
        return
    for warning in loaded.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"valid: task {loaded.experiment.task}, run {loaded.experiment.name} in {loaded.experiment.run_dir}")


@app.command()
def show(
    arguments: OptionalArguments = None,
    as_json: AsJson = False,
    all_options: Annotated[bool, typer.Option("--all-options", help="Every available option, with comments.")] = False,
    on_resume: Annotated[
        bool, typer.Option("--on-resume", help="What may change when a run is resumed, as a table.")
    ] = False,
    task: TaskName = "lm",
    trust_code: TrustCode = False,
) -> None:
    """Print the resolved configuration: every option and its value.

    Example: vaak config show configs/lm/hindi.yml training.optimizer=muon
    """
    if all_options:
        from vaak.config.show.all_options import all_options as text_of

        print(text_of(_known(task)), end="")
        return
    if on_resume:
        from vaak.config.resume.page import resume_page

        print(resume_page(), end="")
        return
    from vaak.config.load import load
    from vaak.config.show.resolved import as_yaml, resolved_values

    experiment = load(*files_and_overrides(arguments or []), trust_code=trust_code).experiment
    print(
        json.dumps(resolved_values(experiment), indent=2, ensure_ascii=False) if as_json else as_yaml(experiment),
        end="",
    )


@app.command()
def schema(arguments: OptionalArguments = None, task: TaskName = "lm", trust_code: TrustCode = False) -> None:
    """Print the JSON Schema of a task's configuration, for completion and validation in an editor.

    Example: vaak config schema --task lm > vaak.schema.json
    """
    from vaak.config.load import load
    from vaak.config.show.schema import json_schema

    if arguments:
        reference = load(*files_and_overrides(arguments), trust_code=trust_code).experiment.reference
    else:
        reference = _known(task)
    print(json.dumps(json_schema(reference), indent=2, ensure_ascii=False))


def _known(task: str) -> str:
    from vaak.config.components import did_you_mean
    from vaak.config.tasks import TASKS
    from vaak.core.errors import UserError

    if task not in TASKS:
        raise UserError(f"--task {task}: expected one of {', '.join(TASKS)}{did_you_mean(task, TASKS)}")
    return task
