"""YAML files and ``key=value`` overrides in, one validated experiment out, or every mistake at once."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaak.config.checks import check_new_run, check_options
from vaak.config.chosen_task import (
    ChosenTask,
    drop_options_of_other_tasks,
    find_model_type,
    find_task,
    require_model_of_task,
)
from vaak.config.component_options import check_component_options
from vaak.config.components import COMPONENTS, find_code
from vaak.config.experiment import Experiment, experiment_type
from vaak.config.inner import InnerExperiment, Read, settle_experiment
from vaak.config.paths import paths_read, rewrite_paths
from vaak.config.resolved import resolved_values
from vaak.config.tasks import CheckFinding, FindingKind, TaskSpec, task_class
from vaak.config.trust import decide, find_owning_run, trust_places
from vaak.config.validate import find_options_of_other_types, given_keys, settle_component, validate
from vaak.config.yaml.aliases import Spellings, canonical, model_type_given, option_aliases
from vaak.config.yaml.fields import get_annotation, is_list, names_class, own_types, sections_in
from vaak.config.yaml.layers import Layers, file_or_recipe, fill_items, merge_all, read_layers
from vaak.config.yaml.named_code import NamedCode, code_named_in
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

    ``given`` has the keys that the user set. ``folder``, that of the last file, is where ``./file.py:Name`` is looked
    for. ``code`` has the named classes from outside Vaak, also those of inner experiments; with ``trust_code`` all of
    them are trusted. ``tree`` has the values with the places where they were written.
    """

    experiment: Experiment[Any, Any]
    warnings: list[str]
    given: set[str]
    folder: Path
    code: tuple[NamedCode, ...] = ()
    tree: PlacedDict = field(default_factory=PlacedDict, repr=False, compare=False)

    def task(self, directory: Path | None = None) -> Task:
        """Return the experiment's task; its run directory is ``directory``, if given."""
        experiment = self.experiment
        if directory not in (None, experiment.run_dir):
            experiment = experiment.model_copy(update={"run_dir": directory})
        made: Task = task_class(experiment.reference)(experiment, experiment.run_dir, self.folder)
        return made

    @contextlib.contextmanager
    def naming_lines(self) -> Iterator[None]:
        """Within this context, errors about an option name the file and line of its value, as checks do."""
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
    """Load an experiment from files, later over earlier ones, with ``key.path=value`` overrides on top.

    ``of_run`` maps files to the runs that they belong to, whatever their names. A user's own task is imported, since it
    defines which options exist; one that a run brings along only with ``trust_code``.

    Raises ConfigError with every mistake, one line each, before any data are read or torch is imported.
    """
    return _build_experiment(read_layers(files, overrides, of_run), Path(files[-1]), trust_code)


def load_values(values: Sequence[Mapping[str, Any]], source: Path) -> Loaded:
    """Load an experiment from sections in memory, later over earlier ones; ``source`` is the file they came from.

    The first has values resolved before, whose options cause no warnings. Raises ConfigError as ``load`` does.
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
    """Load an experiment from files and sections in memory, later over earlier ones.

    Relative paths in memory start in the current folder. ``further_metrics`` names the metrics that the program adds to
    the task's evaluations. Raises ConfigError as ``load`` does.
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
    """Build the experiment of layers, the lowest first; ``source`` is the file that names the run and its folder.

    ``trust_code`` and ``further_metrics`` are those of ``load_layers``; ``is_inner``: it is inside another experiment.

    Mistakes are collected, not raised one by one, so that all are reported at once. Each phase needs what the one
    before it has settled; mistakes that only follow from an earlier one aren't reported.
    """

    def read(inner: list[PlacedDict]) -> tuple[Experiment[Any, Any], list[str]]:
        loaded = _build_experiment(inner, source, trust_code, is_inner=True)
        code.extend(loaded.code)
        return loaded.experiment, loaded.warnings

    problems: list[Problem] = []
    code: list[NamedCode] = []
    folder = find_owning_run(source) or source.parent
    # The task comes first: it says which options exist, and so which names are aliases and how layers merge.
    task = find_task(layers, source, folder, problems, trust_code)
    tree, warnings = _settle_tree(layers, source, folder, task, problems)
    inner_warnings = _settle_sections(tree, task, folder, None if is_inner else read, problems, warnings)
    experiment, further = _check_tree(tree, task, folder, further_metrics, problems)
    warnings += further
    values = resolved_values(experiment)
    code += code_named_in(values, tree, folder)
    named = tuple(one._replace(doubt=None) if trust_code else one for one in code)
    for one in named:
        decide(find_code(one.reference, folder), one.doubt)
    if trust_code:
        trust_places(_walk_texts(values), (Path(), folder, experiment.run_dir))
    messages = list(dict.fromkeys([*map(str, warnings), *inner_warnings]))
    return Loaded(experiment, messages, given_keys(tree), folder, named, tree)


