"""Names in a run's configuration that the program which trained it had registered.

A loss, an optimizer or a schedule is of training alone: a run that names one by a name that only its program knows is
evaluated and used by every other program, too. What has no class here can't be made here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from vaak.config.base import REGISTERED
from vaak.config.catalog import AUXILIARY_LOSSES, LOSSES
from vaak.config.optimization import SCHEDULES, UPDATE_RULES
from vaak.config.yaml.reader import read_yaml
from vaak.config.yaml.tree import to_plain
from vaak.core.errors import UserError

OF_TRAINING: dict[str, Collection[str]] = {
    "training.loss.main": LOSSES,
    "training.optimizer": UPDATE_RULES,
    "training.scheduler": SCHEDULES,
}
"""Where a registered name may stand that using a model doesn't need, and the names that are built in."""


class NotHere:
    """Stands for a class that only the program knows that trained a run."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise UserError("this needs a class that the program which trained this run registered; register it here, too")


@contextlib.contextmanager
def names_of_training_known(directory: Path) -> Iterator[None]:
    """Within this context, names of training that a run's configuration has are names of ``NotHere``, if of nothing."""
    values = to_plain(read_yaml(directory / "config.yml"))
    added = [
        (key, name)
        for key, name in _names(values)
        if ":" not in name and name.isidentifier() and name not in REGISTERED[key]
    ]
    for key, name in added:
        REGISTERED[key][name] = NotHere
    try:
        yield
    finally:
        for key, name in added:
            REGISTERED[key].pop(name, None)


def _names(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The names that aren't built in, each with the option under which it stands."""
    for key, built_in in OF_TRAINING.items():
        section = _at(values, key)
        name = section.get("type") if isinstance(section, dict) else section
        if isinstance(name, str) and name not in built_in:
            yield key, name
    auxiliary = _at(values, "training.loss.auxiliary")
    for name, about in auxiliary.items() if isinstance(auxiliary, dict) else ():
        loss = about.get("type") if isinstance(about, dict) else name
        if isinstance(loss, str) and loss not in AUXILIARY_LOSSES:
            yield "training.loss.auxiliary", loss


def _at(values: Any, key: str) -> Any:
    for name in key.split("."):
        values = values.get(name) if isinstance(values, dict) else None
    return values
