"""What a cross-validation has found: a table of its folds, mean, deviation and interval of each figure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vaak.core.errors import UserError
from vaak.core.storage.files import fingerprint_of, read_json, write_json
from vaak.study.comparison.significance import corrected_t_test
from vaak.study.crossval.crossval import CrossValidation

RESULTS = "results.json"


@dataclass(frozen=True)
class FoldScores:
    """A metric of each fold; ``division`` stands for which example is in which fold, ``share`` for a fold's size."""

    metric: str
    scores: list[float]
    share: float
    division: str


def summary(results: list[dict[str, Any]], folds: int) -> dict[str, dict[str, Any]]:
    """Mean, standard deviation and 95 % interval of each figure that is finite in every fold.

    The interval is that of Nadeau and Bengio's corrected variance, since training sets of folds overlap.
    """
    names = [name for name in results[0]["metrics"] if all(name in one["metrics"] for one in results)]
    found = {}
    for name in names:
        scores = np.array([one["metrics"][name] for one in results], np.float64)
        if not np.isfinite(scores).all():
            continue
        interval = corrected_t_test(scores, np.zeros_like(scores), 1 / folds).interval
        assert interval is not None
        found[name] = {"mean": float(scores.mean()), "deviation": float(scores.std(ddof=1)), "interval": [*interval]}
    return found


def write_report(study: CrossValidation) -> dict[str, Any]:
    """What ``results.json`` then says, and ``scores.json`` of the metric that chooses a run's best checkpoint.

    Raises UserError where folds are missing.
    """
    results, plan = study.results, study.plan
    missing = len(study.folds) - len(results)
    if missing:
        raise UserError(f"{missing} folds are being trained by other processes; start the command again for the report")
    about = read_json(study.folds_file)
    rows = {name: [(row["key"], row["test"]) for row in own] for name, own in about["corpora"].items()}
    for one in results:
        tests = (test for own in rows.values() for _, test in own)
        one["examples"] = sum(test[one["repeat"] - 1] == one["fold"] for test in tests)
    metric = plan.checkpoint.metric.removeprefix("val_")
    report = {
        "metric": metric,
        "figures": summary(results, plan.folds),
        "test_share": 1 / plan.folds,
        "division": fingerprint_of(rows),
        "folds": results,
    }
    write_json(study.folder / RESULTS, report)
    if metric in report["figures"]:
        write_json(study.folder / "scores.json", [one["metrics"][metric] for one in results])
    return report


def read_fold_scores(folder: Path, metric: str | None = None) -> FoldScores:
    """A metric (default: that of the best checkpoint) of a cross-validation that has ended.

    Raises UserError where it has no such figure.
    """
    report = read_json(folder / RESULTS)
    metric = metric or str(report["metric"])
    if metric not in report["figures"]:
        raise UserError(f"{folder} has no figure {metric}; there are {', '.join(sorted(report['figures']))}")
    scores = [one["metrics"][metric] for one in report["folds"]]
    return FoldScores(metric, scores, report["test_share"], report["division"])


def is_cross_validation(folder: Path) -> bool:
    """Whether a folder has the results of one."""
    return (folder / RESULTS).is_file() and (folder / "crossval.json").is_file()
