"""Open a trained run for use: its configuration, its task, and the weights of a checkpoint.

RUN/tuned.yml has options found after training (vaak tune), which override RUN/config.yml wherever a run is used.
Training doesn't read it, so the evaluations of a resumed run stay comparable.

A checkpoint can be opened without its run, because it has copies of what it needs. While the run exists, opening one of
its checkpoints uses the run's own files.

    step-00001000/config.yml      the run's configuration
                  prepared/       prepared files such as the tokenizer, without the data of the splits
                  tasks/NAME/     the same for each of several tasks
                  code/           users' own classes

Names that only the training program had registered (of a loss, an optimizer, a schedule) aren't needed here.
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
from vaak.runs.use import Use

log = logging.getLogger("vaak")
READ_IN_USE = (
    *("training.batch_size", "training.validation.batch_size", "training.mixed_precision"),
    *("training.deterministic", "training.performance.", "training.loss.", "training.eval_knobs."),
)
"""The options of ``training`` that are also read when a trained model is used."""
ONLY_TRAINING_READS = re.compile(
    r"(data\.tasks\.\w+\.)?(training|wandb|distillation|data\.(target_)?tokenizer|data\.augmentation|data\.cache_dir"
    r"|data\.token_dropout|data\.shift_windows|model\.(.*\.)?(attention_)?dropout)(\.|$)"
)
"""Options that decide how a model is trained, which have no effect on one that is."""
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
    """The precision of predictions; they call the model within its ``autocast()``."""


def resolve_run(path: Path) -> Path:
    """Return the run directory of a run, a checkpoint or a pointer to one; a checkpoint without its run is one itself.

    Raises CheckpointError for a path that isn't in a run, and UserError for a run in the format of a later version, or
    with links that lead out of it.
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
    """Return whether a folder is a checkpoint in a run, wherever that was moved or copied to."""
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
    use: Use | None = None,
) -> OpenedRun:
    """Open a run (its best checkpoint), one of its checkpoints, or a pretrained model (``vaak.runs.base``).

    ``files`` and ``overrides`` override the run's configuration, as in training, and RUN/tuned.yml. If they name other
    data, their ``splits`` are prepared in ``temporary_folder``, with what the run learned from its own data (its
    tokenizer, its speakers). For a pretrained model they name the data of evaluations.

    - ``device``: cpu, cuda, mps or auto
    - ``weights``: ``own``, or their ``average`` (training.ema); ``auto`` takes those that the run itself evaluated
    - ``precision``: auto, fp32, bf16, fp16 or int8. In 16 bits, linear layers also store their weights in 16 bits. In
      int8, which requires a CPU, linear layers multiply in 8 bits, and all else is fp32.
    - ``trust_code``: execute user code that comes with the run, if the model can't be used without it
    - ``use``: what it is opened for; models of other tasks are refused before ``overrides`` and weights are read

    Raises UserError if ``average`` is asked for and the checkpoint has none, if code isn't trusted, and for a model
    that can't be used so.
    """
    used_in = _find_precision(precision, pick_device(device))
    if is_base(path):
        if weights == "average":
            raise UserError(f"{path} has no averaged weights: it is a pretrained model")
        base, task = _open_base(path, files, overrides, trust_code, temporary_folder, splits, use)
        model = _put_to_use(_build_model(task, device), used_in, precision == "int8")
        return OpenedRun(task.experiment, task.directory, Path(base.source), task, model, "own", used_in)
    directory = resolve_run(path)
    trust_code = trust_code or is_trusted_place(path) or is_trusted_place(directory)
    own, loaded = _load_options(path, directory, files, overrides, trust_code, use)
    experiment = loaded.experiment
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
    model = _put_to_use(model, used_in, precision == "int8")
    return OpenedRun(experiment, directory, checkpoint, task, model, weights, used_in)


def _load_options(
    path: Path,
    directory: Path,
    files: Sequence[Path],
    overrides: Sequence[str],
    trust_code: bool,
    use: Use | None,
) -> tuple[Experiment[Any, Any], Loaded]:
    """Return the experiment of the run at ``path`` as it was trained, and as overridden.

    Differences may be refused, or name other data to prepare. Raises UserError as ``open_run`` does.
    """
    layers = list_layers(directory)
    of_run = dict.fromkeys(layers, directory)
    with names_of_training_known(directory):
        own = load(layers, trust_code=trust_code, of_run=of_run).experiment
        if not trust_code:
            require_trust_to_use(own, directory)
        if use is not None:
            _require_use(use, path, own, directory)
        for text in overrides:
            key, _, value = map(str.strip, text.partition("="))
            if key == "task" and value != own.task:
                raise UserError(f"{text}: the run was trained with task {own.task}; leave it out")
        loaded = load([*layers, *files], overrides, trust_code=trust_code, of_run=of_run)
    if not trust_code:
        require_trust(loaded, loaded.experiment.spec.used_by_models)
    return own, loaded


