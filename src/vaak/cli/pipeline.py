"""``vaak pipeline``: run stages that feed each other; one command for each pipeline, with its options as flags."""

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
    from vaak.pipeline.stage import Pipeline

PIPELINE_HELP = "Run the stages of a pipeline: NAME, ./file.py:NAME or package.module:NAME."


class PipelineGroup(TyperGroup):
    """A command for each pipeline; it is made from the pipeline's options when it is called."""

    def __init__(self, **attributes: Any) -> None:
        from vaak.config.tasks import list_pipelines

        super().__init__(**attributes)
        self.commands = {name: _command(name) for name in list_pipelines()}

    def get_command(self, context: Any, name: str) -> Any:
        """The command of a pipeline that has a name, or of one that a user names by its place."""
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


def _command(reference: str) -> Any:
    """The command of a pipeline."""
    from vaak.cli.arguments import add_options
    from vaak.config.yaml.layers import file_or_recipe
    from vaak.pipeline.stage import find_pipeline

    found = find_pipeline(reference, Path.cwd())

    no_flags = [name for name, about in found.options.model_fields.items() if not _is_plain(about.annotation)]

    @add_options(found.options, into="given", leave_out=no_flags, show_defaults=True, flags=found.flags)
    def command(
        resume: Annotated[
            bool, typer.Option("--resume", help="Resume where the last start was cut; options not given stay as then.")
        ] = False,
        first: Annotated[
            str | None, typer.Option("--from", metavar="STAGE", help="Run this stage and all after it again.")
        ] = None,
        only: Annotated[str | None, typer.Option(metavar="STAGE", help="Run this stage alone.")] = None,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Print what would run, why, and what it would take; run nothing.")
        ] = False,
        config: Annotated[
            Path | None, typer.Option(help="A YAML or JSON file of options, or a recipe's name; flags override it.")
        ] = None,
        output_dir: Annotated[Path | None, typer.Option(help="Where the stages and their results are kept.")] = None,
        log_file: Annotated[
            Path | None, typer.Option(help="Where the log is written, appended on resume; default: pipeline.log there.")
        ] = None,
        executor: Annotated[
            Literal["local", "ray"], typer.Option(help="Where shards are made: processes here, or a Ray cluster.")
        ] = "local",
        num_jobs: Annotated[int, typer.Option(min=1, help="How many processes make shards at once.")] = 1,
        separate_processes: Annotated[
            bool, typer.Option("--separate-processes", help="Run each stage in a separate process.")
        ] = False,
        trust_code: TrustCode = False,
        as_json: AsJson = False,
        given: dict[str, Any] | None = None,
    ) -> None:
        from vaak.pipeline.jobs import Jobs
        from vaak.pipeline.run import Request

        path, colon, name = reference.rpartition(":")
        # A stage's process may start elsewhere, so the path is absolute.
        absolute = f"{Path(path).resolve()}:{name}" if colon and path.endswith(".py") else reference
        finding = partial(find_pipeline, absolute) if separate_processes else None
        request = Request(
            resume=resume,
            first=first,
            only=only,
            jobs=Jobs(executor, num_jobs),
            log_file=log_file,
            find=None if finding is None else partial(finding, Path("/")),
            shows_progress=not as_json,
            trust_code=trust_code,
        )
        config = config and file_or_recipe(str(config))
        values = read_values(found, config)
        place = output_dir or (Path(values["output_dir"]) if values.get("output_dir") else None)
        values.pop("output_dir", None)
        if not trust_code:
            _require_trust(found, (values, config), given or {}, place, continues=request.continues)
        _run(found, values | (given or {}), place, request, dry_run, as_json)

    stages = "".join(f"\n\n{stage.name}: {stage.about}" for stage in found.stages)
    command.__doc__ = f"{found.about}{stages}\n\nExample: vaak pipeline {reference} --resume --dry-run"
    one = typer.Typer(add_completion=False)
    one.command()(command)
    made = with_plain_help(get_command(one))
    made.name = reference
    return made


def _is_plain(annotation: Any) -> bool:
    """Return whether a flag can give an option of this type; others, such as sections, are only in files."""
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
    kinds = [get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in kinds]  # Source, FolderPath
    return all(kind in (bool, int, float, str, Path) or get_origin(kind) is Literal for kind in kinds) or (
        get_origin(annotation) is Literal
    )


def read_values(found: Pipeline, config: Path | None) -> dict[str, Any]:
    """The options in a file, its paths seen from its folder."""
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
    of_file: tuple[dict[str, Any], Path | None],
    given: dict[str, Any],
    directory: Path | None,
    *,
    continues: bool,
) -> None:
    """Raise UserError for code named by options that the user didn't type: those of a file or of an earlier start.

    ``of_file`` are the options of a file, and the file; ``given`` those of the command line. ``directory`` is where the
    pipeline ``found`` is run, and perhaps ``continues``.
    """
    from vaak.config.base import from_options
    from vaak.config.trust import judge_file
    from vaak.config.yaml.named_code import code_in_options
    from vaak.pipeline.run import options_before

    in_file, config = of_file
    doubt = None if config is None else judge_file(config)
    own = code_in_options(given) | (set() if doubt else code_in_options(in_file))
    named = code_in_options(in_file) - own
    before: set[str] = set()
    if continues:
        directory = directory or found.get_directory(from_options(found.options, in_file | given, found.name))
        before = code_in_options(options_before(found, directory)) - own
    if named or before:
        whose = doubt if named else f"{directory} has what a pipeline began with"
        code = ", ".join(sorted(named or before))
        raise UserError(f"{whose}, and this code would be executed: {code}; read it, and add --trust-code")


def _run(
    found: Pipeline, given: dict[str, Any], output_dir: Path | None, request: Any, dry_run: bool, as_json: bool
) -> None:
    """Run a pipeline, or say what would run, and print the table.

    ``given`` are options of the pipeline that was ``found``, ``output_dir`` where it runs, ``request`` what to do;
    with ``dry_run`` nothing is done, with ``as_json`` the table is JSON.
    """
    from vaak.config.base import from_options
    from vaak.core.machine import nearest_existing
    from vaak.pipeline.run import PipelinePlan, forecast_table, options_before, run_pipeline

    options = from_options(found.options, given, found.name)
    directory = output_dir or found.get_directory(options)
    if request.continues:
        # Options of the earlier start hold where the command line gives none.
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
