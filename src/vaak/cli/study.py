"""Studies of several runs: ``vaak sweep``, ``vaak crossval`` and ``vaak compare``.

The first two train many runs, and resume; the last says whether runs, or lists of scores, differ by more than chance.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vaak.cli.arguments import (
    Arguments,
    AsJson,
    Device,
    Output,
    TrainingDevice,
    TrustCode,
    Weights,
    WhichWeights,
    complete_runs,
    files_and_overrides,
)
from vaak.core.errors import UserError
from vaak.report.tables import aligned

if TYPE_CHECKING:
    from collections.abc import Callable

    from vaak.study.compare import ComparisonReport
    from vaak.study.sweep import SweepPlan


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
    seed: Annotated[int, typer.Option(help="Seed for drawing the values.")] = 42,
    output: Annotated[
        Path | None, typer.Option("--output", "--output-dir", help="The sweep's folder; default: runs/NAME-sweep.")
    ] = None,
    executor: Annotated[str, typer.Option(help="Where trials run: local, or ray.")] = "local",
    num_jobs: Annotated[int, typer.Option(help="Number of trials that run at once.", min=1)] = 1,
    device: TrainingDevice = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Train with different options as one study, which resumes and may be shared: start the same command again.

    Example: vaak sweep configs/quickstart.yml --random training.optimizer.lr=log:1e-4:1e-2 --trials 3
    """
    files, overrides = files_and_overrides(arguments, device)

    from vaak.pipeline.jobs import Jobs
    from vaak.study.sweep import Sweep, SweepPlan, points, read_grid, read_random, rows, write_report

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
    plan = SweepPlan(tuple(files), tuple(overrides), dimensions, chosen, number, seed, prune, trust_code=trust_code)
    loaded = plan.load()
    from vaak.runs.folder.user_code import require_trust

    require_trust(loaded)
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
    # Problems are in trials.csv.
    names = [name for name in table[0] if name != "problem"] if table else []
    lines = aligned([names, *([_format_value(row[name]) for name in names] for row in table)], left=0)
    print("\n".join(lines if table else ["no trial was started"]))
    print(", ".join(map(str, written)))
    best = folder / "best.yml"
    if best in written or best.resolve() in written:
        print(f"next: vaak train {best}")


def _worker(plan: SweepPlan, folder: Path) -> Callable[[int], int]:
    """Return a function that works on the sweep in one process and returns how many trials it did."""
    from vaak.study.sweep import Sweep, write_report

    def work(worker: int) -> int:
        study, done = Sweep(plan, folder), 0
        for _ in study.work():
            write_report(study)
            done += 1
        return done

    return work


def _format_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


NUM_SHOWN_COLUMNS = 4
"""How many metrics the table has next to that of the best checkpoint; all are in results.json."""


