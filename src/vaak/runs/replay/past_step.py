"""A past step of a run, rerun from the nearest checkpoint before it, without writing into the run.

Batches, draws and rates follow from the number of the step, so the steps on the way are the run's own, and so are
their bits where the machine and its versions are. What the run logged of them says whether they were.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vaak.callbacks.step_log import StepLogCallback
from vaak.config.base import LARGEST_COUNT
from vaak.config.load import Loaded, load
from vaak.config.resume.table import changes_between
from vaak.config.tasks import task_class
from vaak.config.training import NonFiniteConfig
from vaak.config.yaml.reader import read_yaml
from vaak.config.yaml.tree import to_plain
from vaak.core.errors import CheckpointError, UserError
from vaak.core.progress import progress
from vaak.core.storage import files
from vaak.data.loader import naming_lost_workers
from vaak.engine.checkpoint.files import (
    Snapshot,
    list_checkpoints,
    load_checkpoint,
    resolve_checkpoint,
    step_folder,
)
from vaak.engine.checkpoint.initial_weights import initialise
from vaak.engine.diagnosis.non_finite import json_value, record_path
from vaak.engine.distributed.launcher import pick_device
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.trainer import Trainer
from vaak.engine.training_data import StepData
from vaak.runs.build_callbacks import built
from vaak.runs.distillation.task import distilled
from vaak.runs.folder.directory import holds_a_run, read_status
from vaak.runs.folder.sessions import configuration_of_step
from vaak.runs.folder.user_code import demand_trust
from vaak.runs.open_run import run_of
from vaak.runs.replay.agreement import ReplayAgreement
from vaak.runs.replay.step_view import batches_of, figures_of, pieces_of_step, updates_of_step

log = logging.getLogger("vaak")

JOURNALS = ("skipped*.jsonl", "splits*.jsonl")


def replay_step(
    path: Path, step: int, *, debug: bool = False, device: str | None = None, trust_code: bool = False
) -> dict[str, Any]:
    """What a step of a run does, as JSON: batches, losses, gradient, and whether it agrees with what the run logged.

    ``debug`` adds every module's output and every parameter's gradient and update. A run on several processes is
    replayed in one, which draws the same. Raises UserError for everything that a user can fix.

    ``path`` is that of the run; ``device`` None is the run's own. User code is executed only with ``trust_code``.
    """
    directory = run_of(path)
    configuration = configuration_of_step(directory, step)
    loaded = load([configuration], trust_code=trust_code)
    _check_taken(directory, step, loaded)
    demand_trust(loaded)
    start = _nearest(directory, loaded, step)
    _demand_one_way(directory, start[1].step + 1 if start else 1, step, loaded.experiment.reference)
    with tempfile.TemporaryDirectory(prefix="vaak-replay-") as temporary_folder, quietly():
        trainer = trainer_like(loaded, directory, Path(temporary_folder), device)
        if start is not None:
            trainer.restore(start[1], start[0])
        else:
            initialise(trainer.model, trainer.config.checkpoint)
        agreement = ReplayAgreement(directory, trainer, start[1].state["conditions"] if start else None)
        found: dict[str, Any] = {"run": str(directory), "step": step, "from": str(start[0]) if start else None}
        trainer.tell("on_fit_start")
        with contextlib.closing(trainer.data.steps(trainer.position)) as steps:
            found |= _taken(trainer, _before(trainer, steps, step, agreement), agreement, debug)
        trainer.tell("on_fit_end", "replayed")
        found["agreement"] = agreement.as_json()
    report: dict[str, Any] = json_value(found)
    return report


def _demand_one_way(directory: Path, first: int, step: int, task: str) -> None:
    """Raise UserError where the steps from ``first`` to ``step`` were not all taken with the same options."""
    sessions = [configuration_of_step(directory, one) for one in (first, step)]
    before, after = (to_plain(read_yaml(path)) for path in sessions)
    changes = [change for change in changes_between(before, after, task) if change.resume_class != "free"]
    if sessions[0] != sessions[1] and changes:
        raise UserError(
            f"step {step} of {directory} can't be replayed: the nearest checkpoint is that of step {first - 1}, and "
            f"the run was resumed after it with other options ({'; '.join(map(str, changes))})"
        )


def _check_taken(directory: Path, step: int, loaded: Loaded) -> None:
    """Raise UserError unless the run took the step, or may have taken it without logging it yet."""
    if not holds_a_run(directory):
        raise UserError(f"{directory} has not started to train, so it has no step to replay")
    status = read_status(directory)
    if isinstance(status.get("step"), int):
        last = status["step"] + (status.get("state") != "finished")  # the one at which it stopped, too
    else:
        checkpoints = list_checkpoints(directory / "checkpoints")
        saved = [int(path.name.removeprefix("step-")) for path in checkpoints if path.name[5:].isdigit()]
        logged = [record["step"] for record in ReplayAgreement.records(directory)]
        last = max([*saved, *logged], default=0) + loaded.experiment.training.logging.interval
    if step > last:
        raise UserError(f"{directory} has not reached step {step}; the last that can be replayed is {last}")


def _nearest(directory: Path, loaded: Loaded, step: int) -> tuple[Path, Snapshot] | None:
    """The newest complete checkpoint before a step, or of the run that this one resumed from; None at its start."""
    folder = directory / "checkpoints"
    for path in reversed(list_checkpoints(folder)):
        if path.name < step_folder(step):
            try:
                return path, load_checkpoint(path)
            except CheckpointError as error:
                log.warning("%s; the previous one is used", error)
    resume = loaded.experiment.training.checkpoint.resume
    if resume in (None, "auto"):
        return None
    source = resolve_checkpoint(Path(resume))
    if source.parent.resolve() == folder.resolve():
        return None
    snapshot = load_checkpoint(source)
    if snapshot.step >= step:
        raise UserError(f"{directory} was resumed from {source}: its first step is {snapshot.step + 1}")
    return source, snapshot


def trainer_like(loaded: Loaded, directory: Path, temporary_folder: Path, device: str | None) -> Trainer:
    """A trainer like the run's, on its data and journals, that writes to ``temporary_folder`` and never stops early."""
    experiment = loaded.experiment
    training = experiment.training.model_copy(update={"non_finite": NonFiniteConfig(max_skipped=LARGEST_COUNT)})
    for pattern in JOURNALS:
        for journal in directory.glob(pattern):
            shutil.copy(journal, temporary_folder)
    task = distilled(task_class(experiment.reference)(experiment, directory, loaded.folder), experiment, directory)
    callbacks = [StepLogCallback(training.logging.interval, training.logging.smoothing)]
    # Of the other callbacks, only those that the user named may change numbers.
    further = [built(component, loaded.folder) for component in training.callbacks]
    return Trainer(
        task,
        training,
        temporary_folder,
        [*callbacks, *further],
        ranks=Ranks(pick_device(device or training.device)),
        skip_bad_examples=experiment.skips_bad_examples,
        folder=loaded.folder,
    )


