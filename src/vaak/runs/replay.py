"""A past step of a run, rerun from the nearest checkpoint before it and shown; or a checkpoint and its next step.

Nothing is written into the run. Batches, draws and rates follow from the number of the step, so the steps on the way
are the run's own, and so are their bits where the machine and its versions are. What the run logged of them says
whether they were.
"""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from vaak.callbacks.step_log import StepLogCallback
from vaak.config.base import LARGEST_COUNT
from vaak.config.changes import changes_between
from vaak.config.load import Loaded, load
from vaak.config.tasks import task_class
from vaak.config.training import NonFiniteConfig
from vaak.config.yaml.text import read_yaml
from vaak.core.errors import CheckpointError, UserError
from vaak.core.progress import progress
from vaak.core.storage import files
from vaak.core.storage.files import scratch_folder
from vaak.data.loader import Microbatch, naming_lost_workers
from vaak.engine.callback import StepReport
from vaak.engine.checkpoint.conditions import differences, unknown
from vaak.engine.checkpoint.files import list_checkpoints, load_checkpoint, resolve_checkpoint, step_folder
from vaak.engine.distributed.launcher import pick_device
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.gradient import Forward, ObjectiveRunner, restored
from vaak.engine.inspection import watching, watching_units
from vaak.engine.journal import JOURNALS, journal_files
from vaak.engine.metrics_file import read_records, read_totals
from vaak.engine.non_finite import json_value, record_path
from vaak.engine.precision import keeping_kernels
from vaak.engine.snapshot import TENSORS, Snapshot
from vaak.engine.trainer import Trainer
from vaak.engine.training_data import StepData
from vaak.runs.build_callbacks import built
from vaak.runs.distillation import distilled
from vaak.runs.folder.directory import holds_a_run, read_status
from vaak.runs.folder.sessions import find_step_configuration, read_step_conditions
from vaak.runs.folder.user_code import OF_THE_LOOP, require_secrets, require_trust
from vaak.runs.open_run import begin_with_weights, resolve_run

log = logging.getLogger("vaak")


def replay_step(
    path: Path, step: int, *, debug: bool = False, device: str | None = None, trust_code: bool = False
) -> dict[str, Any]:
    """Return a step of a run, as JSON: batches, losses, gradient, and whether it agrees with what the run logged.

    ``debug`` adds every module's output and every parameter's gradient and update. A run on several processes is
    replayed in one, which draws the same. Raises UserError for everything that a user can fix.

    ``path`` is that of the run; ``device`` None is the run's own. User code is executed only with ``trust_code``.
    """
    directory = resolve_run(path)
    with approaching(directory, step, device=device, trust_code=trust_code) as (trainer, steps, agreement, source):
        found: dict[str, Any] = {"run": str(directory), "step": step, "from": str(source) if source else None}
        data = take_steps_before(step, trainer, steps, agreement)
        found["microbatches"] = describe_batches(trainer, data)
        with contextlib.ExitStack() as stack:
            if debug:
                found["pieces"] = forward_chunks(trainer, data)
                found["parameters"] = stack.enter_context(updates_of_step(trainer))
            taken = trainer.take_step(data)
        agreement.notify(taken)
        found |= collect_values(trainer, taken)
        record = record_path(trainer.directory, data.step, rank=0)
        found["non_finite"] = files.read_json(record) if taken.skipped == "non_finite" else None
        # Callbacks that opened something at on_fit_start close it here.
        trainer.notify("on_fit_end", "replayed")
        found["agreement"] = agreement.as_json()
    report: dict[str, Any] = json_value(found)
    return report


@contextlib.contextmanager
def approaching(
    directory: Path, step: int, *, device: str | None = None, trust_code: bool = False
) -> Iterator[tuple[Trainer, Iterator[StepData], ReplayAgreement, Path | None]]:
    """Within this context: a trainer like the run's before a step, and the data of the steps from where it stands.

    It stands at the nearest checkpoint before ``step``, whose path comes last (None: at the start of the run). Raises
    UserError if the run hasn't taken the step, or took it with options that the checkpoint wasn't made with.
    """
    loaded = load([find_step_configuration(directory, step)], trust_code=trust_code)
    require_taken(directory, step, loaded)
    require_trust(loaded)
    require_secrets(loaded, but=OF_THE_LOOP)
    start = _nearest(directory, loaded, step)
    require_one_way(directory, start[1].step + 1 if start else 1, step, loaded.experiment.reference)
    with standing_at(start, loaded, directory, device) as trainer:
        agreement = ReplayAgreement(directory, trainer, step, start[1].state["conditions"] if start else {})
        trainer.notify("on_fit_start")
        with contextlib.closing(trainer.data.steps(trainer.position)) as steps:
            yield trainer, steps, agreement, start[0] if start else None


