"""Training in one call, and how the run finds its task again.

A task is found by its file, which the run copies; by its package; or only by this program.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

from vaak.config.components import adopt_module, explain_missing, files_being_imported
from vaak.config.experiment import Experiment
from vaak.config.load import Loaded, load_layers
from vaak.config.tasks import TASKS, TASKS_PACKAGE, built_in, installed, load_spec, register_task, task_class
from vaak.config.training import LossConfig
from vaak.core.errors import UserError
from vaak.core.task import Task
from vaak.engine.callback import Callback
from vaak.library.config import Layer, as_layers
from vaak.library.trained_run import TrainedRun, open, with_metrics
from vaak.runs.folder.directory import holds_a_run
from vaak.runs.folder.user_code import adopt_copies, imported_files, require_trust
from vaak.runs.launching import join_slurm_step
from vaak.runs.start import train
from vaak.tasks.base import Metric

ONLY_HERE = (
    "the task {name} is in no file, so the command line can't open this run: in Python, with the task, "
    "vaak.open({directory!r}, task=...) does"
)


def fit(
    task: Task | type[Task] | Layer | Sequence[Layer],
    directory: str | PathLike[str],
    *,
    callbacks: Sequence[Callback] = (),
    optimizer: str | Mapping[str, Any] | None = None,
    resume: bool | str | PathLike[str] | None = None,
    metrics: Mapping[str, Metric] | None = None,
    init_from: str | PathLike[str] | None = None,
    init_except: Sequence[str] = (),
    init_rename: Mapping[str, str] | None = None,
    trust_code: bool = False,
    **training: Any,
) -> TrainedRun:
    """Train a task into a run directory, and open the run.

    ``task`` is a class or an object (``vaak.SimpleTask``), a YAML file, sections in a dict, several of these (the later
    over the earlier), or a name such as ``lm``. ``training`` are options of ``training:``, by their own names and all
    others that a YAML takes (``epochs=3, learning_rate=1e-3, validation={"interval": 50}``), or other sections
    (``model={...}``, ``data={...}``).

    ``optimizer`` is its type or its options, and so may ``loss`` be. ``resume`` is True for the newest checkpoint of
    the run, or a checkpoint. ``metrics`` are further metrics of each evaluation, as in ``SimpleTask``. ``init_from``
    begins with the weights of another run, without those whose names ``init_except`` matches, each under the name that
    ``init_rename`` (regular expression to replacement) gives it.

    Every command opens the directory; if the task is in no file, the log warns of that. Code that a
    run brings is executed only with ``trust_code``. Raises UserError for every mistake in the arguments.

    ``callbacks`` are told what happens in training.

    Ctrl-C saves the run and raises KeyboardInterrupt, so that a program doesn't continue with a half-trained model.
    """
    join_slurm_step()
    if importing := files_being_imported():
        raise UserError(f"{importing[0]} trains while it is imported: put this under if __name__ == '__main__':")
    loaded = _load_configuration(task, Path(directory), training, optimizer, trust_code, metrics or {})
    given = {
        "resume": "auto" if resume is True else None if not resume else str(resume),
        "init_from": None if init_from is None else str(init_from),
        "init_except": tuple(init_except),
        "init_rename": dict(init_rename or {}),
    }
    section = loaded.experiment.training
    checkpoint = section.checkpoint.model_copy(update={name: value for name, value in given.items() if value})
    section = section.model_copy(update={"checkpoint": checkpoint})
    experiment = loaded.experiment.model_copy(update={"training": section})
    loaded = replace(loaded, experiment=experiment)
    if experiment.training.checkpoint.resume is None and holds_a_run(experiment.run_dir):
        raise UserError(f"{directory} already holds a run: give resume=True to resume it, or another directory")
    chosen = None
    if metrics:
        made = task_class(experiment.reference)(experiment, experiment.run_dir, loaded.folder)
        chosen = with_metrics(made, metrics)
    imported = imported_files()
    outcome = train(loaded, tuple(callbacks), chosen)
    if outcome.reason == "SIGINT":
        raise KeyboardInterrupt
    # Importing the run's copy of a script would train again, so the loaded modules stand for their copies.
    adopt_copies(experiment.run_dir, imported)
    return open(experiment.run_dir, device=experiment.training.device, metrics=metrics, trust_code=True)


def _load_configuration(
    task: Any, directory: Path, training: dict[str, Any], optimizer: Any, trust_code: bool, metrics: Collection[str]
) -> Loaded:
    """Return the configuration of the run, with remarks among its warnings.

    ``task``, ``directory``, ``optimizer``, ``trust_code`` and ``metrics`` are those of ``fit``; ``training`` are its
    further options, of which other sections are taken out.
    """
    layers, remarks = _layers(task, directory)
    if optimizer is not None:
        if not isinstance(optimizer, str | Mapping):
            raise UserError(f'optimizer is {optimizer!r:.80}; expected a name ("adamw") or a dict of its options')
        training["optimizer"] = optimizer
    loss = training.get("loss")
    # A loss may be given as an optimizer is: then these are the main loss and its options.
    if isinstance(loss, Mapping) and "type" in loss:
        own = {name: value for name, value in loss.items() if name not in LossConfig.model_fields}
        training["loss"] = {**{name: value for name, value in loss.items() if name not in own}, "main": own}
    sections = {name: training.pop(name) for name in [*training] if name in Experiment.model_fields}
    given: list[Layer] = [sections, {"training": training}]
    where: dict[str, Any] = {"run_dir": str(directory)}
    if not any(isinstance(layer, Path) for layer in layers):
        where["name"] = directory.resolve().name
    loaded = load_layers([*layers, *as_layers(given), where], trust_code=trust_code, further_metrics=metrics)
    require_trust(loaded)
    return replace(loaded, warnings=[*loaded.warnings, *remarks])


def _layers(task: Any, directory: Path) -> tuple[list[Path | Mapping[str, Any]], list[str]]:
    """Return the layers that a task stands for, and remarks on it."""
    if is_task(task):
        name, lasts = make_reference(task)
        return [{"task": name}], [] if lasts else [ONLY_HERE.format(name=name, directory=str(directory))]
    if isinstance(task, str) and (task in TASKS or ":" in task):
        return [{"task": task}], []
    if isinstance(task, str | PathLike | Mapping):
        return as_layers([task]), []
    if isinstance(task, list | tuple):
        return as_layers(list(task)), []
    found = f"the class {task.__name__}" if isinstance(task, type) else f"a {type(task).__name__}"
    raise UserError(f"vaak.fit was given {found}; expected a vaak.Task, a vaak.SimpleTask, a YAML file or a dict")


def make_reference(task: Any) -> tuple[str, bool]:
    """Return the name by which a configuration has a task, and whether other programs find it by this.

    ``task`` is a class, or an object that a module has as a variable.

    One that is in no file (of a notebook, of a function) is registered in this program under its name.
    """
    module = sys.modules.get(task.__module__ if isinstance(task, type) else getattr(task, "made_in", ""))
    name = next((name for name, value in vars(module or object).items() if value is task), None)
    if module is not None and name is not None:
        full = f"{module.__name__}:{name}"
        offered = {point.value: short for short, point in installed().items()}
        offered |= {
            str(load_spec(short).task): short for short in built_in() if full.startswith(f"{TASKS_PACKAGE}.{short}.")
        }
        if full in offered:
            return offered[full], True
        if _is_installed(module):
            return full, True
        file = Path(getattr(module, "__file__", None) or "")
        # A name that exists only once the file runs can't be found by other programs.
        if file.is_file() and explain_missing(f"{file}:{name}", file.parent) is None:
            adopt_module(module, file)
            return f"{file.resolve()}:{name}", True
    short = task.__name__ if isinstance(task, type) else getattr(task, "name", type(task).__name__)
    register_task(short, task)
    return short, False


def is_task(value: Any) -> bool:
    """Return whether a value is a task's class, or a task."""
    return isinstance(value, Task) or (isinstance(value, type) and issubclass(value, Task))


def _is_installed(module: ModuleType) -> bool:
    """Return whether other programs import a module by its name."""
    root = module.__name__.partition(".")[0]
    if root == "__main__" or "." not in module.__name__ or root not in sys.modules:
        return False
    spec = importlib.util.find_spec(root)
    return spec is not None and "site-packages" in str(spec.origin)
