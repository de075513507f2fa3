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
from vaak.config.inner import InnerExperiment, Read, settle_experiment
from vaak.config.paths import paths_read, rewrite_paths
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
from vaak.config.validate import find_options_of_other_types, given_keys, settle_component, validate
from vaak.config.yaml.aliases import Spellings, canonical, model_type_given, option_aliases
from vaak.config.yaml.fields import get_annotation, get_section, is_list, names_class, own_types, sections_in
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
    COMMAND_LINE,
    ConfigError,
    Placed,
    PlacedDict,
    Problem,
    YamlPlace,
    find,
    find_place,
    place_all,
    put,
    replace,
    split_key,
    take,
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
    tree: PlacedDict = field(default_factory=PlacedDict, repr=False, compare=False)

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
    layers = [place_all(dict(layer), place) for layer, place in zip(values, places, strict=True)]
    return _build_experiment(layers, source, trust_code=True)


def load_layers(
    layers: Sequence[Path | str | Mapping[str, Any]],
    *,
    trust_code: bool = False,
    further_metrics: Collection[str] = (),
) -> Loaded:
    """The experiment that files and sections in memory give together, the later over the earlier.

    In memory, relative names of files are seen from the current folder. ``further_metrics`` are metrics that the
    program adds to the task's evaluations. Raises ConfigError as ``load`` does.
    """
    reader = Layers()
    for layer in layers:
        if isinstance(layer, Mapping):
            reader.trees.append(place_all(dict(layer), IN_MEMORY))
        else:
            reader.add_file(file_or_recipe(str(layer)))
    if reader.problems:
        raise ConfigError(reader.problems)
    files = [Path(layer) for layer in layers if not isinstance(layer, Mapping)]
    return _build_experiment(reader.trees, files[-1] if files else Path("run.yml"), trust_code, further_metrics)


def _build_experiment(
    layers: list[PlacedDict],
    source: Path,
    trust_code: bool,
    further_metrics: Collection[str] = (),
    *,
    is_inner: bool = False,
) -> Loaded:
    """The experiment of layers, the lowest first; ``source`` is the file that the run and its folder are named by.

    ``trust_code`` and ``further_metrics`` are those of ``load_layers``; ``is_inner``: it is inside of another.
    """

    def read(inner: list[PlacedDict]) -> tuple[Experiment[Any, Any], list[str]]:
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
    model_type = model_type_given(layers)
    _require_model_of_task(model_type, task)
    kind = experiment_type(task.reference)
    tree, warnings = _merge_layers(layers, task, model_type, problems)
    _name_run(tree, source)
    _look_up_secrets(tree)
    _settle_long_warmup(tree, layers)
    if run_of_configuration(source) is not None:
        _settle_newer_options(tree, layers, task.spec)
    warnings += _settle_what_follows(tree, task.spec, folder)
    # what types can't say: experiments inside of this one, classes by their names, paths, options of another type
    said = _settle_sections(tree, task, folder, None if is_inner else read, problems, warnings)
    # types and bounds of each option
    spec = task.spec
    aliases = [*option_aliases(spec.aliases), *spec.stand_ins.aliases(spec.aliases), *spec.stand_ins.targets]
    invalid: list[Problem] = []
    experiment = validate(tree, kind, aliases, invalid)
    problems += invalid
    # options that don't go together
    found: list[CheckFinding] = []
    if experiment is not None and task.reference:
        found = [*findings(experiment), *smoothing_of_users_loss(experiment, folder)]
        found += wrong_options_of_components(experiment, folder)
    # Defaults stand in their place.
    wrong = tuple(f"{problem.key}." for problem in invalid)
    found = [one for one in found if not f"{one.key}.".startswith(wrong)]
    problems += [_problem_at(tree, one.key, one.message) for one in found if one.kind == "impossible"]
    # After a mistake, an option may have its default in place of the given value.
    if not invalid:
        problems += _problems_of_given((one for one in found if one.kind == "impossible if given"), tree, experiment)
    if experiment is not None and task.reference and not invalid:
        new = _problems_of_new_run(unknown_in_a_new_run(experiment, further_metrics), tree)
        problems += [problem for kind, problem in new if kind == "impossible"]
        warnings += [problem for kind, problem in new if kind == "remark"]
    if problems or experiment is None:
        raise ConfigError(problems)
    hints = _problems_of_given((one for one in found if one.kind in ("no effect", "remark")), tree, experiment)
    # a run's own configuration has every option, also those that had no effect, and was warned of when it began
    warnings += [one for one in hints if one.place is None or run_of_configuration(Path(one.place.file)) is None]
    values = resolved_values(experiment)
    code += code_named_in(values, tree, folder)
    named = tuple(one._replace(doubt=None) if trust_code else one for one in code)
    for one in named:
        decide(find_code(one.reference, folder), one.doubt)
    if trust_code:
        trust_places(_texts(values), (Path(), folder, experiment.run_dir))
    return Loaded(experiment, list(dict.fromkeys([*map(str, warnings), *said])), given_keys(tree), folder, named, tree)


