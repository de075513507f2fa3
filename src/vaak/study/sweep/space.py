"""What a sweep varies: options with their choices or their range, from the command line."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import product
from typing import Any

from vaak.core.errors import UserError

RANGES = ("log", "uniform", "int", "logint")
_KEY = re.compile(r"[a-zA-Z_]\w*(\.\w+)*")


@dataclass(frozen=True)
class Choices:
    """An option and the values to try, as they are written in YAML."""

    key: str
    values: tuple[str, ...]

    def suggest(self, trial: Any) -> str:
        return str(trial.suggest_categorical(self.key, self.values))


@dataclass(frozen=True)
class Range:
    """An option and the range that its values are drawn from; ``kind`` is one of ``RANGES``."""

    key: str
    kind: str
    low: float
    high: float

    def suggest(self, trial: Any) -> str:
        log = self.kind.startswith("log")
        if self.kind.endswith("int"):
            return str(trial.suggest_int(self.key, int(self.low), int(self.high), log=log))
        return repr(trial.suggest_float(self.key, self.low, self.high, log=log))


Dimension = Choices | Range


def read_grid(text: str) -> Choices:
    """``key=value,value,…``; commas within brackets or quotes don't separate.

    >>> read_grid("model.kernel_sizes=[3, 5],[7]")
    Choices(key='model.kernel_sizes', values=('[3, 5]', '[7]'))
    """
    key, values = _key_and_rest(text, "--grid", "KEY=VALUE,VALUE")
    choices = tuple(value.strip() for value in _parts(values))
    if not all(choices) or len(set(choices)) < len(choices):
        raise UserError(f"--grid {text}: expected different values between commas, like {key}=1,2")
    return Choices(key, choices)


def read_random(text: str) -> Dimension:
    """``key=log:1e-5:1e-2``, ``key=uniform:0:0.5``, ``key=int:1:8``, ``key=logint:16:1024`` or ``key=a,b``.

    >>> read_random("training.optimizer.lr=log:1e-5:1e-2")
    Range(key='training.optimizer.lr', kind='log', low=1e-05, high=0.01)
    """
    key, rest = _key_and_rest(text, "--random", "KEY=log:LOW:HIGH")
    kind, *limits = rest.split(":")
    if kind not in RANGES:
        return read_grid(text)
    try:
        low, high = map(float, limits)
    except ValueError:
        raise UserError(f"--random {text}: expected two numbers, like {key}={kind}:1:8") from None
    whole = not kind.endswith("int") or (low.is_integer() and high.is_integer())
    if not (math.isfinite(low) and math.isfinite(high) and low < high and whole and (low > 0 or kind[:3] != "log")):
        raise UserError(
            f"--random {text}: expected a lower and a higher limit"
            + (", whole numbers" if kind.endswith("int") else "")
            + (", above 0" if kind.startswith("log") else "")
        )
    return Range(key, kind, low, high)


def points(dimensions: list[Dimension]) -> list[dict[str, str]]:
    """Every point of a grid; none where a range has no end of them."""
    choices = [one for one in dimensions if isinstance(one, Choices)]
    if len(choices) < len(dimensions):
        return []
    return [
        dict(zip([one.key for one in choices], values, strict=True))
        for values in product(*(one.values for one in choices))
    ]


def _key_and_rest(text: str, option: str, form: str) -> tuple[str, str]:
    key, equals, rest = text.partition("=")
    if not equals or not rest or not _KEY.fullmatch(key):
        raise UserError(f"{option} {text}: expected {form}")
    return key, rest


def _parts(text: str) -> list[str]:
    """Split at the commas that are outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
