"""A cross-validation: folds of the data in a folder, a run for each, and what their metrics say together.

FOLDER
  crossval.json                the configuration and how the data are divided; it is resumed only under the same
  folds.json                   which example is in which fold (vaak.core.folds)
  runs/1-03                    a complete run: in the first repeat, tested on the third fold
  runs/1-03.json               its metrics on that fold, written when it has ended
  results.json, scores.json    what all folds give together, written at the end

Any number of processes work on a folder. Each takes a fold under a lock that it holds until the fold's metrics are
there; one that was killed leaves a fold that isn't held, and the next process resumes it at its last checkpoint.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vaak.config.base import with_fold
from vaak.config.experiment import Experiment
from vaak.config.load import Loaded
from vaak.core.artifact import LOCK, Artifact
from vaak.core.corpus import NONE
from vaak.core.errors import DataError, UserError
from vaak.core.folds import FoldExample, divide, write_folds
from vaak.core.names import require_known
from vaak.core.significance import corrected_t_test, scipy_stats
from vaak.core.splits import SPLITS
from vaak.core.storage.files import compute_fingerprint, hash_file, read_json, unmade_after_errors, write_json
from vaak.core.storage.links import require_own_files
from vaak.core.storage.lock import locked
from vaak.core.task import Task
from vaak.runs.evaluate import evaluate_run
from vaak.runs.start import train
from vaak.study.plan import OTHER_STUDY, StudyPlan, make_identity

log = logging.getLogger("vaak")


@dataclass(frozen=True)
class CrossvalPlan(StudyPlan):
    """A configuration to be trained, and the division of its data.

    folds, repeats, seed
        How many folds, how many times the data are divided, and the seed of the order.
    valid
        The share of a fold's other data that chooses the best checkpoint, in place of training.
    stratify_by, group_by
        Columns, or none; None: those that the corpus and the task declare (labels, speakers).
    pool
        train: the training data are divided; all: they and the given evaluation splits together.
    """

    folds: int
    repeats: int = 1
    seed: int = 42
    valid: float = 0.1
    stratify_by: str | None = None
    group_by: str | None = None
    pool: str = "train"


class Fold(NamedTuple):
    """One of the folds of a repeat, both from 1."""

    repeat: int
    number: int

    def __str__(self) -> str:
        return f"{self.repeat}-{self.number:02}"


class CrossValidation:
    """The folds of a plan in a folder, new or begun."""

    def __init__(self, plan: CrossvalPlan, folder: Path) -> None:
        """Divide the data unless they are. Raises UserError if they can't be, or the folder has another study."""
        # A missing package shows now, and not after days of training.
        scipy_stats()
        self.plan, self.folder = plan, folder.resolve()
        own = {name: getattr(plan, name) for name in CrossvalPlan.__annotations__}
        identity = make_identity(plan, **own)
        artifact = Artifact(self.folder, "crossval.json", "a cross-validation", remedy="give another --output")
        require_own_files(self.folder, deep=False)
        with unmade_after_errors(self.folder / "runs", but={LOCK}), locked(self.folder / LOCK):
            # Once before the data are divided, which may take long, and once with the division's hash.
            artifact.require_same(identity, OTHER_STUDY)
            if not self.folds_file.exists():
                self._divide(own)
            identity["folds.json"] = hash_file(self.folds_file)
            artifact.require_same(identity, OTHER_STUDY)
            artifact.claim(identity)

    @property
    def folds_file(self) -> Path:
        """The file that says which example is in which fold."""
        return self.folder / "folds.json"

    @property
    def folds(self) -> list[Fold]:
        """All folds of all repeats."""
        plan = self.plan
        return [Fold(repeat + 1, number + 1) for repeat in range(plan.repeats) for number in range(plan.folds)]

    def run_folder(self, fold: Fold) -> Path:
        """Return the run of a fold."""
        return self.folder / "runs" / str(fold)

    @property
    def results(self) -> list[dict[str, Any]]:
        """The figures of each fold that has ended."""
        return [read_json(path) for fold in self.folds if (path := self._result_file(fold)).exists()]

    def work(self) -> Iterator[Fold]:
        """Train and test the folds that no other process has or had; yields each.

        Raises KeyboardInterrupt, and UserError after SIGTERM, where it was stopped: the fold is resumed later.
        """
        for fold in self.folds:
            with contextlib.ExitStack() as held:
                try:
                    held.enter_context(locked(self.folder / "runs" / f".{fold}.lock", patience=0))
                except BlockingIOError:
                    continue
                # Only under its lock: another process may have ended the fold a moment ago.
                if self._result_file(fold).exists():
                    continue
                write_json(self._result_file(fold), self._test_fold(fold))
            yield fold

    def _result_file(self, fold: Fold) -> Path:
        return self.folder / "runs" / f"{fold}.json"

    def _test_fold(self, fold: Fold) -> dict[str, Any]:
        """Train a fold's run, to its end if it was begun, and evaluate its best checkpoint on the fold."""
        plan, run = self.plan, self.run_folder(fold)
        repeat = f", repeat {fold.repeat} of {plan.repeats}" if plan.repeats > 1 else ""
        print(f"fold {fold.number} of {plan.folds}{repeat}", file=sys.stderr, flush=True)
        # The configuration is loaded twice: a run's name begins with the one that it gives.
        name = f"{plan.load().experiment.name}-{fold}"
        loaded = plan.load(f"name={name}", f"run_dir={run}", "training.checkpoint.resume=auto")
        experiment = with_fold(_name_datasets(loaded), f"{fold.repeat}:{fold.number}", str(self.folds_file))
        try:
            outcome = train(replace(loaded, experiment=experiment))
            outcome.require_not_stopped(f"fold {fold}", "the same command resumes it")
            device = experiment.training.device
            report = evaluate_run(run, [], [], ["test"], device, trust_code=plan.trust_code)
        except DataError as error:
            raise DataError(f"fold {fold}: {error}") from error
        return {
            "repeat": fold.repeat,
            "fold": fold.number,
            "run": str(run.relative_to(self.folder)),
            "checkpoint": Path(report["checkpoint"]).name,
            "metrics": {name.removeprefix("test_"): value for name, value in report["metrics"].items()},
            "protocol": report["protocol"]["test"],
        }

    def _divide(self, about: dict[str, Any]) -> None:
        plan, loaded = self.plan, self.plan.load()
        experiment = _name_datasets(loaded)
        task = replace(loaded, experiment=experiment).task(self.folder)
        corpora = _examples(task, plan)
        # No section took the fold.
        if with_fold(experiment, "", "") == experiment:
            raise UserError(f"task {experiment.task} has no section that can be divided into folds")
        flat = [example for own in corpora.values() for example in own]
        lacking = {
            ("--stratify-by", plan.stratify_by): sum(not example.stratum for example in flat),
            ("--group-by", plan.group_by): sum(not example.groups for example in flat),
        }
        for (option, name), number in lacking.items():
            if number and name not in (None, NONE):
                _report_lacking(task, f"{option} {name}", str(name), number, len(flat))
        repeats = [divide(flat, plan.folds, plan.valid, plan.seed, repeat) for repeat in range(1, plan.repeats + 1)]
        places = iter(list(each) for each in zip(*repeats, strict=True))
        rows = {name: [(example, next(places)) for example in own] for name, own in corpora.items()}
        write_folds(self.folds_file, about, rows)


