"""A sweep: an Optuna study in a folder, the trials that are taken from it, and what it has found.

FOLDER
  sweep.json                   the configuration, what varies and how; it is resumed only under the same
  study.db                     the study (SQLite)
  trials/0007                  a run, with what every run has
  prepared                     the data of all trials
  trials.csv, best.yml, …      what was found, written after each trial

Any number of processes work on a folder. Each takes a trial under a lock that it holds until the trial ends, so one
that was killed leaves a trial that isn't held: the next process resumes it where its last checkpoint is. What a trial
tries depends on its number, the random seed, and the trials finished before.
Source: Akiba et al. 2019, "Optuna: A Next-generation Hyperparameter Optimization Framework". Differs: a grid's points
are trials that wait in the study, in order.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from vaak.config.experiment import experiment_type
from vaak.config.paths import rebase_paths
from vaak.config.yaml.text import read_yaml, yaml_text
from vaak.core.artifact import Artifact
from vaak.core.errors import UserError, optional_import
from vaak.core.out_of_memory import is_from_outside
from vaak.core.storage.files import write_text
from vaak.core.storage.links import require_own_files
from vaak.core.storage.lock import locked
from vaak.engine.callback import Callback, Run
from vaak.report.charts import draw_importance, draw_trials
from vaak.report.tables import csv_text
from vaak.runs.start import train
from vaak.study.plan import OTHER_STUDY, StudyPlan, make_identity

RANGES = ("log", "uniform", "int", "logint")
_KEY = re.compile(r"[a-zA-Z_]\w*(\.\w+)*")


@dataclass(frozen=True)
class Choices:
    """An option and the values to try, in YAML."""

    key: str
    values: tuple[str, ...]

    def suggest(self, trial: Any) -> str:
        return str(trial.suggest_categorical(self.key, self.values))


@dataclass(frozen=True)
class Range:
    """An option and the range that its values are drawn from; ``kind`` is one of ``RANGES``."""

    key: str
    kind: str
    low: float
    high: float

    def suggest(self, trial: Any) -> str:
        log = self.kind.startswith("log")
        if self.kind.endswith("int"):
            return str(trial.suggest_int(self.key, int(self.low), int(self.high), log=log))
        return repr(trial.suggest_float(self.key, self.low, self.high, log=log))


Dimension = Choices | Range


def read_grid(text: str) -> Choices:
    """``key=value,value,…``; commas within brackets or quotes don't separate.

    >>> read_grid("model.kernel_sizes=[3, 5],[7]")
    Choices(key='model.kernel_sizes', values=('[3, 5]', '[7]'))
    """
    key, values = _key_and_rest(text, "--grid", "KEY=VALUE,VALUE")
    choices = tuple(value.strip() for value in _parts(values))
    if not all(choices) or len(set(choices)) < len(choices):
        raise UserError(f"--grid {text}: expected different values between commas, like {key}=1,2")
    return Choices(key, choices)


def read_random(text: str) -> Dimension:
    """``key=log:1e-5:1e-2``, ``key=uniform:0:0.5``, ``key=int:1:8``, ``key=logint:16:1024`` or ``key=a,b``.

    >>> read_random("training.optimizer.lr=log:1e-5:1e-2")
    Range(key='training.optimizer.lr', kind='log', low=1e-05, high=0.01)
    """
    key, rest = _key_and_rest(text, "--random", "KEY=log:LOW:HIGH")
    kind, *limits = rest.split(":")
    if kind not in RANGES:
        return read_grid(text)
    try:
        low, high = map(float, limits)
    except ValueError:
        raise UserError(f"--random {text}: expected two numbers, like {key}={kind}:1:8") from None
    whole = not kind.endswith("int") or (low.is_integer() and high.is_integer())
    if not (math.isfinite(low) and math.isfinite(high) and low < high and whole and (low > 0 or kind[:3] != "log")):
        raise UserError(
            f"--random {text}: expected a lower and a higher limit"
            + (", whole numbers" if kind.endswith("int") else "")
            + (", above 0" if kind.startswith("log") else "")
        )
    return Range(key, kind, low, high)


def points(dimensions: list[Dimension]) -> list[dict[str, str]]:
    """Return every point of a grid; none if a range has infinitely many."""
    choices = [one for one in dimensions if isinstance(one, Choices)]
    if len(choices) < len(dimensions):
        return []
    return [
        dict(zip([one.key for one in choices], values, strict=True))
        for values in product(*(one.values for one in choices))
    ]


def _key_and_rest(text: str, option: str, form: str) -> tuple[str, str]:
    key, equals, rest = text.partition("=")
    if not equals or not rest or not _KEY.fullmatch(key):
        raise UserError(f"{option} {text}: expected {form}")
    return key, rest


def _parts(text: str) -> list[str]:
    """Split at the commas that are outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


