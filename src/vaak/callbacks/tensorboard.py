"""TensorBoard events that repeat what ``metrics.jsonl`` says."""

from __future__ import annotations

from typing import Any

from vaak.callbacks.tracked import numbers
from vaak.core.callback import Callback
from vaak.engine.records import Record


class TensorBoardCallback(Callback):
    """Writes RUN/tensorboard; points beyond the place where the run begins or goes on are purged."""

    main_process_only = True

    def __init__(self, only: tuple[str, ...] | None = None) -> None:
        self.only = only
        self.writer: Any = None

    def on_fit_start(self, trainer: Any) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = str(trainer.directory / "tensorboard")
        self.writer = SummaryWriter(folder, purge_step=trainer.position.step + 1)
        trainer.records.subscribe(self.write)

    def write(self, record: Record) -> None:
        for name, value in numbers(record, self.only).items():
            self.writer.add_scalar(name, value, record["step"])

    def on_fit_end(self, trainer: Any, reason: str) -> None:
        if self.writer is not None:
            self.writer.close()
