"""Options of a model that stand for more than the section they are written in.

``model.global_config`` is for both sides of an encoder–decoder. Within one file, or on the command line:

    model.global_config.dropout ─┬─▶ model.encoder.dropout      unless the same file gives the side its own
                                 └─▶ model.decoder.dropout

Nothing of that name is left when files merge, so a later file sets both sides again. A model of one side may be
written in the same way: ``model.global_config`` and ``model.decoder`` then stand for ``model`` itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vaak.config.components import did_you_mean
from vaak.config.fields import SectionType, annotation_of, section_of
from vaak.config.yaml.errors import Problem
from vaak.config.yaml.tree import Node, copy_of, find, put, split_key, take


@dataclass(frozen=True)
class Sides:
    """Which sections of a task's model stand for others.

    ``shared`` has the sections that each of its options goes to; ``own``, for a model of one side, by its type the
    section that may stand for ``model``.
    """

    shared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)

    @property
    def targets(self) -> dict[str, tuple[str, ...]]:
        """Every such section with those it stands for."""
        return {**dict.fromkeys(self.own.values(), ("model",)), **self.shared}

    def aliases(self, of_task: Mapping[str, str]) -> dict[str, str]:
        """Other spellings inside these sections: the ones that hold where their options go."""
        return {
            f"{section}.{alias.removeprefix(f'{target}.')}": f"{section}.{name.removeprefix(f'{target}.')}"
            for section, targets in self.targets.items()
            for target in targets
            for alias, name in of_task.items()
            if alias.startswith(f"{target}.") and name.startswith(f"{target}.")
        }


def options_in(section: str, sides: Sides, experiment: SectionType) -> dict[str, list[str]]:
    """The options that a section may hold, each with the dotted names of what it stands for."""
    options: dict[str, list[str]] = {}
    for target in sides.targets[section]:
        kind: SectionType | None = experiment
        for key in split_key(target):
            kind = section_of(annotation_of(kind, key))
        for name in kind.model_fields if kind else ():
            options.setdefault(name, []).append(f"{target}.{name}")
    return options


def model_type_given(layers: Sequence[Node]) -> Node | None:
    """The type of model that the last layer which has one gives."""
    paths = (("model_type",), ("model", "model_type"))
    given = [node for layer in layers for path in paths if (node := find(layer, path)) is not None]
    return given[-1] if given else None


def take_other_sides(layers: Sequence[Node], sides: Sides, default: str | None) -> Iterator[Problem]:
    """Remove the sections of sides that the model lacks, and report them; ``default`` is its type if none is given."""
    given = model_type_given(layers)
    model_type = given.value if given is not None else default
    for side, section in sides.own.items():
        if side == model_type:
            continue
        for layer in layers:
            node = take(layer, split_key(section))
            if node is not None and isinstance(model_type, str) and model_type in sides.own:
                message = f"model.model_type is {model_type}, which has no {side}; leave the section out"
                yield Problem(node.place, section, message)


def spread(layer: Node, section: str, options: Mapping[str, list[str]]) -> Iterator[Problem]:
    """Copy a section's options to all they stand for that the layer doesn't set itself; yields mistakes."""
    node = take(layer, split_key(section))
    if node is None:
        return
    if not node.is_mapping:
        yield Problem(node.place, section, "expected a section of keys, or leave it out")
        return
    for key, child in node.value.items():
        if key not in options:
            yield Problem(child.place, f"{section}.{key}", f"unknown key{did_you_mean(key, options)}")
        for name in options.get(key, ()):
            if find(layer, split_key(name)) is None:
                put(layer, split_key(name), _written_as(f"{section}.{key}", child))


def _written_as(key: str, node: Node) -> Node:
    """A copy whose mistakes are reported under the key that the user wrote."""
    copied = copy_of(node)
    return Node(copied.value, replace(copied.place, key=key) if copied.place else None)
