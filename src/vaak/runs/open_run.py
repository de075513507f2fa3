"""A trained run, opened to be used: its configuration, its task, and the weights of a checkpoint.

RUN/tuned.yml, options found after training (vaak tune), overrides RUN/config.yml wherever a run is used. Training
doesn't read it, so a resumed run is evaluated as at its start.

A checkpoint can be opened without its run. As long as the run is where it was, its checkpoints stand for it.

    step-00001000/config.yml      the run's configuration
                  prepared/       what the run prepared, such as its tokenizer, without the data of its splits
                  tasks/NAME/     the same of each of several tasks
                  code/           users' own classes

A name that only the program which trained the run had registered (a loss, an optimizer, a schedule) isn't needed here.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from vaak.config.base import REGISTERED
from vaak.config.changes import changes_between, format_value
from vaak.config.components import AUXILIARY_LOSSES, LOSSES
from vaak.config.experiment import Experiment
from vaak.config.load import Loaded, load
from vaak.config.optimization import SCHEDULES, UPDATE_RULES
from vaak.config.resolved import resolved_values
from vaak.config.tasks import task_class
from vaak.config.training import CheckpointConfig
from vaak.config.trust import CODE, TUNED, is_trusted_place
from vaak.config.yaml.text import read_yaml, yaml_text
from vaak.config.yaml.tree import COMMAND_LINE
from vaak.core.errors import CheckpointError, UserError
from vaak.core.matching import quote_names
from vaak.core.names import require_known
from vaak.core.storage.files import in_temporary_folder, write_text
from vaak.core.task import Task
from vaak.engine.checkpoint.bundled_files import report_damaged
from vaak.engine.checkpoint.files import load_checkpoint, resolve_checkpoint
from vaak.engine.checkpoint.names import is_checkpoint
from vaak.engine.distributed.launcher import pick_device
from vaak.engine.precision import DTYPES, Precision
from vaak.engine.snapshot import load_weights
from vaak.engine.trained import NamedRows, initialise, make_model
from vaak.nn.int8 import compute_in_int8, require_int8
from vaak.nn.lora import follow_stored_types, keep_frozen_weights_in
from vaak.nn.stack import set_variable_length
from vaak.runs.base import Base, is_base
from vaak.runs.folder.directory import TASKS_FOLDER, owner_at_home, require_known_format, require_own_run
from vaak.runs.folder.user_code import require_secrets, require_trust, require_trust_to_use
from vaak.runs.prepared import LEFT_OUT, PREPARED_FILE, PreparedFolder, artifact_in, is_prepared, prepared_folder

log = logging.getLogger("vaak")
READ_IN_USE = (
    *("training.batch_size", "training.validation.batch_size", "training.mixed_precision"),
    *("training.deterministic", "training.performance.", "training.loss.", "training.eval_knobs."),
)
"""The options of training that using a trained model reads, too."""
ONLY_TRAINING_READS = re.compile(
    r"(data\.tasks\.\w+\.)?(training|wandb|distillation|data\.(target_)?tokenizer|data\.augmentation|data\.cache_dir"
    r"|data\.token_dropout|data\.shift_windows|model\.(.*\.)?(attention_)?dropout)(\.|$)"
)
"""Options that make a model, or what it learned from its data: a trained one has its own."""
DATA_SECTIONS = ("data", "datasets", "global_config")


@dataclass(frozen=True)
class OpenedRun:
    """A run's task and its model in evaluation mode, on its device; ``weights`` says which it has (own, average)."""

    experiment: Experiment[Any, Any]
    directory: Path
    checkpoint: Path
    task: Any
    model: torch.nn.Module
    weights: str
    precision: Precision
    """That in which predictions are asked for; their model is called within its ``autocast()``."""


def resolve_run(path: Path) -> Path:
    """The run directory of a run, a checkpoint or its pointer; a checkpoint without its run is one itself.

    Raises CheckpointError where there is none, UserError for one in the format of a later version, or with links that
    lead out of it.
    """
    # The path may be RUN, RUN/checkpoints, or a checkpoint or pointer in it.
    around = (path, path.parent, path.parent.parent)
    # A checkpoint has a copy of the configuration, so look for its run first.
    for folder in around:
        if (directory := run_with_checkpoints(folder)) is not None:
            return _require_readable(directory)
    for folder in around:
        if (folder / "config.yml").exists() and not _is_in_a_run(folder):
            return _require_readable(folder)
    with contextlib.suppress(CheckpointError):
        if ((checkpoint := resolve_checkpoint(path)) / "config.yml").exists():
            return _require_readable(checkpoint)
    raise CheckpointError(
        f"{path} is not a run directory, nor inside one (no config.yml); give a run directory or a checkpoint in it"
    )


