"""``vaak baseline``: what methods without a network reach on the same data, next to the run's own figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vaak.cli.config import AsJson, TrustCode, files_and_overrides

RUN = "this run"


def baseline(
    file: Annotated[Path, typer.Argument(help="A YAML, whose data are prepared if need be; or a run directory.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE.yml… key=value…]", help="Further files and options.")
    ] = None,
    split: Annotated[str, typer.Option(help="The split to evaluate on.")] = "valid",
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate simple methods that need no network on the data of a YAML or a run, by the same metrics.

    classification: TF-IDF + linear SVM; lm: n-grams; seq2seq: word by word; diarization: energy and clustering. Their
    figures are kept with the run: vaak train and vaak eval say when a model is below them.

    Example: vaak baseline runs/quickstart --split test
    """
    from vaak.config.load import load
    from vaak.engine.evaluation import PREFIXES
    from vaak.runs.baselines import below_baselines, make_baselines
    from vaak.runs.evaluate import evaluate_run
    from vaak.runs.folder.directory import holds_a_run
    from vaak.runs.open_run import run_of
    from vaak.runs.tuned_options import layers_of

    files, overrides = files_and_overrides(arguments or [])
    layers = layers_of(run_of(file)) if file.is_dir() else [file]
    loaded = load([*layers, *files], overrides, trust_code=trust_code)
    found = make_baselines(loaded, split)
    directory = loaded.experiment.run_dir
    columns, below = dict(found.figures), list[str]()
    if holds_a_run(directory) and (directory / "checkpoints" / "last").exists():
        report = evaluate_run(directory, [], [], [split], trust_code=trust_code)
        prefix = PREFIXES.get(split, f"{split}_")
        columns[RUN] = {name.removeprefix(prefix): value for name, value in report["metrics"].items()}
        below = below_baselines(directory, report["metrics"])
    if as_json:
        print(json.dumps({"split": split, "figure": found.figure, "figures": columns, "below": below}))
        return
    print("\n".join([*_table(columns), *below]))


def _table(columns: dict[str, dict[str, float]]) -> list[str]:
    """A row for each figure, a column for each method; those of the run that no baseline has are left out."""
    from vaak.callbacks.console.figures import in_words

    names = dict.fromkeys(name for method, figures in columns.items() if method != RUN for name in figures)
    rows = [["figure", *columns]]
    for name in names:
        rows.append([name, *(in_words(name, one[name]) if name in one else "–" for one in columns.values())])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
