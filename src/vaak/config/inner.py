"""Experiments inside of another one: each is read, merged and checked as one that stands alone.

In a YAML, an inner experiment is the path of a file, or its sections, or sections over a file::

    tasks:
      intent: intent.yml
      domain: {extends: intent.yml, data: {corpus: {label_columns: domain}}}

Read, it has its task, model, data and loss, all resolved; how a file would be trained alone is left out, since the
outer experiment has the loop.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from vaak.config.base import Extensible
from vaak.config.components import COMPONENTS
from vaak.config.experiment import Experiment, experiment_type
from vaak.config.resolved import resolved_values
from vaak.config.tasks import load_spec
from vaak.config.training import TrainingConfig
from vaak.config.validate import settle_component
from vaak.config.yaml.aliases import LOOP_OPTIONS
from vaak.config.yaml.fields import names_class, sections_in
from vaak.config.yaml.layers import Layers, get_folder, merge_all
from vaak.config.yaml.tree import ConfigError, PlacedDict, Problem, YamlPlace, place_all, take
from vaak.core.names import from_home

SECTIONS = ("task", "model", "global_config", "datasets", "data")
LOOP = ({*LOOP_OPTIONS, *TrainingConfig.model_fields}) - {"loss", "label_smoothing"}
"""Options of training that belong to the outer experiment."""
OUTER = LOOP | {"name", "run_dir", "experiment_name", "wandb", "distillation"}

Read = Callable[[list[PlacedDict]], tuple[Experiment[Any, Any], list[str]]]


class InnerExperiment(Extensible):
    """An experiment inside of another: the sections that decide its task, model, data and loss."""

    bare: ClassVar[str | None] = "extends"

    @classmethod
    def __get_pydantic_json_schema__(cls, *_: Any) -> dict[str, Any]:
        return {"anyOf": [{"type": "object"}, {"type": "string"}]}


def settle_experiment(
    section: PlacedDict, place: YamlPlace | None, begun: PlacedDict, read: Read | None
) -> tuple[list[Problem], list[str]]:
    """Replace an inner experiment by its resolved values; return the mistakes in it, and the warnings.

    ``read`` makes an experiment of layers, and its warnings; None: there may be none here. ``begun`` is its uppermost
    layer: the weights that the whole begins with.
    """
    try:
        if read is None:
            raise ConfigError([Problem(place, "", "an experiment inside another can't contain further ones")])
        experiment, warnings = read([*_take_layers(section), begun])
        values = resolved_values(experiment, with_secrets=True)
    except ConfigError as error:
        # The whole is checked further, without mistakes that only follow from this one.
        section.clear()
        return [Problem(one.place or place, one.key, one.message) for one in error.problems], []
    training = {name: value for name, value in values["training"].items() if name not in LOOP}
    kept = {name: values[name] for name in SECTIONS if name in values} | {"training": training}
    section.clear()
    section.places.clear()
    for key, value in kept.items():
        section[key] = place_all(value)
    return [], warnings


def _take_layers(section: PlacedDict) -> list[PlacedDict]:
    """Return the layers of an inner experiment, lowest first: those that it extends, then its own sections."""
    base, files = take(section, ("extends",)), Layers()
    if base is not None and not isinstance(base.value, str):
        raise ConfigError([Problem(base.place, "extends", "expected the path of a YAML file")])
    if base is not None:
        file = get_folder(base.place) / from_home(base.value)
        if not file.is_file():
            raise ConfigError([Problem(base.place, "extends", f"{file} does not exist")])
        files.add_file(file, asked_at=base)
    if files.problems:
        raise ConfigError(files.problems)
    for layer in files.trees:
        _take_loop(layer)
    if given := _take_loop(section):
        message = "belongs to the whole experiment, which has one loop; give it there"
        raise ConfigError([Problem(place, key, message) for key, place in given])
    return [*files.trees, section]


def _take_loop(layer: PlacedDict) -> list[tuple[str, YamlPlace | None]]:
    """Take the options of the loop out of a layer, and return where they were written."""
    paths: list[tuple[str, ...]] = [(key,) for key in sorted(OUTER & layer.keys() - {"training"})]
    training = layer.get("training")
    if isinstance(training, PlacedDict):
        paths += [("training", key) for key in sorted(LOOP & training.keys())]
    return [(".".join(path), taken.place) for path in paths if (taken := take(layer, path)) is not None]


def make_experiment(values: Mapping[str, Any]) -> Experiment[Any, Any]:
    """The experiment that an inner one's values give; its loop is the defaults. Raises UserError for no known task."""
    spec, kind = load_spec(values["task"]), experiment_type(values["task"])
    layers = [{"model": {}, "data": {}}, dict(spec.defaults), {"name": "inner", "run_dir": "inner", **values}]
    tree, _ = merge_all(map(place_all, layers), kind)
    short_names = {**COMPONENTS, **spec.short_names}
    for path, section, of in sections_in(tree, kind):
        if names_class(of):
            settle_component(path, section, of, Path(), short_names)
    return kind.model_validate_json(json.dumps(tree), strict=True)