def _require_readable(directory: Path) -> Path:
    require_own_run(directory)
    require_known_format(directory)
    return directory


def _is_in_a_run(checkpoint: Path) -> bool:
    """Whether a folder is a checkpoint in a run, wherever that was moved or copied to."""
    checkpoints = checkpoint.absolute().parent
    return (
        is_checkpoint(checkpoint) and checkpoints.name == "checkpoints" and (checkpoints.parent / "config.yml").exists()
    )


def open_run(
    path: Path,
    files: Sequence[Path] = (),
    overrides: Sequence[str] = (),
    device: str = "auto",
    *,
    weights: str = "auto",
    precision: str = "fp32",
    temporary_folder: Path | None = None,
    splits: tuple[str, ...] = (),
    trust_code: bool = False,
) -> OpenedRun:
    """Open a run, or one checkpoint of it; a run alone stands for its best checkpoint. Or open a pretrained model.

    RUN/tuned.yml, where ``vaak tune`` left one, overrides its configuration, and both are overridden by ``files`` and
    ``overrides``, as for training. Where these name other data, its ``splits`` are prepared in
    ``temporary_folder`` with what the run learned from its own data (its tokenizer, its speakers). User code is
    executed only where the model can't be used without it, and with ``trust_code``.
    ``weights`` are ``own``, or their ``average`` (training.ema); ``auto`` takes those that the run itself evaluated.
    ``precision`` is auto, fp32, bf16, fp16 or int8; in 16 bits, linear layers keep their weights so, too; in int8, on
    a CPU, their products are of 8 bits, and all else is fp32.

    ``path`` is that of the run or the checkpoint, or it is a pretrained model (``vaak.runs.base``): then ``checkpoint``
    is where that is, and evaluations have the data that ``files`` and ``overrides`` name.
    ``device`` is cpu, cuda, mps or auto.

    Raises UserError where the average is asked for and the checkpoint has none, and where trust is needed.
    """
    used_in = _find_precision(precision, pick_device(device))
    if is_base(path):
        if weights == "average":
            raise UserError(f"{path} has no averaged weights: it is a pretrained model")
        base, task = _open_base(path, files, overrides, trust_code, temporary_folder, splits)
        model = _to_be_used(_build_model(task, device), used_in, precision == "int8")
        return OpenedRun(task.experiment, task.directory, Path(base.source), task, model, "own", used_in)
    directory = resolve_run(path)
    layers = list_layers(directory)
    of_run = dict.fromkeys(layers, directory)
    trust_code = trust_code or is_trusted_place(path) or is_trusted_place(directory)
    with names_of_training_known(directory):
        # Loaded as trained and as asked for: differences may be refused, or name other data to prepare.
        own = load(layers, trust_code=trust_code, of_run=of_run).experiment
        for text in overrides:
            key, _, value = map(str.strip, text.partition("="))
            if key == "task" and value != own.task:
                raise UserError(f"{text}: the run was trained with task {own.task}; leave it out")
        loaded = load([*layers, *files], overrides, trust_code=trust_code, of_run=of_run)
        experiment = loaded.experiment
    if not trust_code:
        require_trust_to_use(own, directory)
        require_trust(loaded, experiment.spec.used_by_models)
    require_secrets(loaded, only=("model", "data", *experiment.spec.used_by_models))
    checkpoint = resolve_checkpoint(path)
    if checkpoint.resolve() == directory.resolve():
        report_damaged(checkpoint)
    _refuse_another_model(own, experiment)
    _warn_of_unread_options(own, experiment)
    _report_on_overrides(loaded)
    task = task_class(experiment.reference)(experiment, directory, directory)
    differ = any(getattr(experiment, name) != getattr(own, name) for name in DATA_SECTIONS)
    if temporary_folder is not None:
        if differ:
            task.prepare_eval_data(own, temporary_folder, splits)
        elif is_prepared(directory) and PreparedFolder(prepared_folder(directory)).lacks(splits):
            _prepare_again(task, own, temporary_folder, splits)
    model = _build_model(task, device)
    weights = _load_checkpoint(model, checkpoint, experiment, weights)
    model = _to_be_used(model, used_in, precision == "int8")
    return OpenedRun(experiment, directory, checkpoint, task, model, weights, used_in)