def _settle_sections(
    tree: PlacedDict, task: _Task, folder: Path, read: Read | None, problems: list[Problem], warnings: list[Problem]
) -> list[str]:
    """Settle what the types of single options can't say, section by section; return the warnings of inner experiments.

    ``read`` makes an experiment of layers; None where there may be none inside. Problems are added to ``problems``.
    """
    said = []
    short_names = {**COMPONENTS, **task.spec.short_names}
    weights = find(tree, ("training", "checkpoint", "init_from"))
    begun = {} if weights is None else {"training": {"checkpoint": {"init_from": weights.value}}}
    for path, section, kind in sections_in(tree, experiment_type(task.reference)):
        if issubclass(kind, InnerExperiment):
            wrong, more = settle_experiment(section, find_place(tree, path), place_all(begun), read)
            key = ".".join(path)
            problems += [Problem(one.place, f"{key}.{one.key}".rstrip("."), one.message) for one in wrong]
            said += more
            continue
        for name, value in section.items():
            if isinstance(value, PlacedDict) and is_list(get_annotation(kind, name)):
                section[name] = fill_items(value, kind.model_fields[name])
        if names_class(kind) and (problem := settle_component(path, section, kind, folder, short_names)):
            problems.append(problem)
        if own_types(kind):
            problems += find_options_of_other_types(path, section, kind)
        if paths_read(kind):
            warnings += rewrite_paths(path, section, kind)
    return said


def _look_up_secrets(tree: PlacedDict) -> None:
    """Replace references to secrets by the values of their variables, as far as these are set."""
    for path, (value, _) in walk(tree):
        found = REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if found is not None and is_secret(".".join(path), value) and (secret := find_value(found[1])):
            note(secret, found[1])
            replace(tree, path, secret)


@dataclass(frozen=True)
class _Task:
    """A task's name as written, its reference from anywhere (None: not found), and its spec."""

    written: str = ""
    reference: str | None = None

    @property
    def spec(self) -> TaskSpec:
        return load_spec(self.reference) if self.reference else TaskSpec()


def _find_task(
    layers: list[PlacedDict], source: Path, folder: Path, problems: list[Problem], trust_code: bool
) -> _Task:
    """The task given last, or the only one whose own keys are in the files; else none, and a problem.

    The last of ``layers`` wins; a problem is added to ``problems`` and names the file ``source``. A user's
    ``./file.py`` is looked for in ``folder``, and executed only with ``trust_code``, where a run brings it.
    """
    given = [one for layer in layers if (one := find(layer, ("task",))) is not None]
    if given:
        task, place = given[-1]
        if isinstance(task, str) and task in TASKS:
            return _Task(task, task)
        if isinstance(task, str) and task in installed():
            # It isn't among TASKS: it can't be imported.
            try:
                load_spec(task)
            except UserError as error:
                problems.append(Problem(place, "task", str(error)))
                return _Task()
        if isinstance(task, str) and ":" in task:
            return _own_task(task, place, folder, problems, trust_code)
        problems.append(Problem(place, "task", _unknown_task(task, place)))
        return _Task()
    # A task may be recognised by keys, and by keys with their values.
    keys = set()
    for path, (value, _) in (one for layer in layers for one in walk(layer)):
        keys.add(".".join(path))
        if isinstance(value, str):
            keys.add(f"{'.'.join(path)}={value}")
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
            f"is {task}, which only the Python program that trained this run defines; there, "
            f"vaak.open({str(run)!r}, task=...) opens it"
        )
    hint = did_you_mean(task, TASKS)
    return f"is {task!r}; expected one of {', '.join(TASKS)}, ./file.py:Name or package.module:Name{hint}"


