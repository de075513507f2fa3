"""The summary of an evaluation, which a run keeps for its report: ``RUN/pictures/val_examples/step-00001000.json``.

    examples     the first few of the split and the worst: ``index``, ``error``, and what the task shows of each
    scores       figure, sums: what the figure is made of, of the first 2,000 examples; groups, if they are in several;
                 of: a hash of what they were compared with
    samples      lm: texts that the model wrote from nothing
    phenomena    lm: pairs that are right, and all pairs, by phenomenon
    attention    seq2seq: source, target, and weights (target, source) of an example
    confusions, calibration    classification: by label column
    recordings   diarization: a row for each recording

Each key is there where its task has it. ``vaak.report.examples`` shows them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

SUMMARY = "examples"
FIRST, MOST_EXAMPLES, MOST_SCORES = 8, 50, 2000
LONGEST_TEXT = 500
"""Characters of a text that are kept."""


class ExampleLog:
    """Single examples seen by meters, in bounded memory: the first ones, those with the largest errors, and scores.

    >>> log = ExampleLog("wer")
    >>> log.add(1, 2, (2, 4), "a b c d", {"hypothesis": "a d"})
    >>> log.add(0, 0, (0, 2), "a b", {"hypothesis": "a b"})
    >>> found = make_summary("wer", log.seen())
    >>> [(one["index"], one["error"]) for one in found["examples"]], found["scores"]["sums"]
    ([(0, 0), (1, 2)], [[0.0, 2.0], [2.0, 4.0]])
    """

    def __init__(self, metric: str) -> None:
        self.figure = metric
        self.examples: list[dict[str, Any]] = []
        self.scores: list[list[Any]] = []

    def add(
        self, index: int, error: float, sums: tuple[float, float], of: str, about: dict[str, Any], group: str = ""
    ) -> None:
        """Take the example at ``index`` of the split in.

        The larger its ``error``, the sooner it is shown, with what ``about`` says. The metric is the first of ``sums``
        divided by the second, over all examples; they were found by comparing with ``of``.
        """
        kept = {name: one[:LONGEST_TEXT] if isinstance(one, str) else one for name, one in about.items()}
        self.examples.append({"index": index, "error": round(error, 6), **kept})
        compared = hashlib.sha256(of.encode()).hexdigest()[:16]
        self.scores.append([index, *(round(float(one), 6) for one in sums), compared, group])
        if len(self.examples) >= 4 * MOST_EXAMPLES:
            self.examples = chosen(self.examples)
        if len(self.scores) >= 2 * MOST_SCORES:
            self.scores = sorted(self.scores)[:MOST_SCORES]

    def seen(self) -> dict[str, list[Any]]:
        """Return the lists for ``Meters.seen``."""
        return {"examples": chosen(self.examples), "scores": sorted(self.scores)[:MOST_SCORES]}


def keep_scores(figure: str, seen: dict[str, list[Any]]) -> dict[str, Any]:
    """Return a summary with the scores of examples alone, for data whose examples aren't shown."""
    found = make_summary(figure, seen)
    return {"scores": found["scores"]} if "scores" in found else {}


def chosen(examples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first examples of those given and the worst ones, in order; no more than MOST_EXAMPLES.

    Of equal errors those come first that the model was surer of.
    """
    in_order = sorted(examples, key=lambda one: int(one["index"]))
    worst = sorted(in_order[FIRST:], key=lambda one: (-one["error"], -one.get("confidence", 0.0)))[
        : MOST_EXAMPLES - FIRST
    ]
    return sorted([*in_order[:FIRST], *worst], key=lambda one: int(one["index"]))


def make_summary(metric: str, seen: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the examples and the scores of a summary, of what all processes saw."""
    if not seen.get("examples"):
        return {}
    rows = sorted(seen["scores"])[:MOST_SCORES]
    compared = hashlib.sha256(json.dumps([[row[0], row[3]] for row in rows]).encode()).hexdigest()
    groups = [row[4] for row in rows]
    scores = {"figure": metric, "sums": [row[1:3] for row in rows], "of": compared}
    return {
        "examples": chosen(seen["examples"]),
        "scores": {**scores, **({"groups": groups} if len(set(groups)) > 1 else {})},
    }
