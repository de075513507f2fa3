"""Console output for people: a line for each record, and a progress bar where there is a terminal."""

from __future__ import annotations

import logging
import time
from typing import Any

from vaak.callbacks.console.terminal import is_terminal
from vaak.core.callback import Callback, Run
from vaak.core.report import StepReport
from vaak.engine.records.metrics_file import Record

log = logging.getLogger("vaak.console")
"""Below ``vaak``, so that a console of JSON lines, which has the records already, can leave these out."""

REDRAW_SECONDS = 0.1


class ConsoleCallback(Callback):
    """Logs every record in a line; with ``progress_bar``, draws rate and time left below them."""

    main_process_only = True

    def __init__(self, progress_bar: bool = True) -> None:
        self.progress_bar = progress_bar
        self.progress: Any = None
        self.total_steps = 0
        self.loss = float("nan")
        self.next_redraw = 0.0

    def on_fit_start(self, trainer: Run) -> None:
        self.total_steps = trainer.total_steps
        if self.progress_bar and is_terminal():
            from vaak.callbacks.console.progress import start_progress

            self.progress = start_progress(trainer.position.step, trainer.total_steps)
        trainer.records.subscribe(self.say)

    def on_step_end(self, trainer: Run, report: StepReport) -> None:
        if self.progress is not None and time.monotonic() >= self.next_redraw:  # a step can be quicker than the bar
            self.next_redraw = time.monotonic() + REDRAW_SECONDS
            shown = {"loss": f"{self.loss:.4f}", "learning_rate": f"{report.learning_rate:.2e}"}
            self.progress.update(0, completed=report.step, **shown)

    def on_fit_end(self, trainer: Run, reason: str) -> None:
        if self.progress is not None:
            self.progress.stop()

    def say(self, record: Record) -> None:
        """One line of the log for a record."""
        if record["kind"] == "step":
            self.loss = record["loss"]
            rates = [
                f"{value:,.0f} {name.replace('_per_second', '/s')}"
                for name, value in record["clock"].items()
                if name != "seconds"
            ]
            log.info(
                "step %d/%d  loss %.4f  lr %.2e  grad %.3f  %s",
                record["step"],
                self.total_steps,
                record["loss"],
                record["learning_rate"],
                record["gradient_norm"],
                "  ".join(rates),
            )
        elif record["kind"] == "evaluation":
            log.info("step %d  %s", record["step"], "  ".join(_shown(record)))
        elif record["kind"] == "epoch":
            log.info("epoch %d ended  train loss %.4f", record["epoch"] + 1, record["train_loss"])


def _shown(record: Record) -> list[str]:
    """The evaluation's figures, without the parts of parts (``pairs_accuracy/number``)."""
    figures = {name: value for name, value in record.items() if isinstance(value, float) and "/" not in name}
    return [f"{name} {value:.4f}" for name, value in figures.items()]
