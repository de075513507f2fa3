"""Accelerate's other trackers (MLflow, Comet, Aim, ...) by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vaak.callbacks.tracking.tracked import Tracker, numbers
from vaak.core.callback import Run
from vaak.engine.distributed.ranks import accelerate_tracker
from vaak.engine.records.metrics_file import Record


class AccelerateTrackerCallback(Tracker):
    """Hands every record to a tracker of accelerate.

    Raises UserError where there is none of this name, or it isn't installed.
    """

    def __init__(self, name: str, config: dict[str, Any], only: tuple[str, ...] | None = None) -> None:
        super().__init__(only)
        self.name = name
        self.config = config
        self.kind = accelerate_tracker(name)
        self.tracker: Any = None

    def open(self, trainer: Run) -> None:
        folder = {"logging_dir": str(trainer.directory)} if self.kind.requires_logging_directory else {}
        if self.name == "wandb":  # it writes into the current folder otherwise
            folder = {"dir": str(trainer.directory)}
        self.tracker = self.kind(trainer.directory.name, **folder)
        if hasattr(self.tracker, "start"):
            self.tracker.start()
        self.tracker.store_init_configuration(flat(self.config))

    def write(self, record: Record) -> None:
        self.tracker.log(numbers(record, self.only), step=record["step"])

    def close(self) -> None:
        if self.tracker is not None:
            self.tracker.finish()


def flat(options: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float | str]:
    """Options by their dotted names, as trackers take them: what isn't a number or text is JSON.

    >>> flat({"name": "run", "training": {"epochs": 3, "freeze": [], "ema": None}})
    {'name': 'run', 'training.epochs': 3, 'training.freeze': '[]', 'training.ema': 'null'}
    """
    values: dict[str, bool | int | float | str] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            values |= flat(value, f"{prefix}{name}.")
        else:
            values[prefix + name] = value if isinstance(value, bool | int | float | str) else json.dumps(value)
    return values
