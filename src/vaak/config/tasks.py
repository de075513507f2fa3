"""The tasks that a YAML can name, and what each declares about its configuration, as one ``TaskSpec``.

A task is one of these:

- a folder of ``vaak.tasks`` with a ``spec.py`` that has its SPEC
- a class that an installed package offers as an entry point of the group ``vaak.tasks``
- a user's own class, ``./file.py:Name`` or ``package.module:Name``
- a class that a program registered under a name

Instead of a class there may be a task object, which is copied for each run. Nothing else in ``config`` knows a task.
"""

from __future__ import annotations

import copy
import importlib
import logging
import pkgutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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

NetworkKind = Literal["stacks", "transformers", "layerless"]
OF_STACKS: tuple[NetworkKind, ...] = ("stacks",)
LAYERLESS: tuple[NetworkKind, ...] = ("layerless",)
FindingKind = Literal["impossible", "impossible if given", "no effect", "remark"]


@dataclass(frozen=True)
class CheckFinding:
    """A check's finding about one option, by its dotted key.

    - ``impossible``: an error
    - ``impossible if given``: an error if the user gave the option; its default is ignored
    - ``no effect`` and ``remark``: a warning if the user gave the option; an option without effect is left out of
      resolved configurations
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
    """Return an error if a file or model is named (``value``) that would not be read; else ``no effect``."""
    return impossible_if_given(key, f"{message}; leave it out") if value else no_effect(key, message)


def remark(key: str, message: str) -> CheckFinding:
    return CheckFinding("remark", key, message)


def only_length(experiment: Any) -> Mapping[str, str]:
    """Return the measures of difficulty, with the reason, that data lack if examples have nothing but a length."""
    return dict.fromkeys(("lexical", "morphology"), "examples of this task are compared by length only")


@dataclass(frozen=True)
class ExportedFolder:
    """An exported folder, as the functions see it that write the Python code in its model card.

    ``name`` is the folder's name, without characters that Python code would have to escape, and ``files`` are the
    names in it. ``options`` are the run's, as plain values; they may come from a stranger. ``languages`` are codes that
    the user gave.
    """

    name: str
    files: Sequence[str]
    options: Mapping[str, Any]
    languages: Sequence[str] = ()

    def option(self, key: str) -> Any:
        """Return the value of an option by its dotted key; None if it doesn't exist."""
        return value_at(self.options, key)


class TaskPipeline(NamedTuple):
    """A pipeline that a task brings, for ``vaak pipeline NAME``.

    ``where`` is its place, as ``module:NAME``. ``shown`` is the folder in the pipeline's own of the run that
    ``vaak report`` shows for it; empty: none.
    """

    where: str
    shown: str = ""


@dataclass(frozen=True)
class ExportFormat:
    """A format in which a task writes its models, by the method ``export_NAME`` (a hyphen becomes an underscore).

    The method is called with the model, the folder to create, and its options by name.

    library
        The library that reads the format, by its name on the Hub.
    code
        Writes the Python code that uses an exported model, for its card; empty: none is shown.
    note
        What users of the exported model have to know, in Markdown.
    options
        The options of ``vaak export`` that the method takes: ``expert``, ``vocoder``, ``words``.
    quantizations
        The types that the weights may have, by the format's own names.
    is_unmerged
        Whether low-rank adapters are written separately from the weights that they change.
    is_weights_alone
        Whether only the program that made a model can run it from this format, which is then not recommended.
    """

    library: str
    code: Callable[[ExportedFolder], str] = lambda exported: ""
    note: str = ""
    options: tuple[str, ...] = ()
    quantizations: tuple[str, ...] = ()
    is_unmerged: bool = False
    is_weights_alone: bool = False


ANY_COMMANDS = ("eval {run}", "predict {run} INPUT")
"""Commands that use a run of any task."""


@dataclass(frozen=True)
class StarterData:
    """The data that a task's first YAML (``vaak init``) is made for.

    reads
        What a corpus must have: ``texts``, ``labelled texts``, ``pairs``, ``audio``, ``transcribed audio`` or
        ``audio with speakers``.
    described
        The same in words, for the error if no corpus has it.
    usual_for
        The data for which this task is chosen if the user names no task: one of the kinds above, ``voice`` (recordings
        of one reader with their texts) or ``conversations``.
    """

    reads: str
    described: str
    usual_for: str | None = None


