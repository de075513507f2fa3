"""Pipelines: stages with their options, what they read and what they make; and the pipelines with a name.

embeddings ──▶ clusters ──▶ gate       an arrow is ``after``: the second reads what the first made
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaak.config.base import Section
from vaak.config.components import resolve_class
from vaak.config.tasks import list_pipelines
from vaak.core.errors import CheckpointError, UserError
from vaak.core.names import nearest_name
from vaak.core.storage.files import compute_fingerprint
from vaak.pipeline.jobs import Jobs

if TYPE_CHECKING:
    from vaak.config.training import TrainingConfig
    from vaak.runs.start import Outcome

log = logging.getLogger("vaak")


@dataclass(frozen=True)
class Forecast:
    """The time, disk and memory that a stage will take, None for what isn't known, and how sure that is."""

    seconds: float | None = None
    disk_bytes: float | None = None
    memory_bytes: float | None = None
    certainty: str = ""


@dataclass(frozen=True)
class StageWork:
    """The arguments of a stage's body.

    ``folder`` is the stage's own: empty, or with its files if it was interrupted. ``inputs`` are the folders of
    the stages that it reads, by their names or their roles. ``trust_code``: the user trusts the code that options bring
    in; ``trusts_runs``: code of the runs in the pipeline's folder, too, which aren't a stranger's where all of it was
    made since the command started.
    """

    folder: Path
    options: Any
    inputs: Mapping[str, Path]
    jobs: Jobs
    trust_code: bool = False
    trusts_runs: bool = False

    def train(self, *layers: Mapping[str, Any], name: str = "run") -> Outcome:
        """Train what a configuration describes, as a run in the stage's folder; it resumes as every run does.

        ``layers`` are its sections, without ``name`` and ``run_dir``, the later over the earlier. Where the best
        checkpoint is damaged, training goes back to the newest complete one before it. Raises KeyboardInterrupt, and
        UserError after SIGTERM, where it was stopped: the stage isn't done.
        """
        from vaak.config.load import load_layers
        from vaak.runs.start import train

        folder = self.folder / name
        place = {"name": name, "run_dir": str(folder), "training": {"checkpoint": {"resume": _where_to_resume(folder)}}}
        values: list[Mapping[str, Any]] = [*layers, place]
        helpers = self.jobs.helpers
        training = load_layers(values, trust_code=self.trust_code).experiment.training
        values.append({"training": shared_batch(folder, training, 1 if helpers is None else helpers.world_size)})
        if helpers is not None:
            helpers.order(train_with_rank_0, layers=[dict(layer) for layer in values], trust_code=self.trust_code)
        outcome = train(load_layers(values, trust_code=self.trust_code))
        outcome.require_not_stopped(str(outcome.directory), "add --resume")
        return outcome


Options = Any
"""The section of a pipeline's options; each pipeline has its own type."""


def train_with_rank_0(layers: list[dict[str, Any]], trust_code: bool) -> None:
    """Train what a configuration describes, as one of the processes of a run; rank 0 has the outcome."""
    from vaak.config.load import load_layers
    from vaak.runs.start import train

    train(load_layers(layers, trust_code=trust_code))


def shared_batch(run: Path, training: TrainingConfig, num_processes: int) -> dict[str, int]:
    """Return how a step's rows are divided into microbatches, so that each process has one and the step is the same.

    A run that has begun keeps its division, on any number of processes. Rows that can't be divided by the processes,
    and batches by length, stay unchanged: ``batch_size`` is then per process, as in accelerate.
    """
    from vaak.config.yaml.text import read_yaml

    rows, steps = training.batch_size, training.gradient_accumulation_steps
    if (run / "config.yml").exists():
        before = read_yaml(run / "config.yml")["training"]
        if before["batch_size"] * before["gradient_accumulation_steps"] == rows * steps:
            rows, steps = before["batch_size"], before["gradient_accumulation_steps"]
    elif steps < num_processes and training.batching.type == "fixed" and rows * steps % num_processes == 0:
        rows, steps = rows * steps // num_processes, num_processes
    return {"batch_size": rows, "gradient_accumulation_steps": steps}


def _where_to_resume(run: Path) -> str:
    """``auto``; or the newest complete checkpoint before a run's best one, where that is damaged.

    A run none of whose checkpoints is complete so far is renamed, so that another one starts.
    """
    from vaak.engine.checkpoint.files import list_checkpoints, pointed, verify

    best, known = pointed(run / "checkpoints", "best"), list_checkpoints(run / "checkpoints")
    if best is None:
        return "auto"
    for path in reversed(known[: known.index(best) + 1]):
        try:
            verify(path)
        except CheckpointError as error:
            log.warning("%s; training goes back to before it", error)
        else:
            return "auto" if path == best else str(path)
    shutil.rmtree(damaged := run.with_name(f"{run.name}.damaged"), ignore_errors=True)
    run.rename(damaged)
    return "auto"


