"""YAML files and ``key=value`` overrides in, one validated experiment out, or every mistake at once."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic.fields import FieldInfo

from vaak.config.checks import findings, smoothing_of_users_loss, unknown_in_a_new_run, wrong_options_of_components
from vaak.config.components import (
    COMPONENTS,
    did_you_mean,
    find_code,
    is_vaaks_task,
    seen_from,
    source_file,
    what_is_missing,
)
from vaak.config.experiment import Experiment, experiment_type
from vaak.config.inner import settle_experiments
from vaak.config.paths import settle_paths
from vaak.config.resolved import resolved_values
from vaak.config.tasks import (
    TASKS,
    CheckFinding,
    FindingKind,
    TaskSpec,
    installed,
    load_spec,
    task_class,
    tasks_recognised,
)
from vaak.config.trust import decide, run_of_configuration, trust_places
from vaak.config.validate import Validation, given_keys, options_of_other_types, settle_components
from vaak.config.yaml.aliases import canonical, model_type_given, option_aliases, take_section_shortcuts
from vaak.config.yaml.fields import get_annotation, get_section
from vaak.config.yaml.layers import (
    Layers,
    file_or_recipe,
    fill_items,
    get_folder,
    merge_all,
    read_layers,
)
from vaak.config.yaml.named_code import NamedCode, code_named_in, why_untrusted
from vaak.config.yaml.tree import (
    ConfigError,
    Node,
    Problem,
    YamlPlace,
    find,
    find_place,
    from_plain,
    put,
    split_key,
    take,
    to_plain,
    walk,
)
from vaak.core.errors import OptionError, UserError
from vaak.core.secrets import REFERENCE, find_value, is_secret, note

if TYPE_CHECKING:
    from vaak.core.task import Task

IN_MEMORY = YamlPlace("set in Python")


@dataclass(frozen=True)
class Loaded:
    """A validated experiment, the warnings about it, and the user's own values.

    ``folder`` is where ``./file.py:Name`` is looked for: that of the last file. ``code`` are the classes from outside
    Vaak, those of inner experiments too; with ``trust_code`` all of them are trusted.
    """

    experiment: Experiment[Any, Any]
    warnings: list[str]
    given: set[str]
    folder: Path
    code: tuple[NamedCode, ...] = ()
    tree: Node = field(default_factory=lambda: Node({}), repr=False, compare=False)

    def task(self, directory: Path | None = None) -> Task:
        """Return the experiment's task, as if its run directory were another one, if a ``directory`` is given."""
        experiment = self.experiment
        if directory not in (None, experiment.run_dir):
            experiment = experiment.model_copy(update={"run_dir": directory})
        made: Task = task_class(experiment.reference)(experiment, experiment.run_dir, self.folder)
        return made

    @contextlib.contextmanager
    def naming_lines(self) -> Iterator[None]:
        """In this context, the error of an option says where its value was written, as those of a check do."""
        try:
            yield
        except OptionError as error:
            raise UserError(str(_problem_at(self.tree, error.key, error.problem))) from error


def load(
    files: Sequence[Path | str],
    overrides: Sequence[str] = (),
    *,
    trust_code: bool = False,
    of_run: Mapping[Path, Path] | None = None,
) -> Loaded:
    """The experiment that the files give, the later over the earlier, with ``key.path=value`` on top.

    ``of_run`` has the run of each file that is opened with one: it is that run's, whatever it is called.

    A task of a user's own is imported, since it says which options there are; that of a run only with ``trust_code``.

    Raises ConfigError with every mistake, one line each, before any data is read or torch is imported.
    """
    return _build_experiment(read_layers(files, overrides, of_run), Path(files[-1]), trust_code)


def load_values(values: Sequence[Mapping[str, Any]], source: Path) -> Loaded:
    """The experiment that sections in memory give, the later over the earlier; ``source`` is the file they came from.

    The first holds what was resolved before: its options cause no warnings.
    """
    places = [None, *[IN_MEMORY] * (len(values) - 1)]
    layers = [from_plain(dict(layer), place) for layer, place in zip(values, places, strict=True)]
    return _build_experiment(layers, source, trust_code=True)