def _settle_tree(
    layers: list[PlacedDict], source: Path, folder: Path, task: ChosenTask, problems: list[Problem]
) -> tuple[PlacedDict, list[Problem]]:
    """Merge layers into one tree and set the options that follow from others; return it with warnings.

    Raises ConfigError for a model of another task; other mistakes are added to ``problems``.
    """
    model_type = model_type_given(layers)
    require_model_of_task(model_type, task)
    tree, warnings = _merge_layers(layers, task, model_type, problems)
    _name_run(tree, source)
    _look_up_secrets(tree)
    _settle_long_warmup(tree, layers)
    if find_owning_run(source) is not None:
        _settle_newer_options(tree, layers, task.spec)
    return tree, warnings + _settle_dependent_options(tree, task.spec, folder)


def _check_tree(
    tree: PlacedDict, task: ChosenTask, folder: Path, further_metrics: Collection[str], problems: list[Problem]
) -> tuple[Experiment[Any, Any], list[Problem]]:
    """Check the type and bounds of each option, then which options go together; return the experiment with warnings.

    Raises ConfigError with the ``problems`` found before and all that are found here.
    """
    spec = task.spec
    aliases = [*option_aliases(spec.aliases), *spec.stand_ins.aliases(spec.aliases), *spec.stand_ins.targets]
    invalid: list[Problem] = []
    experiment = validate(tree, experiment_type(task.reference), aliases, invalid)
    problems = [*problems, *invalid]
    warnings: list[Problem] = []
    found: list[CheckFinding] = []
    if experiment is not None and task.reference:
        found = [*check_options(experiment), *check_component_options(experiment, folder)]
    # The experiment has the default of an invalid option, so findings about that one mean nothing.
    wrong = tuple(f"{problem.key}." for problem in invalid)
    found = [one for one in found if not f"{one.key}.".startswith(wrong)]
    problems += [_problem_at(tree, one.key, one.message) for one in found if one.kind == "impossible"]
    if not invalid:
        problems += _locate_given((one for one in found if one.kind == "impossible if given"), tree, experiment)
    if experiment is not None and task.reference and not invalid:
        new = _locate_in_new_run(check_new_run(experiment, further_metrics), tree)
        problems += [problem for kind, problem in new if kind == "impossible"]
        warnings += [problem for kind, problem in new if kind == "remark"]
    if problems or experiment is None:
        raise ConfigError(problems)
    hints = _locate_given((one for one in found if one.kind in ("no effect", "remark")), tree, experiment)
    # A run's own configuration has every option, also those without effect, and warned of them when it started.
    warnings += [one for one in hints if one.place is None or find_owning_run(Path(one.place.file)) is None]
    return experiment, warnings


def _settle_sections(
    tree: PlacedDict,
    task: ChosenTask,
    folder: Path,
    read: Read | None,
    problems: list[Problem],
    warnings: list[Problem],
) -> list[str]:
    """Settle, section by section, what types of single options can't express; return the warnings of inner experiments.

    These are experiments inside this one, classes by their names, options of another type, and relative paths. ``read``
    builds an experiment from layers; None if this one may not contain any. ``problems`` and ``warnings`` are added to.
    """
    inner_warnings = []
    short_names = {**COMPONENTS, **task.spec.short_names}
    weights = find(tree, ("training", "checkpoint", "init_from"))
    begun = {} if weights is None else {"training": {"checkpoint": {"init_from": weights.value}}}
    for path, section, kind in sections_in(tree, experiment_type(task.reference)):
        if issubclass(kind, InnerExperiment):
            wrong, more = settle_experiment(section, find_place(tree, path), place_all(begun), read)
            key = ".".join(path)
            problems += [Problem(one.place, f"{key}.{one.key}".rstrip("."), one.message) for one in wrong]
            inner_warnings += more
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
    return inner_warnings


def _look_up_secrets(tree: PlacedDict) -> None:
    """Replace references to secrets by the values of their environment variables, where these are set."""
    for path, (value, _) in walk(tree):
        found = REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if found is not None and is_secret(".".join(path), value) and (secret := find_value(found[1])):
            note(secret, found[1])
            replace(tree, path, secret)


def _walk_texts(values: Any) -> Iterator[str]:
    """Yield every string among resolved values that may name another run."""
    if isinstance(values, str):
        yield values
    elif isinstance(values, dict):
        yield from (text for key, one in values.items() if key not in _NEVER_A_RUN for text in _walk_texts(one))
    elif isinstance(values, list):
        yield from (text for one in values for text in _walk_texts(one))


_NEVER_A_RUN = {"name", "run_dir", "task", "type", "device"}


