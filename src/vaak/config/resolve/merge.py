"""One tree over another: what the upper one says wins, the rest stays."""

from __future__ import annotations

from typing import Any

from vaak.config.fields import (
    SectionType,
    annotation_of,
    applies,
    is_list,
    is_users_type,
    item_of,
    names_class,
    section_of,
    type_of,
    types_reading,
)
from vaak.config.yaml.errors import Problem
from vaak.config.yaml.tree import Node, copy_of


class Merger:
    """Merges trees in order; ``dropped`` says which of the user's options a later ``type`` made invalid."""

    def __init__(self) -> None:
        self.dropped: list[Problem] = []

    def over(self, upper: Node, lower: Node, annotation: Any, path: str = "") -> Node:
        """``lower`` with ``upper`` laid over it: sections key by key, lists and values as a whole.

        A mapping with places as keys (``betas.0``, ``callbacks.1.patience``) replaces these items of a list.
        """
        if upper.is_mapping and isinstance(lower.value, list) and is_list(annotation):
            items = self._items(upper, lower, annotation, path)
            return upper if items is None else Node(items, upper.place)
        if not (upper.is_mapping and lower.is_mapping):
            return upper
        section = section_of(annotation)
        kept = self._still_read(upper, lower, section, path) if section else dict(lower.value)
        for key, child in upper.value.items():
            below, name = kept.get(key), f"{path}.{key}".lstrip(".")
            kept[key] = child if below is None else self.over(child, below, annotation_of(section, key), name)
        return Node(kept, upper.place or lower.place)

    def _items(self, upper: Node, lower: Node, annotation: Any, path: str) -> list[Node] | None:
        """The list with some items replaced or added at its end; None where a key is not an index of it."""
        items = list(lower.value)
        if not all(key.isdecimal() for key in upper.value):
            return None
        for index, child in sorted(((int(key), child) for key, child in upper.value.items()), key=lambda pair: pair[0]):
            if index > len(items):
                return None
            below = items[index : index + 1]
            over = self.over(child, below[0], item_of(annotation), f"{path}.{index}") if below else child
            items[index : index + 1] = [over]
        return items

    def _still_read(self, upper: Node, lower: Node, section: SectionType, path: str) -> dict[str, Node]:
        """What the lower section's keys leave when the upper one names another type."""
        new_type = upper.value.get("type")
        old_type = type_of(lower, section)
        if new_type is None or new_type.value == old_type:
            return dict(lower.value)
        kept, was_users = {}, is_users_type(section, old_type)
        for key, child in lower.value.items():
            known = key in section.model_fields or not names_class(section)
            its_own = was_users and bool(types_reading(section, key))
            if key == "type" or (known and not its_own and applies(section, key, new_type.value)):
                kept[key] = child
            elif child.place is not None:
                message = f"not used: {new_type.place} makes the type {new_type.value}, which does not read it"
                self.dropped.append(Problem(child.place, f"{path}.{key}".lstrip("."), message))
        return kept


def fill_items(node: Node, section: SectionType) -> Node:
    """The tree in which items given by place (``betas.0``) without a list below them are laid over the default list."""
    merger = Merger()
    fields = {}
    for key, child in node.value.items():
        annotation = annotation_of(section, key)
        inner = section_of(annotation)
        if child.is_mapping and is_list(annotation):
            default = section.model_fields[key].default
            items = [Node(value) for value in default] if isinstance(default, tuple) else []
            child = merger.over(child, Node(items), annotation)
        elif child.is_mapping and inner is not None:
            child = fill_items(child, inner)
        fields[key] = child
    return Node(fields, node.place)


def merge_all(layers: list[Node], annotation: Any) -> tuple[Node, list[Problem]]:
    """All layers, the first lowest, and which of the user's options were dropped on the way."""
    merger = Merger()
    tree = Node({})
    for layer in layers:
        tree = merger.over(copy_of(layer), tree, annotation)
    return tree, merger.dropped