def load_layers(
    layers: Sequence[Path | str | Mapping[str, Any]],
    *,
    trust_code: bool = False,
    further_metrics: Collection[str] = (),
) -> Loaded:
    """The experiment that files and sections in memory give together, the later over the earlier.

    In memory, relative names of files are seen from the current folder. ``further_metrics`` are figures that the
    program adds to the task's evaluations. Raises ConfigError as ``load`` does.
    """
    reader = Layers()
    for layer in layers:
        if isinstance(layer, Mapping):
            reader.trees.append(from_plain(dict(layer), IN_MEMORY))
        else:
            reader.add_file(file_or_recipe(str(layer)))
    if reader.problems:
        raise ConfigError(reader.problems)
    files = [Path(layer) for layer in layers if not isinstance(layer, Mapping)]
    return _build_experiment(reader.trees, files[-1] if files else Path("run.yml"), trust_code, further_metrics)


def _build_experiment(
    layers: list[Node],
    source: Path,
    trust_code: bool,
    further_metrics: Collection[str] = (),
    *,
    is_inner: bool = False,
) -> Loaded:
    """The experiment of layers, the lowest first; ``source`` is the file that the run and its folder are named by.

    ``trust_code`` and ``further_metrics`` are those of ``load_layers``; ``is_inner``: it is inside of another.
    """

    def read(inner: list[Node]) -> tuple[Experiment[Any, Any], list[str]]:
        loaded = _build_experiment(inner, source, trust_code, is_inner=True)
        code.extend(loaded.code)
        return loaded.experiment, loaded.warnings

    # Mistakes are collected, not raised one by one, so that all are reported at once. Each part below needs what the
    # one above it has settled; mistakes that only follow from an earlier one aren't reported.
    problems: list[Problem] = []
    code: list[NamedCode] = []
    folder = run_of_configuration(source) or source.parent
    # one tree: the task says which options there are, and so which names mean the same and how layers merge
    task = _find_task(layers, source, folder, problems, trust_code)
    _require_model_of_task(layers, task)
    tree, warnings = _merge_layers(layers, task, problems)
    _name_run(tree, source)
    _look_up_secrets(tree)
    _settle_long_warmup(tree, layers)
    warnings += _settle_what_follows(tree, task.spec, folder)
    # what types can't say: experiments inside of this one, classes by their names, options of another type
    kind = experiment_type(task.reference)
    inside, said = settle_experiments(tree, kind, None if is_inner else read)
    problems += inside
    problems += settle_components(tree, kind, folder, {**COMPONENTS, **task.spec.short_names})
    problems += options_of_other_types(tree, kind)
    warnings += settle_paths(tree, kind)
    # types and bounds of each option
    spec = task.spec
    aliases = [*option_aliases(spec.aliases), *spec.stand_ins.aliases(spec.aliases), *spec.stand_ins.targets]
    validation = Validation(tree, kind, aliases)
    experiment = validation.experiment()
    problems += validation.problems
    # options that don't go together
    found: list[CheckFinding] = []
    if experiment is not None and task.reference:
        found = [*findings(experiment), *smoothing_of_users_loss(experiment, folder)]
        found += wrong_options_of_components(experiment, folder)
    wrong = tuple(f"{problem.key}." for problem in validation.problems)  # defaults stand in their place
    found = [one for one in found if not f"{one.key}.".startswith(wrong)]
    problems += [_problem_at(tree, one.key, one.message) for one in found if one.kind == "impossible"]
    # After a mistake, an option may have its default in place of the given value.
    if not validation.problems:
        problems += _problems_of_given((one for one in found if one.kind == "impossible if given"), tree, experiment)
    if experiment is not None and task.reference and not validation.problems:
        new = _problems_of_new_run(unknown_in_a_new_run(experiment, further_metrics), tree)
        problems += [problem for kind, problem in new if kind == "impossible"]
        warnings += [problem for kind, problem in new if kind == "remark"]
    if problems or experiment is None:
        raise ConfigError(problems)
    warnings += _problems_of_given((one for one in found if one.kind in ("no effect", "remark")), tree, experiment)
    values = resolved_values(experiment)
    code += code_named_in(values, tree, folder)
    named = tuple(one._replace(doubt=None) if trust_code else one for one in code)
    for one in named:
        decide(find_code(one.reference, folder), one.doubt)
    if trust_code:
        trust_places(_texts(values), (Path(), folder, experiment.run_dir))
    return Loaded(experiment, list(dict.fromkeys([*map(str, warnings), *said])), given_keys(tree), folder, named, tree)