def crossval(
    arguments: Arguments,
    folds: Annotated[int, typer.Option(help="Number of folds; each is tested on once.", min=2)] = 5,
    repeats: Annotated[int, typer.Option(help="Number of times that the data are divided into folds.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the order in which examples are divided.")] = 42,
    valid: Annotated[
        float,
        typer.Option(help="Share of the rest of the data that chooses the best checkpoint.", min=0.001, max=0.5),
    ] = 0.1,
    stratify_by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column whose values get equal shares in every fold; 'none' for none; default: a classifier's label.",
        ),
    ] = None,
    group_by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column whose values stay in one fold; 'none' for none; default: the speaker of a recording.",
        ),
    ] = None,
    pool: Annotated[
        Literal["train", "all"],
        typer.Option(help="Data to divide: the training data, or these together with the given evaluation splits."),
    ] = "train",
    output: Annotated[
        Path | None, typer.Option("--output", "--output-dir", help="The study's folder; default: runs/NAME-crossval.")
    ] = None,
    device: TrainingDevice = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Train and test on each fold of the data; it resumes, and may be shared: start the same command again.

    Example: vaak crossval configs/classification/quickstart.yml --folds 5
    """
    files, overrides = files_and_overrides(arguments, device)

    from vaak.runs.folder.user_code import require_trust
    from vaak.study.crossval import CrossValidation, CrossvalPlan, write_report

    how = (folds, repeats, seed, valid, stratify_by, group_by, pool)
    plan = CrossvalPlan(tuple(files), tuple(overrides), *how, trust_code=trust_code)
    loaded = plan.load()
    experiment = loaded.experiment
    require_trust(loaded)
    study = CrossValidation(plan, output or experiment.run_dir.parent / f"{experiment.name}-crossval")
    for _ in study.work():
        pass
    report = write_report(study)
    if as_json:
        print(json.dumps(report))
        return
    print("\n".join(_fold_lines(report)))
    print(study.folder / "results.json")


def _fold_lines(report: dict[str, Any]) -> list[str]:
    """A row for each fold, and what they say together."""
    from vaak.config.metrics import in_words, split_part

    metrics = report["figures"]
    others = [name for name in metrics if name != report["metric"] and not split_part(name)[1]]
    names = [*([report["metric"]] if report["metric"] in metrics else []), *others[:NUM_SHOWN_COLUMNS]]
    table = [["fold", "examples", *names]]
    for one in report["folds"]:
        shown = [in_words(name, one["metrics"][name]) for name in names]
        table.append([f"{one['repeat']}-{one['fold']:02}", str(one["examples"]), *shown])
    low, high = ([in_words(name, metrics[name]["interval"][end]) for name in names] for end in (0, 1))
    table.append(["mean", "", *(in_words(name, metrics[name]["mean"]) for name in names)])
    table.append(["deviation", "", *(in_words(name, metrics[name]["deviation"]) for name in names)])
    table += [["95 % from", "", *low], ["to", "", *high]]
    return aligned(table, left=0)


def compare(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|FILE… [key=value…]",
            help="Runs, cross-validations, or files of scores (JSON, CSV), the baseline first; options are for runs.",
            autocompletion=complete_runs,
        ),
    ],
    split: Annotated[str, typer.Option(help="The split to compare runs on.")] = "test",
    metric: Annotated[
        str | None,
        typer.Option(help="The metric to compare; default: the one that chose the first run's best."),
    ] = None,
    folds: Annotated[bool, typer.Option("--folds", help="The scores are those of a cross-validation's folds.")] = False,
    output: Output = None,
    device: Device = "auto",
    weights: Weights = WhichWeights.auto,
    as_json: AsJson = False,
) -> None:
    """Compare systems with the first one by paired tests on the same examples; --output draws the differences.

    Example: vaak compare runs/baseline runs/new --split test
    """
    names, overrides = files_and_overrides(arguments)
    if len(names) < 2 or len(set(names)) < len(names):
        raise UserError("a comparison requires different systems: two runs or more, or two files of scores")

    from vaak.runs.fork import shared_past
    from vaak.study.compare import compare_runs, compare_scores, evaluate_examples, read_scores
    from vaak.study.crossval import is_cross_validation, read_fold_scores

    forks: list[str] = []
    scores = [name for name in names if Path(name).is_file()]
    studies = [name for name in names if is_cross_validation(Path(name))]
    for own, what in ((scores, "a file of scores"), (studies, "a cross-validation")):
        if own and (own != names or overrides):
            raise UserError(f"{own[0]} is {what}, which can't be compared with anything else or have options")
    if scores:
        read = {name: read_scores(Path(name)) for name in names}
        # As many scores as folds, so each fold tests that share of the examples.
        report = compare_scores(read, 1 / max(2, len(read[names[0]])) if folds else None)
    elif studies:
        found = {name: read_fold_scores(Path(name), metric) for name in names}
        first = found[names[0]]
        others = [name for name, one in found.items() if (one.division, one.metric) != (first.division, first.metric)]
        if others:
            raise UserError(
                f"{names[0]} and {others[0]} have different folds, or another metric; divide the same data by the same "
                "--folds, --repeats and --seed, and give --metric"
            )
        report = compare_scores({name: one.scores for name, one in found.items()}, first.share, first.metric)
    elif folds:
        raise UserError("--folds is for files of scores")
    else:
        systems = [evaluate_examples(Path(name), [], overrides, split, device, weights) for name in names]
        report = compare_runs(systems, metric)
        pasts = (shared_past(Path(name), Path(names[0])) for name in names[1:])
        forks = [past for past in pasts if past is not None]
    if output is not None:
        from vaak.report.charts import draw_differences

        draw_differences(report.to_json(), output)
    print(json.dumps(report.to_json()) if as_json else "\n".join([*_comparison_lines(report), *forks]))


def _comparison_lines(report: ComparisonReport) -> list[str]:
    from vaak.config.metrics import in_words

    def shown(value: float) -> str:
        return in_words(report.metric, value)

    lines = [f"{report.metric} of {report.baseline}: {shown(report.figure)}"]
    for one in report.comparisons:
        low, high = map(shown, one.interval)
        lines += [
            f"{one.name}: {shown(one.figure)}, a difference of {shown(one.difference)} (95 %: {low} to {high})",
            f"  {_p(one.p_value)} ({one.tests[0].name}"
            + (f", corrected for {len(report.comparisons)} comparisons)" if len(report.comparisons) > 1 else ")"),
        ]
        # NaN isn't equal to itself: without metrics of each example, the effect size is NaN.
        if one.effect == one.effect:
            low, high = (f"{value:.2f}" for value in one.effect_interval)
            lines.append(f"  effect size {one.effect:.2f} ({low} to {high}, Cohen's d of {one.pairs} pairs)")
        lines += [f"  {test.name}: {_p(test.p_value)}" for test in one.tests[1:]]
    return [*lines, ", ".join(f"{name} {value}" for name, value in report.protocol.items())]


def _p(value: float) -> str:
    """A p-value, which is never 0.

    >>> _p(0.0123), _p(2e-9)
    ('p 0.0123', 'p < 1e-4')
    """
    return "p < 1e-4" if value < 1e-4 else f"p {value:.4f}"