@dataclass(frozen=True)
class TaskSpec:
    """Everything that Vaak knows about a task without importing its class.

    task
        The place of its class, as ``module:Name``; a user's own task may leave it out, since its class has the spec.
    task_where
        Other classes for experiments in which an option has a certain value: ``key=value`` → class.
    model, data, training
        Types of these sections; with ``Extensible``, any key is accepted.
    audio, corpus
        Types of ``global_config`` and of an item of ``datasets``, for a task that reads audio.
    defaults
        Defaults of the task, as nested sections; everything that the user gives overrides them.
    aliases
        Other dotted keys → Vaak's own.
    shared, sides
        Sections of the model that stand for others (``vaak.config.yaml.aliases``).
    recognised_by, also_recognised_by
        Keys, and ``key=value``, by which a YAML without ``task:`` is recognised as this task's. The latter only count
        if the former match no task, or several. Vaak's own tasks declare them as RECOGNISED_BY in their packages, so
        that no spec has to be imported.
    short_names
        Short names of classes, by the dotted keys at which they are allowed.
    used_by_models
        Dotted keys of classes that are executed when a trained model is used, not only in training.
    length_unit
        The unit of examples' lengths, and so of the budget of a bucketed batch.
    metrics
        The metrics that evaluations in training may give in an experiment of this task, with the prefix of their split;
        a name that ends in ``/`` stands for all that begin with it. None: unknown.
    own_metrics
        The metrics that its meters compute: how each is printed, and whether higher is better. Those of a task from
        outside Vaak may be watched (``training.checkpoint.metric``) in addition to ``metrics``.
    losses
        The main losses of Vaak that suit the predictions of its models, by short name; None: any.
    auxiliary_losses
        The task's own auxiliary losses, by the names that ``training.loss.auxiliary`` weighs; None: unknown.
    refused_batching
        Types of ``training.batching`` that the task's data can't have, with the reason.
    has_logits
        Whether its models predict class probabilities, which another model can learn from (``distillation``).
    has_class_weights
        Whether classes may have weights in the cross-entropy (``training.loss.main.weight``).
    loss_reads_head
        Whether its main loss can be computed from the two factors of logits (``training.performance.logits``).
    refused_difficulties
        Measures of ``training.curriculum`` that the data of an experiment lack, with the reason.
    networks
        The kinds of networks that an experiment's model consists of: ``stacks`` of ``vaak.nn``, of ``transformers``, or
        ``layerless``; empty: unknown. Options of layers act on some of them only.
    explain_uncaptured
        Why no CUDA graph of an experiment's steps can be captured (``training.performance.cuda_graphs``); None: it can,
        as far as is known before training.
    num_parameters
        Estimates the number of parameters of an experiment's model; None: unknown.
    follows
        Values of options that aren't given and follow from others, by dotted key, with the reason. Arguments: a
        function that returns a value (None: not given) by its dotted key, and the folder of the configuration.
    newer
        Values that keep the behaviour of runs which started before an option existed, by dotted key. Argument: a
        function that returns a value by its dotted key. Used only if a run's configuration lacks the key.
    settles
        Values of options left open (``auto``) for an experiment on a type of device (``cuda``), by dotted key, with the
        reason. They are recorded with the run, which keeps them.
    checks
        Finds options that exclude each other or have no effect, in an experiment of this task.
    commands
        Command lines, without ``vaak``, to suggest after training, in this order. ``{run}`` stands for the run
        directory. ``eval {run}`` evaluates the test split if there is one, and is left out without a split. Argument: a
        function that returns the value of one of the run's options by dotted key (None: it doesn't exist).
    starter
        The function that fills a first YAML (``vaak init``), as ``module:Name``: returns sections of options, given the
        corpora that were found, their amounts and the device (``vaak.runs.starter``). None: there is none.
    starter_data
        The data that the starter needs. None: any audio for a task that reads audio, else texts.
    example
        The function that writes a small data set into a folder (``vaak init --example``), as ``module:Name``.
    endpoints
        The endpoints of ``vaak serve`` for a trained run, besides ``/predict``, by their names in
        ``vaak.serve.app.ENDPOINTS``. Argument: as of ``commands``.
    exports
        The formats in which its models can be written, the most useful first. ``Task.refused_exports`` returns those
        that a run can't have, with the reason.
    drawings
        Functions that draw more than a run's history (``vaak plot FOLDER... NAME``), by name, as ``module:Name``. Each
        takes the folders and the file to write.
    sections
        Functions that return further parts of a run's report, as ``module:Name``, given the facts about the run
        (``vaak.report.run_facts.RunFacts``).
    hub_tag
        The Hugging Face Hub's name for what its models do (``pipeline_tag``).
    opens
        Options with which a pretrained model is used untrained, as nested sections. Arguments: the model's
        configuration (``config.json``, or a vocoder's ``config.yaml``), and its folder or name on the Hub. A string
        completes "MODEL …" with the reason why it can't be used; None: it isn't a model of this task.
    require_base
        Raises UserError, as training would, where an experiment begins with a pretrained model that is on this machine
        and can't be used. Arguments: the experiment, and the folder of its file.
    uses
        The commands that use its runs, besides those for any task (``transcribe``), and the options that may name one
        (``predict --embeddings``, ``data.decoding.lm``), with the ``key=value`` conditions of which an experiment must
        meet one; empty: any experiment may be used. Its class has the methods that they call.
    pipelines
        The pipelines of the task, by name.
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
    networks: Callable[[Any], Collection[NetworkKind]] = lambda experiment: ()
    explain_uncaptured: Callable[[Any], str | None] = lambda experiment: None
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
    require_base: Callable[[Any, Path], None] = lambda experiment, folder: None
    uses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pipelines: Mapping[str, TaskPipeline] = field(default_factory=dict)

    @property
    def stand_ins(self) -> SectionShortcuts:
        """The sections of the model that stand for others."""
        return SectionShortcuts(self.shared, self.sides)


def value_at(options: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key of nested plain values; None if it doesn't exist.

    >>> value_at({"model": {"d_model": 64}}, "model.d_model"), value_at({"model": 3}, "model.d_model")
    (64, None)
    """
    value: Any = options
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def load_name(reference: str) -> Any:
    """Import and return the object ``package.module:Name``.

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
    """The keys by which a task is recognised (``TaskSpec``), and whether it reads audio."""

    own: tuple[str, ...]
    shared: tuple[str, ...] = ()
    reads_audio: bool = False


class Tasks(Mapping[str, TaskSpec]):
    """The specs of tasks by name, in alphabetical order; each is imported when it is looked up.

    Tasks of other packages are imported only when all are listed, or they are looked up; a warning names each that
    can't be imported.
    """

    def __getitem__(self, name: str) -> TaskSpec:
        if name not in self:
            raise KeyError(name)
        return load_spec(name)

    def __contains__(self, name: object) -> bool:
        return (
            name in REGISTERED_TASKS
            or name in built_in()
            or (name in installed() and explain_unusable(str(name)) is None)
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
    """Return the tasks of other installed packages, including those that can't be imported."""
    return {point.name: point for point in entry_points(group=ENTRY_POINTS) if point.name not in built_in()}


