"""The tasks that a YAML can name, and what each declares about its configuration, as one ``TaskSpec``.

A task is a folder of ``vaak.tasks`` with a ``spec.py`` that holds its SPEC; or a class that an installed package offers
as an entry point of the group ``vaak.tasks``; or a user's own class, ``./file.py:Name`` or ``package.module:Name``; or
a class that a program registered under a name. In place of a class there may be a task object, which is copied for each
run. Nothing else in ``config`` knows a task.
"""

from __future__ import annotations

import copy
import importlib
import logging
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

from vaak.config.base import Extensible, Section
from vaak.config.components import resolve_class, unknown_name
from vaak.config.training import TrainingConfig
from vaak.config.yaml.aliases import SectionShortcuts
from vaak.core.errors import UserError
from vaak.core.metrics import Metric

FindingKind = Literal["impossible", "impossible if given", "no effect", "remark"]


@dataclass(frozen=True)
class CheckFinding:
    """A check's finding about one option, by its dotted key.

    ``impossible`` ends the load. ``impossible if given`` does so only where the user gave the option, whose default
    otherwise yields. ``no effect`` and ``remark`` are warnings for who gave it; an option without effect is left out of
    resolved configurations.
    """

    kind: FindingKind
    key: str
    message: str


def impossible(key: str, message: str) -> CheckFinding:
    return CheckFinding("impossible", key, message)


def impossible_if_given(key: str, message: str) -> CheckFinding:
    return CheckFinding("impossible if given", key, message)


def no_effect(key: str, message: str) -> CheckFinding:
    return CheckFinding("no effect", key, message)


def unread_input(key: str, value: Any, message: str) -> CheckFinding:
    """An error where a file or model is named (``value``) that would not be read; else the option has no effect."""
    return impossible_if_given(key, f"{message}; leave it out") if value else no_effect(key, message)


def remark(key: str, message: str) -> CheckFinding:
    return CheckFinding("remark", key, message)


def only_length(experiment: Any) -> Mapping[str, str]:
    """The measures of difficulty that data have not whose examples are compared by their lengths only."""
    return dict.fromkeys(("lexical", "morphology"), "examples of this task are compared by length only")


@dataclass(frozen=True)
class ExportedFolder:
    """The values from which a card's Python code that uses an exported model is written.

    ``name`` is the folder's, with no character that Python would read otherwise, and ``files`` are those in it.
    ``options`` are the run's, as plain values; they may be a stranger's. ``languages`` are codes that the user gave.
    """

    name: str
    files: Sequence[str]
    options: Mapping[str, Any]
    languages: Sequence[str] = ()

    def option(self, key: str) -> Any:
        """Return the value of an option by its dotted key; None where there is none."""
        return value_at(self.options, key)


class TaskPipeline(NamedTuple):
    """A pipeline that a task brings, for ``vaak pipeline NAME``.

    ``where`` it is, as ``module:NAME``. ``shown`` is the folder, below the pipeline's own, of the run that
    ``vaak report`` shows of it; empty: none.
    """

    where: str
    shown: str = ""


@dataclass(frozen=True)
class ExportFormat:
    """A format in which a task writes its models, by the method ``export_NAME`` (a hyphen becomes an underscore).

    It is called with the model, the folder, which it makes, and options by their names.

    library
        The library that reads it, by the Hub's name.
    code
        Makes the Python code that uses an exported model, for its card; empty: none is shown.
    note
        What a user of the exported model has to know, in Markdown.
    options
        Those of ``vaak export`` that the method takes: ``expert``, ``vocoder``, ``words``.
    quantizations
        The types that the weights may have, by the format's own names.
    is_unmerged
        Whether low-rank adapters are written apart from the weights that they change.
    is_weights_alone
        Whether nothing but the program that made a model can run it from that: no one is advised to use it instead.
    """

    library: str
    code: Callable[[ExportedFolder], str] = lambda exported: ""
    note: str = ""
    options: tuple[str, ...] = ()
    quantizations: tuple[str, ...] = ()
    is_unmerged: bool = False
    is_weights_alone: bool = False


ANY_COMMANDS = ("eval {run}", "predict {run} INPUT")
"""How a run of any task is used."""


