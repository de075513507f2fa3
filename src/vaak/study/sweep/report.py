"""What a sweep has found: a table, the best configuration, and pictures of which options matter."""

from __future__ import annotations

import contextlib
import csv
import io
import logging
import math
from pathlib import Path
from typing import Any

from vaak.config.yaml.reader import read_yaml
from vaak.config.yaml.tree import to_plain
from vaak.config.yaml.writer import yaml_text
from vaak.core.errors import UserError, optional_import
from vaak.core.storage.files import write_text
from vaak.study.drawing import saved
from vaak.study.sweep.sweep import Sweep, optuna

OF_THE_RUN = ("run_dir", "name")


def rows(sweep: Sweep) -> list[dict[str, Any]]:
    """Each trial that was started: its number, state, value, options and, where it failed, why; the best first."""
    sign = -1 if sweep.plan.checkpoint.mode == "max" else 1
    found = [
        {
            "trial": one.number + 1,
            "state": one.state.name.lower(),
            sweep.plan.checkpoint.metric: one.value if one.state.name == "COMPLETE" else None,
            **{name: one.params.get(name) for name in (dimension.key for dimension in sweep.plan.dimensions)},
            "problem": one.user_attrs.get("problem", ""),
        }
        for one in sweep.trials
    ]
    metric = sweep.plan.checkpoint.metric
    return sorted(found, key=lambda row: (row[metric] is None, sign * (row[metric] or 0.0), row["trial"]))


def write_report(sweep: Sweep) -> list[Path]:
    """Write trials.csv, best.yml and the pictures into the sweep's folder; returns the files that there are."""
    table, written = rows(sweep), [sweep.folder / "trials.csv"]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]) if table else ["trial"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    write_text(written[0], text.getvalue())
    complete = [one for one in sweep.trials if one.state.name == "COMPLETE"]
    if not complete:
        return written
    written.append(_write_best(sweep))
    with contextlib.suppress(UserError):  # matplotlib is missing
        written.append(draw_parallel(sweep, sweep.folder / "parallel.png"))
        importance = draw_importance(sweep, sweep.folder / "importance.png")
        written += [importance] if importance is not None else []
    return written


def _write_best(sweep: Sweep) -> Path:
    best, metric = sweep.study.best_trial, sweep.plan.checkpoint.metric
    values = to_plain(read_yaml(sweep.run_folder(best.number) / "config.yml"))
    kept = {name: value for name, value in values.items() if name not in OF_THE_RUN}
    kept["name"] = f"{values['name']}-best"
    kept["training"] = {**kept["training"], "checkpoint": {**kept["training"]["checkpoint"], "resume": None}}
    path = sweep.folder / "best.yml"
    write_text(path, f"# Trial {best.number + 1} of vaak sweep: {metric} {best.value:.6g}\n{yaml_text(kept)}")
    return path


def draw_parallel(sweep: Sweep, path: Path | None = None) -> Any:
    """Every finished trial as a line through its options and its value; returns the file, or the figure.

    Raises UserError where matplotlib is missing.
    """
    with optional_import("drawing needs matplotlib", "plot"):
        from matplotlib import colormaps
        from matplotlib.figure import Figure
    metric = sweep.plan.checkpoint.metric
    keys = [one.key for one in sweep.plan.dimensions]
    complete = [one for one in sweep.trials if one.state.name == "COMPLETE"]
    columns = {key: [one.params[key] for one in complete] for key in keys} | {metric: [one.value for one in complete]}
    places = {name: _places(values) for name, values in columns.items()}
    figure = Figure(figsize=(2.2 + 1.9 * len(columns), 5), layout="constrained")
    axes = figure.subplots()
    values = [place for place, _ in places[metric][0]]
    for number in range(len(complete)):
        shade = values[number] if sweep.plan.checkpoint.mode == "max" else 1 - values[number]
        line = [places[name][0][number][0] for name in columns]
        axes.plot(range(len(columns)), line, color=colormaps["viridis"](shade), alpha=0.8)
    for place, name in enumerate(columns):
        axes.axvline(place, color="0.7", linewidth=1)
        for height, label in places[name][1]:
            axes.annotate(label, (place, height), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_xticks(range(len(columns)), [name.replace("training.", "").replace(".", ".\n") for name in columns])
    axes.set_yticks([])
    axes.set_xlim(-0.2, len(columns) - 0.5)
    axes.set_title(f"{len(complete)} trials; the brighter, the better")
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    saved(figure, path)
    return path or figure


def draw_importance(sweep: Sweep, path: Path) -> Path | None:
    """How much of the values' variance each option explains (fANOVA); None where that can't be told yet.

    Source: Hutter, Hoos and Leyton-Brown 2014, "An Efficient Approach for Assessing Hyperparameter Importance".
    """
    from matplotlib.figure import Figure

    try:
        found = optuna().importance.get_param_importances(
            sweep.study, evaluator=optuna().importance.FanovaImportanceEvaluator(seed=0)
        )
    except (ImportError, ValueError, RuntimeError, ZeroDivisionError) as error:  # too few trials, or all alike
        logging.getLogger("vaak").info("importance.png wasn't drawn: %s", error)
        return None
    names = list(reversed(found))
    figure = Figure(figsize=(7, 1.4 + 0.4 * len(names)), layout="constrained")
    axes = figure.subplots()
    axes.barh(names, [found[name] for name in names], color="tab:blue")
    axes.set_xlabel(f"share of the variance of {sweep.plan.checkpoint.metric} that it explains")
    axes.set_xlim(0, 1)
    saved(figure, path)
    return path


def _places(values: list[Any]) -> tuple[list[tuple[float, str]], list[tuple[float, str]]]:
    """Each value's height between 0 and 1, and the labels of an axis: all choices, or the ends of a range."""
    if all(isinstance(value, str) for value in values):
        choices = sorted(set(values), key=_as_number)
        heights = {value: place / max(1, len(choices) - 1) for place, value in enumerate(choices)}
        return [(heights[value], value) for value in values], [(height, value) for value, height in heights.items()]
    low, high = min(values), max(values)
    log = low > 0 and high / low > 50
    spread = [math.log(value) if log else float(value) for value in (low, high, *values)]
    width = spread[1] - spread[0] or 1.0
    ends = [(0.0, f"{low:.4g}"), (1.0, f"{high:.4g}")] if high > low else [(0.0, f"{low:.4g}")]
    return [((value - spread[0]) / width, "") for value in spread[2:]], ends


def _as_number(text: str) -> tuple[float, str]:
    """Numbers in their order, then words."""
    try:
        return float(text), text
    except ValueError:
        return math.inf, text