def _own_task(task: str, place: YamlPlace | None, folder: Path, problems: list[Problem], trust_code: bool) -> _Task:
    """A task by its class, which is imported here; ``folder`` is the one that a file's path is written relative to."""
    written = seen_from(task, get_folder(place) if place else folder, folder)
    if message := what_is_missing(written, folder):
        problems.append(Problem(place, "task", message))
        return _Task()
    source = source_file(written, folder)
    # Judged before load_spec, which imports the file.
    doubt = None if trust_code or is_vaaks_task(written) else why_untrusted(place, source)
    decide(find_code(written, folder), doubt)
    if doubt is not None:
        message = f"names code that is executed to read this configuration: {written}; read it, and add --trust-code"
        raise ConfigError([Problem(place, "task", f"{message} ({doubt})")])
    reference = written if source is None else f"{source.absolute()}:{written.rpartition(':')[2]}"
    try:
        load_spec(reference)
    except UserError as error:
        problems.append(Problem(place, "task", str(error)))
        return _Task()
    return _Task(written, reference)


def _merge_layers(
    layers: list[PlacedDict], task: _Task, model_type: Placed | None, problems: list[Problem]
) -> tuple[PlacedDict, list[Problem]]:
    """All layers over the task's defaults, under canonical names, and what was dropped on the way."""
    kind, spec, field = experiment_type(task.reference), task.spec, _model_type(task.reference)
    spellings = Spellings(kind, spec.aliases, spec.stand_ins)
    default = field.default if field else None
    known, dropped = [place_all({"task": task.written, "model": {}, "data": {}, **spec.defaults})], []
    for layer in layers:
        tree, twice = canonical(layer, spellings, model_type.value if model_type else default)
        dropped += _options_of_other_tasks(tree, task)
        known.append(tree)
        problems += twice
    tree, replaced = merge_all(known, kind)
    tree["task"] = task.written
    return tree, [*dropped, *replaced]


def _options_of_other_tasks(layer: PlacedDict, task: _Task) -> list[Problem]:
    """Options of the loop that only other tasks have: they are removed, so that tasks can share files."""
    found = []
    training = layer.get("training")
    keys = {*layer, *(training if isinstance(training, dict) else ())}
    unknown = keys - set(task.spec.training.model_fields) - set(experiment_type(task.reference).model_fields)
    # A file without such options imports no other task.
    for other, spec in TASKS.items() if unknown else ():
        for name in set(spec.training.model_fields) - set(task.spec.training.model_fields):
            for key in (name, f"training.{name}"):
                given = take(layer, split_key(key))
                if task.reference and given is not None and given.value not in (None, False):
                    message = f"options of {other}; the task {task.written} does not read them"
                    found.append(Problem(given.place, f"training.{name}", message))
    return found


def _model_type(reference: str | None) -> FieldInfo | None:
    """The option ``model.model_type`` of a task that has it."""
    model = get_section(get_annotation(experiment_type(reference), "model"))
    return model.model_fields.get("model_type") if model else None


def _require_model_of_task(given: Placed | None, task: _Task) -> None:
    """Raise ConfigError where the model belongs to another task, since other mistakes would only follow from that."""
    field = _model_type(task.reference)
    if field is None or given is None or given.value in (types := get_args(field.annotation)):
        return
    having = {name: get_args(other.annotation) for name in TASKS if (other := _model_type(name))}
    others = [name for name, known in having.items() if given.value in known]
    if others:
        sections = [side for side in ("encoder", "decoder") if side not in types and side in str(given.value)]
        leave = f" and leave out model.{sections[0]}" if sections else ""
        raise ConfigError(
            [
                Problem(
                    given.place,
                    "model.model_type",
                    f"is {given.value}, which only the task {' and '.join(others)} has; the task {task.written} has "
                    f"{' and '.join(types)}: write model_type: {types[0]}{leave}",
                )
            ]
        )


def _name_run(tree: PlacedDict, last_file: Path) -> None:
    """Give the run the name of its last file, and a folder of that name, where the user gave none.

    A run's own configuration means the directory that it is in, wherever that was copied or moved.
    """
    name = tree.setdefault("name", last_file.stem)
    tree.setdefault("run_dir", f"runs/{name}")
    place = tree.places.get("run_dir")
    run = run_of_configuration(Path(place.file)) if place else None
    if run is not None:
        tree["run_dir"] = str(run)


DECIDING_LENGTH = ("data", "datasets", "global_config", "tasks")
DECIDING_LENGTH_OF_TRAINING = ("epochs", "max_steps", "batch_size", "gradient_accumulation_steps", "batching")


