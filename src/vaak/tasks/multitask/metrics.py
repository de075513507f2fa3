"""Metrics of several tasks: each task's own, as TASK/metric, and ``loss``, the weighted sum of their losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from vaak.core.batch import Batch
from vaak.core.task import Meters
from vaak.tasks.multitask.data import unwrap_batch


class JointMeters(Meters):
    """The meters of each task; ``weights`` are those of the tasks in ``loss``, 1 where not given."""

    def __init__(self, meters: Mapping[str, Meters], split: str, weights: Mapping[str, float]) -> None:
        own = {f"{name}/{key}": value for name, one in meters.items() for key, value in one.protocol.items()}
        self.protocol = {"split": split, **{key: value for key, value in own.items() if not key.endswith("/split")}}
        self.meters, self.weights = meters, weights

    def expect_rehearsal(self) -> None:
        for one in self.meters.values():
            one.expect_rehearsal()

    def update(self, model: nn.Module, batch: Batch) -> None:
        models: Any = model.tasks
        name, own = unwrap_batch(batch)
        self.meters[name].update(models[name], own)

    def sums(self) -> dict[str, float]:
        return {f"{name}/{key}": value for name, one in self.meters.items() for key, value in one.sums().items()}

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        """Return the metrics of the tasks that have examples; ``loss`` only where all have."""
        metrics, losses = dict[str, float](), list[float]()
        for name, one in self.meters.items():
            own = {key.removeprefix(f"{name}/"): sums[key] for key in sums if key.startswith(f"{name}/")}
            if not any(own.values()):
                continue
            results = one.results(own)
            losses.append(self.weights.get(name, 1.0) * results.get("loss", 0.0))
            metrics |= {f"{name}/{metric}": value for metric, value in results.items()}
        return {"loss": sum(losses), **metrics} if len(losses) == len(self.meters) else metrics

    def pictures(self) -> dict[str, bytes]:
        return {f"{name}_{key}": value for name, one in self.meters.items() for key, value in one.pictures().items()}

    def audio(self) -> dict[str, bytes]:
        return {f"{name}_{key}": value for name, one in self.meters.items() for key, value in one.audio().items()}

    def seen(self) -> dict[str, list[Any]]:
        return {f"{name}/{key}": value for name, one in self.meters.items() for key, value in one.seen().items()}

    def summary(self, sums: dict[str, float], seen: dict[str, list[Any]]) -> dict[str, Any]:
        found = {}
        for name, one in self.meters.items():
            own = {key.removeprefix(f"{name}/"): value for key, value in sums.items() if key.startswith(f"{name}/")}
            its = {key.removeprefix(f"{name}/"): value for key, value in seen.items() if key.startswith(f"{name}/")}
            found[name] = one.summary(own, its) if any(own.values()) else {}
        return {"tasks": {name: one for name, one in found.items() if one}}

    def tables(self) -> dict[str, str]:
        return {f"{name}_{key}": value for name, one in self.meters.items() for key, value in one.tables().items()}