log = logging.getLogger("vaak")
PRUNED = "pruned"
MOST_FAILURES = 3
"""If the first trials all fail, it isn't the options that vary that are wrong."""


@dataclass(frozen=True)
class SweepPlan(StudyPlan):
    """A sweep's configuration, what varies in it, how that is drawn, and the number of trials.

    ``sampler`` is grid, random or tpe. With ``prune``, a trial that is worse than the median of the others at the same
    step is stopped.
    """

    dimensions: tuple[Dimension, ...]
    sampler: str
    num_trials: int
    seed: int = 42
    prune: bool = False


def optuna() -> Any:
    """Return the package. Raises UserError if it is missing."""
    with optional_import("a sweep needs Optuna", "study"):
        import optuna as package
    package.logging.set_verbosity(package.logging.WARNING)
    return package


@contextlib.contextmanager
def _naming_study(folder: Path) -> Iterator[None]:
    """Within this context, a study that can't be read or written, as on a full disk, is a UserError."""
    try:
        yield
    except optuna().exceptions.StorageInternalError as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise UserError(
            f"{folder / 'study.db'} can't be read or written ({reason}); free some space, then start the same command"
        ) from error


class Sweep:
    """The trials of a plan in a folder, new or begun."""

    def __init__(self, plan: SweepPlan, folder: Path) -> None:
        """Raises UserError if another sweep is in the folder."""
        self.plan, self.folder = plan, folder.resolve()
        direction = {"min": "minimize", "max": "maximize"}[plan.checkpoint.mode]
        require_own_files(self.folder, deep=False)
        (self.folder / "trials").mkdir(parents=True, exist_ok=True)
        with locked(self.folder / ".lock"), _naming_study(self.folder):
            self._require_same()
            storage = f"sqlite:///{self.folder / 'study.db'}"
            pruner = optuna().pruners.MedianPruner() if plan.prune else optuna().pruners.NopPruner()
            made = optuna().create_study(
                storage=storage, study_name="sweep", direction=direction, load_if_exists=True, pruner=pruner
            )
            self.study: Any = made
            if plan.sampler == "grid":
                # A sweep that is resumed has its first points in the study already.
                there = len(self.study.get_trials(deepcopy=False))
                for point in points(list(plan.dimensions))[there : plan.num_trials]:
                    self.study.enqueue_trial(point)

    def work(self) -> Iterator[int]:
        """Take trials until none is left; yields the number of each that has ended.

        Raises KeyboardInterrupt, and UserError if it was stopped by a signal, or if the machine failed (disk,
        memory, driver): the trial is resumed later.
        """
        while True:
            with contextlib.ExitStack() as held, _naming_study(self.folder):
                with locked(self.folder / ".lock"):
                    trial = self._find_abandoned(held) or self._new(held)
                if trial is None:
                    return
                self._try(trial)
            yield trial.number

    @property
    def trials(self) -> list[Any]:
        """Optuna's record of every trial that was started, by number."""
        return [one for one in self.study.get_trials(deepcopy=False) if one.state.name != "WAITING"]

    def run_folder(self, number: int) -> Path:
        """Return the run of a trial; Optuna counts from 0."""
        return self.folder / "trials" / f"{number + 1:04}"

    def _try(self, trial: Any) -> None:
        options = [f"{one.key}={one.suggest(trial)}" for one in self.plan.dimensions]
        run = self.run_folder(trial.number)
        print(f"trial {trial.number + 1} of {self.plan.num_trials}: {' '.join(options)}", file=sys.stderr, flush=True)
        shared = [f"data.cache_dir={self.folder / 'prepared'}"]
        watch, states = _Watch(trial, self.plan.prune), optuna().trial.TrialState
        try:
            loaded = self.plan.load(*options)
            # Trials share prepared data, unless the configuration names a cache, or these data have none.
            if getattr(loaded.experiment.data, "cache_dir", "") is not None:
                shared = []
            loaded = self.plan.load(*options, *shared, f"run_dir={run}", "training.checkpoint.resume=auto")
            outcome = train(loaded, callbacks=(watch,))
        except UserError as error:
            if is_from_outside(error):
                # The trial stays begun: the next process takes it.
                raise UserError(
                    f"trial {trial.number + 1} met a failure that says nothing of its options: {error}; the same "
                    "command tries it again"
                ) from error
            trial.set_user_attr("problem", str(error))
            self.study.tell(trial, state=states.FAIL)
            log.warning("trial %d failed: %s", trial.number + 1, error)
            # If all fail from the start, the fault is in the configuration rather than in what varies.
            ended = [one.state.name for one in self.study.get_trials(deepcopy=False) if one.state.is_finished()]
            if len(ended) >= min(MOST_FAILURES, self.plan.num_trials) and set(ended) == {"FAIL"}:
                raise UserError(f"all of the first {len(ended)} trials failed; the last: {error}") from error
            return
        outcome.require_not_stopped(f"trial {trial.number + 1}", "the same command resumes it")
        if watch.best is None:
            trial.set_user_attr("problem", "no evaluation gave a number")
            self.study.tell(trial, state=states.FAIL)
        elif outcome.reason == PRUNED:
            self.study.tell(trial, state=states.PRUNED)
        else:
            self.study.tell(trial, watch.best)

    def _new(self, held: contextlib.ExitStack) -> Any:
        """Return the next trial, held; None if there are enough."""
        trials = self.study.get_trials(deepcopy=False)
        waiting = any(one.state.name == "WAITING" for one in trials)
        if not waiting and (self.plan.sampler == "grid" or len(trials) >= self.plan.num_trials):
            return None
        # Another seed for each trial: from the same one, any process would draw the same point again.
        samplers, seed = optuna().samplers, self.plan.seed + len(trials)
        self.study.sampler = (
            # Trials that still run count as bad, so that processes side by side don't try the same.
            samplers.TPESampler(seed=seed, constant_liar=True)
            if self.plan.sampler == "tpe"
            else samplers.RandomSampler(seed=seed)
        )
        trial = self.study.ask()
        # Drawn while the sweep is locked, so that the next process sees what this trial tries.
        for one in self.plan.dimensions:
            one.suggest(trial)
        held.enter_context(self._hold(trial.number))
        return trial

    def _find_abandoned(self, held: contextlib.ExitStack) -> Any:
        """Return a trial whose process has ended before it, held; None if there is none."""
        for frozen in self.study.get_trials(deepcopy=False):
            if frozen.state.name == "RUNNING":
                with contextlib.suppress(BlockingIOError):
                    held.enter_context(self._hold(frozen.number))
                    return optuna().trial.Trial(self.study, frozen._trial_id)
        return None

    def _hold(self, number: int) -> contextlib.AbstractContextManager[None]:
        """Return the lock of a trial. Entering it raises BlockingIOError where a process has it."""
        return locked(self.folder / "trials" / f".{number + 1:04}.lock", patience=0)

    def _require_same(self) -> None:
        plan = asdict(self.plan)
        dimensions = [{"kind": type(one).__name__, **asdict(one)} for one in self.plan.dimensions]
        own = {name: plan[name] for name in ("sampler", "seed", "prune")}
        identity = make_identity(self.plan, **own, dimensions=dimensions)
        artifact = Artifact(self.folder, "sweep.json", "a sweep", remedy="give another --output")
        artifact.require_same(identity, OTHER_STUDY)
        if not artifact.path.exists():
            artifact.claim(identity)