@dataclass(frozen=True)
class StarterData:
    """The data that a task's first YAML (``vaak init``) is made for.

    reads
        What a corpus must have: ``texts``, ``labelled texts``, ``pairs``, ``audio``, ``transcribed audio`` or
        ``audio with speakers``.
    described
        The same for people, in the error where there is none.
    usual_for
        The data for which this task is chosen where the user names none: one of the kinds above, or ``voice``
        (recordings of one reader with their texts) or ``conversations``.
    """

    reads: str
    described: str
    usual_for: str | None = None


@dataclass(frozen=True)
class TaskSpec:
    """The facts about a task without its class: types of its sections, defaults, checks, and how runs are used.

    task
        Where its class is, as ``module:Name``; a task of a user's own may leave it out, since the class holds the spec.
    task_where
        Its other classes, each for the experiments in which an option has a value: ``key=value`` → class.
    model, data, training
        Types of these sections; with ``Extensible``, any key is accepted.
    audio, corpus
        Types of ``global_config`` and of an item of ``datasets``, for a task that reads audio.
    defaults
        Values below everything that the user gives, as nested sections.
    aliases
        Other dotted keys → ours.
    shared, sides
        Sections of the model that stand for others (``vaak.config.yaml.aliases``).
    recognised_by, also_recognised_by
        Keys, and ``key=value``, by which a YAML without ``task:`` is recognized as this task's; the latter only count
        where the former point to no task, or to several.
        Those of Vaak's own tasks are RECOGNISED_BY of their folders, so that no spec is imported for them.
    short_names
        Classes by short name, under the dotted keys that they may stand at.
    used_by_models
        Keys of classes that using a trained model executes, not only training it.
    length_unit
        What the lengths of examples count, and so which budget a bucketed batch may have.
    metrics
        The metrics that evaluations in training may give in an experiment of this task, with the prefix of their split;
        a name that ends in ``/`` stands for all that begin with it. None: unknown.
    own_metrics
        The metrics that its meters compute: how each is read, and whether more of it is better. Those of a task from
        outside Vaak may be watched (``training.checkpoint.metric``) besides what ``metrics`` gives.
    losses
        Those of Vaak's main losses that fit what the models predict, by short name; None: any may.
    auxiliary_losses
        The task's own auxiliary losses, by the names that ``training.loss.auxiliary`` weighs; None: unknown.
    refused_batching
        Types of ``training.batching`` that the task's data can't have, each with the reason.
    has_logits
        Whether its models choose between classes, so that one can learn from another (``distillation``).
    has_class_weights
        Whether classes may have weights in the cross-entropy (``training.loss.main.weight``).
    loss_reads_head
        Whether its main loss may read what logits are the product of (``training.performance.logits``).
    refused_difficulties
        Measures of ``training.curriculum`` that the data of an experiment don't have, each with the reason.
    num_parameters
        About how many parameters the model of an experiment has; None: unknown.
    follows
        Values of options that nobody gave and that follow from others, by dotted key, with why; from a function that
        gives a value (None: not given) by its dotted key, and the folder of the configuration.
    newer
        Values that options which came later have in runs that were begun before them, by dotted key; from a function
        that gives a value by its dotted key. Read only where a run's own configuration doesn't have the key.
    settles
        Options that are left open (``auto``), by dotted key, with the value that they have for an experiment on a
        device of a type (``cuda``), and why. It is recorded with the run, which keeps it.
    checks
        Finds options that exclude each other or have no effect, in an experiment of this task.
    commands
        The command lines, without ``vaak``, to try on a trained run, in this order; from a function that gives the
        value of one of its options by dotted key (None: not there). ``{run}`` stands for the run's folder.
        ``eval {run}`` is of the test split where there is one, and left out where there is nothing to evaluate.
    starter
        Where the function is that fills a first YAML (``vaak init``), as ``module:Name``: sections of options, from
        the corpora that were found, their amounts and the device (``vaak.runs.starter``). None: there is none.
    starter_data
        The data that the starter needs. None: any audio for a task that reads audio, else texts.
    example
        Where the function is that writes a small data set into a folder (``vaak init --example``).
    endpoints
        What ``vaak serve`` answers for a trained run, besides ``/predict``, by the names of ``vaak.serve.routes``; from
        a function that gives the value of one of its options by dotted key (None: not there).
    exports
        The formats that its models can be written in, the most useful first. ``Task.refused_exports`` says which of
        them a run can't have, and why.
    drawings
        Where the functions are that draw more than a run's history (``vaak plot FOLDER... NAME``), by name, as
        ``module:Name``. Each takes the folders and the file to write.
    sections
        Where the functions are that add to the report of a run, as ``module:Name``: of the run's facts
        (``vaak.report.run_facts.RunFacts``), parts of the page.
    hub_tag
        The Hugging Face Hub's name for what its models do (``pipeline_tag``).
    opens
        Options with which a pretrained model is used untrained, as nested sections; from a function of the model's
        configuration (``config.json``, or a vocoder's ``config.yaml``), and of its folder or its name on the Hub. A
        text completes "MODEL …" and says why it can't be used so; None: it isn't one of this task's.
    uses
        The commands, besides those for runs of any task, that use its runs (``transcribe``), and the options that may
        name one (``predict --embeddings``, ``data.decoding.lm``), each with the ``key=value`` of which an experiment
        must have one; empty: any experiment does. Its class has the methods that they call.
    pipelines
        The pipelines that it brings, by name.
    """

    task: str | None = None
    task_where: Mapping[str, str] = field(default_factory=dict)
    model: type[Section] | type[Extensible] = Extensible
    data: type[Section] | type[Extensible] = Extensible
    training: type[TrainingConfig] = TrainingConfig
    audio: type[Section] | None = None
    corpus: type[Section] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sides: Mapping[str, str] = field(default_factory=dict)
    recognised_by: tuple[str, ...] = ()
    also_recognised_by: tuple[str, ...] = ()
    short_names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    used_by_models: tuple[str, ...] = ()
    length_unit: Literal["tokens", "seconds"] | None = None
    metrics: Callable[[Any], Iterable[str]] | None = None
    own_metrics: tuple[Metric, ...] = ()
    losses: Callable[[Any], Iterable[str]] | None = None
    auxiliary_losses: tuple[str, ...] | None = None
    refused_batching: Mapping[str, str] = field(default_factory=dict)
    has_logits: bool = True
    has_class_weights: bool = False
    loss_reads_head: bool = False
    refused_difficulties: Callable[[Any], Mapping[str, str]] = lambda experiment: {}
    num_parameters: Callable[[Any], int] | None = None
    follows: Callable[[Callable[[str], Any], Path], Mapping[str, tuple[Any, str]]] = lambda get, folder: {}
    newer: Callable[[Callable[[str], Any]], Mapping[str, Any]] = lambda get: {}
    settles: Callable[[Any, str], Mapping[str, tuple[Any, str]]] = lambda experiment, device: {}
    checks: Callable[[Any], Iterable[CheckFinding]] = lambda experiment: ()
    commands: Callable[[Callable[[str], Any]], Iterable[str]] = lambda get: ANY_COMMANDS
    endpoints: Callable[[Callable[[str], Any]], Iterable[str]] = lambda get: ()
    starter: str | None = None
    starter_data: StarterData | None = None
    example: str | None = None
    exports: Mapping[str, ExportFormat] = field(default_factory=dict)
    drawings: Mapping[str, str] = field(default_factory=dict)
    sections: tuple[str, ...] = ()
    hub_tag: str | None = None
    opens: Callable[[Mapping[str, Any], str], Mapping[str, Any] | str | None] = lambda about, source: None
    uses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pipelines: Mapping[str, TaskPipeline] = field(default_factory=dict)

    @property
    def stand_ins(self) -> SectionShortcuts:
        """Which sections of the model stand for others."""
        return SectionShortcuts(self.shared, self.sides)


