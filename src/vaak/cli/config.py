"""``vaak config``: check a configuration, show it resolved, give its JSON Schema."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaak.cli.arguments import Arguments, AsJson, OptionalArguments, TrustCode, complete_tasks, files_and_overrides
from vaak.core.errors import UserError
from vaak.tasks import USUAL_TASK

if TYPE_CHECKING:
    from vaak.config.load import Loaded
    from vaak.config.training import TrainingConfig

app = typer.Typer(
    help="Check and show configurations.",
    epilog="Example: vaak config check configs/quickstart.yml training.epochs=1",
    no_args_is_help=True,
    add_completion=False,
)


@app.command()
def check(
    arguments: Arguments,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
    data: Annotated[
        bool,
        typer.Option(
            "--data",
            help="Also read the training data: is a warm-up too long, and what does an example take?",
        ),
    ] = False,
) -> None:
    """Check a configuration; report every mistake with its line (exit code 2).

    Example: vaak config check configs/lm/hindi.yml training.epochs=3
    """
    from vaak.config.load import load
    from vaak.runs.folder.directory import has_checkpoints

    loaded = load(*files_and_overrides(arguments), trust_code=trust_code)
    experiment, count = loaded.experiment, loaded.experiment.spec.num_parameters
    # Checkpoints have all weights.
    if not has_checkpoints(experiment.run_dir):
        experiment.spec.require_base(experiment, loaded.folder)
    number = None if count is None else count(experiment) or None
    steps, unknown = _steps_at_most(loaded) if data else (None, _unread_warmup(experiment.training))
    example = _measure_example(loaded) if data else None
    if as_json:
        report = {"task": experiment.task, "name": experiment.name, "run_dir": str(experiment.run_dir)}
        about: dict[str, Any] = {**report, "parameters": number, "warnings": loaded.warnings}
        about |= ({"steps_at_most": steps, "example": example} if data else {}) | {"unknown": unknown}
        print(json.dumps(about, ensure_ascii=False))
        return
    for warning in loaded.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    size = "" if number is None else f"; about {_in_words(number)} parameters"
    if data:
        size += "; how many steps it trains is known once the data are prepared" if steps is None else ""
        size += "" if steps is None else f"; at most {steps:,} steps"
    print(f"valid: task {experiment.task}, run {experiment.name} in {experiment.run_dir}{size}")
    if unknown is not None:
        print(f"not known yet: {unknown}")
    if example is not None:
        print(example["said"])


def _measure_example(loaded: Loaded) -> dict[str, Any]:
    """Return an example's cost as ``seconds``, ``parts`` and ``number``, where known, and as a line."""
    from vaak.runs.preflight.doctor.data import measure_training_example

    cost = measure_training_example(loaded)
    if isinstance(cost, str):
        return {"said": f"not known: what a training example takes to make ({cost})"}
    return {**asdict(cost), "said": f"a training example takes {cost} to make: the mean of {cost.number}"}


def _unread_warmup(training: TrainingConfig) -> str | None:
    """Describe the check of a warm-up's length that requires reading the data; None where it isn't needed."""
    scheduler = training.scheduler
    if scheduler.long_warmup == "shorten" or scheduler.warmup_steps < 2 or training.max_steps is not None:
        return None
    return f"whether training has the {scheduler.warmup_steps} steps of its warm-up (--data reads what it trains on)"


def _in_words(number: int) -> str:
    """A number of parameters with two digits at least.

    >>> _in_words(8_816), _in_words(2_104_000)
    ('8,816', '2.1 million')
    """
    return f"{number / 1e6:,.1f} million" if number >= 1e6 else f"{number:,}"


def _steps_at_most(loaded: Loaded) -> tuple[int | None, str | None]:
    """The most steps that training may have, by its sources (None: unknown), and what isn't known of its warm-up.

    Raises UserError for too few steps to warm up.
    """
    from vaak.engine.forecast import check_warmup, steps_at_most

    training = loaded.experiment.training
    if training.max_steps is not None:
        return training.max_steps, None
    task = loaded.task()
    unknown = check_warmup(task, training)
    found = steps_at_most(task, training)
    return None if found is None else found.steps, unknown


@app.command()
def show(
    arguments: OptionalArguments = None,
    as_json: AsJson = False,
    all_of: Annotated[
        str | None, typer.Option("--all", metavar="TASK", help="Print every option of a task, as a YAML with comments.")
    ] = None,
    all_options: Annotated[bool, typer.Option("--all-options", hidden=True)] = False,
    on_resume: Annotated[
        bool, typer.Option("--on-resume", help="Show which options may change on resume, as a table.")
    ] = False,
    task: Annotated[str, typer.Option(hidden=True)] = USUAL_TASK,
    trust_code: TrustCode = False,
) -> None:
    """Print the resolved configuration: every option and its value.

    Example: vaak config show configs/lm/hindi.yml training.optimizer=muon
    """
    if all_of is not None or all_options:
        # --all-options --task TASK: its former name.
        from vaak.config.reference import all_options as get_text

        print(get_text(_require_task(task) if all_of is None else _require_task(all_of, "--all")), end="")
        return
    if on_resume:
        from vaak.config.reference import resume_page

        print(resume_page(), end="")
        return
    from vaak.config.load import load
    from vaak.config.resolved import as_yaml, resolved_values

    experiment = load(*files_and_overrides(arguments or []), trust_code=trust_code).experiment
    print(
        json.dumps(resolved_values(experiment), indent=2, ensure_ascii=False) if as_json else as_yaml(experiment),
        end="",
    )


@app.command()
def schema(
    arguments: OptionalArguments = None,
    task: Annotated[
        str, typer.Option(help="The task whose options to print.", autocompletion=complete_tasks)
    ] = USUAL_TASK,
    trust_code: TrustCode = False,
) -> None:
    """Print the JSON Schema of a task's configuration, for completion and validation in an editor.

    Example: vaak config schema --task lm > vaak.schema.json
    """
    from vaak.config.load import load
    from vaak.config.reference import schema_text

    if arguments:
        reference = load(*files_and_overrides(arguments), trust_code=trust_code).experiment.reference
    else:
        reference = _require_task(task)
    print(schema_text(reference))


def _require_task(task: str, option: str = "--task") -> str:
    """Return the name of a task. Raises UserError for an unknown task."""
    from vaak.config.components import did_you_mean
    from vaak.config.tasks import TASKS

    if task not in TASKS:
        raise UserError(f"{option} {task}: expected one of {', '.join(TASKS)}{did_you_mean(task, TASKS)}")
    return task
