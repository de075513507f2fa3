"""``vaak runs``: the runs of a folder, what they are, how they stand, and how to resume those that ended early.

``vaak plot`` draws one of them; ``vaak report`` writes a page about one, or compares several.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from vaak.cli.arguments import AsJson, complete_runs
from vaak.config.tasks import TASKS, load_name
from vaak.core.errors import UserError
from vaak.core.names import nearest_name, require_known
from vaak.report.tables import aligned
from vaak.runs.folder.directory import require_own_run
from vaak.runs.folder.listing import EVERY_STATE

if TYPE_CHECKING:
    from vaak.report.serve import Reports
    from vaak.runs.folder.listing import RunSummary

COLUMNS: dict[str, Callable[[RunSummary], str]] = {
    "run": lambda run: run.name,
    "date": lambda run: run.date,
    "task": lambda run: run.task,
    "parameters": lambda run: _size(run.parameters),
    "state": lambda run: run.state,
    "step": lambda run: f"{run.step}/{run.total_steps}" if run.total_steps else str(run.step),
    "checkpoint": lambda run: "-" if run.checkpoint is None else str(run.checkpoint),
    "best": lambda run: run.best,
    "time": lambda run: _time(run.seconds),
}
COLUMNS_LEFT_OUT = ("checkpoint", "time", "parameters", "step", "date", "task")
"""Columns that a terminal that is too narrow doesn't show, the first to go first."""
SORTS: dict[str, Callable[[RunSummary], Any]] = {
    "date": lambda run: -run.changed,
    "name": lambda run: run.name,
    "task": lambda run: run.task,
    "parameters": lambda run: -(run.parameters or 0),
    "state": lambda run: run.state,
    "best": lambda run: (
        run.best.rpartition(" ")[0] or "~",
        0.0 if run.best_value is None else run.best_value * (-1 if run.best_mode == "max" else 1),
    ),
    "time": lambda run: -run.seconds,
}
Sort = StrEnum("Sort", {name: name for name in SORTS})  # type: ignore[misc]
NEWEST_FIRST = Sort("date")
FILTERS: dict[str, Callable[[RunSummary], str]] = {
    "name": lambda run: run.name,
    "task": lambda run: run.task,
    "state": lambda run: run.state,
    "metric": lambda run: run.best.rpartition(" ")[0],
    "date": lambda run: run.date,
}

CAN_BE = {"task": tuple(TASKS), "state": EVERY_STATE}
"""Values that a filter may name though no run has them."""


