"""The page of several runs: ``vaak report RUN RUN …``.

options that differ, then each curve of all runs in one chart, then paired differences, on the same examples
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import numpy as np

from vaak.core.figures import is_fraction
from vaak.core.significance import mean_of, paired_bootstrap
from vaak.report.curves import MOST_GROUPS, Panel, panels
from vaak.report.document import charts_of, document, option_text
from vaak.report.examples import FIGURES, Scored, scored
from vaak.report.html import Html, code, data_table, element, section
from vaak.report.page import about_run
from vaak.report.run_facts import RunFacts, compared_options, figure_in_words, summaries


def comparison_page(runs: Sequence[RunFacts], live: bool = False) -> str:
    """The page of several runs; ``live`` as of a document."""
    # the names of the runs; those of their folders, or the whole paths, where two have the same
    ways = ([one.name for one in runs], [one.directory.resolve().name for one in runs])
    names = next((one for one in ways if len(set(one)) == len(one)), [str(one.directory) for one in runs])
    rows: list[Sequence[object]] = [("", *names)]
    columns = [dict(about_run(one)) for one in runs]
    for name in dict.fromkeys(name for column in columns for name in column):
        rows.append((name, *(column.get(name, "") for column in columns)))
    options = compared_options(runs)
    differing = [("option", *names), *((name, *map(option_text, values)) for name, values in options)]
    found = _overlaid([panels(one)[0] for one in runs], names)
    newest = [one.evaluations[-1][1] if one.evaluations else {} for one in runs]
    figures: list[Sequence[object]] = [("figure", *names)]
    for name in dict.fromkeys(name for one in newest for name in one if "/" not in name):
        figures.append((name, *(figure_in_words(name, one[name]) if name in one else "" for one in newest)))
    same = element("p", "All options but the name and the folder are the same.")
    directories = " ".join(shlex.quote(str(one.directory)) for one in runs)
    asked = [element("p", "On the test data, and of other figures:"), code(f"vaak compare {directories}")]
    sections = {
        "options": ("Options that differ", [data_table(differing, "Options that differ") if options else same]),
        "charts": ("Charts", charts_of(found, [], 0) if found else []),
        "differences": ("Paired differences", [*_differences(runs, names), *asked]),
        "figures": ("Figures", [data_table(figures, "The newest evaluation of each")] if len(figures) > 1 else []),
        "runs": ("Runs", [data_table(rows, "The runs", folded=30)]),
    }
    shown = {identity: one for identity, one in sections.items() if one[1]}
    links = (element("li", element("a", title, href=f"#{identity}")) for identity, (title, _) in shown.items())
    navigation = element("nav", element("ul", *links), aria_label="Sections")
    body = [
        element("header", element("h1", f"{len(runs)} runs"), element("p", ", ".join(names), css="lead"), navigation),
        element("main", *(section(title, *parts, identity=identity) for identity, (title, parts) in shown.items())),
    ]
    return document(f"{len(runs)} runs: report", body, found, live=live)


def _differences(runs: Sequence[RunFacts], names: Sequence[str]) -> list[Html]:
    """Each run against the first, on the examples of their newest evaluations: the difference and its interval."""
    scores: list[Scored | None] = []
    for run in runs:
        found = [scored(steps[-1][1]) for steps in summaries(run).values()]
        scores.append(next((one for one in found if one is not None and len(one.sums) > 1), None))
    first = scores[0]
    if first is None:
        return [element("p", f"{names[0]} kept no scores of single examples.")]
    title = FIGURES.get(first.figure, first.figure)
    rows: list[Sequence[object]] = [("run", title, f"difference from {names[0]}", "95 %", "p", "examples")]
    rows.append((names[0], figure_in_words(first.figure, _figure(first)), "", "", "", str(len(first.sums))))
    remarks = []
    for name, one in zip(names[1:], scores[1:], strict=True):
        if one is None or (one.figure, one.of, len(one.sums)) != (first.figure, first.of, len(first.sums)):
            remarks.append(element("p", f"{name} wasn't evaluated on the same examples as {names[0]}: no pairs."))
            continue
        test = paired_bootstrap(np.array(one.sums), np.array(first.sums), mean_of, NUM_SAMPLES)
        low, high = test.interval or (0.0, 0.0)
        scale, unit = (100, " points") if is_fraction(first.figure) else (1, "")
        shown = [f"{scale * value:+.2f}{unit}" for value in (test.statistic, low, high)]
        p_value = "< 0.001" if test.p_value < 0.001 else f"{test.p_value:.3f}"
        figure = figure_in_words(one.figure, _figure(one))
        rows.append((name, figure, shown[0], f"{shown[1]} to {shown[2]}", p_value, str(len(one.sums))))
    what = "Of the newest evaluation of each, by paired bootstrap over its examples"
    return [*([data_table(rows, what)] if len(rows) > 2 else []), *remarks]


def _figure(scores: Scored) -> float | None:
    total, number = np.array(scores.sums).sum(0)
    return float(total / number) if number else None


def _overlaid(found: Sequence[Sequence[Panel]], names: Sequence[str]) -> list[Panel]:
    """A chart for each curve that any run has, with that curve of every run; those of groups are left out."""
    charts: dict[str, Panel] = {}
    for panels_of_run, name in zip(found, names, strict=True):
        for panel in panels_of_run:
            whole = [one for one in panel.curves if panel.title in KEPT or one.label == panel.title]
            for curve in whole:
                title = panel.title if curve.label == panel.title else f"{panel.title}: {curve.label}"
                chart = charts.setdefault(title, panel._replace(title=title, curves=[]))
                if len(chart.curves) < 2 * MOST_GROUPS:
                    chart.curves.append(curve._replace(label=name))
    return list(charts.values())


NUM_SAMPLES = 2000
KEPT = ("loss", "parts of the loss", "gradient norm", "throughput", "gap between batches", "memory", "memory pressure")