def value_at(options: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key of nested plain values; None where there is none.

    >>> value_at({"model": {"d_model": 64}}, "model.d_model"), value_at({"model": 3}, "model.d_model")
    (64, None)
    """
    value: Any = options
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def load_name(reference: str) -> Any:
    """The object that ``package.module:Name`` names.

    >>> load_name("vaak.config.tasks:TaskSpec") is TaskSpec
    True
    """
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


log = logging.getLogger("vaak")
TASKS_PACKAGE = "vaak.tasks"
ENTRY_POINTS = "vaak.tasks"
AUDIO_SECTIONS = frozenset({"datasets", "global_config"})
REGISTERED_TASKS: dict[str, Any] = {}
"""The tasks that this program registered: classes, or task objects."""


class RecognisedBy(NamedTuple):
    """The keys that a task is recognized by (``TaskSpec``), and whether it reads audio."""

    own: tuple[str, ...]
    shared: tuple[str, ...] = ()
    reads_audio: bool = False


class Tasks(Mapping[str, TaskSpec]):
    """The tasks that have a name, in the order of their names; each one's spec is imported when it is asked for.

    Tasks of other packages are imported only to list all, or to look up theirs; a warning names each that can't be.
    """

    def __getitem__(self, name: str) -> TaskSpec:
        if name not in self:
            raise KeyError(name)
        return load_spec(name)

    def __contains__(self, name: object) -> bool:
        return (
            name in REGISTERED_TASKS or name in built_in() or (name in installed() and why_unusable(str(name)) is None)
        )

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*built_in(), *usable(), *REGISTERED_TASKS}))

    def __len__(self) -> int:
        return len(list(iter(self)))


@cache
def built_in() -> frozenset[str]:
    """Return the names of Vaak's tasks: the folders of ``vaak.tasks`` that have a spec."""
    package = importlib.import_module(TASKS_PACKAGE)
    folders = [(module.name, Path(folder)) for folder in package.__path__ for module in pkgutil.iter_modules([folder])]
    return frozenset(name for name, folder in folders if (folder / name / "spec.py").is_file())


@cache
def installed() -> Mapping[str, EntryPoint]:
    """Return the tasks of other packages that are installed, whether they can be imported or not."""
    return {point.name: point for point in entry_points(group=ENTRY_POINTS) if point.name not in built_in()}


@cache
def why_unusable(name: str) -> str | None:
    """Import a task of another package; return why it can't be imported, None if it can."""
    try:
        load_spec(name)
    except UserError as error:
        return str(error)
    return None


@cache
def usable() -> frozenset[str]:
    """Return the tasks of other packages that can be imported; a warning says why another is left out."""
    reasons = {name: why_unusable(name) for name in installed()}
    for reason in filter(None, reasons.values()):
        log.warning("%s; it is left out", reason)
    return frozenset(name for name, reason in reasons.items() if reason is None)


TASKS = Tasks()


def register_task(name: str, task: Any) -> None:
    """Let ``task: name`` stand for a class, or for a task object, in this program; again, for another one.

    A run of it can be opened in every program that registers it. Raises UserError where the name is taken, or where
    this is not a task.
    """
    if not name.isidentifier():
        raise UserError(
            f"{name!r} can't be the name of a task: a name may contain only letters, digits and underscores"
        )
    if name in built_in() or name in installed():
        raise UserError(f"there is a task {name} already; register yours under another name")
    _require_spec(task, name)
    REGISTERED_TASKS[name] = task


def load_spec(task: str) -> TaskSpec:
    """The spec of a task, by its name or by the absolute reference of its class, which is then imported.

    Raises UserError where a class has none.
    """
    if task in REGISTERED_TASKS:
        return _require_spec(REGISTERED_TASKS[task], task)
    return _lasting_spec(task)


_LASTING_SPECS: dict[str, TaskSpec] = {}


def _lasting_spec(task: str) -> TaskSpec:
    """The spec of a task that isn't registered, kept because it can't change."""
    if task not in _LASTING_SPECS:
        is_ours = task in built_in()
        found = load_name(f"{TASKS_PACKAGE}.{task}.spec:SPEC") if is_ours else _require_spec(_find_class(task), task)
        _LASTING_SPECS[task] = found
    return _LASTING_SPECS[task]


def specs_from_outside() -> list[TaskSpec]:
    """Return the specs of tasks from outside Vaak that this program has: registered, or already looked up."""
    looked_up = [spec for name, spec in _LASTING_SPECS.items() if name not in built_in()]
    return [*map(load_spec, REGISTERED_TASKS), *looked_up]


def list_pipelines() -> dict[str, TaskPipeline]:
    """Return the pipelines of all tasks that have a name, by their own names; every spec is imported."""
    return {name: pipeline for spec in TASKS.values() for name, pipeline in spec.pipelines.items()}


def spec_by_name(task: object) -> TaskSpec:
    """Return the spec of a task that has a name here; for any other a spec without facts, so that no code is executed.

    >>> spec_by_name("lm").hub_tag, spec_by_name("./own.py:Task").hub_tag
    ('text-generation', None)
    """
    return TASKS[task] if isinstance(task, str) and task in TASKS else TaskSpec()


def _require_spec(task: Any, name: str) -> TaskSpec:
    """The spec of a class or object. Raises UserError where it has none."""
    found = getattr(task, "SPEC", None)
    if not isinstance(found, TaskSpec):
        raise UserError(f"{name} is not a task: it has no SPEC; make it a subclass of vaak.Task")
    return found


def task_class(task: str) -> Callable[[Any, Path, Path], Any]:
    """Return what makes a task of ``(experiment, directory, folder)``, by its name or, absolute, by its class.

    Raises UserError where there is none.
    """
    found = _find_class(task)
    others = _lasting_spec(task).task_where if task in built_in() else {}

    def chosen(experiment: Any, directory: Path, folder: Path) -> Any:
        return _choose_class(others, experiment, found)(experiment, directory, folder)

    def copied(experiment: Any, directory: Path, folder: Path) -> Any:
        made = copy.copy(found)
        made.experiment, made.directory, made.folder, made.reference = experiment, directory, folder, task
        return made

    if isinstance(found, type):
        return chosen if others else found
    return copied


def _choose_class(others: Mapping[str, str], experiment: Any, usual: Any) -> Any:
    """Return the first of the other classes of a task whose ``key=value`` an experiment has; else the usual one."""
    for condition, reference in others.items():
        if has_value(experiment, condition):
            return load_name(reference)
    return usual


def has_value(experiment: Any, condition: str) -> bool:
    """Return whether an experiment has the value of a condition, ``key=value``."""
    key, _, value = condition.partition("=")
    return str(attrgetter(key)(experiment)) == value


def _find_class(task: str) -> Any:
    """The class of a task, or the task object."""
    if task in REGISTERED_TASKS:
        return REGISTERED_TASKS[task]
    if task in built_in():
        return load_name(str(_lasting_spec(task).task))
    if task in installed():
        return _imported(installed()[task])
    if ":" not in task:
        raise UserError(f"the task {unknown_name(task, TASKS)}")
    return resolve_class(task, {}, Path("/"))


def _imported(point: EntryPoint) -> Any:
    """Return what another package's entry point names. Raises UserError where it can't be imported, for any reason."""
    try:
        return point.load()
    except (Exception, SystemExit) as error:
        try:
            package = f"the package {point.dist.name}" if point.dist and point.dist.name else "an installed package"
        except Exception:
            # Its METADATA is missing or malformed.
            package = "an installed package"
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"the task {point.name} of {package} ({point.value}) can't be imported: {reason}") from error