def _before(trainer: Trainer, steps: Iterator[StepData], step: int, agreement: ReplayAgreement) -> StepData:
    """Take every step before ``step`` and do what is due after it; return the data of ``step``."""
    left = step - trainer.position.step - 1
    with naming_lost_workers(), progress("steps before it", left) as advance:
        for data in steps:
            if trainer.position.duties_pending:
                _do_what_is_due(trainer)
            if data.step == step:
                return data
            agreement.tell(trainer.take_step(data))
            advance(1)
    raise AssertionError("steps have no end")


def _do_what_is_due(trainer: Trainer) -> None:
    """Evaluate where that changes later steps, and report an epoch's end."""
    changes_something = trainer.state.plateau is not None or len(trainer.callbacks) > 1
    if trainer.evaluation_due() and changes_something:
        trainer.evaluate(due=True)
    if trainer.position.place == 0:
        trainer.tell("on_epoch_end", trainer.position.epoch - 1, trainer.metrics)
    trainer.position.duties_pending = False


def _taken(trainer: Trainer, data: StepData, agreement: ReplayAgreement, debug: bool) -> dict[str, Any]:
    """Take the step, and report everything about it."""
    found: dict[str, Any] = {"microbatches": batches_of(trainer, data)}
    with contextlib.ExitStack() as stack:
        if debug:
            found["pieces"] = pieces_of_step(trainer, data)
            found["parameters"] = stack.enter_context(updates_of_step(trainer))
        report = trainer.take_step(data)
    agreement.tell(report)
    found |= figures_of(trainer, report)
    record = record_path(trainer.directory, data.step, rank=0)
    found["non_finite"] = files.read_json(record) if report.skipped == "non_finite" else None
    return found


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Within this context, a run's log messages are suppressed: the results have them."""
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
