"""What is wrong with a configuration: every mistake, each with its place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vaak.config.yaml.tree import COMMAND_LINE, YamlPlace
from vaak.core.errors import UserError


@dataclass(frozen=True)
class Problem:
    """One mistake: where it stands, the dotted key (empty for the file itself), and what is wrong."""

    place: YamlPlace | None
    key: str
    message: str

    def __str__(self) -> str:
        key = (self.place.key if self.place else "") or self.key
        return ": ".join(str(part) for part in (self.place, key, self.message) if part)


class ConfigError(UserError):
    """All mistakes of a configuration, one line each: ``file:line: key: what was wrong``."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted({str(problem): problem for problem in problems}.values(), key=_reading_order)
        super().__init__("\n".join(map(str, self.problems)))


def _reading_order(problem: Problem) -> tuple[bool, str, int]:
    place = problem.place
    if place is None:
        return (False, "", 0)
    return (place == COMMAND_LINE, place.file, place.line or 0)