def tasks_recognised(keys: set[str]) -> list[str]:
    """Return the tasks that have one of these dotted keys as their own; of several, or none, those that share one.

    Sections of audio leave only the tasks that read audio. Of Vaak's own tasks only the folders'
    ``__init__`` is imported; those of other packages only where these have no single answer.
    """
    tasks: dict[str, RecognisedBy] = {name: load_name(f"{TASKS_PACKAGE}.{name}:RECOGNISED_BY") for name in built_in()}
    tasks |= {name: _recognised_by(load_spec(name)) for name in REGISTERED_TASKS}
    own, shared = _tasks_having(keys, tasks)
    if len(own) != 1:
        others = [name for name in installed() if why_unusable(name) is None]
        own, shared = _tasks_having(keys, tasks | {name: _recognised_by(load_spec(name)) for name in others})
    return own if len(own) == 1 else shared or own


def _recognised_by(spec: TaskSpec) -> RecognisedBy:
    return RecognisedBy(spec.recognised_by, spec.also_recognised_by, spec.audio is not None)


def _tasks_having(keys: set[str], tasks: Mapping[str, RecognisedBy]) -> tuple[list[str], list[str]]:
    """Return the tasks that have one of the keys as their own, and those (if any, of these) that share one."""
    able = {name: tasks[name] for name in sorted(tasks) if tasks[name].reads_audio or not keys & AUDIO_SECTIONS}
    own = [name for name, row in able.items() if keys & set(row.own)]
    return own, [name for name, row in able.items() if keys & set(row.shared) and (not own or name in own)]
