"""Classes of Hugging Face sets by their names: a ``ClassLabel`` has numbers in its rows, and names in its features.

In ``datasets``, and in the metadata of Parquet that it wrote, where they are as JSON, under ``huggingface``:

    {"info": {"features": {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}}}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

ClassNames = Mapping[str, tuple[str, ...]]
"""The names of a column's classes, by column."""
_METADATA = b"huggingface"


def get_class_names(features: Any) -> dict[str, tuple[str, ...]]:
    """Return the names of the classes of each column that has some; ``features`` are as ``Features.to_dict()``.

    >>> get_class_names({"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}, "text": {"dtype": "string"}})
    {'label': ('neg', 'pos')}
    """
    found = {column: _names_in(feature) for column, feature in (features or {}).items()}
    return {column: names for column, names in found.items() if names}


def class_names_in(schema: Any) -> dict[str, tuple[str, ...]]:
    """Return the same of a Parquet file's ``schema_arrow``; none if its metadata say nothing of classes."""
    try:
        about = json.loads((schema.metadata or {}).get(_METADATA, b"{}"))
        return get_class_names(about.get("info", {}).get("features"))
    except (ValueError, AttributeError):
        # Another's metadata under this name.
        return {}


def name_classes(values: Mapping[str, Any], names: ClassNames) -> dict[str, Any]:
    """Return the values of a row, its classes by their names; -1, which says that there is none, is None."""
    return {column: _named(value, names[column]) if column in names else value for column, value in values.items()}


def number_names(classes: Sequence[str], names: Sequence[str]) -> dict[str, int]:
    """Return the place among ``classes`` of each of a set's names, where classes are exactly the set's numbers.

    So they are where a model was trained before names were read, or on a table with the numbers; else nothing.

    >>> number_names(["0", "1"], ["neg", "pos"]), number_names(["neg", "pos"], ["neg", "pos"])
    ({'neg': 0, 'pos': 1}, {})
    """
    numbers = [str(number) for number in range(len(names))]
    if {*classes} != {*numbers} or {*classes} == {*names}:
        return {}
    return {name.strip(): classes.index(number) for name, number in zip(names, numbers, strict=True)}


def _names_in(feature: Any) -> tuple[str, ...]:
    """Return the names of a feature's classes, or of those in its lists."""
    if isinstance(feature, list) and len(feature) == 1:
        return _names_in(feature[0])
    if not isinstance(feature, dict):
        return ()
    if feature.get("_type") == "ClassLabel":
        return tuple(map(str, feature.get("names") or ()))
    return _names_in(feature["feature"]) if "feature" in feature else ()


def _named(value: Any, names: tuple[str, ...]) -> Any:
    if isinstance(value, list):
        return [_named(one, names) for one in value]
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if value == -1:
        return None
    return names[value] if 0 <= value < len(names) else value
