"""``vaak sweep``: train a configuration with many values of some options, and say which are best."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaak.cli.config import Arguments, AsJson, TrainingDevice, TrustCode, files_and_overrides

if TYPE_CHECKING:
    from collections.abc import Callable

    from vaak.study.sweep.sweep import Plan


def sweep(
    arguments: Arguments,
    grid: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE,VALUE", help="An option and its values; may be repeated.")
    ] = None,
    random: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=KIND:LOW:HIGH",
            help="An option and its range, of the kind log, uniform, int or logint; may be repeated.",
        ),
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Number of trials; default: the whole grid, or 20.", min=1)] = None,
    sampler: Annotated[
        str | None,
        typer.Option(help="grid, random, or tpe (model-based); default: grid with --grid alone, else random."),
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Stop trials that are worse than the median of the others so far.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of what is drawn.")] = 42,
    output: Annotated[
        Path | None, typer.Option("--output", "--output-dir", help="The sweep's folder; default: runs/NAME-sweep.")
    ] = None,
    executor: Annotated[str, typer.Option(help="Where trials run: local, or ray.")] = "local",
    num_jobs: Annotated[int, typer.Option(help="How many trials run at once.", min=1)] = 1,
    device: TrainingDevice = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Train with different options as one study, which resumes and may be shared: start the same command again.

    Example: vaak sweep configs/quickstart.yml --random training.optimizer.lr=log:1e-4:1e-2 --trials 3
    """
    from vaak.core.errors import UserError
    from vaak.pipeline.jobs import Jobs
    from vaak.study.sweep.report import rows, write_report
    from vaak.study.sweep.space import points, read_grid, read_random
    from vaak.study.sweep.sweep import Plan, Sweep

    files, overrides = files_and_overrides(arguments, device)
    dimensions = (*map(read_grid, grid or ()), *map(read_random, random or ()))
    keys = [one.key for one in dimensions]
    if not keys or len(set(keys)) < len(keys):
        raise UserError("give --grid KEY=1,2 or --random KEY=log:1e-5:1e-2, each option once")
    chosen = sampler or ("random" if random else "grid")
    whole = points(list(dimensions))
    if chosen not in ("grid", "random", "tpe") or (chosen == "grid" and not whole):
        raise UserError(f"--sampler {chosen}: expected random or tpe" + ("" if not whole else ", or grid"))
    if executor not in ("local", "ray"):
        raise UserError(f"--executor {executor}: expected local or ray")
    number = min(trials or len(whole), len(whole)) if chosen == "grid" else trials or 20
    plan = Plan(tuple(files), tuple(overrides), dimensions, chosen, number, seed, prune, trust_code=trust_code)
    loaded = plan.load()
    from vaak.runs.folder.user_code import demand_trust

    demand_trust(loaded)
    folder = output or loaded.experiment.run_dir.parent / f"{loaded.experiment.name}-sweep"
    study = Sweep(plan, folder)
    workers = list(range(min(num_jobs, number)))
    where: Any = executor
    for _ in Jobs(where, num_jobs).map(partial(_worker, plan, folder.resolve()), workers):
        pass
    written, table = write_report(study), rows(study)
    if as_json:
        print(json.dumps({"trials": table, "files": [str(path) for path in written]}))
        return
    print("\n".join(_lines(table)))
    print(", ".join(map(str, written)))
    best = folder / "best.yml"
    if best in written or best.resolve() in written:
        print(f"next: vaak train {best}")


def _worker(plan: Plan, folder: Path) -> Callable[[int], int]:
    """What works on the sweep in one process; returns how many trials it did."""
    from vaak.study.sweep.report import write_report
    from vaak.study.sweep.sweep import Sweep

    def work(worker: int) -> int:
        study, done = Sweep(plan, folder), 0
        for _ in study.work():
            write_report(study)
            done += 1
        return done

    return work


def _lines(table: list[dict[str, Any]]) -> list[str]:
    """A headed table; problems are in trials.csv."""
    if not table:
        return ["no trial was started"]
    names = [name for name in table[0] if name != "problem"]
    return aligned([names, *([_shown(row[name]) for name in names] for row in table)])


def aligned(cells: list[list[str]]) -> list[str]:
    """The lines of a table, its columns aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