def _build_model(task: Any, device: str) -> torch.nn.Module:
    """The model of a task on its device."""
    model = make_model(task).to(pick_device(device))
    set_variable_length(model, task.experiment.training.performance.attention == "auto")
    return model


def _load_checkpoint(
    model: torch.nn.Module, checkpoint: Path, experiment: Experiment[Any, Any], weights: str
) -> Literal["own", "average"]:
    """Load the ``weights`` that are asked for, and return which these are."""
    snapshot = load_checkpoint(checkpoint, weights_only=True, base=model)
    if weights == "auto":
        ema = experiment.training.ema
        weights = "average" if ema is not None and ema.evaluate and snapshot.average else "own"
    if weights == "average" and not snapshot.average:
        raise UserError(f"{checkpoint} has no averaged weights: the run was trained without training.ema")
    # Only trained parameters have an average; frozen ones and buffers come from the model itself.
    follow_stored_types(model, snapshot.model)
    load_weights(model, snapshot.model | (snapshot.average if weights == "average" else {}), checkpoint)
    return "average" if weights == "average" else "own"


def _open_base(
    path: Path,
    files: Sequence[Path],
    overrides: Sequence[str],
    trust_code: bool,
    temporary_folder: Path | None,
    splits: tuple[str, ...],
) -> tuple[Base, Any]:
    """Return a pretrained model, and the task that uses it; its folder is there as long as the task.

    Raises UserError where no task can use it untrained, and where ``splits`` are asked for without data.
    """
    base = Base.find(path)

    def make(directory: Path) -> Any:
        layer = base.write_options(directory)
        loaded = load([layer, *files], overrides, trust_code=trust_code)
        _report_on_overrides(loaded)
        experiment = loaded.experiment
        if experiment.task != base.task:
            raise UserError(f"task is {experiment.task}, but {path} is a model of task {base.task}; leave it out")
        require_trust(loaded)
        require_secrets(loaded, only=("model", "data", *experiment.spec.used_by_models))
        made = task_class(experiment.reference)(experiment, directory, Path())
        made.prepare_base()
        return made

    task = in_temporary_folder(make)
    if splits and temporary_folder is not None:
        without = _without_data(task.experiment, load([task.directory / "config.yml"]).experiment)
        if without == task.experiment:
            raise UserError(f"{path} is a pretrained model without data of its own; name some: --data FILE, or a YAML")
        task.prepare_eval_data(without, temporary_folder, splits)
    return base, task


def _without_data(experiment: Experiment[Any, Any], own: Experiment[Any, Any]) -> Experiment[Any, Any]:
    """The experiment with the data of ``own``, and all of its other options."""
    data = experiment.data
    if "corpus" in type(data).model_fields:
        data = data.model_copy(update={"corpus": own.data.corpus})
    return experiment.model_copy(update={"datasets": own.datasets, "data": data})


def _find_precision(name: str, device: torch.device) -> Precision:
    """Return the precision of all but linear layers. Raises UserError where these can't compute in 8 bits."""
    if name == "int8":
        require_int8(device)
    return Precision("no" if name in ("fp32", "int8") else name, device)


def _to_be_used(model: torch.nn.Module, precision: Precision, in_int8: bool) -> torch.nn.Module:
    """The model in evaluation mode; weights that products round to 16 bits anyway are kept so."""
    if in_int8:
        replaced, total = compute_in_int8(model)
        log.warning("precision int8: %d of %d linear layers compute in 8 bits; scores are rounded", replaced, total)
    if precision.name != "no":
        keep_frozen_weights_in(DTYPES[precision.name], model.requires_grad_(False))
    return model.eval()