class ListByDefault(TyperGroup):
    """A group whose command is ``list`` where none is named, so that ``vaak runs FOLDER`` lists."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = bool(args) and (args[0] in self.commands or args[0] in ("--help", "-h"))
        return super().parse_args(ctx, args if named else ["list", *args])


app = typer.Typer(
    cls=ListByDefault,
    help="List runs (vaak runs FOLDER), or remove those that never trained.",
    epilog="Example: vaak runs runs --filter state=finished --sort best (more options: vaak runs list --help)",
    add_completion=False,
)
Folder = Annotated[Path, typer.Argument(help="The folder of the runs.")]


@app.callback()
def runs() -> None:
    """List runs (vaak runs FOLDER), or remove those that never trained."""


@app.command(name="list")
def list_(
    folder: Folder = Path("runs"),
    show_all: Annotated[bool, typer.Option("--all", help="Show starts that never trained, too.")] = False,
    sort: Annotated[Sort, typer.Option(help="Column to sort by; default: date, the newest first.")] = NEWEST_FIRST,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="WHAT=PATTERN",
            help="Runs whose name, task, state, metric or date matches the pattern (* is anything); may be repeated.",
        ),
    ] = None,
    tree: Annotated[bool, typer.Option("--tree", help="Show forks below the run that they start from.")] = False,
    as_json: AsJson = False,
) -> None:
    """List runs with date, task, parameters, state and best metric, and the command that resumes each.

    Example: vaak runs runs --filter task=lm --filter "name=*quick*" --sort best
    """
    from vaak.runs.folder.listing import list_runs

    wanted = [_parse_filter(text) for text in filters or ()]
    there = list_runs(folder)
    _require_possible(wanted, there)
    found = [run for run in there if all(_is_like(like, FILTERS[what](run)) for what, like in wanted)]
    shown = [run for run in found if show_all or run.trained or run.state == "running"]
    shown.sort(key=SORTS[sort.value])
    if tree:
        shown = below_parents(shown)
    if as_json:
        print(json.dumps([run.as_json() for run in shown], ensure_ascii=False))
        return
    if shown:
        columns = {name: [name, *map(cell, shown)] for name, cell in COLUMNS.items()}
        # Only a terminal is narrow: a file gets all columns.
        if sys.stdout.isatty():
            width_there = shutil.get_terminal_size().columns
            for name in COLUMNS_LEFT_OUT:
                if sum(max(map(len, cells)) for cells in columns.values()) + 2 * (len(columns) - 1) > width_there:
                    del columns[name]
        print("\n".join(aligned(list(zip(*columns.values(), strict=True)))))
        _print_what_to_do(shown)
    elif not found:
        print(f"no runs in {folder}" if not there else f"no such runs in {folder}, of {len(there)}")
    if len(found) > len(shown):
        which = "those not begun" if any(run.state == "prepared" for run in found) else "them"
        print(f"{_starts(len(found) - len(shown))} not shown: --all shows them, vaak runs clean removes {which}")


@app.command()
def clean(
    folder: Folder = Path("runs"),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove them without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove the directories of starts that never trained, after listing them and asking.

    A run that has a checkpoint or has taken a step, or that a process is writing, stays; so does a directory with files
    that no run writes.

    Example: vaak runs clean runs
    """
    from vaak.runs.folder.listing import never_trained, remove_start

    found = never_trained(folder)
    if not as_json:
        for run in found:
            print(run)
        if not found:
            print(f"no starts in {folder} that never trained")
    if found and not yes:
        if as_json or not sys.stdin.isatty():
            raise UserError(f"{_starts(len(found))} to be removed in {folder}; add --yes to remove without being asked")
        if not typer.confirm(f"Remove {_starts(len(found))}?"):
            return
    removed = [str(run) for run in found if remove_start(run)]
    if as_json:
        print(json.dumps({"removed": removed}, ensure_ascii=False))
    elif found:
        print(f"removed {_starts(len(removed))}")