def _report_lacking(task: Task, what: str, name: str, lacking: int, number: int) -> None:
    """Log how many of a ``number`` of examples have no value under a name. Raises UserError if none has one."""
    if lacking < number:
        log.warning("%s: %d of %d examples have none", what, lacking, number)
        return
    sources = ((corpus, split) for corpus in task.corpora() for split in corpus.source.given)
    known = {one for corpus, split in sources for one in corpus.find_label_names(split)}
    if not known or name in known:
        raise UserError(f"{what}: no example has one")
    require_known([name], sorted(known), f"{what.split()[0]}: no example has a", error=UserError)


def _name_datasets(loaded: Loaded) -> Experiment[Any, Any]:
    """Return the experiment with the datasets that its task has where none are named."""
    experiment = loaded.experiment
    if experiment.datasets:
        return experiment
    return experiment.model_copy(update={"datasets": getattr(loaded.task(), "datasets", ())})


def _examples(task: Task, plan: CrossvalPlan) -> dict[str, list[FoldExample]]:
    """Return the examples of each corpus of a task, each once. Raises DataError for a corpus without training data."""
    found: dict[str, dict[str, FoldExample]] = {}
    for corpus in task.corpora():
        if "train" not in corpus.source.given:
            raise DataError(corpus.source.lacks_train)
        own = found.setdefault(corpus.where, {})
        for split in [split for split in SPLITS if split in corpus.source.given and plan.pool in (split, "all")]:
            for example in corpus.examples(split, plan.stratify_by, plan.group_by or task.grouped_by):
                there = own.setdefault(example.key, example)
                own[example.key] = there._replace(groups=tuple(dict.fromkeys((*there.groups, *example.groups))))
    return {name: list(own.values()) for name, own in found.items()}


RESULTS = "results.json"


@dataclass(frozen=True)
class FoldScores:
    """A metric of each fold; ``division`` stands for which example is in which fold, ``share`` for a fold's size."""

    metric: str
    scores: list[float]
    share: float
    division: str


def summary(results: list[dict[str, Any]], folds: int) -> dict[str, dict[str, Any]]:
    """Mean, standard deviation and 95 % interval of each metric that is finite in every fold.

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
    """Write and return ``results.json``; write ``scores.json`` of the metric that chooses a run's best checkpoint.

    Raises UserError if folds are missing.
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
        "division": compute_fingerprint(rows),
        "folds": results,
    }
    write_json(study.folder / RESULTS, report)
    if metric in report["figures"]:
        write_json(study.folder / "scores.json", [one["metrics"][metric] for one in results])
    return report


def read_fold_scores(folder: Path, metric: str | None = None) -> FoldScores:
    """Return a metric (default: that of the best checkpoint) of a cross-validation that has ended.

    Raises UserError if it has no such metric.
    """
    report = read_json(folder / RESULTS)
    metric = metric or str(report["metric"])
    if metric not in report["figures"]:
        raise UserError(f"{folder} has no metric {metric}; there are {', '.join(sorted(report['figures']))}")
    scores = [one["metrics"][metric] for one in report["folds"]]
    return FoldScores(metric, scores, report["test_share"], report["division"])


def is_cross_validation(folder: Path) -> bool:
    """Return whether a folder has the results of one."""
    return (folder / RESULTS).is_file() and (folder / "crossval.json").is_file()