class _Watch(Callback):
    """Reports a run's metrics to its trial, and stops the run where the study finds it hopeless."""

    def __init__(self, trial: Any, prune: bool) -> None:
        self.trial, self.prune = trial, prune
        self.best: float | None = None

    def on_evaluate_end(self, trainer: Run, metrics: dict[str, float]) -> None:
        value = metrics.get(trainer.best.metric)
        if value is None or not self.prune or not trainer.scheduled_evaluation:
            return
        self.trial.report(value, trainer.position.step)
        if trainer.position.step < trainer.total_steps and self.trial.should_prune():
            trainer.request_stop(PRUNED)

    def on_fit_start(self, trainer: Run) -> None:
        self.best = trainer.best.value

    def on_fit_end(self, trainer: Run, reason: str) -> None:
        self.best = trainer.best.value


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
    write_text(written[0], csv_text(list(table[0]) if table else ["trial"], (row.values() for row in table)))
    complete = [one for one in sweep.trials if one.state.name == "COMPLETE"]
    if not complete:
        return written
    written.append(_write_best(sweep))
    metric, keys = sweep.plan.checkpoint.metric, [one.key for one in sweep.plan.dimensions]
    columns = {key: [one.params[key] for one in complete] for key in keys} | {metric: [one.value for one in complete]}
    parallel, importance = sweep.folder / "parallel.png", sweep.folder / "importance.png"
    try:
        draw_trials(columns, sweep.plan.checkpoint.mode, parallel)
        written.append(parallel)
        if shares := _importance(sweep):
            draw_importance(shares, metric, importance)
            written.append(importance)
    # Such as that matplotlib isn't installed.
    except UserError as error:
        log.warning("no pictures are drawn: %s", error)
    return written


