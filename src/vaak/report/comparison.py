"""The page of several runs, ``vaak report RUN RUN …``.

    head           in a sentence, which run is best and by how much (``find_best``)
    options        those that differ
    charts         each curve of all runs in one, in the run's colour
    differences    from the first run, paired, on the same examples; then metrics, and how each run came about

Metrics and examples are those of each run's best checkpoint.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from vaak.config.metrics import find_metric, get_unit, split_part
from vaak.core.significance import Test, compute_mean, paired_bootstrap
from vaak.report.curves import MACHINE_CHARTS, MOST_GROUPS, Panel, panels
from vaak.report.examples import Scored, make_metric_title, scored
from vaak.report.head import about_run
from vaak.report.html import Html, code, data_table, element, option_text, render_charts
from vaak.report.page import render_page
from vaak.report.run_facts import RunFacts, choose_summary, compared_options, format_metric, summaries

NUM_REPORT_SAMPLES = 2000
KEPT = ("loss", "parts of the loss", "gradient norm", "throughput", "gap between batches", "memory", "memory pressure")


def comparison_page(runs: Sequence[RunFacts], live: bool = False) -> str:
    """Return the page of several runs; ``live`` as of a document."""
    # the names of the runs; those of their folders, or the whole paths, where two have the same
    ways = ([one.name for one in runs], [one.directory.resolve().name for one in runs])
    names = next((one for one in ways if len(set(one)) == len(one)), [str(one.directory) for one in runs])
    rows: list[Sequence[object]] = [("", *names)]
    columns = [dict(about_run(one)) for one in runs]
    for name in dict.fromkeys(name for column in columns for name in column):
        rows.append((name, *(column.get(name, "") for column in columns)))
    options = compared_options(runs)
    differing = [("option", *names), *((name, *map(option_text, values)) for name, values in options)]
    found = _overlaid(runs, names)
    chosen = [one.shown_evaluation for one in runs]
    metrics: list[Sequence[object]] = [("metric", *names)]
    for name in dict.fromkeys(name for _, one, _ in chosen for name in one if not split_part(name)[1]):
        metrics.append((name, *(format_metric(name, one[name]) if name in one else "" for _, one, _ in chosen)))
    metrics.append(("at step", *(f"{step:,}" if one else "" for step, one, _ in chosen)))
    same = element("p", "All options but the name and the folder are the same.")
    directories = " ".join(shlex.quote(str(one.directory)) for one in runs)
    asked = [element("p", "On the test data, and of other metrics:"), code(f"vaak compare {directories}")]
    sections = {
        "options": ("Options that differ", [data_table(differing, "Each run's value") if options else same]),
        "charts": ("Charts", render_charts(found, [], 0) if found else []),
        "differences": ("Paired differences", [*_differences(runs, names), *asked]),
        "figures": (
            "Metrics",
            [data_table(metrics, "The evaluation of each run's best checkpoint")] if len(metrics) > 2 else [],
        ),
        "runs": ("Runs", [data_table(rows, "How each came about", folded=30)]),
    }
    head = [
        element("h1", f"{len(runs)} runs"),
        element("p", find_best(runs, names), css="result"),
        element("p", ", ".join(names), css="lead"),
    ]
    return render_page(f"{len(runs)} runs: report", head, sections, (found, ()), live)


def _differences(runs: Sequence[RunFacts], names: Sequence[str]) -> list[Html]:
    """Compare each run with the first on the examples of their best checkpoints: the difference, its interval."""
    scores = list(map(_find_scores, runs))
    first = scores[0]
    if first is None:
        return [element("p", f"{names[0]} kept no scores of single examples.")]
    title = make_metric_title(first.figure)
    rows: list[Sequence[object]] = [("run", title, f"difference from {names[0]}", "95 %", "p", "examples")]
    rows.append((names[0], format_metric(first.figure, _mean_score(first)), "", "", "", str(len(first.sums))))
    remarks = []
    for name, one in zip(names[1:], scores[1:], strict=True):
        if one is None or not _are_pairs(one, first):
            remarks.append(element("p", f"{name} wasn't evaluated on the same examples as {names[0]}: no pairs."))
            continue
        test = _compare(one, first)
        low, high = test.interval or (0.0, 0.0)
        scale, unit = _get_scale(first.figure)
        shown = [f"{scale * value:+.2f}{unit}" for value in (test.statistic, low, high)]
        p_value = "< 0.001" if test.p_value < 0.001 else f"{test.p_value:.3f}"
        figure = format_metric(one.figure, _mean_score(one))
        rows.append((name, figure, shown[0], f"{shown[1]} to {shown[2]}", p_value, str(len(one.sums))))
    what = "Each run's best checkpoint, by paired bootstrap over the examples"
    return [*([data_table(rows, what)] if len(rows) > 2 else []), *remarks]


def _find_scores(run: RunFacts) -> Scored | None:
    """Return the scores of single examples that the checkpoint which the page shows has; None if there are none."""
    found = [scored(choose_summary(steps, run.shown_step)[1]) for steps in summaries(run).values()]
    return next((one for one in found if one is not None and len(one.sums) > 1), None)


def _are_pairs(one: Scored, other: Scored) -> bool:
    """Return whether both are the same metric of the same examples (``of`` is their hash)."""
    return (one.figure, one.of, len(one.sums)) == (other.figure, other.of, len(other.sums))


def _compare(one: Scored, other: Scored) -> Test:
    return paired_bootstrap(np.array(one.sums), np.array(other.sums), compute_mean, NUM_REPORT_SAMPLES)


def _get_scale(figure: str) -> tuple[int, str]:
    """Return the factor by which differences of a metric are multiplied for display, and their unit."""
    unit = get_unit(figure)
    return (100, " points") if unit == "%" else (1, f" {unit}" if unit else "")


def find_best(runs: Sequence[RunFacts], names: Sequence[str]) -> str:
    """Say in a sentence which run is best, and by how much; with an interval where all kept examples' scores."""
    tasks = dict.fromkeys(str(run.summary.task) for run in runs)
    if len(tasks) > 1:
        return f"Runs of different tasks ({', '.join(tasks)}): no metric says which is best."
    scores = [one for one in map(_find_scores, runs) if one is not None]
    if len(scores) == len(runs) and all(_are_pairs(*two) for two in pairwise(scores)):
        values = [_mean_score(one) for one in scores]
        if (ranked := _rank(scores[0].figure, values)) is not None:
            best, next_best = ranked[:2]
            return _say_best(scores[best], scores[next_best], names[best], names[next_best])
    return _find_best_by_metric(runs, names)