def _look_up_secrets(tree: Node) -> None:
    """Replace references to secrets by the values of their variables, as far as these are set."""
    for path, node in [*walk(tree)]:
        found = REFERENCE.fullmatch(node.value) if isinstance(node.value, str) else None
        if found is not None and is_secret(".".join(path), node.value) and (value := find_value(found[1])):
            note(value, found[1])
            node.value = value


@dataclass(frozen=True)
class _Task:
    """A task's name as written, its reference from anywhere (None: not found), and its spec."""

    written: str = ""
    reference: str | None = None

    @property
    def spec(self) -> TaskSpec:
        return load_spec(self.reference) if self.reference else TaskSpec()


def _find_task(layers: list[Node], source: Path, folder: Path, problems: list[Problem], trust_code: bool) -> _Task:
    """The task given last, or the only one whose own keys are in the files; else none, and a problem.

    The last of ``layers`` wins; a problem is added to ``problems`` and names the file ``source``. A user's
    ``./file.py`` is looked for in ``folder``, and executed only with ``trust_code``, where a run brings it.
    """
    given = [layer.value["task"] for layer in layers if "task" in layer.value]
    if given:
        task = to_plain(given[-1])
        if isinstance(task, str) and task in TASKS:
            return _Task(task, task)
        if isinstance(task, str) and task in installed():  # but not among TASKS: it can't be imported
            try:
                load_spec(task)
            except UserError as error:
                problems.append(Problem(given[-1].place, "task", str(error)))
                return _Task()
        if isinstance(task, str) and ":" in task:
            return _own_task(given[-1], folder, problems, trust_code)
        problems.append(Problem(given[-1].place, "task", _unknown_task(task, given[-1].place)))
        return _Task()
    # A task may be recognised by keys, and by keys with their values.
    keys = set()
    for path, node in (found for layer in layers for found in walk(layer)):
        keys.add(".".join(path))
        if isinstance(node.value, str):
            keys.add(f"{'.'.join(path)}={node.value}")
    found = tasks_recognised(keys)
    if len(found) == 1:
        return _Task(found[0], found[0])
    what = f"fits {' and '.join(found)}" if found else "is not given and can't be inferred from the sections"
    problems.append(Problem(YamlPlace(str(source)), "task", f"{what}; write task: with one of {', '.join(TASKS)}"))
    return _Task()


def _texts(values: Any) -> Iterator[str]:
    """Every text among resolved values that may name another run."""
    if isinstance(values, str):
        yield values
    elif isinstance(values, dict):
        yield from (text for key, one in values.items() if key not in _NAME_NO_RUN for text in _texts(one))
    elif isinstance(values, list):
        yield from (text for one in values for text in _texts(one))


_NAME_NO_RUN = {"name", "run_dir", "task", "type", "device"}


def _unknown_task(task: Any, place: YamlPlace | None) -> str:
    """Return the message about a task that doesn't exist, or isn't known to this program."""
    run = run_of_configuration(Path(place.file)) if place else None
    if run is not None:
        return (
            f"is {task}, which only the Python program that trained this run knows; there, "
            f"vaak.open({str(run)!r}, task=...) opens it"
        )
    hint = did_you_mean(task, TASKS)
    return f"is {task!r}; expected one of {', '.join(TASKS)}, ./file.py:Name or package.module:Name{hint}"


