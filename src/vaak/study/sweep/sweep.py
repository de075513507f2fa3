"""A sweep: an Optuna study in a folder, and the trials that are taken from it.

FOLDER
  sweep.json                   the configuration, what varies and how; it is resumed only under the same
  study.db                     the study (SQLite)
  trials/0007                  a run, with what every run has
  prepared                     the data of all trials
  trials.csv, best.yml, …      what was found, written after each trial

Any number of processes work on a folder. Each takes a trial under a lock that it holds until the trial ends, so
one that was killed leaves a trial that isn't held: the next process resumes it where its last checkpoint is. What a
trial tries depends on its number, the random seed, and the trials finished before.

Source: Akiba et al. 2019, "Optuna: A Next-generation Hyperparameter Optimization Framework". Differs: a grid's points
are trials that wait in the study, in order.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vaak.core.callback import Callback, Run
from vaak.core.errors import UserError, optional_import
from vaak.core.storage.files import write_json
from vaak.core.storage.lock import locked
from vaak.runs.start import train
from vaak.study.shared import StudyPlan, demand_not_stopped, demand_same, identity_of
from vaak.study.sweep.space import Dimension, points

log = logging.getLogger("vaak")

PRUNED = "pruned"
MOST_FAILURES = 3
"""If the first trials all fail, it isn't the options that vary that are wrong."""


@dataclass(frozen=True)
class Plan(StudyPlan):
    """What is tried: a configuration, what varies, how it is drawn, and how many trials there are.

    ``sampler`` is grid, random or tpe. With ``prune``, a trial that is worse than the median of the others at the same
    step is stopped.
    """

    dimensions: tuple[Dimension, ...]
    sampler: str
    num_trials: int
    seed: int = 42
    prune: bool = False


def optuna() -> Any:
    """The package. Raises UserError where it is missing."""
    with optional_import("a sweep needs Optuna", "study"):
        import optuna as package
    package.logging.set_verbosity(package.logging.WARNING)
    return package


class Sweep:
    """The trials of a plan in a folder, new or begun."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        """Raises UserError where another sweep is in the folder."""
        self.plan, self.folder = plan, folder.resolve()
        direction = {"min": "minimize", "max": "maximize"}[plan.checkpoint.mode]
        (self.folder / "trials").mkdir(parents=True, exist_ok=True)
        with locked(self.folder / ".lock"):
            self._demand_same()
            storage = f"sqlite:///{self.folder / 'study.db'}"
            made = optuna().create_study(
                storage=storage, study_name="sweep", direction=direction, load_if_exists=True, pruner=self._pruner()
            )
            self.study: Any = made
            if plan.sampler == "grid":
                there = len(self.study.get_trials(deepcopy=False))
                for point in points(list(plan.dimensions))[there : plan.num_trials]:
                    self.study.enqueue_trial(point)

    def work(self) -> Iterator[int]:
        """Take trials until none is left; yields the number of each that has ended.

        Raises KeyboardInterrupt, and UserError after SIGTERM, where it was stopped: the trial is resumed later.
        """
        while True:
            with contextlib.ExitStack() as held:
                with locked(self.folder / ".lock"):
                    trial = self._abandoned(held) or self._new(held)
                if trial is None:
                    return
                self._try(trial)
            yield trial.number

    @property
    def trials(self) -> list[Any]:
        """Optuna's record of every trial that was started, by number."""
        return [one for one in self.study.get_trials(deepcopy=False) if one.state.name != "WAITING"]

    def run_folder(self, number: int) -> Path:
        """The run of a trial; Optuna counts from 0."""
        return self.folder / "trials" / f"{number + 1:04}"

    def _try(self, trial: Any) -> None:
        options = [f"{one.key}={one.suggest(trial)}" for one in self.plan.dimensions]
        run = self.run_folder(trial.number)
        print(f"trial {trial.number + 1} of {self.plan.num_trials}: {' '.join(options)}", file=sys.stderr, flush=True)
        shared = [f"data.cache_dir={self.folder / 'prepared'}"]
        watch, states = _Watch(trial, self.plan.prune), optuna().trial.TrialState
        try:
            loaded = self.plan.load(*options)
            if getattr(loaded.experiment.data, "cache_dir", "") is not None:
                shared = []
            loaded = self.plan.load(*options, *shared, f"run_dir={run}", "training.checkpoint.resume=auto")
            outcome = train(loaded, callbacks=(watch,))
        except UserError as error:
            trial.set_user_attr("problem", str(error))
            self.study.tell(trial, state=states.FAIL)
            log.warning("trial %d failed: %s", trial.number + 1, error)
            self._demand_success(str(error))
            return
        demand_not_stopped(outcome, f"trial {trial.number + 1}")
        if watch.best is None:
            trial.set_user_attr("problem", "no evaluation gave a number")
            self.study.tell(trial, state=states.FAIL)
        elif outcome.reason == PRUNED:
            self.study.tell(trial, state=states.PRUNED)
        else:
            self.study.tell(trial, watch.best)

    def _new(self, held: contextlib.ExitStack) -> Any:
        """The next trial, held; None if there are enough."""
        trials = self.study.get_trials(deepcopy=False)
        waiting = any(one.state.name == "WAITING" for one in trials)
        if not waiting and (self.plan.sampler == "grid" or len(trials) >= self.plan.num_trials):
            return None
        samplers, seed = optuna().samplers, self.plan.seed + len(trials)
        self.study.sampler = (
            samplers.TPESampler(seed=seed, constant_liar=True)
            if self.plan.sampler == "tpe"
            else samplers.RandomSampler(seed=seed)
        )
        trial = self.study.ask()
        for one in self.plan.dimensions:
            one.suggest(trial)
        held.enter_context(self._hold(trial.number))
        return trial

    def _abandoned(self, held: contextlib.ExitStack) -> Any:
        """A trial whose process has ended before it, held; None if there is none."""
        for frozen in self.study.get_trials(deepcopy=False):
            if frozen.state.name == "RUNNING":
                with contextlib.suppress(BlockingIOError):
                    held.enter_context(self._hold(frozen.number))
                    return optuna().trial.Trial(self.study, frozen._trial_id)
        return None

    def _hold(self, number: int) -> contextlib.AbstractContextManager[None]:
        """The lock of a trial. Entering it raises BlockingIOError where a process has it."""
        return locked(self.folder / "trials" / f".{number + 1:04}.lock", patience=0)

    def _demand_same(self) -> None:
        path, plan = self.folder / "sweep.json", asdict(self.plan)
        dimensions = [{"kind": type(one).__name__, **asdict(one)} for one in self.plan.dimensions]
        own = {name: plan[name] for name in ("sampler", "seed", "prune")}
        identity = identity_of(self.plan, **own, dimensions=dimensions)
        demand_same(path, identity, "sweep")
        if not path.exists():
            write_json(path, identity)

    def _demand_success(self, problem: str) -> None:
        """Raises UserError where no trial has ever succeeded."""
        ended = [one.state.name for one in self.study.get_trials(deepcopy=False) if one.state.is_finished()]
        if len(ended) >= min(MOST_FAILURES, self.plan.num_trials) and set(ended) == {"FAIL"}:
            raise UserError(f"all of the first {len(ended)} trials failed; the last: {problem}")

    def _pruner(self) -> Any:
        pruners = optuna().pruners
        return pruners.MedianPruner() if self.plan.prune else pruners.NopPruner()


class _Watch(Callback):
    """Reports a run's figures to its trial, and stops the run where the study finds it hopeless."""

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