def _build_model(task: Any, device: str) -> torch.nn.Module:
    """Build the model of a task on a device."""
    model = make_model(task).to(pick_device(device))
    set_variable_length(model, task.experiment.training.performance.attention == "auto")
    return model


def _load_checkpoint(
    model: torch.nn.Module, checkpoint: Path, experiment: Experiment[Any, Any], weights: str
) -> Literal["own", "average"]:
    """Load ``weights`` (auto, own or average) of a checkpoint, and return which these are."""
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
    use: Use | None,
) -> tuple[Base, Any]:
    """Return a pretrained model and the task that uses it, whose temporary folder exists as long as the task.

    Raises UserError if no task can use it untrained, or not for this ``use``, and for ``splits`` without data.
    """
    base = Base.find(path)

    def make(directory: Path) -> Any:
        layer = base.write_options(directory)
        if use is not None:
            use.require(path, load([layer]).experiment, is_pretrained=True)
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
            raise UserError(f"{path} is a pretrained model and has no data; name some: --data FILE, or a YAML")
        task.prepare_eval_data(without, temporary_folder, splits)
    return base, task


def _without_data(experiment: Experiment[Any, Any], own: Experiment[Any, Any]) -> Experiment[Any, Any]:
    """Return the experiment with the data of ``own``, and all of its other options."""
    data = experiment.data
    if "corpus" in type(data).model_fields:
        data = data.model_copy(update={"corpus": own.data.corpus})
    return experiment.model_copy(update={"datasets": own.datasets, "data": data})


def _find_precision(name: str, device: torch.device) -> Precision:
    """Return the precision of all but linear layers. Raises UserError if the device can't compute these in 8 bits."""
    if name == "int8":
        require_int8(device)
    return Precision("no" if name in ("fp32", "int8") else name, device)


def _put_to_use(model: torch.nn.Module, precision: Precision, in_int8: bool) -> torch.nn.Module:
    """Return the model in evaluation mode, its weights in 16 bits if products would round them to that anyway."""
    if in_int8:
        replaced, total = compute_in_int8(model)
        log.warning("precision int8: %d of %d linear layers compute in 8 bits; scores are rounded", replaced, total)
    if precision.name != "no":
        keep_frozen_weights_in(DTYPES[precision.name], model.requires_grad_(False))
    return model.eval()