@cache
def explain_unusable(name: str) -> str | None:
    """Import a task of another package; return why it can't be imported, None if it can."""
    try:
        load_spec(name)
    except UserError as error:
        return str(error)
    return None


@cache
def usable() -> frozenset[str]:
    """Return the tasks of other packages that can be imported; a warning says why another is left out."""
    reasons = {name: explain_unusable(name) for name in installed()}
    for reason in filter(None, reasons.values()):
        log.warning("%s; it is left out", reason)
    return frozenset(name for name, reason in reasons.items() if reason is None)


TASKS = Tasks()


def register_task(name: str, task: Any) -> None:
    """Register a class, or a task object, as ``task: name`` in this program; a second call replaces the first.

    Its runs can be opened by every program that registers it. Raises UserError if the name is one of Vaak's or of an
    installed package, or if this isn't a task.
    """
    if not name.isidentifier():
        raise UserError(
            f"{name!r} can't be the name of a task: a name may contain only letters, digits and underscores"
        )
    if name in built_in() or name in installed():
        raise UserError(f"there is already a task {name}; register yours under another name")
    _require_spec(task, name)
    REGISTERED_TASKS[name] = task


def load_spec(task: str) -> TaskSpec:
    """Return the spec of a task, by its name or by the absolute reference of its class, which is then imported.

    Raises UserError for a class without a spec.
    """
    if task in REGISTERED_TASKS:
        return _require_spec(REGISTERED_TASKS[task], task)
    return _cached_spec(task)


_CACHED_SPECS: dict[str, TaskSpec] = {}


def _cached_spec(task: str) -> TaskSpec:
    """Return the spec of a task that isn't registered, which can't change and is cached."""
    if task not in _CACHED_SPECS:
        is_ours = task in built_in()
        found = load_name(f"{TASKS_PACKAGE}.{task}.spec:SPEC") if is_ours else _require_spec(_find_class(task), task)
        _CACHED_SPECS[task] = found
    return _CACHED_SPECS[task]


