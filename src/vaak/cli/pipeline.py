"""``vaak pipeline``: run the stages of a pipeline. Each pipeline is a command, with its options as flags."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperGroup
from typer.main import get_command

from vaak.cli.arguments import AsJson, TrustCode
from vaak.cli.table import with_plain_help
from vaak.core.errors import UserError

if TYPE_CHECKING:
    from vaak.pipeline.run import Request
    from vaak.pipeline.stage import Pipeline

PIPELINE_HELP = "Run the stages of a pipeline: NAME, ./file.py:NAME or package.module:NAME."


class PipelineGroup(TyperGroup):
    """A command for each built-in pipeline; a user's pipeline becomes one when it is named."""

    def __init__(self, **attributes: Any) -> None:
        from vaak.config.tasks import list_pipelines

        super().__init__(**attributes)
        self.commands = {name: _command(name) for name in list_pipelines()}

    def get_command(self, context: Any, name: str) -> Any:
        """Return the command of a built-in pipeline, or of a user's (``./file.py:NAME``, ``package.module:NAME``)."""
        return self.commands.get(name) or _command(name)


app = typer.Typer(
    cls=PipelineGroup,
    help=PIPELINE_HELP,
    epilog="Example: vaak pipeline ./counting.py:COUNTING --resume --dry-run",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def pipeline() -> None:
    """Run the stages of a pipeline."""


Resume = Annotated[
    bool, typer.Option("--resume", help="Resume where the last start was cut; options not given stay as then.")
]
First = Annotated[str | None, typer.Option("--from", metavar="STAGE", help="Run this stage and all after it again.")]
Only = Annotated[str | None, typer.Option(metavar="STAGE", help="Run this stage alone.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would run, why, and what it would take; run nothing.")
]
Config = Annotated[
    Path | None, typer.Option(help="A YAML or JSON file of options, or a recipe's name; flags override it.")
]
OutputDir = Annotated[Path | None, typer.Option(help="Where the stages and their results are kept.")]
LogFile = Annotated[
    Path | None, typer.Option(help="Where the log is written, appended on resume; default: pipeline.log there.")
]
Executor = Annotated[
    Literal["local", "ray"], typer.Option(help="Where shards are made: processes here, or a Ray cluster.")
]
NumJobs = Annotated[int, typer.Option(min=1, help="How many processes make shards at once.")]
SeparateProcesses = Annotated[bool, typer.Option("--separate-processes", help="Run each stage in a separate process.")]


def _command(reference: str) -> Any:
    """Return the click command of a pipeline: ``NAME``, ``./file.py:NAME`` or ``package.module:NAME``."""
    from vaak.cli.arguments import add_options
    from vaak.pipeline.stage import find_pipeline

    found = find_pipeline(reference, Path.cwd())
    no_flags = [name for name, field in found.options.model_fields.items() if not _is_plain(field.annotation)]

    @add_options(found.options, into="given", leave_out=no_flags, show_defaults=True, flags=found.flags)
    def command(
        resume: Resume = False,
        first: First = None,
        only: Only = None,
        dry_run: DryRun = False,
        config: Config = None,
        output_dir: OutputDir = None,
        log_file: LogFile = None,
        executor: Executor = "local",
        num_jobs: NumJobs = 1,
        separate_processes: SeparateProcesses = False,
        trust_code: TrustCode = False,
        as_json: AsJson = False,
        given: dict[str, Any] | None = None,
    ) -> None:
        from vaak.pipeline.jobs import Jobs
        from vaak.pipeline.run import Request

        request = Request(
            resume=resume,
            first=first,
            only=only,
            jobs=Jobs(executor, num_jobs),
            log_file=log_file,
            find=partial(find_pipeline, _make_absolute(reference), Path("/")) if separate_processes else None,
            shows_progress=not as_json,
            trust_code=trust_code,
        )
        values, directory = _read_options(found, config, output_dir, given or {}, request)
        _run(found, values, directory, request, dry_run, as_json)

    stages = "".join(f"\n\n{stage.name}: {stage.about}" for stage in found.stages)
    command.__doc__ = f"{found.about}{stages}\n\nExample: vaak pipeline {reference} --resume --dry-run"
    one = typer.Typer(add_completion=False)
    one.command()(command)
    made = with_plain_help(get_command(one))
    made.name = reference
    return made


def _make_absolute(reference: str) -> str:
    """Return ``./file.py:NAME`` with an absolute path, since a stage's process may start in another folder."""
    path, colon, name = reference.rpartition(":")
    return f"{Path(path).resolve()}:{name}" if colon and path.endswith(".py") else reference


def _read_options(
    found: Pipeline, config: Path | None, output_dir: Path | None, given: dict[str, Any], request: Request
) -> tuple[dict[str, Any], Path | None]:
    """Return a pipeline's options, those ``given`` on the command line over those in ``config``, and its directory.

    The directory is None if neither names one. Raises UserError for code named in files that aren't trusted.
    """
    from vaak.config.yaml.layers import file_or_recipe

    config = config and file_or_recipe(str(config))
    values = read_values(found, config)
    in_file = values.pop("output_dir", None)
    directory = output_dir or (Path(in_file) if in_file else None)
    if not request.trust_code:
        _require_trust(found, (values, config), given, directory, continues=request.continues)
    return values | given, directory


def _is_plain(annotation: Any) -> bool:
    """Return whether an option of this type can be a flag; others, such as sections, can only be set in files."""
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
    kinds = [get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in kinds]  # Source, FolderPath
    return all(kind in (bool, int, float, str, Path) or get_origin(kind) is Literal for kind in kinds) or (
        get_origin(annotation) is Literal
    )


def read_values(found: Pipeline, config: Path | None) -> dict[str, Any]:
    """Return the options in a file, with its relative paths resolved from its folder; empty without a file."""
    from vaak.config.paths import settle_paths
    from vaak.config.yaml.text import read_yaml
    from vaak.config.yaml.tree import PlacedDict

    values = PlacedDict()
    if config is not None:
        values = read_yaml(config)
        for remark in settle_paths(values, found.options):
            print(f"warning: {remark}", file=sys.stderr)
    return values if found.translate is None else found.translate(values)


def _require_trust(
    found: Pipeline,
    in_file: tuple[dict[str, Any], Path | None],
    given: dict[str, Any],
    directory: Path | None,
    *,
    continues: bool,
) -> None:
    """Raise UserError for code that is named in an untrusted file or by an earlier start, not on the command line.

    ``in_file`` has the options of the configuration file, and its path; ``given`` the options of the command line.
    ``directory`` is where the pipeline ``found`` runs; None for its default. With ``continues``, the options of the
    earlier start in ``directory`` are used, too, and so are checked.
    """
    from vaak.config.base import from_options
    from vaak.config.trust import judge_file
    from vaak.config.yaml.named_code import code_in_options
    from vaak.pipeline.run import options_before

    values, config = in_file
    doubt = None if config is None else judge_file(config)
    trusted = code_in_options(given) | (set() if doubt else code_in_options(values))
    named = code_in_options(values) - trusted
    earlier: set[str] = set()
    if continues:
        directory = directory or found.get_directory(from_options(found.options, values | given, found.name))
        earlier = code_in_options(options_before(found, directory)) - trusted
    if named or earlier:
        reason = doubt if named else f"{directory} has the options of an earlier start"
        code = ", ".join(sorted(named or earlier))
        raise UserError(f"{reason}, and this code would be executed: {code}; read it, and add --trust-code")


def _run(
    found: Pipeline, given: dict[str, Any], output_dir: Path | None, request: Any, dry_run: bool, as_json: bool
) -> None:
    """Run a pipeline and print where its results are; with ``dry_run``, only print the table of what would run.

    ``given`` has the options of the pipeline ``found``, ``output_dir`` is its directory (None: its default). With
    ``as_json`` the output is JSON. Only rank 0 prints.
    """
    from vaak.config.base import from_options
    from vaak.core.machine import nearest_existing
    from vaak.pipeline.run import PipelinePlan, forecast_table, options_before, run_pipeline

    options = from_options(found.options, given, found.name)
    directory = output_dir or found.get_directory(options)
    if request.continues:
        # Options that aren't given keep their values of the earlier start.
        options = from_options(found.options, options_before(found, directory) | given, found.name)
    is_main = int(os.environ.get("RANK", "0")) == 0
    if dry_run and not is_main:
        return
    if dry_run:
        planned = list(PipelinePlan(found, options, directory, request).forecast())
        if as_json:
            print(json.dumps([{**asdict(row), **asdict(forecast)} for row, forecast in planned], ensure_ascii=False))
        else:
            print("\n".join(forecast_table(planned, shutil.disk_usage(nearest_existing(directory)).free)))
        return
    rows = run_pipeline(found, options, directory, request)
    if not is_main:
        return
    if as_json:
        print(json.dumps({"directory": str(directory), "stages": [asdict(row) for row in rows]}, ensure_ascii=False))
    else:
        print(f"the results are in {directory}")