@contextlib.contextmanager
def standing_at(
    start: tuple[Path, Snapshot] | None, loaded: Loaded, directory: Path, device: str | None
) -> Iterator[Trainer]:
    """Within this context, a trainer like that of the run in ``directory``, at a checkpoint; at its start for None."""
    with scratch_folder("replay") as temporary_folder, quietly(), keeping_kernels():
        trainer = trainer_like(loaded, directory, temporary_folder, device)
        if start is not None:
            trainer.restore(start[1], start[0])
        else:
            begin_with_weights(trainer.model, trainer.task, trainer.config.checkpoint)
        yield trainer


def require_one_way(directory: Path, first: int, step: int, task: str) -> None:
    """Raise UserError if the steps from ``first`` to ``step`` were not all taken with the same options."""
    sessions = [find_step_configuration(directory, one) for one in (first, step)]
    before, after = map(read_yaml, sessions)
    changes = [change for change in changes_between(before, after, task) if change.resume_class != "free"]
    if sessions[0] != sessions[1] and changes:
        raise UserError(
            f"step {step} of {directory} can't be replayed: the nearest checkpoint is that of step {first - 1}, and "
            f"the run was resumed after it with other options ({'; '.join(map(str, changes))})"
        )


def require_taken(directory: Path, step: int, loaded: Loaded) -> None:
    """Raise UserError unless the run took the step, or may have taken it without logging it yet."""
    if not holds_a_run(directory):
        raise UserError(f"{directory} has not started to train, so it has no step to replay")
    status = read_status(directory)
    if isinstance(status.get("step"), int):
        # The step at which a run stopped may be replayed, too: it may be why it stopped.
        last = status["step"] + (status.get("state") != "finished")
    else:
        checkpoints = list_checkpoints(directory / "checkpoints")
        saved = [int(path.name.removeprefix("step-")) for path in checkpoints if path.name[5:].isdigit()]
        # Steps after the last record may have been taken without being logged, at most an interval of them.
        last = max([*saved, read_totals(directory).step]) + loaded.experiment.training.logging.interval
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
    # A run that resumed from its own checkpoints: those were looked at above.
    if source.parent.resolve() == folder.resolve():
        return None
    snapshot = load_checkpoint(source)
    if snapshot.step >= step:
        raise UserError(f"{directory} was resumed from {source}: its first step is {snapshot.step + 1}")
    return source, snapshot


def trainer_like(loaded: Loaded, directory: Path, temporary_folder: Path, device: str | None) -> Trainer:
    """A trainer like the run's, on its data and journals, that writes to ``temporary_folder`` and never stops early."""
    experiment = loaded.experiment
    # A run that stopped after too many non-finite steps is one that people replay: here it doesn't stop.
    training = experiment.training.model_copy(update={"non_finite": NonFiniteConfig(max_skipped=LARGEST_COUNT)})
    for journal in journal_files(directory, *JOURNALS):
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


def take_steps_before(
    step: int,
    trainer: Trainer,
    steps: Iterator[StepData],
    agreement: ReplayAgreement,
    evaluations: Collection[int] = (),
) -> StepData:
    """Take every step before ``step`` and do what is due after it; return the data of ``step``.

    Evaluations that change nothing are left out, but for those after the steps ``evaluations``.
    """
    left = step - trainer.position.step - 1
    with naming_lost_workers(), progress("steps before it", left) as advance:
        for data in steps:
            do_what_is_due(trainer, evaluations)
            if data.step == step:
                return data
            agreement.notify(trainer.take_step(data))
            advance(1)
    raise AssertionError("steps have no end")