def _rank(figure: str, values: Sequence[float | None]) -> list[int] | None:
    """Return the places of values, the best first; None if one is missing, or no direction is better."""
    metric = find_metric(figure)
    if metric is None or metric.higher is None:
        return None
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return sorted(range(len(known)), key=lambda place: known[place], reverse=metric.higher)


def _say_best(best: Scored, other: Scored, name: str, other_name: str) -> str:
    figure = best.figure
    title, value = make_metric_title(figure), format_metric(figure, _mean_score(best))
    test, (scale, unit), number = _compare(best, other), _get_scale(figure), len(best.sums)
    if test.statistic == 0:
        return f"{name} and {other_name} are equally good: {title} {value} on the same {number:,} examples."
    sign = 1 if test.statistic > 0 else -1
    by = f"{abs(scale * test.statistic):.2f}{unit} {'higher' if sign > 0 else 'lower'} than {other_name}"
    if test.interval is None:
        return f"{name} is best: {title} {value}, {by}, on the same {number:,} examples; no interval is known."
    low, high = sorted(sign * scale * limit for limit in test.interval)
    if low > 0:
        known = f"(95 % interval over examples: {low:.2f} to {high:.2f})"
        return f"{name} is best: {title} {value}, {by} {known}, on the same {number:,} examples."
    return (
        f"No run is clearly best: {name} has {title} {value}, {by}, but the 95 % interval of that difference over the "
        f"same {number:,} examples, {low:.2f} to {high:.2f}, includes 0."
    )


def _find_best_by_metric(runs: Sequence[RunFacts], names: Sequence[str]) -> str:
    """Say which run has the best metric: that which chose each run's checkpoint, or else the first that all have."""
    metrics = [run.shown_evaluation[1] for run in runs]
    chosen = [run.summary.best.rpartition(" ")[0] for run in runs]
    for figure in (*chosen[: len(set(chosen)) == 1], *metrics[0]):
        values = [one.get(figure) for one in metrics]
        if (ranked := _rank(figure, values)) is None:
            continue
        best, next_best = ranked[:2]
        shown, other = (format_metric(figure, values[place]) for place in (best, next_best))
        if shown == other:
            return f"{names[best]} and {names[next_best]} are equally good: {figure} {shown}."
        why = "no interval: they kept no scores of the same examples"
        return f"{names[best]} is best: {figure} {shown}; {names[next_best]} has {other} ({why})."
    return "No metric that all of them have says which is best."


def _mean_score(scores: Scored) -> float | None:
    total, number = np.array(scores.sums).sum(0)
    return float(total / number) if number else None


def _overlaid(runs: Sequence[RunFacts], names: Sequence[str]) -> list[Panel]:
    """Return a chart for each curve that any run has, with that curve of every run in the run's colour.

    Curves of groups are left out. Losses of different tasks are in separate charts: they can't be compared.
    """
    charts: dict[str, Panel] = {}
    has_tasks = len({one.summary.task for one in runs}) > 1
    for colour, (run, name) in enumerate(zip(runs, names, strict=True)):
        for panel in panels(run)[0]:
            whole = [one for one in panel.curves if panel.title in KEPT or one.label == panel.title]
            for curve in whole:
                title = panel.title if curve.label == panel.title else f"{panel.title}: {curve.label}"
                title = f"{title} ({run.summary.task})" if has_tasks and panel.title not in MACHINE_CHARTS else title
                chart = charts.setdefault(title, panel._replace(title=title, curves=[]))
                if len(chart.curves) < 2 * MOST_GROUPS:
                    chart.curves.append(curve._replace(label=name, colour=colour))
    return sorted(charts.values(), key=lambda one: one.is_machine)
