"""Folds of a cross-validation: which examples each fold tests on, and which it validates on.

A unit stays together: an example, or all that share a group (a speaker). Each unit goes to the fold that has the
fewest of its stratum (its label), and of those to the smallest. Validation data are a share of a fold's training data,
spread over the strata alike. Units are taken in the order of a hash of seed, repeat and name.

FILE  {"folds": 5, …, "corpora": {NAME: [{"key", "where", "stratum", "groups", "test": [3], "valid": [[1, 4]]}, …]}}:
for each repeat the fold that tests on an example, and the folds that validate on it; the others train on it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from vaak.core.errors import DataError, UserError
from vaak.core.splits import SPLITS, Splits, hash_text
from vaak.core.storage.files import read_json, write_text


class FoldExample(NamedTuple):
    """An example as folds see it; equal keys stay together, as do those that share one of ``groups``."""

    key: str
    where: str
    stratum: str = ""
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """The folds of an example in one repeat: the fold that tests on it, and those that validate on it, from 1."""

    test: int
    valid: tuple[int, ...]


@dataclass
class _Unit:
    members: list[int] = field(default_factory=list)
    strata: Counter[str] = field(default_factory=Counter)

    @property
    def size(self) -> int:
        return len(self.members)


def divide(examples: Sequence[FoldExample], folds: int, valid: float, seed: int, repeat: int) -> list[Place]:
    """Return each example's place in one ``repeat`` of the ``folds``; keys must differ.

    ``valid`` is the share of the training part that validates; ``seed`` and ``repeat`` give the order.

    Raises UserError if there aren't enough examples of a stratum, or groups, for this number of folds.
    """
    units = _units(examples)
    _require_enough(examples, units, folds)

    def order(unit: _Unit, *more: int) -> tuple[str, int]:
        name = " ".join(map(str, (seed, repeat, *more)))
        return max(unit.strata, key=lambda one: (unit.strata[one], one)), min(
            hash_text(f"{name} {examples[member].key}") for member in unit.members
        )

    # large units first, as in bin packing: small ones then even out the folds
    tests = _tests(sorted(units, key=lambda unit: (-unit.size, *order(unit))), folds)
    places: list[list[int]] = [[] for _ in units]
    for fold in range(folds):
        own = [number for number in range(len(units)) if tests[id(units[number])] != fold]
        # the fold's number is part of the order, so that folds don't validate on the same units
        own.sort(key=lambda number: order(units[number], fold))
        chosen = _validated([units[number] for number in own], valid)
        for number, is_chosen in zip(own, chosen, strict=True):
            if is_chosen:
                places[number].append(fold + 1)
    found: dict[int, Place] = {}
    for unit, validates in zip(units, places, strict=True):
        found |= dict.fromkeys(unit.members, Place(tests[id(unit)] + 1, tuple(validates)))
    _require_trained(examples, found, folds)
    return [found[number] for number in range(len(examples))]


def _units(examples: Sequence[FoldExample]) -> list[_Unit]:
    """Return the sets of examples that stay together, by union-find over their groups."""
    parents = list(range(len(examples)))

    def root(number: int) -> int:
        while parents[number] != number:
            # halves the path on the way, so that chains of groups stay short
            parents[number] = number = parents[parents[number]]
        return number

    first: dict[str, int] = {}
    for number, example in enumerate(examples):
        for group in example.groups:
            parents[root(number)] = root(first.setdefault(group, number))
    units: dict[int, _Unit] = {}
    for number, example in enumerate(examples):
        unit = units.setdefault(root(number), _Unit())
        unit.members.append(number)
        unit.strata[example.stratum] += 1
    return list(units.values())


def _tests(units: Sequence[_Unit], folds: int) -> dict[int, int]:
    """Return the fold that tests on each unit."""
    found: dict[int, int] = {}
    totals: Counter[str] = sum((unit.strata for unit in units), Counter())
    counts: list[Counter[str]] = [Counter() for _ in range(folds)]
    sizes = [0] * folds
    for unit in units:

        def crowding(fold: int, unit: _Unit = unit) -> tuple[float, int, int]:
            """How much the sum of squared shares of the unit's strata grows."""
            grown = sum(n * (2 * counts[fold][one] + n) / totals[one] for one, n in unit.strata.items())
            # ties go to the smaller fold, then to the lower number, so that the division is reproducible
            return grown, sizes[fold], fold

        best = min(range(folds), key=crowding)
        counts[best] += unit.strata
        sizes[best] += unit.size
        found[id(unit)] = best
    return found


def _validated(units: Sequence[_Unit], share: float) -> list[bool]:
    """Whether each unit, in this order, is validated on: the share of all before it, and never all of a stratum."""
    left: Counter[str] = sum((unit.strata for unit in units), Counter())
    seen, taken, chosen = 0, 0, [False] * len(units)

    def take(number: int) -> None:
        nonlocal taken
        chosen[number], taken = True, taken + units[number].size
        left.subtract(units[number].strata)

    def may_go(unit: _Unit) -> bool:
        return all(left[one] > number for one, number in unit.strata.items())

    for number, unit in enumerate(units):
        seen += unit.size
        # rounds to the nearest: a unit is taken once at least half of it is due
        if share * seen - taken >= unit.size / 2 and may_go(unit):
            take(number)
    free = [number for number, unit in enumerate(units) if may_go(unit)]
    # a small share may round to nothing, but the best checkpoint must be chosen by something
    if not taken and free:
        take(min(free, key=lambda number: units[number].size))
    if not any(chosen):
        raise UserError("a fold would have nothing to validate on apart from what it trains on; give fewer --folds")
    return chosen