def _own_task(node: Node, folder: Path, problems: list[Problem], trust_code: bool) -> _Task:
    """A task by its class, which is imported here; ``folder`` is the one that a file's path is written relative to."""
    written = seen_from(node.value, get_folder(node.place) if node.place else folder, folder)
    if message := what_is_missing(written, folder):
        problems.append(Problem(node.place, "task", message))
        return _Task()
    source = source_file(written, folder)
    doubt = None if trust_code or is_vaaks_task(written) else why_untrusted(node.place, source)
    decide(find_code(written, folder), doubt)
    if doubt is not None:
        message = f"names code that is executed to read this configuration: {written}; read it, and add --trust-code"
        raise ConfigError([Problem(node.place, "task", f"{message} ({doubt})")])
    reference = written if source is None else f"{source.absolute()}:{written.rpartition(':')[2]}"
    try:
        load_spec(reference)
    except UserError as error:
        problems.append(Problem(node.place, "task", str(error)))
        return _Task()
    return _Task(written, reference)


def _merge_layers(layers: list[Node], task: _Task, problems: list[Problem]) -> tuple[Node, list[Problem]]:
    """All layers over the task's defaults, under canonical names, and what was dropped on the way."""
    kind, spec, field = experiment_type(task.reference), task.spec, _model_type(task.reference)
    problems += take_section_shortcuts(layers, spec.stand_ins, field.default if field else None)
    known, dropped = [], []
    for layer in layers:
        tree, twice = canonical(layer, kind, spec.aliases, spec.stand_ins)
        dropped += _options_of_other_tasks(tree, task)
        known.append(tree)
        problems += twice
    defaults = {"task": task.written, "model": {}, "data": {}, **spec.defaults}
    tree, replaced = merge_all([from_plain(defaults), *known], kind)
    tree.value["task"].value = task.written
    return fill_items(tree, kind), [*dropped, *replaced]


def _options_of_other_tasks(layer: Node, task: _Task) -> list[Problem]:
    """Options of the loop that only other tasks have: they are removed, so that tasks can share files."""
    found = []
    training = layer.value.get("training")
    keys = {*layer.value, *(training.value if training is not None and isinstance(training.value, dict) else ())}
    unknown = keys - set(task.spec.training.model_fields) - set(experiment_type(task.reference).model_fields)
    # A file without such options imports no other task.
    for other, spec in TASKS.items() if unknown else ():
        for name in set(spec.training.model_fields) - set(task.spec.training.model_fields):
            for key in (name, f"training.{name}"):
                node = take(layer, split_key(key))
                if task.reference and node is not None and node.value not in (None, False):
                    message = f"options of {other}; the task {task.written} does not read them"
                    found.append(Problem(node.place, f"training.{name}", message))
    return found


def _model_type(reference: str | None) -> FieldInfo | None:
    """The option ``model.model_type`` of a task that has it."""
    model = get_section(get_annotation(experiment_type(reference), "model"))
    return model.model_fields.get("model_type") if model else None


def _require_model_of_task(layers: list[Node], task: _Task) -> None:
    """Raise ConfigError where the model belongs to another task, since other mistakes would only follow from that."""
    field, node = _model_type(task.reference), model_type_given(layers)
    if field is None or node is None or node.value in (types := get_args(field.annotation)):
        return
    having = {name: get_args(other.annotation) for name in TASKS if (other := _model_type(name))}
    others = [name for name, known in having.items() if node.value in known]
    if others:
        sections = [side for side in ("encoder", "decoder") if side not in types and side in str(node.value)]
        leave = f" and leave out model.{sections[0]}" if sections else ""
        raise ConfigError(
            [
                Problem(
                    node.place,
                    "model.model_type",
                    f"is {node.value}, which only the task {' and '.join(others)} has; the task {task.written} has "
                    f"{' and '.join(types)}: write model_type: {types[0]}{leave}",
                )
            ]
        )


def _name_run(tree: Node, last_file: Path) -> None:
    """Give the run the name of its last file, and a folder of that name, where the user gave none.

    A run's own configuration means the directory that it is in, wherever that was copied or moved.
    """
    name = tree.value.setdefault("name", Node(last_file.stem))
    run_dir = tree.value.setdefault("run_dir", Node(f"runs/{name.value}"))
    run = run_of_configuration(Path(run_dir.place.file)) if run_dir.place else None
    if run is not None:
        run_dir.value = str(run)