@dataclass(frozen=True)
class Stage:
    """One stage.

    ``make`` is its body, a function at the top level of a module, which returns figures for the table of results.
    ``options`` names those options of the pipeline that its results depend on; ``settings`` returns what else of the
    options they depend on, by name: a part of one, or what one stands for. ``outputs`` are the files and folders in its
    folder that other stages read. ``sources`` returns, as JSON, what changes with all that it reads from outside;
    without absolute paths, so that the folder may move. What has changed is reported by name, such as "the weights of
    the base". ``wanted`` tells whether the options ask for it at all. ``forecast`` is given the folders of all stages,
    which may not be there yet.
    ``version`` is raised when code that it calls changes its results; a change of its module's file is noticed.
    ``repairs``: its body makes just those outputs that are missing.
    ``digested`` are patterns of those outputs by which other stages notice a change, all of them by default. The rest
    is verified, too, but may hold what differs between equal results: times, places, versions.
    ``roles`` are the names by which the body finds stages that it reads, where they aren't the stages' own: so two
    stages have the same body, each with other inputs.
    ``report`` is an output, JSON, that is in the table of results; its ``lines`` are printed below it.
    """

    name: str
    make: Callable[[StageWork], Mapping[str, Any] | None]
    about: str
    options: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    settings: Callable[[Options], Mapping[str, Any]] | None = None
    sources: Callable[[Options], Any] | None = None
    wanted: Callable[[Options], bool] | None = None
    forecast: Callable[[Options, Mapping[str, Path]], Forecast] | None = None
    version: int = 1
    repairs: bool = False
    digested: tuple[str, ...] = ("*",)
    roles: Mapping[str, str] = field(default_factory=dict, hash=False)
    report: str = ""

    def digest(self, outputs: Mapping[str, Any]) -> str:
        """Return a hash of those outputs, by name, by which other stages notice a change."""
        return compute_fingerprint(
            {name: about for name, about in outputs.items() if any(fnmatchcase(name, one) for one in self.digested)}
        )


@dataclass(frozen=True)
class Pipeline:
    """Stages in the order in which they run; each reads only those before it.

    ``options`` is the section of all their options, each of which is a flag of the command; ``flags`` gives flags other
    spellings. ``directory`` is where it runs if the command doesn't say: ``runs/NAME``. ``translate`` makes options of
    what a file of options holds, where it may be another system's.
    """

    name: str
    about: str
    options: type[Section]
    stages: tuple[Stage, ...]
    directory: Callable[[Options], Path] | None = None
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    translate: Callable[[dict[str, Any]], dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for a stage that names an option, a stage or an output that isn't there."""
        before: set[str] = set()
        for stage in self.stages:
            if unknown := [name for name in stage.options if name not in self.options.model_fields]:
                raise ValueError(f"stage {stage.name}: the pipeline has no option {unknown[0]}")
            if unknown := [name for name in stage.after if name not in before]:
                raise ValueError(f"stage {stage.name}: no stage {unknown[0]} before it")
            if unknown := [name for name in stage.roles if name not in stage.after]:
                raise ValueError(f"stage {stage.name}: {unknown[0]} has a role, but isn't in after")
            if stage.report and stage.report not in stage.outputs:
                raise ValueError(f"stage {stage.name}: its report {stage.report} isn't in outputs")
            if stage.name in before or not stage.name.isidentifier():
                raise ValueError(f"stage {stage.name!r}: each has its own name, of letters, digits and underscores")
            before.add(stage.name)

    def stage(self, name: str) -> Stage:
        """Return the stage of a name. Raises UserError if there is none."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        names = [stage.name for stage in self.stages]
        raise UserError(f"{self.name} has no stage {name}{nearest_name(name, names)}; it has {', '.join(names)}")

    def get_directory(self, options: Options) -> Path:
        """Return the directory where it runs if the command doesn't say."""
        return Path("runs") / self.name if self.directory is None else self.directory(options)

    def asked_for(self, options: Options) -> Iterator[Stage]:
        """Return the stages that the options ask for."""
        return (stage for stage in self.stages if stage.wanted is None or stage.wanted(options))


def find_pipeline(reference: str, folder: Path) -> Pipeline:
    """Return the pipeline that a name or reference, seen from ``folder``, stands for; its module is imported.

    Raises UserError if there is none.
    """
    pipelines = {} if ":" in reference else {name: one.where for name, one in list_pipelines().items()}
    if ":" not in reference and reference not in pipelines:
        known = ", ".join([*pipelines, "./file.py:NAME", "package.module:NAME"])
        raise UserError(f"unknown pipeline {reference}; expected one of {known}")
    found = resolve_class(reference, pipelines, folder)
    if not isinstance(found, Pipeline):
        raise UserError(f"{reference} is not a pipeline (vaak.pipeline.stage.Pipeline)")
    return found
