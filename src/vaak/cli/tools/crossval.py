"""``vaak crossval``: train and test a configuration on each fold of its data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from vaak.cli.config import Arguments, AsJson, TrainingDevice, TrustCode, files_and_overrides

SHOWN = 4
"""How many figures the table has next to that of the best checkpoint; all are in results.json."""


def crossval(
    arguments: Arguments,
    folds: Annotated[int, typer.Option(help="Number of folds; each is tested on once.", min=2)] = 5,
    repeats: Annotated[int, typer.Option(help="How many times the data are divided into folds.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the order in which examples are divided.")] = 42,
    valid: Annotated[
        float,
        typer.Option(help="Share of the rest of the data that chooses the best checkpoint.", min=0.001, max=0.5),
    ] = 0.1,
    stratify_by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="What every fold has the same share of; none: nothing; default: a classifier's label.",
        ),
    ] = None,
    group_by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="What is never in two folds; none: nothing; default: in recognition and diarization, the speaker.",
        ),
    ] = None,
    pool: Annotated[
        Literal["train", "all"],
        typer.Option(help="What is divided: the training data, or these and the evaluation splits that are given."),
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
    from vaak.runs.folder.user_code import demand_trust
    from vaak.study.crossval.crossval import CrossValidation, Plan
    from vaak.study.crossval.report import write_report

    files, overrides = files_and_overrides(arguments, device)
    how = (folds, repeats, seed, valid, stratify_by, group_by, pool)
    plan = Plan(tuple(files), tuple(overrides), *how, trust_code=trust_code)
    loaded = plan.load()
    experiment = loaded.experiment
    demand_trust(loaded)
    study = CrossValidation(plan, output or experiment.run_dir.parent / f"{experiment.name}-crossval")
    for _ in study.work():
        pass
    report = write_report(study)
    if as_json:
        print(json.dumps(report))
        return
    print("\n".join(_lines(report)))
    print(study.folder / "results.json")


def _lines(report: dict[str, Any]) -> list[str]:
    """A row for each fold, and what they say together."""
    from vaak.callbacks.console.figures import in_words
    from vaak.cli.tools.sweep import aligned

    figures = report["figures"]
    others = [name for name in figures if name != report["metric"] and "/" not in name]
    names = [*([report["metric"]] if report["metric"] in figures else []), *others[:SHOWN]]
    table = [["fold", "examples", *names]]
    for one in report["folds"]:
        shown = [in_words(name, one["metrics"][name]) for name in names]
        table.append([f"{one['repeat']}-{one['fold']:02}", str(one["examples"]), *shown])
    low, high = ([in_words(name, figures[name]["interval"][end]) for name in names] for end in (0, 1))
    table.append(["mean", "", *(in_words(name, figures[name]["mean"]) for name in names)])
    table.append(["deviation", "", *(in_words(name, figures[name]["deviation"]) for name in names)])
    table += [["95 % from", "", *low], ["to", "", *high]]
    return aligned(table)
