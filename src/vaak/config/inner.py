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
from vaak.config.validate import sections_in, settle_components
from vaak.config.yaml.aliases import LOOP_OPTIONS
from vaak.config.yaml.fields import SectionType
from vaak.config.yaml.layers import Layers, get_folder, merge_all
from vaak.config.yaml.tree import ConfigError, Node, Problem, find, from_plain, to_plain
from vaak.core.names import from_home

SECTIONS = ("task", "model", "global_config", "datasets", "data")
LOOP = ({*LOOP_OPTIONS, *TrainingConfig.model_fields}) - {"loss", "label_smoothing"}
"""Options of training that belong to the outer experiment."""
OUTER = LOOP | {"name", "run_dir", "experiment_name", "wandb", "distillation"}

Read = Callable[[list[Node]], tuple[Experiment[Any, Any], list[str]]]


class InnerExperiment(Extensible):
    """An experiment inside of another: the sections that decide its task, model, data and loss."""

    bare: ClassVar[str | None] = "extends"

    @classmethod
    def __get_pydantic_json_schema__(cls, *_: Any) -> dict[str, Any]:
        return {"anyOf": [{"type": "object"}, {"type": "string"}]}


def settle_experiments(tree: Node, kind: SectionType, read: Read | None) -> tuple[list[Problem], list[str]]:
    """Replace each inner experiment by its resolved values; return the mistakes in them, and the warnings.

    ``read`` makes an experiment of layers, and its warnings; None: there may be none here. Each begins with the weights
    that the whole begins with.
    """
    problems, warnings = list[Problem](), list[str]()
    weights = find(tree, ("training", "checkpoint", "init_from"))
    begun = from_plain({} if weights is None else {"training": {"checkpoint": {"init_from": weights.value}}})
    for path, node, section in [*sections_in(tree, kind)]:
        if not issubclass(section, InnerExperiment):
            continue
        try:
            if read is None:
                raise ConfigError([Problem(node.place, "", "an experiment inside of another can't hold further ones")])
            experiment, said = read([*_layers(node), begun])
            values, warnings = resolved_values(experiment, with_secrets=True), [*warnings, *said]
            training = {name: value for name, value in values["training"].items() if name not in LOOP}
            kept = {name: values[name] for name in SECTIONS if name in values} | {"training": training}
            node.value = from_plain(kept).value
        except ConfigError as error:
            # The whole is checked further, without mistakes that only follow from this one.
            node.value = {}
            problems += [
                Problem(one.place or node.place, f"{path}.{one.key}".rstrip("."), one.message) for one in error.problems
            ]
    return problems, warnings


def _layers(node: Node) -> list[Node]:
    """Return what an inner experiment extends, without its loop, and the sections over it, the lowest first."""
    # A copy, since ``extends`` and the loop are taken out of it.
    own, files = Node(dict(node.value), node.place), Layers()
    base = own.value.pop("extends", None)
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
    given = _take_loop(own)
    if given:
        message = "belongs to the whole experiment, which has one loop; give it there"
        raise ConfigError([Problem(one.place, key, message) for key, one in given])
    return [*files.trees, own]


def _take_loop(layer: Node) -> list[tuple[str, Node]]:
    """Take the options of the loop out of a layer, and return them."""
    taken = [(key, layer.value.pop(key)) for key in sorted(OUTER & layer.value.keys() - {"training"})]
    training = layer.value.get("training")
    if training is not None and training.is_mapping:
        taken += [(f"training.{key}", training.value.pop(key)) for key in sorted(LOOP & training.value.keys())]
    return taken


def make_experiment(values: Mapping[str, Any]) -> Experiment[Any, Any]:
    """The experiment that an inner one's values give; its loop is the defaults. Raises UserError for no known task."""
    spec, kind = load_spec(values["task"]), experiment_type(values["task"])
    layers = [{"model": {}, "data": {}}, dict(spec.defaults), {"name": "inner", "run_dir": "inner", **values}]
    tree, _ = merge_all([from_plain(layer) for layer in layers], kind)
    settle_components(tree, kind, Path(), {**COMPONENTS, **spec.short_names})
    return kind.model_validate_json(json.dumps(to_plain(tree)), strict=True)
