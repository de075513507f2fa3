"""``vaak compare``: whether runs, or lists of scores, differ by more than chance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vaak.cli.config import AsJson, Device, Output, Weights, WhichWeights, files_and_overrides

if TYPE_CHECKING:
    from vaak.study.comparison.compare import Comparison, Report


def compare(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|FILE… [key=value…]",
            help="Runs, cross-validations, or files of scores (JSON, CSV), the baseline first; options are for runs.",
        ),
    ],
    split: Annotated[str, typer.Option(help="The split to compare runs on.")] = "test",
    metric: Annotated[
        str | None, typer.Option(help="The figure to compare; default: the one that chose the first run's best.")
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
    from vaak.core.errors import UserError
    from vaak.study.comparison.compare import compare_runs, compare_scores, read_scores
    from vaak.study.comparison.drawing import draw_report
    from vaak.study.comparison.examples import examples_of
    from vaak.study.crossval.report import is_cross_validation, read_fold_scores

    names, overrides = files_and_overrides(arguments)
    if len(names) < 2 or len(set(names)) < len(names):
        raise UserError("a comparison requires different systems: two runs or more, or two files of scores")
    scores = [name for name in names if Path(name).is_file()]
    studies = [name for name in names if is_cross_validation(Path(name))]
    for own, what in ((scores, "a file of scores"), (studies, "a cross-validation")):
        if own and (own != names or overrides):
            raise UserError(f"{own[0]} is {what}, which can't be compared with anything else or have options")
    if scores:
        read = {name: read_scores(Path(name)) for name in names}
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
        systems = [examples_of(Path(name), [], overrides, split, device, weights) for name in names]
        report = compare_runs(systems, metric)
    if output is not None:
        draw_report(report, output)
    print(json.dumps(report.to_json()) if as_json else "\n".join(_lines(report)))


def _effect(one: Comparison) -> list[str]:
    """The size of an effect, in one line, where examples have figures of their own."""
    if one.effect != one.effect:  # not a number
        return []
    low, high = one.effect_interval
    return [f"  effect size {one.effect:.2f} ({low:.2f} to {high:.2f}, Cohen's d of {one.pairs} pairs)"]


def _lines(report: Report) -> list[str]:
    from vaak.callbacks.console.figures import in_words

    def shown(value: float) -> str:
        return in_words(report.metric, value)

    lines = [f"{report.metric} of {report.baseline}: {shown(report.figure)}"]
    for one in report.comparisons:
        low, high = map(shown, one.interval)
        lines += [
            f"{one.name}: {shown(one.figure)}, a difference of {shown(one.difference)} (95 %: {low} to {high})",
            f"  {_p(one.p_value)} ({one.tests[0].name}"
            + (f", corrected for {len(report.comparisons)} comparisons)" if len(report.comparisons) > 1 else ")"),
            *_effect(one),
            *(f"  {test.name}: {_p(test.p_value)}" for test in one.tests[1:]),
        ]
    return [*lines, ", ".join(f"{name} {value}" for name, value in report.protocol.items())]


def _p(value: float) -> str:
    """A p-value, which is never 0.

    >>> _p(0.0123), _p(2e-9)
    ('p 0.0123', 'p < 1e-4')
    """
    return "p < 1e-4" if value < 1e-4 else f"p {value:.4f}"