def below_parents(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Order runs so that forks follow their parent, named with how deep they are and where they begin.

    Forks of a run that isn't there, and rings, which only an edited run.json can make, are listed as no forks.
    """
    left = {run.name for run in runs}

    def find_parent(run: RunSummary) -> str | None:
        return run.parent.get("id") if run.parent else None

    def take(run: RunSummary, depth: int) -> Iterator[RunSummary]:
        if run.name not in left:
            return
        left.remove(run.name)
        mark = f"{'  ' * (depth - 1)}└ " if depth else ""
        origin = f" (from step {run.parent['step']})" if run.parent else ""
        yield replace(run, name=f"{mark}{run.name}{origin}")
        for fork in [one for one in runs if run.id is not None and find_parent(one) == run.id]:
            yield from take(fork, depth + 1)

    known = {run.id for run in runs}
    roots = [run for run in runs if find_parent(run) not in known or run.parent is None]
    # Runs in a ring have no root, so all come once more; those already taken give nothing.
    return [one for run in (*roots, *runs) for one in take(run, 0)]


def _parse_filter(text: str) -> tuple[str, str]:
    """Split a filter ``WHAT=PATTERN``. Raises UserError for another form."""

    what, equals, pattern = text.partition("=")
    if not equals or what not in FILTERS:
        raise UserError(f"--filter {text}: expected WHAT=PATTERN, where WHAT is one of {', '.join(FILTERS)}")
    return what, pattern


def _require_possible(wanted: Sequence[tuple[str, str]], there: Sequence[RunSummary]) -> None:
    """Raise UserError for a pattern that no run is like, nor could be; none on a day is an answer."""
    for what, like in wanted if there else ():
        if what != "date":
            values = sorted({*(FILTERS[what](run) for run in there), *CAN_BE.get(what, ())})
            require_known([like], values, f"--filter {what}: nothing is like", error=UserError, matches=_is_like)


def _is_like(pattern: str, value: str) -> bool:
    return fnmatch.fnmatchcase(value, pattern)


def _print_what_to_do(shown: list[RunSummary]) -> None:
    for run in shown:
        for damage in run.damaged:
            print(f"{run.name}: {damage}")
        if run.go_on is not None:
            why = f" ({run.reason})" if run.reason else ""
            print(f"{run.name}: {run.state}{why}; resume from step {run.checkpoint} with: {run.go_on}")


def _starts(number: int) -> str:
    return f"{number} start{'' if number == 1 else 's'} that never trained"


def _size(parameters: int | None) -> str:
    """A number of parameters in three digits.

    >>> _size(None), _size(950), _size(1_234_567), _size(12_345_678)
    ('-', '950', '1.23M', '12.3M')
    """
    if parameters is None:
        return "-"
    for unit, factor in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if parameters >= factor:
            return f"{parameters / factor:.3g}{unit}"
    return str(parameters)


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def plot(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN... [PICTURE]",
            help="A run, or several to plot together, or the folder of a pipeline. PICTURE is history (the default; "
            "losses and metrics over the steps) or one that a task declares for its runs or its pipeline; a wrong name "
            "lists them.",
            autocompletion=complete_runs,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file; its extension gives the format. Default: RUN/PICTURE.png."),
    ] = None,
) -> None:
    """Plot the training curves of runs, or the results of a pipeline. Requires matplotlib.

    Example: vaak plot runs/asr-quickstart --output history.png
    """
    from vaak.report.charts import draw_runs

    drawings = {name: reference for spec in TASKS.values() for name, reference in spec.drawings.items()}
    pictures = ("history", *drawings)
    # A run's folder may be called as a picture is.
    named = len(arguments) > 1 and arguments[-1] in pictures and not Path(arguments[-1]).is_dir()
    picture = arguments[-1] if named else "history"
    runs = [Path(name) for name in (arguments[:-1] if named else arguments)]
    missing = next((run for run in runs if not run.is_dir()), None)
    if missing is not None:
        also = f", nor one of {', '.join(pictures)}{nearest_name(str(missing), pictures)}" if len(runs) > 1 else ""
        raise UserError(f"{missing} is not a folder of a run{also}")
    for run in runs:
        require_own_run(run)
    path = output or runs[0] / f"{picture}.png"
    draw = load_name(drawings[picture]) if picture in drawings else draw_runs
    draw(runs, path)
    print(path)


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN...]",
            help="A run, or several to compare.",
            autocompletion=complete_runs,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The file. Default: report.html in the run; for several runs, comparison.html in the first; for a "
            "folder, runs.html in it.",
        ),
    ] = None,
    runs_dir: Annotated[
        Path | None, typer.Option("--runs-dir", help="A folder of runs: list them, with filters, in place of RUN.")
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Serve the page on this machine (127.0.0.1) and refresh it, until Ctrl-C."),
    ] = False,
    port: Annotated[int, typer.Option(help="The port for --watch; 0 takes a free one.", min=0, max=65535)] = 0,
) -> None:
    """Write everything about a run to one HTML file: metrics, charts, examples, sound, options, how to resume it.

    The run may still be training, or have crashed. For several runs, the page has the options that differ, their curves
    together, and paired differences.

    Example: vaak report runs/quickstart --output quickstart.html
    """
    from vaak.report.comparison import comparison_page
    from vaak.report.html import write_page
    from vaak.report.page import run_page
    from vaak.report.run_facts import read_facts
    from vaak.report.serve import Reports, list_page

    if bool(runs) == (runs_dir is not None):
        raise UserError("give runs, or a folder of runs by --runs-dir")
    if watch:
        if output is not None:
            raise UserError("--watch serves the page: leave out --output")
        _serve(Reports(runs or [], runs_dir), port)
        return
    names = {0: "runs.html", 1: "report.html"}
    path = output or (runs_dir or (runs or [Path()])[0]) / names.get(len(runs or []), "comparison.html")
    if path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"{path}: the report is an HTML page; use a file name that ends in .html")
    if runs_dir is not None:
        write_page(path, list_page(runs_dir))
    else:
        for run in runs or []:
            require_own_run(run)
        facts = [read_facts(run) for run in runs or []]
        write_page(path, run_page(facts[0]) if len(facts) == 1 else comparison_page(facts))
    print(path)


def _serve(reports: Reports, port: int) -> None:
    """Serve pages until Ctrl-C. Raises UserError if there is nothing to serve."""
    from vaak.report.serve import HOST, make_server

    first = reports.find("/")
    assert first is not None
    # A mistake in the arguments is reported here.
    first[0]()
    with make_server(reports, port) as server:
        print(f"http://{HOST}:{server.server_address[1]}/  (Ctrl-C ends it)", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