def begin_with_weights(
    model: torch.nn.Module, task: Task, options: CheckpointConfig, names: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Copy the weights of ``training.checkpoint.init_from``, if given, into a model, matching named rows by name.

    ``names`` replaces the task's names of rows, if the task isn't prepared yet. Raises CheckpointError for weights of
    another model, and UserError for a pattern that matches nothing.
    """
    if options.init_from is None:
        return
    weights, own = [*task.named_rows(model)], task.row_names() if names is None else names
    source = _read_row_names(Path(options.init_from)) if weights and own else {}
    initialise(model, options, NamedRows(weights, own, source))


def _read_row_names(path: Path) -> Mapping[str, Sequence[str]]:
    """Return the names of the rows of a run's weights, by kind; if they can't be read, warn and return none."""
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
        log.warning("%s: rows of tokens, labels and speakers are copied in order, not by name: %s", path, error)
        return {}


def select_task(opened: OpenedRun, name: str | None) -> OpenedRun:
    """Return one task of a multitask run as if it were a run of its own; a run of one task is returned unchanged.

    Raises UserError if the run has no task of this ``name``, or has several and none is named.
    """
    part = _select_part(opened.task, name, opened.directory)
    if part is opened.task:
        return opened
    return replace(opened, experiment=part.experiment, task=part, model=opened.model.get_submodule(f"tasks.{name}"))


def _select_part(task: Any, name: str | None, directory: Path) -> Any:
    """Return the task ``name`` of a run of several; that of a run of one. Raises UserError as ``select_task`` does."""
    parts = task.inner_tasks
    if name in parts:
        return parts[name]
    if parts:
        remedy = f"give --task with one of {', '.join(parts)}"
        if name is None:
            raise UserError(f"{directory} has several tasks: {remedy}")
        require_known([name], parts, f"{directory} has no task", remedy=remedy, error=UserError)
    if name is not None:
        raise UserError(f"{directory} has one task, {task.experiment.task}: leave out --task")
    return task


def _require_use(use: Use, path: Path, own: Experiment[Any, Any], directory: Path) -> None:
    """Raise UserError unless the run at ``path`` may be used so, or, ``of_part``, the task of it that is named."""
    if use.of_part:
        own = _select_part(task_class(own.reference)(own, directory, directory), use.part, directory).experiment
    use.require(path, own, is_pretrained=False)


def _prepare_again(task: Task, own: Experiment[Any, Any], folder: Path, splits: tuple[str, ...]) -> None:
    """Prepare data of ``splits`` that checkpoints don't have copies of. Raises UserError if their sources are gone."""
    try:
        task.prepare_eval_data(own, folder, splits)
    except UserError as error:
        what = f"the data of {', '.join(splits)} aren't kept with these checkpoints"
        raise UserError(f"{what}, and {error}; to evaluate on other data, name it: vaak eval RUN DATA.yml") from error


def _refuse_another_model(own: Experiment[Any, Any], asked: Experiment[Any, Any]) -> None:
    """Raise UserError for options of the model that the run wasn't trained with."""
    if asked.reference != own.reference:
        raise UserError(f"task is {asked.task}, but the run was trained with {own.task}; leave it out")
    for change in changes_between(resolved_values(own), resolved_values(asked), own.reference):
        if change.key.startswith("model.") and change.resume_class == "refused":
            after, before = format_value(change.after), format_value(change.before)
            raise UserError(f"{change.key} is {after}, but the run was trained with {before}; leave it out")


def _warn_of_unread_options(own: Experiment[Any, Any], asked: Experiment[Any, Any]) -> None:
    """Warn of overrides that only training reads."""
    changes = changes_between(resolved_values(own), resolved_values(asked), own.reference)
    of_training = [change.key for change in changes if ONLY_TRAINING_READS.match(change.key)]
    unread = [key for key in of_training if not key.startswith(READ_IN_USE)]
    if unread:
        log.warning("%s: no effect here, because only training reads it", ", ".join(unread))


def _report_on_overrides(loaded: Loaded) -> None:
    """Log the warnings about overrides on the command line; those about a run's own options were logged in training."""
    for warning in loaded.warnings:
        if warning.startswith(f"{COMMAND_LINE}: "):
            log.warning("warning: %s", warning)


OF_TRAINING: dict[str, Collection[str]] = {
    "training.loss.main": LOSSES,
    "training.optimizer": UPDATE_RULES,
    "training.scheduler": SCHEDULES,
}
"""Options that may have a registered name, but aren't needed to use a model, and their built-in names."""


class NotHere:
    """Placeholder for a class that only the program that trained a run has registered."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise UserError("this needs a class that the training program of this run registered; register it here, too")


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
    """Yield the options that have a name that isn't built in, with that name."""
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
    """Return the files of a run's configuration for use, later ones overriding earlier ones."""
    return [directory / "config.yml", *(path for path in (directory / TUNED,) if path.exists())]


def write_tuned(directory: Path, options: Mapping[str, Any], remarks: Sequence[str]) -> Path:
    """Write RUN/tuned.yml, with ``remarks`` as comments, and return its path. Raises UserError if that fails."""
    path = directory / TUNED
    try:
        write_text(path, "".join(f"# {line}\n" for line in remarks) + yaml_text(dict(options)))
    except OSError as error:
        raise UserError(f"{path} can't be written: {error.strerror or error}") from error
    return path


def require_same_rows(task: Task, kept: Task, checkpoint: Path, directory: Path) -> None:
    """Raise UserError if the names of rows in the run's prepared data differ from those of the checkpoint's weights.

    ``kept`` is the task with the checkpoint's own copy of prepared data; if that can't be read, nothing is refused.
    """
    try:
        theirs = _list_row_names(kept)
    # Names that a checkpoint has no copy of, such as a diarizer's speakers, are in the fingerprint of the data.
    except (UserError, OSError, ValueError, KeyError):
        return
    for kind, names in _list_row_names(task).items():
        if kind not in theirs or [*names] == [*theirs[kind]]:
            continue
        before, now = (
            [one for one in side if one not in {*other}]
            for side, other in ((theirs[kind], names), (names, theirs[kind]))
        )
        change = f"{quote_names(before)} before, {quote_names(now)} now" if before or now else "in another order"
        raise UserError(
            f"{checkpoint}: its {kind} differ from those of the run's data, which were prepared again ({change}): "
            f"restore the sources and delete {prepared_folder(directory)}, or start a new run under another name="
        )


def _list_row_names(task: Task) -> dict[str, Sequence[str]]:
    """Return the names of a task's rows by kind, and those of inner tasks as "TASK's KIND"."""
    return {**task.row_names()} | {
        f"{name}'s {kind}": names for name, part in task.inner_tasks.items() for kind, names in part.row_names().items()
    }


def bundled_files(directory: Path, configuration: str) -> dict[str, str | Path]:
    """Return the files that are bundled with each checkpoint, by their path in it: their text, or a file to copy."""
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
    """Return the directory of the run whose checkpoints are in a folder; None if it isn't such a folder."""
    directory = owner_at_home(folder)
    if directory is None or not (directory / "config.yml").exists():
        return None
    return directory if (directory / "checkpoints").resolve() == folder.resolve() else None