def do_what_is_due(trainer: Trainer, evaluations: Collection[int] = ()) -> None:
    """Evaluate and report the epoch's end where that is due at this boundary; evaluate, too, after ``evaluations``."""
    position = trainer.position
    # an evaluation moves a plateau, and callbacks of the user's may change anything
    changes_something = trainer.state.plateau is not None or len(trainer.callbacks) > 1
    due = position.schedule_pending and trainer.evaluation_due()
    if (due and changes_something) or position.step in evaluations:
        trainer.evaluate(due)
    if position.schedule_pending and position.place == 0:
        trainer.notify_epoch_end(position.epoch - 1)
    position.schedule_pending = False


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Within this context, a run's log messages are suppressed: the results have them."""
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


LAST_STEP = 1 << 62
NOT_COMPARED = ("kind", "step", "epoch", "scheduled", "clock")


class ReplayAgreement:
    """The figures of a replay compared with ``metrics.jsonl``, and its weights with a checkpoint's.

    The steps after the trainer's position, up to ``last``, are recomputed. ``before`` are the conditions of the
    checkpoint where it stands, which are those of sessions that didn't record their own.
    """

    def __init__(self, directory: Path, trainer: Trainer, last: int, before: dict[str, Any]) -> None:
        self.directory, self.trainer = directory, trainer
        self.begun_at = trainer.position.step
        self.logged = {_key(record): record for record in self.records(directory)}
        now, self.conditions = trainer.conditions(), list[str]()
        for written in read_step_conditions(directory, min(self.begun_at + 1, last), last):
            then = before if written is None else written
            changed = [f"{name}: {there} then, {here} now" for name, there, here in differences(then, now)]
            missing = [f"{name}: not written down then" for name in unknown(then, now)]
            self.conditions += [line for line in changed + missing if line not in self.conditions]
        self.known_rules = len(trainer.state.chunk_rules.rules)

    @staticmethod
    def records(directory: Path) -> list[dict[str, Any]]:
        """Return the records of a run that are whole, oldest first."""
        path = directory / "metrics.jsonl"
        records: list[Any] = read_records(path) if path.exists() else []
        return [record for record in records if isinstance(record, dict) and isinstance(record.get("step"), int)]

    def notify(self, report: StepReport) -> None:
        """Report a step to the callbacks; it is logged where the run logged it, so that means span the same steps."""
        step_log = self.trainer.callbacks[0]
        assert isinstance(step_log, StepLogCallback)
        step_log.every = 1 if ("step", report.step, None) in self.logged else LAST_STEP
        self.trainer.notify("on_step_end", report)

    def as_json(self) -> dict[str, Any]:
        """Return the compared values, the number that are the same, and the differences."""
        same, differences = 0, []
        for record in self.records(self.trainer.directory):
            before = self.logged_as(record) or {}
            for name in record.keys() & before.keys() - set(NOT_COMPARED):
                then, now = before[name], record[name]
                same += then == now
                if then != now:
                    differences.append({"step": record["step"], "name": name, "then": then, "now": now})
        state = state_differences(self.trainer, self.directory)
        return {
            "begun_at": self.begun_at,
            "same": same,
            "differences": sorted(differences, key=lambda entry: (entry["step"], entry["name"])),
            "same_weights": None if state is None else not any(name.startswith("model ") for name in state),
            "conditions": self.changed_conditions(),
        }

    def changed_conditions(self) -> list[str]:
        """Return the differences of this machine and run that may change bits."""
        split = len(self.trainer.state.chunk_rules.rules) > self.known_rules
        return self.conditions + ["memory ran out here, so batches were computed in smaller chunks"] * split

    def logged_as(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """Return the run's own record that corresponds to one of the replay."""
        return self.logged.get(_key(record))


def load_step(directory: Path, step: int) -> Snapshot | None:
    """Load a run's checkpoint of a step to compare it; None without one, or, with a warning, if it is damaged."""
    path = directory / "checkpoints" / step_folder(step)
    if not path.is_dir():
        return None
    try:
        return load_checkpoint(path)
    except CheckpointError as error:
        log.warning("%s: the weights of this step aren't compared", error)
        return None


def state_differences(trainer: Trainer, directory: Path) -> dict[str, float] | None:
    """Compare a trainer's tensors with those of the run's checkpoint of its step; None without a whole checkpoint.

    Returns, for each tensor that differs in a bit, by part and name, the norm of the difference over the norm of the
    saved tensor; infinity if one of the two is missing or has another shape.
    """
    saved = load_step(directory, trainer.position.step)
    if saved is None:
        return None
    now, found = trainer.state.snapshot(), dict[str, float]()
    for part in TENSORS:
        ours, theirs = getattr(now, part), getattr(saved, part)
        for name in ours.keys() | theirs.keys():
            one, other = ours.get(name), theirs.get(name)
            if one is None or other is None or one.shape != other.shape:
                found[f"{part} {name}"] = math.inf
            elif not torch.equal(_bits(one), _bits(other)):
                difference = torch.linalg.vector_norm(one.double() - other.double())
                # A saved tensor of zeros has a norm of 0.
                found[f"{part} {name}"] = float(difference / torch.linalg.vector_norm(other.double()).clamp(min=1e-30))
    return found


def _key(record: dict[str, Any]) -> tuple[Any, ...]:
    return record.get("kind"), record["step"], record.get("scheduled")


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def describe_batches(trainer: Trainer, data: StepData) -> list[dict[str, Any]]:
    """Return each microbatch with its rows (index, length and contents of each example), and the skipped examples."""
    return [
        {
            "number": microbatch.address.number,
            "pieces": trainer.state.chunk_rules.count(
                data.step, microbatch.address.number, trainer.data.padded_size(microbatch)
            ),
            "rows": _rows(trainer, microbatch),
            "skipped": [asdict(skip) for skip in microbatch.skipped],
        }
        for microbatch in data.microbatches
    ]


def _rows(trainer: Trainer, microbatch: Microbatch) -> list[dict[str, Any]]:
    if microbatch.batch is None:
        return []
    dataset, batch = trainer.data.dataset, microbatch.batch
    lines = trainer.task.show(batch) or [""] * len(batch.indices)
    return [
        {
            "examples": [{"index": index, "description": dataset.describe(index)} for index in row],
            "length": sum(dataset.lengths[index].item() for index in row),
            "shown": shown,
        }
        for row, shown in zip(batch.indices, lines, strict=True)
    ]


def collect_values(trainer: Trainer, report: StepReport) -> dict[str, Any]:
    """The numbers of a step: ``loss`` is what is descended on; each of ``losses`` is over the count of its unit."""
    losses = {name: float(total) for name, total in report.losses.items()}
    norm = float(report.gradient_norm)
    limit = trainer.step.clipping.norm
    return {
        "epoch": report.epoch,
        "loss": sum(trainer.loss_weights.get(name, 1.0) * loss for name, loss in losses.items()),
        "losses": losses,
        "units": report.units,
        "counts": report.counts,
        "gradient_norm": norm,
        # The same 1e-6 as in the step's own clipping.
        "clip_factor": 1.0 if limit is None else min(1.0, limit / (norm + 1e-6)),
        "learning_rate": report.learning_rate,
        "loss_scale": report.loss_scale,
        "skipped": report.skipped,
        "seconds": report.seconds,
    }


def forward_chunks(trainer: Trainer, data: StepData) -> list[dict[str, Any]]:
    """Before the step: each chunk's losses over its own counts, and what every module gives, in the order they end."""
    found = []
    trainer.model.train()
    for objective, forward, chunk in iterate_forwards(trainer, data):
        with watching(trainer.model) as watch:
            terms = forward.terms(data.step, chunk)
        counts = chunk.batch.totals()
        losses = {name: float(term.total) / (counts.get(term.per) or 1.0) for name, term in terms.items()}
        modules = [asdict(module) for module in watch.statistics]
        seen = {"microbatch": chunk.number, "piece": chunk.index, "losses": losses, "modules": modules}
        found.append(({"objective": objective.name} if objective.name else {}) | seen)
    return found


def find_dead_units(trainer: Trainer, data: StepData) -> list[dict[str, Any]]:
    """Return the inputs of each layer with weights that are 0 wherever it is called, without dropout."""
    modes = [(module, module.training) for module in trainer.model.modules()]
    # Dropout would add zeros.
    trainer.model.eval()
    with watching_units(trainer.model) as alive:
        for _, forward, chunk in iterate_forwards(trainer, data):
            forward.terms(data.step, chunk)
    for module, mode in modes:
        module.training = mode
    return [
        {"module": name, "units": len(units), "dead": (~units).nonzero().flatten().tolist()}
        for name, units in alive.items()
    ]


def iterate_forwards(trainer: Trainer, data: StepData) -> Iterator[tuple[ObjectiveRunner, Forward, Any]]:
    """Yield each objective with the plain model and each chunk of the step, for forward passes that leave no trace."""
    with restored(trainer.model, trainer.state.loss.module), torch.no_grad():
        for objective in trainer.step.objectives:
            plain = replace(objective.gradient.forward, model=trainer.model)
            whole = replace(objective.gradient, forward=plain).after_first_pass(trainer.state.chunk_rules, data)
            for chunk in objective.gradient.split(trainer.state.chunk_rules, whole):
                yield objective, plain, chunk


@contextlib.contextmanager
def updates_of_step(trainer: Trainer) -> Iterator[list[dict[str, Any]]]:
    """A list that holds, once the step is taken, each parameter's gradient (clipped), weights and update as norms."""
    named = dict(trainer.model.named_parameters())
    # On a CPU, ``to`` without ``copy`` returns the parameter itself, which the step changes; on a GPU, a second set of
    # weights may not fit.
    before = {name: parameter.detach().to("cpu", copy=True) for name, parameter in named.items()}
    gradients: dict[str, float] = {}
    names = {parameter: name for name, parameter in named.items()}

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            if parameter.grad is not None and parameter in names:
                gradients[names[parameter]] = float(parameter.grad.norm())

    updates: list[dict[str, Any]] = []
    with contextlib.ExitStack() as hooks:
        # Right before the update, gradients of all microbatches are summed and clipped, and not cleared yet.
        for optimizer in trainer.state.optimizers:
            hooks.enter_context(optimizer.register_step_pre_hook(note))
        yield updates
    for name, parameter in named.items():
        update = parameter.detach().cpu() - before[name]
        norms = {"gradient_norm": gradients.get(name), "weight_norm": float(before[name].norm())}
        norms |= {"update_norm": float(update.norm()), "largest_update": float(update.abs().max())}
        updates.append({"name": name, **norms})


def inspect_run(path: Path, *, device: str | None = None, trust_code: bool = False) -> dict[str, Any]:
    """The parameters of a checkpoint, and of the training step after it gradients, updates and dead units, as JSON.

    Nothing is written into the run. Where the schedule has come to a rate of 0, the step is taken at the highest.

    ``path`` is that of a run, which stands for its best checkpoint, or of a checkpoint; ``device`` None is the run's
    own. User code is executed only with ``trust_code``. Raises UserError for everything that a user can fix.
    """
    directory, checkpoint = resolve_run(path), resolve_checkpoint(path)
    snapshot = load_checkpoint(checkpoint)
    configuration = find_step_configuration(directory, max(1, snapshot.step))
    loaded = load([configuration], trust_code=trust_code)
    require_trust(loaded)
    require_secrets(loaded, but=OF_THE_LOOP)
    with standing_at((checkpoint, snapshot), loaded, directory, device) as trainer:
        found = {"run": str(directory), "checkpoint": str(checkpoint), **_looked_at(trainer)}
    report: dict[str, Any] = json_value(found)
    return report


def _looked_at(trainer: Trainer) -> dict[str, Any]:
    with contextlib.closing(trainer.data.steps(trainer.position)) as steps:
        data = next(steps)
    rate = trainer.step.schedule(min(data.step, trainer.total_steps)) or 1.0
    dead = find_dead_units(trainer, data)
    with updates_of_step(trainer) as updates:
        report = replace(trainer.step, schedule=lambda step: rate)(trainer.state, data)
    norms = {one["name"]: one for one in updates}
    parameters = [
        {
            "name": name,
            "shape": list(parameter.shape),
            "count": parameter.numel(),
            "device": str(parameter.device),
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "trainable": parameter.requires_grad,
            "gradient_norm": norms[name]["gradient_norm"],
            "weight_norm": norms[name]["weight_norm"],
            "update_to_weight": norms[name]["update_norm"] / (norms[name]["weight_norm"] or math.nan),
        }
        for name, parameter in trainer.model.named_parameters()
    ]
    # The keys are the modules that have the parameters.
    squares: defaultdict[str, float] = defaultdict(float)
    for one in parameters:
        if one["gradient_norm"] is not None:
            squares[one["name"].rpartition(".")[0] or "model"] += one["gradient_norm"] ** 2
    layers = [{"module": name, "gradient_norm": math.sqrt(total)} for name, total in squares.items()]
    return {**collect_values(trainer, report), "parameters": parameters, "layers": layers, "dead_units": dead}