def _write_best(sweep: Sweep) -> Path:
    best, metric = sweep.study.best_trial, sweep.plan.checkpoint.metric
    values = read_yaml(sweep.run_folder(best.number) / "config.yml")
    kind = experiment_type(sweep.plan.load().experiment.reference)
    # best.yml sees paths from the sweep's folder.
    rebase_paths(values, kind, sweep.folder)
    kept = {name: value for name, value in values.items() if name not in OF_THE_RUN}
    kept["name"] = f"{values['name']}-best"
    kept["training"] = {**kept["training"], "checkpoint": {**kept["training"]["checkpoint"], "resume": None}}
    path = sweep.folder / "best.yml"
    write_text(path, f"# Trial {best.number + 1} of vaak sweep: {metric} {best.value:.6g}\n{yaml_text(kept)}")
    return path


def _importance(sweep: Sweep) -> dict[str, float]:
    """Return how much of the values' variance each option explains (fANOVA); empty if that can't be told yet.

    Source: Hutter, Hoos and Leyton-Brown 2014, "An Efficient Approach for Assessing Hyperparameter Importance".
    """
    try:
        return dict(
            optuna().importance.get_param_importances(
                sweep.study, evaluator=optuna().importance.FanovaImportanceEvaluator(seed=0)
            )
        )
    except (ImportError, ValueError, RuntimeError, ZeroDivisionError) as error:
        # Too few trials, or all alike.
        logging.getLogger("vaak").info("importance.png wasn't drawn: %s", error)
        return {}