def specs_from_outside() -> list[TaskSpec]:
    """Return the specs of tasks from outside Vaak that are registered or have been looked up."""
    looked_up = [spec for name, spec in _CACHED_SPECS.items() if name not in built_in()]
    return [*map(load_spec, REGISTERED_TASKS), *looked_up]


def list_pipelines() -> dict[str, TaskPipeline]:
    """Return the pipelines of all named tasks, by their own names; this imports every spec."""
    return {name: pipeline for spec in TASKS.values() for name, pipeline in spec.pipelines.items()}


def spec_by_name(task: object) -> TaskSpec:
    """Return the spec of a named task; for others an empty spec, so that no user code is executed.

    >>> spec_by_name("lm").hub_tag, spec_by_name("./own.py:Task").hub_tag
    ('text-generation', None)
    """
    return TASKS[task] if isinstance(task, str) and task in TASKS else TaskSpec()


def _require_spec(task: Any, name: str) -> TaskSpec:
    """Return the spec of a class or object. Raises UserError if it has none."""
    found = getattr(task, "SPEC", None)
    if not isinstance(found, TaskSpec):
        raise UserError(f"{name} is not a task: it has no SPEC; make it a subclass of vaak.Task")
    return found


def task_class(task: str) -> Callable[[Any, Path, Path], Any]:
    """Return a function that makes a task, given ``(experiment, directory, folder)``.

    ``task`` is its name, or the absolute reference of its class. Raises UserError if it doesn't exist.
    """
    found = _find_class(task)
    others = _cached_spec(task).task_where if task in built_in() else {}

    def make_chosen(experiment: Any, directory: Path, folder: Path) -> Any:
        return _choose_class(others, experiment, found)(experiment, directory, folder)

    def make_copy(experiment: Any, directory: Path, folder: Path) -> Any:
        made = copy.copy(found)
        made.experiment, made.directory, made.folder, made.reference = experiment, directory, folder, task
        return made

    if isinstance(found, type):
        return make_chosen if others else found
    return make_copy


def _choose_class(others: Mapping[str, str], experiment: Any, usual: Any) -> Any:
    """Return the first of a task's other classes whose condition, ``key=value``, an experiment meets, or ``usual``."""
    for condition, reference in others.items():
        if has_value(experiment, condition):
            return load_name(reference)
    return usual


def has_value(experiment: Any, condition: str) -> bool:
    """Return whether an experiment meets a condition, ``key=value``."""
    key, _, value = condition.partition("=")
    return str(attrgetter(key)(experiment)) == value


def _find_class(task: str) -> Any:
    """Return the class of a task, or the task object. Raises UserError if it doesn't exist."""
    if task in REGISTERED_TASKS:
        return REGISTERED_TASKS[task]
    if task in built_in():
        return load_name(str(_cached_spec(task).task))
    if task in installed():
        return _import_installed(installed()[task])
    if ":" not in task:
        raise UserError(f"the task {unknown_name(task, TASKS)}")
    return resolve_class(task, {}, Path("/"))


def _import_installed(point: EntryPoint) -> Any:
    """Import the task of another package's entry point. Raises UserError if that fails, for any reason."""
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
    """Return the tasks to which one of these dotted keys belongs; unless it is one task, those that share a key.

    With sections of audio, only tasks that read audio count. Of Vaak's own tasks only the packages' ``__init__`` is
    imported; tasks of other packages are imported only if these give no single answer.
    """
    tasks: dict[str, RecognisedBy] = {name: load_name(f"{TASKS_PACKAGE}.{name}:RECOGNISED_BY") for name in built_in()}
    tasks |= {name: _recognised_by(load_spec(name)) for name in REGISTERED_TASKS}
    own, shared = _tasks_having(keys, tasks)
    if len(own) != 1:
        others = [name for name in installed() if explain_unusable(name) is None]
        own, shared = _tasks_having(keys, tasks | {name: _recognised_by(load_spec(name)) for name in others})
    return own if len(own) == 1 else shared or own


def _recognised_by(spec: TaskSpec) -> RecognisedBy:
    return RecognisedBy(spec.recognised_by, spec.also_recognised_by, spec.audio is not None)


def _tasks_having(keys: set[str], tasks: Mapping[str, RecognisedBy]) -> tuple[list[str], list[str]]:
    """Return the tasks to which one of the keys belongs, and the tasks (among these, if any) that share one."""
    able = {name: tasks[name] for name in sorted(tasks) if tasks[name].reads_audio or not keys & AUDIO_SECTIONS}
    own = [name for name, row in able.items() if keys & set(row.own)]
    return own, [name for name, row in able.items() if keys & set(row.shared) and (not own or name in own)]