def _merge_layers(
    layers: list[PlacedDict], task: ChosenTask, model_type: Placed | None, problems: list[Problem]
) -> tuple[PlacedDict, list[Problem]]:
    """Merge layers over the task's defaults, under canonical names; return the tree and warnings of dropped options."""
    kind, spec, field = experiment_type(task.reference), task.spec, find_model_type(task.reference)
    spellings = Spellings(kind, spec.aliases, spec.stand_ins)
    default = field.default if field else None
    known, dropped = [place_all({"task": task.written, "model": {}, "data": {}, **spec.defaults})], []
    for layer in layers:
        tree, twice = canonical(layer, spellings, model_type.value if model_type else default)
        dropped += drop_options_of_other_tasks(tree, task)
        known.append(tree)
        problems += twice
    tree, replaced = merge_all(known, kind)
    tree["task"] = task.written
    return tree, [*dropped, *replaced]


def _name_run(tree: PlacedDict, last_file: Path) -> None:
    """Name the run after its last file, and its directory after the run, unless the user named them.

    The configuration of an existing run stands for the directory that it is in, wherever that was copied or moved.
    """
    name = tree.setdefault("name", last_file.stem)
    tree.setdefault("run_dir", f"runs/{name}")
    place = tree.places.get("run_dir")
    run = find_owning_run(Path(place.file)) if place else None
    if run is not None:
        tree["run_dir"] = str(run)


DECIDING_LENGTH = ("data", "datasets", "global_config", "tasks")
DECIDING_LENGTH_OF_TRAINING = ("epochs", "max_steps", "batch_size", "gradient_accumulation_steps", "batching")


def _settle_long_warmup(tree: PlacedDict, layers: list[PlacedDict]) -> None:
    """Allow the warm-up to be shortened if it is from a lower layer than the options that decide how long training is.

    Such a warm-up comes from a recipe, and was chosen for other data. ``layers`` are those of ``tree``, lowest first.
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
    """Set options that are newer than a run's own configuration to the values that keep its behaviour."""

    def get_own(key: str) -> Any:
        # Overrides are left out: they say nothing about how the run started.
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


def _settle_dependent_options(tree: PlacedDict, spec: TaskSpec, folder: Path) -> list[Problem]:
    """Set options that aren't given to the values that follow from other options; return remarks on them."""
    remarks = []
    for key, (value, why) in spec.follows(lambda key: _get_value(tree, key), folder).items():
        if _get_value(tree, key) is None:
            put(tree, split_key(key), Placed(value))
            remarks.append(Problem(None, key, f"{value:g}, {why}"))
    return remarks


def _problem_at(tree: PlacedDict, key: str, message: str) -> Problem:
    """Return a problem, placed at the nearest line that the user wrote."""
    return Problem(find_place(tree, split_key(key)), key, message)


def _locate_given(found: Iterable[CheckFinding], tree: PlacedDict, experiment: Any) -> list[Problem]:
    """Return the findings about keys that the user gave, each placed at its line.

    An option written once for several sections (``model.global_config``) has no effect only if it has none in any.
    """
    written: dict[Any, set[str]] = {}
    for path, (_, place) in walk(tree):
        if place is not None:
            key = ".".join(path)
            written.setdefault((place, place.key or key, path[-1:]), set()).add(key)
    # For each key that the user wrote, all keys that the same line sets, itself included.
    together = {key: keys for keys in written.values() for key in keys}
    found = list(found)
    without_effect = {one.key for one in found if one.kind == "no effect"}
    return [
        _problem_at(tree, one.key, one.message)
        for one in found
        if one.key in together
        and (one.kind != "no effect" or together[one.key] <= without_effect)
        and _is_due(tree, one, experiment)
    ]


def _locate_in_new_run(found: Iterable[CheckFinding], tree: PlacedDict) -> list[tuple[FindingKind, Problem]]:
    """Return the findings about keys that the user gave, except those in the configuration of an existing run."""
    problems = []
    for one in found:
        given = find(tree, split_key(one.key))
        if given is not None and given.place is not None and find_owning_run(Path(given.place.file)) is None:
            problems.append((one.kind, Problem(given.place, one.key, one.message)))
    return problems


def _is_due(tree: PlacedDict, one: CheckFinding, experiment: Any) -> bool:
    """Return whether a finding deserves a warning: ``profiling: false`` doesn't, unless the default is true.

    A remark may be about false, too, but not about null.
    """
    path = split_key(one.key)
    given, section = find(tree, path), experiment
    for part in path[:-1]:
        section = section[int(part)] if isinstance(section, tuple) else getattr(section, str(part), None)
    # A list, or a user's own options, has no field.
    field = getattr(type(section), "model_fields", {}).get(path[-1])
    false_is_off = one.kind != "remark" and (field is None or field.default is not True)
    return given is not None and given.value not in ((None, False) if false_is_off else (None,))
