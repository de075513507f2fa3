"""Accelerate's other trackers (MLflow, Comet, Aim, ...) by name."""

from __future__ import annotations

from typing import Any

from vaak.callbacks.tracked import numbers
from vaak.core.callback import Callback
from vaak.engine.ranks import accelerate_trackers
from vaak.engine.records import Record


class TrackersCallback(Callback):
    """Hands every record to trackers of accelerate."""

    main_process_only = True

    def __init__(self, names: tuple[str, ...], config: dict[str, Any], only: tuple[str, ...] | None = None) -> None:
        self.names, self.config, self.only = names, config, only
        self.trackers: list[Any] = []

    def on_fit_start(self, trainer: Any) -> None:
        directory = trainer.directory
        self.trackers = accelerate_trackers(self.names, directory.name, str(directory), self.config)
        trainer.records.subscribe(self.write)

    def write(self, record: Record) -> None:
        for tracker in self.trackers:
            tracker.log(numbers(record, self.only), step=record["step"])

    def on_fit_end(self, trainer: Any, reason: str) -> None:
        for tracker in self.trackers:
            tracker.finish()