def _settle_long_warmup(tree: PlacedDict, layers: list[PlacedDict]) -> None:
    """Let a warm-up be shortened where it is from a lower layer than what decides how long training is.

    Such a warm-up is a recipe's, and was chosen for other data. ``layers`` are those of ``tree``, the lowest first.
    """
    warmup = find(tree, ("training", "scheduler", "warmup_steps"))
    if warmup is None or find(tree, ("training", "scheduler", "long_warmup")) is not None:
        return
    level = {one.place.file: number for number, layer in enumerate(layers) for _, one in walk(layer) if one.place}
    sections = [*((name,) for name in DECIDING_LENGTH), *(("training", name) for name in DECIDING_LENGTH_OF_TRAINING)]
    found = [section for path in sections if (section := find(tree, path)) is not None]
    deciding = [one for section in found for one in (section, *(below for _, below in walk(section.value)))]
    highest = max((level.get(one.place.file, -1) for one in deciding if one.place), default=-1)
    if highest > (level.get(warmup.place.file, -1) if warmup.place else -1):
        put(tree, ("training", "scheduler", "long_warmup"), Placed("shorten"))


def _settle_newer_options(tree: PlacedDict, layers: Sequence[PlacedDict], spec: TaskSpec) -> None:
    """Give a run's own configuration, which has every option of its time, what newer ones have to be for it."""

    def get_own(key: str) -> Any:
        # An override says nothing of what the run began with.
        path = split_key(key)
        found = [one for layer in (tree, *layers) if (one := find(layer, path)) is not None]
        own = [one.value for one in found if one.place not in (COMMAND_LINE, IN_MEMORY)]
        return own[-1] if own else None

    for key, value in spec.newer(get_own).items():
        if find(tree, split_key(key)) is None:
            put(tree, split_key(key), Placed(value))


def _get_value(tree: PlacedDict, key: str) -> Any:
    found = find(tree, split_key(key))
    return None if found is None else found.value


def _settle_what_follows(tree: PlacedDict, spec: TaskSpec, folder: Path) -> list[Problem]:
    """Give options that aren't set the values that follow from others; return remarks on them."""
    remarks = []
    for key, (value, why) in spec.follows(lambda key: _get_value(tree, key), folder).items():
        if _get_value(tree, key) is None:
            put(tree, split_key(key), Placed(value))
            remarks.append(Problem(None, key, f"{value:g}, {why}"))
    return remarks


def _problem_at(tree: PlacedDict, key: str, message: str) -> Problem:
    """Return a problem at the nearest line that the user wrote."""
    return Problem(find_place(tree, split_key(key)), key, message)


def _problems_of_given(said: Iterable[CheckFinding], tree: PlacedDict, experiment: Any) -> list[Problem]:
    """The findings about keys that the user gave.

    What was written once for several sections (``model.global_config``) has no effect only where it has none in any.
    """
    written: dict[Any, set[str]] = {}
    for path, (_, place) in walk(tree):
        if place is not None:
            key = ".".join(path)
            written.setdefault((place, place.key or key, path[-1:]), set()).add(key)
    # for each key that the user wrote, all that the same line stands for, itself among them
    together = {key: keys for keys in written.values() for key in keys}
    said = list(said)
    without_effect = {one.key for one in said if one.kind == "no effect"}
    return [
        _problem_at(tree, one.key, one.message)
        for one in said
        if one.key in together
        and (one.kind != "no effect" or together[one.key] <= without_effect)
        and _is_due(tree, one, experiment)
    ]


def _problems_of_new_run(said: Iterable[CheckFinding], tree: PlacedDict) -> list[tuple[FindingKind, Problem]]:
    """The findings about keys that the user gave, other than those in a run's own configuration."""
    problems = []
    for one in said:
        found = find(tree, split_key(one.key))
        if found is not None and found.place is not None and run_of_configuration(Path(found.place.file)) is None:
            problems.append((one.kind, Problem(found.place, one.key, one.message)))
    return problems


def _is_due(tree: PlacedDict, one: CheckFinding, experiment: Any) -> bool:
    """Return whether a warning is due: ``profiling: false`` asks for nothing, unless true is the default.

    A remark may be about false.
    """
    path = split_key(one.key)
    given, section = find(tree, path), experiment
    for part in path[:-1]:
        section = section[int(part)] if isinstance(section, tuple) else getattr(section, str(part), None)
    # None in a list, or in a user's own options.
    field = getattr(type(section), "model_fields", {}).get(path[-1])
    nothing = one.kind != "remark" and (field is None or field.default is not True)
    return given is not None and given.value not in ((None, False) if nothing else (None,))