def _require_enough(examples: Sequence[FoldExample], units: Sequence[_Unit], folds: int) -> None:
    grouped = len(units) < len(examples)
    if len(units) < folds:
        what = "groups (--group-by)" if grouped else "examples"
        raise UserError(f"there are {len(units)} {what}, fewer than the {folds} folds; give fewer --folds")
    counts = Counter(stratum for unit in units for stratum in unit.strata)
    stratum, fewest = min(counts.items(), key=lambda one: (one[1], one[0]))
    if not grouped and fewest < folds:
        raise UserError(
            f"{stratum} has {fewest} example{'s' * (fewest != 1)}, fewer than the {folds} folds; give fewer --folds, "
            "or --stratify-by none"
        )


def _require_trained(examples: Sequence[FoldExample], places: dict[int, Place], folds: int) -> None:
    """Raises UserError if a fold's evaluations have a stratum that its training doesn't have."""
    trained: list[set[str]] = [set() for _ in range(folds)]
    for number, place in places.items():
        for fold in range(folds):
            if place.test != fold + 1 and fold + 1 not in place.valid:
                trained[fold].add(examples[number].stratum)
    for stratum in sorted({example.stratum for example in examples}):
        if not all(stratum in one for one in trained):
            raise UserError(f"a fold would have no example of {stratum} to train on: all of them are in one group")


def write_folds(path: Path, about: dict[str, Any], corpora: dict[str, list[tuple[FoldExample, list[Place]]]]) -> None:
    """Write ``about`` and each example of the corpora with its place in every repeat, an example a line."""
    lines = [json.dumps(about, ensure_ascii=False)[:-1] + ', "corpora": {']
    for last, (name, rows) in enumerate(corpora.items(), 1 - len(corpora)):
        lines.append(f"{json.dumps(name, ensure_ascii=False)}: [")
        written = []
        for example, places in rows:
            tests, valid = [place.test for place in places], [place.valid for place in places]
            row = {**example._asdict(), "key": _mark(example.key), "test": tests, "valid": valid}
            written.append(json.dumps(row, ensure_ascii=False))
        lines += [",\n".join(written), "]" if last == 0 else "],"]
    write_text(path, "\n".join([*lines, "}}"]) + "\n")


def _mark(key: str) -> str:
    return f"{hash_text(key):016x}"


class FoldSplits(Splits):
    """The splits of one fold: all are cut from the train split, or from all the data."""

    def __init__(self, fold: str, file: str | None, there: Sequence[str], where: str) -> None:
        """``fold`` is REPEAT:NUMBER of a ``file``; ``there`` are the splits of the corpus ``where``."""
        try:
            self.repeat, self.number = map(int, fold.split(":"))
        except ValueError:
            raise UserError(f"{where}: fold is {fold}; expected REPEAT:NUMBER") from None
        if file is None:
            raise UserError(f"{where}: fold {fold} requires folds_file, the folds.json of a cross-validation")
        self.file, self.where, self._there = Path(file).expanduser(), where, tuple(there)
        self.given, self.ranges = ("train",), dict.fromkeys(SPLITS, (0.0, 1.0))

    def list_sources(self, split: str) -> tuple[str, ...]:
        return self._there if self._about["pool"] == "all" else ("train",)

    def is_all_of_its_source(self, split: str) -> bool:
        return False

    def of_key(self, key: str | None, where: str) -> str:
        """Return the split of an example; one without a key is nobody's, and left to train.

        Raises DataError for one that wasn't there when the folds were made.
        """
        if key is None:
            return "train"
        try:
            test, valid = self._places[_mark(key)]
        except KeyError:
            raise DataError(
                f"{where}: this isn't in {self.file}: the data have changed since vaak crossval divided them; restore "
                "them, or give fold=null for other data"
            ) from None
        return "test" if test == self.number else "valid" if self.number in valid else "train"

    @cached_property
    def _about(self) -> dict[str, Any]:
        """The content of the file. Raises UserError if it can't be read, or has no such fold."""
        try:
            found: dict[str, Any] = read_json(self.file)
            folds, repeats = found["folds"], found["repeats"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.where}: folds_file: {self.file} isn't a file of folds (vaak crossval): {error}"
            ) from error
        if not (0 < self.number <= folds and 0 < self.repeat <= repeats):
            raise UserError(
                f"{self.where}: fold: {self.file} has {repeats} times {folds} folds, and no {self.repeat}:{self.number}"
            )
        return found

    @cached_property
    def _places(self) -> dict[str, tuple[int, list[int]]]:
        rows: Iterator[dict[str, Any]] = iter(self._about["corpora"].get(self.where, ()))
        return {row["key"]: (row["test"][self.repeat - 1], row["valid"][self.repeat - 1]) for row in rows}