def begin_with_weights(
    model: torch.nn.Module, task: Task, options: CheckpointConfig, names: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Copy the weights of ``training.checkpoint.init_from`` into a model, rows with names by their names.

    ``names`` stand in for the task's, where it isn't prepared yet. Raises CheckpointError where they are from another
    model, and UserError for a pattern that matches nothing.
    """
    if options.init_from is None:
        return
    weights, own = [*task.named_rows(model)], task.row_names() if names is None else names
    source = _read_row_names(Path(options.init_from)) if weights and own else {}
    initialise(model, options, NamedRows(weights, own, source))


def _read_row_names(path: Path) -> Mapping[str, Sequence[str]]:
    """Return the names of rows of a run's weights; where they can't be read, log a line and return none."""
    try:
        directory = resolve_run(path)
        is_trusted = is_trusted_place(path) or is_trusted_place(directory)
        with names_of_training_known(directory):
            experiment = load([directory / "config.yml"], trust_code=is_trusted).experiment
        if not is_trusted:
            require_trust_to_use(experiment, directory)
        task: Task = task_class(experiment.reference)(experiment, directory, directory)
        return task.row_names()
    except (UserError, OSError) as error:
        log.warning("%s: tokens, labels and speakers are taken by their places, not by names: %s", path, error)
        return {}


def select_task(opened: OpenedRun, name: str | None) -> OpenedRun:
    """Return one task of a run of several, opened like a run of it alone; a run of one task unchanged.

    Raises UserError where the run has no task of this ``name``, or a name is needed.
    """
    parts = opened.task.inner_tasks
    if name in parts:
        model = opened.model.get_submodule(f"tasks.{name}")
        return replace(opened, experiment=parts[name].experiment, task=parts[name], model=model)
    if parts:
        remedy = f"give --task with one of {', '.join(parts)}"
        if name is None:
            raise UserError(f"{opened.directory} is a run of several tasks: {remedy}")
        require_known([name], parts, f"{opened.directory} has no task", remedy=remedy, error=UserError)
    if name is not None:
        raise UserError(f"{opened.directory} is a run of one task, {opened.experiment.task}: leave out --task")
    return opened


def _prepare_again(task: Task, own: Experiment[Any, Any], folder: Path, splits: tuple[str, ...]) -> None:
    """Prepare what isn't kept with checkpoints without their run. Raises UserError where it has gone."""
    try:
        task.prepare_eval_data(own, folder, splits)
    except UserError as error:
        what = f"the data of {', '.join(splits)} isn't kept with these checkpoints"
        raise UserError(f"{what}, and {error}; to evaluate on other data, name it: vaak eval RUN DATA.yml") from error


def _refuse_another_model(own: Experiment[Any, Any], asked: Experiment[Any, Any]) -> None:
    """Raises UserError where options of the model are asked for that the run wasn't trained with."""
    if asked.reference != own.reference:
        raise UserError(f"task is {asked.task}, but the run was trained with {own.task}; leave it out")
    for change in changes_between(resolved_values(own), resolved_values(asked), own.reference):
        if change.key.startswith("model.") and change.resume_class == "refused":
            after, before = format_value(change.after), format_value(change.before)
            raise UserError(f"{change.key} is {after}, but the run was trained with {before}; leave it out")


def _warn_of_unread_options(own: Experiment[Any, Any], asked: Experiment[Any, Any]) -> None:
    """Warn of options that are asked for and that only training reads."""
    changes = changes_between(resolved_values(own), resolved_values(asked), own.reference)
    of_training = [change.key for change in changes if ONLY_TRAINING_READS.match(change.key)]
    unread = [key for key in of_training if not key.startswith(READ_IN_USE)]
    if unread:
        log.warning("%s: only training reads this, so here it has no effect", ", ".join(unread))


def _report_on_overrides(loaded: Loaded) -> None:
    """Warn of what a command asks for without effect; a run's own options were reported when it was trained."""
    for warning in loaded.warnings:
        if warning.startswith(f"{COMMAND_LINE}: "):
            log.warning("warning: %s", warning)


OF_TRAINING: dict[str, Collection[str]] = {
    "training.loss.main": LOSSES,
    "training.optimizer": UPDATE_RULES,
    "training.scheduler": SCHEDULES,
}
"""Where a registered name may stand that using a model doesn't need, and the names that are built in."""


class NotHere:
    """Stands for a class that only the program knows that trained a run."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise UserError("this needs a class that the program which trained this run registered; register it here, too")


@contextlib.contextmanager
def names_of_training_known(directory: Path) -> Iterator[None]:
    """Within this context, unregistered losses, optimizers and schedules of a run's configuration are ``NotHere``."""
    values = read_yaml(directory / "config.yml")
    added = [
        (key, name)
        for key, name in _names(values)
        if ":" not in name and name.isidentifier() and name not in REGISTERED[key]
    ]
    for key, name in added:
        REGISTERED[key][name] = NotHere
    try:
        yield
    finally:
        for key, name in added:
            REGISTERED[key].pop(name, None)


def _names(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The names that aren't built in, each with the option under which it stands."""
    for key, built_in in OF_TRAINING.items():
        section = _value_at(values, key)
        name = section.get("type") if isinstance(section, dict) else section
        if isinstance(name, str) and name not in built_in:
            yield key, name
    auxiliary = _value_at(values, "training.loss.auxiliary")
    for name, about in auxiliary.items() if isinstance(auxiliary, dict) else ():
        loss = about.get("type") if isinstance(about, dict) else name
        if isinstance(loss, str) and loss not in AUXILIARY_LOSSES:
            yield "training.loss.auxiliary", loss


def _value_at(values: Any, key: str) -> Any:
    for name in key.split("."):
        values = values.get(name) if isinstance(values, dict) else None
    return values


def list_layers(directory: Path) -> list[Path]:
    """The files that a run's configuration for use is made of, the later over the earlier."""
    return [directory / "config.yml", *(path for path in (directory / TUNED,) if path.exists())]


def write_tuned(directory: Path, options: Mapping[str, Any], remarks: Sequence[str]) -> Path:
    """The file written: sections of options below remarks. Raises UserError where it can't be written."""
    path = directory / TUNED
    try:
        write_text(path, "".join(f"# {line}\n" for line in remarks) + yaml_text(dict(options)))
    except OSError as error:
        raise UserError(f"{path} can't be written: {error.strerror or error}") from error
    return path


def require_same_rows(task: Task, kept: Task, checkpoint: Path, directory: Path) -> None:
    """Raise UserError where rows of a checkpoint's weights have other names in the data of the run that resumes it.

    ``kept`` is the task as the checkpoint's own copy of prepared data has it; one that can't be read refuses nothing.
    """
    try:
        theirs = _row_names(kept)
    # Rows that a checkpoint has no copy of, such as a diarizer's speakers, are in the data's fingerprint.
    except (UserError, OSError, ValueError, KeyError):
        return
    for kind, names in _row_names(task).items():
        if kind not in theirs or [*names] == [*theirs[kind]]:
            continue
        before, now = (
            [one for one in side if one not in {*other}]
            for side, other in ((theirs[kind], names), (names, theirs[kind]))
        )
        change = f"{quote_names(before)} before, {quote_names(now)} now" if before or now else "in another order"
        raise UserError(
            f"{checkpoint}: its {kind} are not those of the run's data, which were prepared again ({change}): restore "
            f"the sources and delete {prepared_folder(directory)}, or start a new run under another name="
        )


def _row_names(task: Task) -> dict[str, Sequence[str]]:
    """The names of a task's rows by kind; of one of several, by the part, too."""
    return {**task.row_names()} | {
        f"{name}'s {kind}": names for name, part in task.inner_tasks.items() for kind, names in part.row_names().items()
    }


def bundled_files(directory: Path, configuration: str) -> dict[str, str | Path]:
    """The files that each checkpoint of a run is to have, by their path in it: texts, or files to copy."""
    found: dict[str, str | Path] = {"config.yml": configuration}
    found |= {path.relative_to(directory).as_posix(): path for path in _files_below(directory / CODE)}
    for folder in (directory, *sorted((directory / TASKS_FOLDER).glob("*"))):
        if is_prepared(folder):
            prepared = prepared_folder(folder)
            about = artifact_in(prepared).read()
            splits = sorted(about.get("statistics", {}))
            parts = [path for path in prepared.iterdir() if path.name not in splits]
            for path in (file for part in parts for file in ([part] if part.is_file() else _files_below(part))):
                if not path.name.startswith("."):
                    found[path.relative_to(directory).as_posix()] = path
            done = (prepared / PREPARED_FILE).relative_to(directory).as_posix()
            found[done] = json.dumps({**about, LEFT_OUT: splits}, ensure_ascii=False)
    return found


def _files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def run_with_checkpoints(folder: Path) -> Path | None:
    """The directory of the run whose checkpoints are in a folder; None where there is none."""
    directory = owner_at_home(folder)
    if directory is None or not (directory / "config.yml").exists():
        return None
    return directory if (directory / "checkpoints").resolve() == folder.resolve() else None
