"""Figures that any task can have: the mean of each loss, and the means of what functions of a batch add up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from vaak.core.batch import Batch, Term
from vaak.core.errors import UserError
from vaak.core.task import Meters

Metric = Callable[[nn.Module, Batch], Any]
"""What ``as_term`` takes: a sum with its unit, or a value for each row."""

EXAMPLE = "example"
"""The unit of rows."""


def as_term(value: Any, batch: Batch, where: str) -> Term:
    """A sum with its unit: of ``Term(sum, per)``, of ``(sum, unit)``, or of a tensor with a value for each row.

    Raises UserError for anything else; ``where`` says what gave it.
    """
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str):
        value = Term(*value)
    elif isinstance(value, Tensor) and value.shape == (batch.num_rows,):
        value = Term(value.sum(), EXAMPLE)
    if isinstance(value, Term) and isinstance(value.total, Tensor) and not value.total.ndim:
        return value
    counted = ", ".join(f"{unit} {count:g}" for unit, count in batch.totals().items())
    shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
    raise UserError(
        f"{where} gave a {type(value).__name__}{shape}; expected vaak.Term(sum, per=unit), (sum, unit), or a value for "
        f"each row; the batch counts {counted}"
    )


class LossMeters(Meters):
    """``loss``, the weighted sum of the means of all losses, and, where there are several, each mean."""

    def __init__(
        self,
        losses: Callable[[nn.Module, Batch], dict[str, Term]],
        split: str,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.protocol = {"split": split}
        self._losses, self._weights, self._sums = losses, weights or {}, _Sums()

    def update(self, model: nn.Module, batch: Batch) -> None:
        self._sums.add(self._losses(model, batch), batch)

    def sums(self) -> dict[str, float]:
        return self._sums.values

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        means = means_of(sums)
        total = sum(self._weights.get(name, 1.0) * mean for name, mean in means.items())
        return {**(means if len(means) > 1 else {}), "loss": total}


class AlsoMeasured(Meters):
    """Other meters, and the means of what functions of the model and a batch add up, by name."""

    def __init__(self, meters: Meters, metrics: Mapping[str, Metric]) -> None:
        self.protocol = meters.protocol
        self._meters, self._metrics, self._sums = meters, metrics, _Sums("metric ")

    def update(self, model: nn.Module, batch: Batch) -> None:
        found = {
            name: as_term(metric(model, batch), batch, f"the metric {name}") for name, metric in self._metrics.items()
        }
        self._meters.update(model, batch)
        self._sums.add(found, batch)

    def sums(self) -> dict[str, float]:
        return self._meters.sums() | self._sums.values

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        own = {name: value for name, value in sums.items() if name.startswith("metric ")}
        others = {name: value for name, value in sums.items() if name not in own}
        return self._meters.results(others) | means_of(own, "metric ")

    def pictures(self) -> dict[str, bytes]:
        return self._meters.pictures()

    def audio(self) -> dict[str, bytes]:
        return self._meters.audio()

    def tables(self) -> dict[str, str]:
        return self._meters.tables()


class _Sums:
    """The sums of terms, each with the count of its unit, under names that begin with ``prefix``."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix, self.values = prefix, dict[str, float]()

    def add(self, terms: Mapping[str, Term], batch: Batch) -> None:
        totals, added = batch.totals(), dict[str, float]()
        for name, term in terms.items():
            if term.per not in totals:
                raise UserError(
                    f"{name} is a sum per {term.per}, but the batch counts {', '.join(totals) or 'nothing'}"
                )
            added[f"{self.prefix}{name} sum"] = float(term.total.detach())
            added[f"{self.prefix}{name} count"] = totals[term.per]
        for name, value in added.items():
            self.values[name] = self.values.get(name, 0.0) + value


def means_of(sums: Mapping[str, float], prefix: str = "") -> dict[str, float]:
    """Each sum over its count; not a number where nothing was counted.

    >>> means_of({"loss sum": 6.0, "loss count": 3.0})
    {'loss': 2.0}
    """
    names = [name.removesuffix(" sum") for name in sums if name.endswith(" sum")]
    counts = {name: sums[f"{name} count"] for name in names}
    return {
        name.removeprefix(prefix): sums[f"{name} sum"] / counts[name] if counts[name] else math.nan for name in names
    }