DECIDING_LENGTH = ("data", "datasets", "global_config", "tasks")
DECIDING_LENGTH_OF_TRAINING = ("epochs", "max_steps", "batch_size", "gradient_accumulation_steps", "batching")


def _settle_long_warmup(tree: Node, layers: list[Node]) -> None:
    """Let a warm-up be shortened where it is from a lower layer than what decides how long training is.

    Such a warm-up is a recipe's, and was chosen for other data. ``layers`` are those of ``tree``, the lowest first.
    """
    warmup = find(tree, ("training", "scheduler", "warmup_steps"))
    if warmup is None or find(tree, ("training", "scheduler", "long_warmup")) is not None:
        return
    level = {node.place.file: number for number, layer in enumerate(layers) for _, node in walk(layer) if node.place}
    sections = [*((name,) for name in DECIDING_LENGTH), *(("training", name) for name in DECIDING_LENGTH_OF_TRAINING)]
    found = [section for path in sections if (section := find(tree, path)) is not None]
    deciding = [node for section in found for node in (section, *(below for _, below in walk(section)))]
    highest = max((level.get(node.place.file, -1) for node in deciding if node.place), default=-1)
    if highest > (level.get(warmup.place.file, -1) if warmup.place else -1):
        tree.value["training"].value["scheduler"].value["long_warmup"] = Node("shorten")


def _settle_what_follows(tree: Node, spec: TaskSpec, folder: Path) -> list[Problem]:
    """Give options that aren't set the values that follow from others; return remarks on them."""

    def get(key: str) -> Any:
        node = find(tree, split_key(key))
        return None if node is None else to_plain(node)

    remarks = []
    for key, (value, why) in spec.follows(get, folder).items():
        if get(key) is None:
            put(tree, split_key(key), Node(value))
            remarks.append(Problem(None, key, f"{value:g}, {why}"))
    return remarks


def _problem_at(tree: Node, key: str, message: str) -> Problem:
    """Return a problem at the nearest line that the user wrote."""
    return Problem(find_place(tree, split_key(key)), key, message)


def _problems_of_given(said: Iterable[CheckFinding], tree: Node, experiment: Any) -> list[Problem]:
    """The findings about keys that the user gave.

    What was written once for several sections (``model.global_config``) has no effect only where it has none in any.
    """
    written: dict[Any, set[str]] = {}
    for path, node in walk(tree):
        if node.place is not None:
            key = ".".join(path)
            written.setdefault((node.place, node.place.key or key, path[-1:]), set()).add(key)
    # for each key that the user wrote, all that the same line stands for, itself among them
    together = {key: keys for keys in written.values() for key in keys}
    said = list(said)
    idle = {one.key for one in said if one.kind == "no effect"}
    return [
        _problem_at(tree, one.key, one.message)
        for one in said
        if one.key in together
        and (one.kind != "no effect" or together[one.key] <= idle)
        and _is_due(tree, one, experiment)
    ]


def _problems_of_new_run(said: Iterable[CheckFinding], tree: Node) -> list[tuple[FindingKind, Problem]]:
    """The findings about keys that the user gave, other than those in a run's own configuration."""
    problems = []
    for one in said:
        node = find(tree, split_key(one.key))
        if node is not None and node.place is not None and run_of_configuration(Path(node.place.file)) is None:
            problems.append((one.kind, Problem(node.place, one.key, one.message)))
    return problems


def _is_due(tree: Node, one: CheckFinding, experiment: Any) -> bool:
    """Return whether a warning is due: ``profiling: false`` asks for nothing, unless true is the default.

    A remark may be about false.
    """
    path = split_key(one.key)
    node, section = find(tree, path), experiment
    for part in path[:-1]:
        section = section[int(part)] if isinstance(section, tuple) else getattr(section, str(part), None)
    field = getattr(type(section), "model_fields", {}).get(path[-1])  # none in a list, or in a user's own options
    nothing = one.kind != "remark" and (field is None or field.default is not True)
    return node is not None and node.value not in ((None, False) if nothing else (None,))
