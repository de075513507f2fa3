"""``vaak classify``: labels for texts, by a trained classifier."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from vaak.cli.arguments import BatchSize, ModelInUse, Output, Text, on_a_run, read_texts
from vaak.cli.output import print_or_write

if TYPE_CHECKING:
    from vaak.tasks.classification.predict import Prediction


@on_a_run
def classify(
    chosen: ModelInUse,
    text: Text,
    top_k: Annotated[int, typer.Option(min=1, help="Number of labels to print, the most probable first.")] = 1,
    task: Annotated[str | None, typer.Option(help="Name of the task, in a run of several.")] = None,
    output: Output = None,
    batch_size: BatchSize = None,
) -> None:
    """Label a text, or each line of a file: its labels with their probabilities, separated by tabs.

    Each of several label columns gets a line. With --json, all probabilities are printed.

    Example: vaak classify runs/classification-quickstart "लड़की मेज़ पर सोती है ।" --top-k 3
    """
    texts, _ = read_texts(text)
    opened = chosen.open_part_for("classify", task)
    multi_label = opened.experiment.data.corpus.multi_label
    lines = (
        json.dumps(asdict(found), ensure_ascii=False) if chosen.as_json else _lines(found, top_k, multi_label)
        for found in opened.task.predict(opened.model, texts, batch_size=batch_size)
    )
    with opened.precision.autocast():
        print_or_write(lines, output, len(texts))


def _lines(found: Prediction, top_k: int, multi_label: bool) -> str:
    """The labels that were asked for, or all that were chosen, of each label column."""
    several = len(found.probabilities) > 1
    lines = []
    for column, ranked in found.probabilities.items():
        number = max(top_k, len(found.labels[column])) if multi_label else top_k
        shown = (f"{label}\t{100 * probability:.1f} %" for label, probability in islice(ranked.items(), number))
        lines.append("\t".join([*((column,) if several else ()), *shown]))
    return "\n".join(lines)
